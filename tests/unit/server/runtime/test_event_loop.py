from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest

from tests.support.threads import LINUX, slack_ns
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.server.runtime.event_loop import BackgroundRunner, LoopThread


async def test_result_and_error_of_the_work_come_back() -> None:
    runner = BackgroundRunner("test", 1, 2)
    assert await runner.run(lambda: threading.current_thread().name.startswith("tfs-test"))
    with pytest.raises(ZeroDivisionError):
        await runner.run(lambda: 1 / 0)
    runner.close()


async def test_more_than_the_bound_is_refused_and_the_rest_is_done() -> None:
    runner, gate, begun = BackgroundRunner("test", 1, 2), threading.Event(), threading.Semaphore(0)

    def work() -> bool:
        begun.release()
        return gate.wait(20)

    waiting = [asyncio.ensure_future(runner.run(work)) for _ in range(2)]
    assert await asyncio.to_thread(begun.acquire, timeout=20)
    with pytest.raises(ServingError) as caught:
        await runner.run(lambda: None)
    assert (caught.value.code, caught.value.status.reason) == (StatusCode.RESOURCE_EXHAUSTED, Reason.QUEUE_FULL)
    gate.set()
    assert await asyncio.gather(*waiting) == [True, True]
    await runner.run(lambda: None)
    runner.close()


async def test_work_goes_on_when_its_caller_is_cancelled() -> None:
    runner, gate = BackgroundRunner("test", 1, 2), threading.Event()
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(20)
        done.set()

    task = asyncio.ensure_future(runner.run(work))
    assert await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert await asyncio.to_thread(done.wait, 20)
    await asyncio.to_thread(runner.close)


async def test_work_that_has_not_begun_is_dropped_when_its_caller_is_cancelled() -> None:
    runner, gate, ran = BackgroundRunner("test", 1, 3), threading.Event(), threading.Event()
    first = asyncio.ensure_future(runner.run(lambda: gate.wait(20)))
    abandoned = asyncio.ensure_future(runner.run(ran.set))
    await asyncio.sleep(0)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    last = asyncio.ensure_future(runner.run(ran.is_set))
    gate.set()
    await first
    assert await last is False
    runner.close()


async def test_failed_work_leaves_nothing_to_the_garbage_collector() -> None:
    class Body:
        """Large, and a local of the frame that fails."""

    runner, bodies = BackgroundRunner("test", 1, 2), []

    def fail() -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        raise ServingError(StatusCode.INVALID_ARGUMENT, "no")

    gc.disable()
    try:
        with contextlib.suppress(ServingError):
            await runner.run(fail)
        await runner.run(lambda: None)  # the thread has let go of the work before
        assert [body() for body in bodies] == [None]
    finally:
        gc.enable()
    runner.close()


@LINUX
def test_thread_of_the_loop_waits_for_the_interpreter_lock_no_longer_than_it_says() -> None:
    async def slack() -> int:
        return slack_ns()

    thread = LoopThread("tfs-test-loop")
    try:
        assert thread.run(slack()) == 1 < slack_ns()
    finally:
        thread.close()
