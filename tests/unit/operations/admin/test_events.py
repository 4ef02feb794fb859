"""Readers of events: pages, waits, streams, and the bound on those that wait."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tests.support.errors import refusal
from tfs_lite.core.history import EventKind, History
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.operations.admin.events import MAX_WAITING, EventFeed, Reader, WantedEvents, read_page, wanted_events
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import Health

EVERYTHING = Reader(lambda model: True)
ONLY_M = Reader(lambda model: model == "m")
SECONDS = 60


@pytest.fixture
def history():
    history = History(lambda: 1000.0)
    for version in range(5):
        history.append(EventKind.ASPIRED, "m", version)
    history.append(EventKind.ASPIRED, "n", 7)
    return history


def versions(page):
    return [event["version"] for event in page.events]


def test_without_a_number_the_latest_are_given(history):
    page = read_page(history, WantedEvents(limit=2), EVERYTHING)
    assert versions(page) == [4, 7]
    assert page.next == history.last_seq


def test_with_a_number_the_oldest_after_it_are_given_page_by_page(history):
    wanted, found = WantedEvents(after=history.first_seq, limit=2), []
    while len(page := read_page(history, wanted, EVERYTHING).events):
        found += page
        wanted = WantedEvents(after=page[-1]["seq"], limit=2)
    assert [event["version"] for event in found] == [1, 2, 3, 4, 7]


def test_a_full_page_goes_on_after_its_last_event_and_another_after_all(history):
    full = read_page(history, WantedEvents(after=0, limit=2), EVERYTHING)
    assert full.next == full.events[-1]["seq"]
    none = read_page(history, WantedEvents(after=0, kinds=frozenset({EventKind.LEAK})), EVERYTHING)
    assert none.next == history.last_seq


def test_a_reader_is_told_of_the_models_that_it_may_know(history):
    history.append(EventKind.SERVER_STARTED)
    page = read_page(history, WantedEvents(), ONLY_M)
    assert {event["model"] for event in page.events} == {"m"}


def test_a_number_of_a_server_that_never_was_is_kept(history):
    ahead = history.last_seq + 1000
    assert read_page(history, WantedEvents(after=ahead), EVERYTHING).next == ahead


def test_fields_are_read_from_texts_and_from_json_alike():
    texts = wanted_events({"model": "m", "kind": "ENDED,LEAK", "after": "5", "limit": "10", "wait": "1.5"})
    values = wanted_events({"model": "m", "kind": ["ENDED", "LEAK"], "after": 5, "limit": 10, "wait": 1.5})
    assert texts == values == WantedEvents("m", frozenset({EventKind.ENDED, EventKind.LEAK}), 5, 10, 1.5)


@pytest.mark.parametrize(
    "fields",
    [{"model": 7}, {"kind": 7}, {"kind": [7]}, {"after": "x"}, {"limit": 1001}, {"wait": "nan"}, {"after": True}],
)
def test_wrong_fields_are_refused(fields):
    refusal(wanted_events, fields, code=StatusCode.INVALID_ARGUMENT)


def on_loop(test):
    """Runs the test with a feed, on an event loop."""

    async def run(history):
        background = BackgroundRunner("admin", 1, 64)
        try:
            health = Health(lambda name: True)
            await asyncio.wait_for(test(EventFeed(history, health, background), health, history), SECONDS)
        finally:
            background.close()

    return lambda history: asyncio.run(run(history))


def test_a_wait_ends_with_the_next_event_that_is_wanted(history):
    @on_loop
    async def test(feed, health, history):
        wanted = WantedEvents(model="m", after=history.last_seq, wait=30)
        waiting = asyncio.create_task(feed.page(wanted, EVERYTHING))
        await asyncio.sleep(0)
        history.append(EventKind.ENDED, "n", 7)
        history.append(EventKind.ENDED, "m", 9)
        assert versions(await waiting) == [9]

    test(history)


def test_a_wait_without_an_event_ends_in_time(history):
    @on_loop
    async def test(feed, health, history):
        page = await feed.page(WantedEvents(after=history.last_seq, wait=0.05), EVERYTHING)
        assert page.events == []
        assert page.next == history.last_seq

    test(history)


def test_a_stream_gives_what_is_there_and_what_comes_and_ends_when_the_server_drains(history):
    @on_loop
    async def test(feed, health, history):
        pages = feed.stream(WantedEvents(model="m"), EVERYTHING)
        assert versions(await anext(pages)) == [0, 1, 2, 3, 4]
        following = asyncio.create_task(anext(pages))
        await asyncio.sleep(0)
        history.append(EventKind.ENDED, "m", 4)
        assert versions(await following) == [4]
        health.set_draining()
        feed.wake()
        assert [page async for page in pages] == []

    test(history)


def test_one_reader_more_than_may_wait_is_refused_until_one_has_gone(history):
    @on_loop
    async def test(feed, health, history):
        streams = [feed.stream(WantedEvents(), EVERYTHING) for _ in range(MAX_WAITING)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(ServingError) as refused:
            feed.admit()
        assert refused.value.code is StatusCode.UNAVAILABLE
        with pytest.raises(ServingError):
            await feed.page(WantedEvents(after=history.last_seq, wait=1), EVERYTHING)
        assert (await feed.page(WantedEvents(), EVERYTHING)).events  # which waits for nothing
        async with aclosing(streams.pop()):
            pass
        feed.admit()
        for stream in streams:
            await stream.aclose()

    test(history)


def test_a_number_out_of_range_is_refused_with_the_range() -> None:
    with pytest.raises(ServingError, match="from 0 to 9223372036854775807, got -1"):
        wanted_events({"after": "-1"})
