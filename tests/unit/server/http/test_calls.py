from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.calls import HttpCalls


async def forever(calls: HttpCalls, receive: Any = None) -> None:
    """A call that only something else ends."""
    with calls.call() as call:
        if receive is not None:
            call.watch(receive)
        await asyncio.Event().wait()


async def code_of(work: Any) -> StatusCode:
    with pytest.raises(ServingError) as caught:
        await work
    return caught.value.code


async def test_call_without_a_deadline_ends_by_itself() -> None:
    with HttpCalls(None).call() as call:
        assert call.deadline is None
        await asyncio.sleep(0)


async def test_deadline_ends_what_runs_and_the_task_goes_on() -> None:
    assert await code_of(forever(HttpCalls(0.01))) is StatusCode.DEADLINE_EXCEEDED
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_clients_going_ends_what_runs() -> None:
    messages = iter(["http.request", "http.disconnect"])

    async def receive() -> dict[str, str]:
        return {"type": next(messages)}

    assert await code_of(forever(HttpCalls(None), receive)) is StatusCode.CANCELLED


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


async def test_error_of_the_work_itself_is_kept() -> None:
    with pytest.raises(ServingError) as caught, HttpCalls(30).call():
        raise ServingError(StatusCode.NOT_FOUND, "no")
    assert caught.value.code is StatusCode.NOT_FOUND


async def test_cancelling_the_task_is_no_error_of_the_call() -> None:
    task = asyncio.ensure_future(forever(HttpCalls(30)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_drain_waits_for_what_is_inside_and_lets_nothing_more_in() -> None:
    calls, gate, order = HttpCalls(None), asyncio.Event(), []

    async def work() -> None:
        with calls.call():
            await gate.wait()
            order.append("answered")

    inside = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    drain = asyncio.ensure_future(calls.drain(30))
    await asyncio.sleep(0)
    assert await code_of(work()) is StatusCode.UNAVAILABLE
    order.append("refused")
    gate.set()
    await drain
    order.append("drained")
    await inside
    assert order == ["refused", "answered", "drained"]


async def test_what_is_inside_when_the_grace_is_over_is_ended_and_a_shorter_grace_wins() -> None:
    calls = HttpCalls(None)
    inside = asyncio.ensure_future(forever(calls))
    await asyncio.sleep(0)
    patient = asyncio.ensure_future(calls.drain(30))
    await asyncio.sleep(0)
    await calls.drain(0)
    await patient
    assert await code_of(inside) is StatusCode.UNAVAILABLE
