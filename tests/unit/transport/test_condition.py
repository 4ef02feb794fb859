from __future__ import annotations

import asyncio
import time
from math import inf

from tfs_lite.transport.condition import Condition, OneWaiter


async def test_wait_returns_at_once_for_what_is_done_even_after_its_end() -> None:
    assert await Condition().wait_for(lambda: True, lambda: -inf)


async def test_tasks_wait_each_for_its_own_until_they_are_notified() -> None:
    condition, done = Condition(), set()
    waits = [asyncio.ensure_future(condition.wait_for(lambda n=n: n in done)) for n in range(3)]
    for number, wait in enumerate(waits):
        await asyncio.sleep(0)
        done.add(number)
        condition.notify()
        assert await wait
        assert not any(other.done() for other in waits[number + 1 :])


async def test_what_comes_true_without_a_word_is_noticed_at_the_end() -> None:
    end, looks = time.monotonic() + 0.05, list[float]()

    def done() -> bool:
        looks.append(time.monotonic())
        return len(looks) > 1

    assert await Condition().wait_for(done, lambda: end)
    assert len(looks) == 2
    assert looks[1] >= end - 0.01


async def test_end_that_is_brought_forward_ends_the_wait() -> None:
    condition, ends = Condition(), [inf]
    wait = asyncio.ensure_future(condition.wait_for(lambda: False, lambda: ends[0]))
    await asyncio.sleep(0)
    ends[0] = 0.0
    condition.notify()
    assert not await wait


async def test_one_waiter_sleeps_until_the_next_word() -> None:
    waiter = OneWaiter()
    waiter.wake()  # nobody sleeps: forgotten
    for _ in range(2):
        sleeper = asyncio.ensure_future(waiter.sleep())
        await asyncio.sleep(0)
        assert not sleeper.done()
        waiter.wake()
        waiter.wake()
        await sleeper


async def test_one_waiter_that_is_cancelled_leaves_its_place() -> None:
    waiter = OneWaiter()
    cancelled = asyncio.ensure_future(waiter.sleep())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    waiter.wake()
    after = asyncio.ensure_future(waiter.sleep())
    await asyncio.sleep(0)
    waiter.wake()
    await after
