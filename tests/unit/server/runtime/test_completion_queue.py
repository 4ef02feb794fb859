"""Answers from other threads: in order, in one go, and never lost in silence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tfs_lite.server.runtime.event_loop import CompletionQueue

TIMEOUT = 30


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread wakes it."""

    def __init__(self) -> None:
        super().__init__()
        self.wake_ups = 0

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        self.wake_ups += 1
        return super().call_soon_threadsafe(callback, *args, context=context)


def run(main: Callable[[CountingLoop], Any]) -> None:
    loop = CountingLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(main(loop), TIMEOUT))
    finally:
        loop.close()


def start_threads(works: Iterable[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    return threads


def join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def posts(queue: CompletionQueue[Any], items: Iterable[Any]) -> Callable[[], None]:
    """Posts the items, on the thread that calls it."""

    def post() -> None:
        for item in items:
            queue.post(item)

    return post


def test_items_of_other_threads_are_delivered_on_the_loop_in_order() -> None:
    async def main(loop: CountingLoop) -> None:
        got: list[tuple[int, int]] = []
        queue = CompletionQueue[int](lambda item: got.append((item, threading.get_ident())))
        assert queue.loop is loop
        join(start_threads([posts(queue, range(100))]))
        assert got == []
        await asyncio.sleep(0)
        assert got == [(item, threading.get_ident()) for item in range(100)]

    run(main)


def test_many_items_wake_the_loop_once() -> None:
    async def main(loop: CountingLoop) -> None:
        got: list[int] = []
        queue = CompletionQueue[int](got.append)
        for turn in range(3):
            before = loop.wake_ups
            for item in range(50):
                queue.post(item)
            assert loop.wake_ups == before + 1
            await asyncio.sleep(0)
            assert len(got) == 50 * (turn + 1)

    run(main)


def test_item_posted_while_others_are_delivered_comes_after_them() -> None:
    async def main(loop: CountingLoop) -> None:
        got: list[int] = []

        def deliver(item: int) -> None:
            got.append(item)
            if item < 10:
                queue.post(item + 10)

        queue = CompletionQueue[int](deliver)
        for item in range(3):
            queue.post(item)
        for _ in range(2):
            await asyncio.sleep(0)
        assert got == [0, 1, 2, 10, 11, 12]

    run(main)


def test_nothing_is_lost_when_threads_post_while_the_loop_delivers() -> None:
    threads, each = 4, 2000

    async def main(loop: CountingLoop) -> None:
        got: dict[int, list[int]] = {number: [] for number in range(threads)}
        all_there, left = asyncio.Event(), threads * each

        def deliver(item: tuple[int, int]) -> None:
            nonlocal left
            got[item[0]].append(item[1])
            left -= 1
            if not left:
                all_there.set()

        queue = CompletionQueue[tuple[int, int]](deliver)
        posting = start_threads(posts(queue, [(n, item) for item in range(each)]) for n in range(threads))
        await all_there.wait()
        join(posting)
        assert got == {number: list(range(each)) for number in range(threads)}

    run(main)


def test_items_posted_to_a_closed_loop_are_delivered_by_those_who_post() -> None:
    loop = CountingLoop()
    got: list[int] = []
    queue = loop.run_until_complete(make_queue(got.append))
    loop.close()
    for item in range(3):
        queue.post(item)
        assert got == list(range(item + 1))


def test_items_on_their_way_when_the_loop_closes_are_delivered_by_the_next_to_post() -> None:
    loop = CountingLoop()
    got: list[int] = []
    queue = loop.run_until_complete(make_queue(got.append))
    queue.post(1)
    loop.close()
    assert got == []
    queue.post(2)
    assert got == [1, 2]


def test_threads_that_post_to_a_closed_loop_deliver_one_at_a_time() -> None:
    threads, each = 4, 500
    loop = CountingLoop()
    got: list[int] = []
    busy, overlapped = threading.Lock(), list[bool]()

    def deliver(item: int) -> None:
        if not busy.acquire(blocking=False):
            overlapped.append(True)
            return
        got.append(item)
        busy.release()

    queue = loop.run_until_complete(make_queue(deliver))
    loop.close()
    join(start_threads(posts(queue, range(first, threads * each, threads)) for first in range(threads)))
    assert not overlapped
    assert sorted(got) == list(range(threads * each))


async def make_queue(deliver: Callable[[int], None]) -> CompletionQueue[int]:
    return CompletionQueue(deliver)
