"""One snapshot for all viewers, changes only, the whole picture where a viewer needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import orjson
import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.operations.dashboard import feed as feeds
from tfs_lite.operations.dashboard.feed import MAX_VIEWERS, Feed, FeedSnapshot
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.transport.table import Grant


class Source:
    """Snapshots that a test changes. ``taken`` counts them."""

    def __init__(self) -> None:
        self.models = {"a": b'{"name":"a","n":1}', "b": b'{"name":"b","n":1}'}
        self.taken = 0

    def __call__(self) -> FeedSnapshot:
        self.taken += 1
        return FeedSnapshot(b'{"number":%d}' % self.taken, dict(self.models))


def run(test: Callable[[Feed, Source], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        background = BackgroundRunner("test", 1, 8)
        source = Source()
        feed = Feed(source, orjson.dumps, background)
        try:
            await asyncio.wait_for(test(feed, source), 30)
        finally:
            feed.close()
            background.close()

    asyncio.run(body())


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "INTERVAL", 0.01)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - there is nothing to wait for
        await asyncio.sleep(0.001)


async def read(events: Awaitable[bytes]) -> dict[str, Any]:
    text = await events
    assert text.startswith(b"data: ")
    found: dict[str, Any] = orjson.loads(text[6:])
    return found


def test_viewer_gets_everything_first_and_then_what_has_changed() -> None:
    async def test(feed: Feed, source: Source) -> None:
        events = feed.watch(b'data: {"may":[]}\n\n')
        assert await read(anext(events)) == {"may": []}
        first = await read(anext(events))
        assert (first["whole"], [model["name"] for model in first["models"]]) == (True, ["a", "b"])
        source.models["b"] = b'{"name":"b","n":2}'
        del source.models["a"]
        changed: dict[str, Any] = {"models": []}
        while not changed["models"]:
            changed = await read(anext(events))
        assert (changed["models"], changed["gone"]) == ([{"name": "b", "n": 2}], ["a"])
        await events.aclose()

    run(test)


def test_viewer_that_was_too_slow_gets_everything() -> None:
    async def test(feed: Feed, source: Source) -> None:
        events = feed.watch(b"data: {}\n\n")
        await anext(events)
        await anext(events)
        seen = source.taken
        await until(lambda: source.taken >= seen + 3)
        assert (await read(anext(events)))["whole"]
        await events.aclose()

    run(test)


def test_all_viewers_share_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "INTERVAL", 3600.0)

    async def test(feed: Feed, source: Source) -> None:
        viewers = [feed.watch(b"data: {}\n\n") for _ in range(MAX_VIEWERS)]
        for events in viewers:
            await anext(events)
        texts = {await anext(events) for events in viewers}
        assert (len(texts), source.taken) == (1, 1)
        with pytest.raises(ServingError) as refused:
            feed.admit()
        assert refused.value.code is StatusCode.UNAVAILABLE
        for events in viewers:
            await events.aclose()
        feed.admit()

    run(test)


def test_no_snapshot_is_made_without_viewers() -> None:
    async def test(feed: Feed, source: Source) -> None:
        before = asyncio.all_tasks()
        events = feed.watch(b"data: {}\n\n")
        await anext(events)
        await until(lambda: source.taken > 1)
        assert asyncio.all_tasks() > before
        await events.aclose()
        await until(lambda: asyncio.all_tasks() == before)

    run(test)


def test_token_for_some_models_sees_no_others() -> None:
    async def test(feed: Feed, source: Source) -> None:
        events = feed.watch(b"data: {}\n\n", Grant("reader", "b*"))
        await anext(events)
        assert [model["name"] for model in (await read(anext(events)))["models"]] == ["b"]
        source.models["a"], source.models["b"] = b'{"name":"a","n":3}', b'{"name":"b","n":3}'
        names: list[str] = []
        while not names:
            names = [model["name"] for model in (await read(anext(events)))["models"]]
        assert names == ["b"]
        await events.aclose()

    run(test)


def test_close_ends_every_stream() -> None:
    async def test(feed: Feed, source: Source) -> None:
        events = feed.watch(b"data: {}\n\n")
        await anext(events)
        feed.close()
        async for _ in events:
            pass
        with pytest.raises(ServingError, match="stopped"):
            feed.admit()

    run(test)
