"""Answers from other threads: in order, in one go, and never lost in silence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from tfs_lite.server.runtime.event_loop import CompletionQueue

TIMEOUT = 30
THREADS = 4


def post_all(queue: CompletionQueue[Any], items: Iterable[Any]) -> None:
    for item in items:
        queue.post(item)


async def test_items_of_other_threads_are_delivered_on_the_loop_in_order() -> None:
    got: list[tuple[int, int]] = []
    queue = CompletionQueue[int](lambda item: got.append((item, threading.get_ident())))
    assert queue.loop is asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(post_all, queue, range(100))
    assert got == []
    await asyncio.sleep(0)
    assert got == [(item, threading.get_ident()) for item in range(100)]


async def test_many_items_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[int] = []
    queue, wake_ups = CompletionQueue[int](got.append), 0
    call_soon = queue.loop.call_soon

    def call_soon_threadsafe(callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        nonlocal wake_ups
        wake_ups += 1
        return call_soon(callback, *args, context=context)

    monkeypatch.setattr(queue.loop, "call_soon_threadsafe", call_soon_threadsafe)
    for turn in range(1, 4):
        post_all(queue, range(50))
        assert wake_ups == turn
        await asyncio.sleep(0)
        assert len(got) == 50 * turn


async def test_item_posted_while_others_are_delivered_comes_after_them() -> None:
    got: list[int] = []

    def deliver(item: int) -> None:
        got.append(item)
        if item < 10:
            queue.post(item + 10)

    queue = CompletionQueue[int](deliver)
    post_all(queue, range(3))
    for _ in range(2):
        await asyncio.sleep(0)
    assert got == [0, 1, 2, 10, 11, 12]


async def test_nothing_is_lost_when_threads_post_while_the_loop_delivers() -> None:
    each = 2000
    got: dict[int, list[int]] = {number: [] for number in range(THREADS)}
    all_there, left = asyncio.Event(), THREADS * each

    def deliver(item: tuple[int, int]) -> None:
        nonlocal left
        got[item[0]].append(item[1])
        left -= 1
        if not left:
            all_there.set()

    queue = CompletionQueue[tuple[int, int]](deliver)
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(THREADS):
            pool.submit(post_all, queue, [(number, item) for item in range(each)])
        await asyncio.wait_for(all_there.wait(), TIMEOUT)
    assert got == {number: list(range(each)) for number in range(THREADS)}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with closing(asyncio.SelectorEventLoop()) as loop:
        yield loop


def queue_on(loop: asyncio.AbstractEventLoop, deliver: Callable[[int], None]) -> CompletionQueue[int]:
    async def make() -> CompletionQueue[int]:
        return CompletionQueue(deliver)

    return loop.run_until_complete(make())


def test_items_posted_to_a_closed_loop_are_delivered_by_those_who_post(loop: asyncio.AbstractEventLoop) -> None:
    got: list[int] = []
    queue = queue_on(loop, got.append)
    loop.close()
    for item in range(3):
        queue.post(item)
        assert got == list(range(item + 1))


def test_items_on_their_way_when_the_loop_closes_are_delivered_by_the_next_to_post(
    loop: asyncio.AbstractEventLoop,
) -> None:
    got: list[int] = []
    queue = queue_on(loop, got.append)
    queue.post(1)
    loop.close()
    assert got == []
    queue.post(2)
    assert got == [1, 2]


def test_threads_that_post_to_a_closed_loop_deliver_one_at_a_time(loop: asyncio.AbstractEventLoop) -> None:
    each = 500
    got: list[int] = []
    busy, overlapped = threading.Lock(), list[bool]()

    def deliver(item: int) -> None:
        if not busy.acquire(blocking=False):
            overlapped.append(True)
            return
        got.append(item)
        busy.release()

    queue = queue_on(loop, deliver)
    loop.close()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda first: post_all(queue, range(first, THREADS * each, THREADS)), range(THREADS)))
    assert not overlapped
    assert sorted(got) == list(range(THREADS * each))
