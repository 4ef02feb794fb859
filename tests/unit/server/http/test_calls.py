from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.calls import HttpCalls


def code_of(main: Callable[[], Awaitable[Any]]) -> StatusCode:
    async def run() -> None:
        await main()

    with pytest.raises(ServingError) as caught:
        asyncio.run(run())
    return caught.value.code


async def forever() -> None:
    await asyncio.Event().wait()


def test_call_without_a_deadline_ends_by_itself() -> None:
    async def main() -> str:
        with HttpCalls(None).call() as call:
            assert call.deadline is None
            await asyncio.sleep(0)
        return "done"

    assert asyncio.run(main()) == "done"


def test_deadline_ends_what_runs() -> None:
    async def main() -> None:
        with HttpCalls(0.01).call():
            await forever()

    assert code_of(main) is StatusCode.DEADLINE_EXCEEDED


def test_clients_going_ends_what_runs() -> None:
    messages = iter(["http.request", "http.disconnect"])

    async def receive() -> dict[str, str]:
        return {"type": next(messages)}

    async def main() -> None:
        with HttpCalls(None).call() as call:
            call.watch(receive)
            await forever()

    assert code_of(main) is StatusCode.CANCELLED


async def test_nothing_is_left_of_a_call_that_was_answered() -> None:
    gone, calls = asyncio.Event(), HttpCalls(30)

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    with calls.call() as call:
        call.watch(receive)
        await asyncio.sleep(0)
    gone.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await calls.drain(0)


def test_error_of_the_work_itself_is_kept() -> None:
    async def main() -> None:
        with HttpCalls(30).call():
            raise ServingError(StatusCode.NOT_FOUND, "no")

    assert code_of(main) is StatusCode.NOT_FOUND


async def test_cancelling_the_task_is_no_error_of_the_call() -> None:
    async def work() -> None:
        with HttpCalls(30).call():
            await forever()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_task_goes_on_after_a_call_that_was_ended() -> None:
    async def main() -> str:
        with pytest.raises(ServingError), HttpCalls(0.01).call():
            await forever()
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return "on"

    assert asyncio.run(main()) == "on"


def test_drain_waits_for_what_is_inside_and_lets_nothing_more_in() -> None:
    async def main() -> list[str]:
        calls, gate, order = HttpCalls(None), asyncio.Event(), []

        async def work() -> None:
            with calls.call():
                await gate.wait()
                order.append("answered")

        inside = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        drain = asyncio.ensure_future(calls.drain(30))
        await asyncio.sleep(0)
        with pytest.raises(ServingError) as caught, calls.call():
            pass
        assert caught.value.code is StatusCode.UNAVAILABLE
        order.append("refused")
        gate.set()
        await drain
        order.append("drained")
        await inside
        return order

    assert asyncio.run(main()) == ["refused", "answered", "drained"]


async def test_what_is_inside_when_the_grace_is_over_is_ended_and_a_shorter_grace_wins() -> None:
    calls = HttpCalls(None)

    async def work() -> None:
        with calls.call():
            await forever()

    inside = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    patient = asyncio.ensure_future(calls.drain(30))
    await asyncio.sleep(0)
    await calls.drain(0)
    await patient
    with pytest.raises(ServingError) as caught:
        await inside
    assert caught.value.code is StatusCode.UNAVAILABLE
