from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.metrics.requests import RequestRecord
from tfs_lite.server.http.calls import CONFIGURED, HttpCall, HttpCalls
from tfs_lite.server.http.message import Headers, IncomingBody, Request, RequestHead
from tfs_lite.server.http.replies import HttpError


def call_of(
    calls: HttpCalls, ago: float = 0.0, after_drain: bool = False, seconds: float | None = CONFIGURED
) -> HttpCall:
    """A call for a request whose head arrived that many seconds ago."""
    request = Request(RequestHead("POST", "/", Headers()), IncomingBody(), time.monotonic() - ago, after_drain)
    return calls.call(request, RequestRecord("Predict", "m", "REST", late=Reason.JOB_EXPIRED), seconds)


async def forever(calls: HttpCalls, **options: Any) -> None:
    """A call that only something else ends."""
    with call_of(calls, **options):
        await asyncio.Event().wait()


async def code_of(work: Any) -> StatusCode:
    with pytest.raises(ServingError) as caught:
        await work
    return caught.value.code


async def test_call_without_a_deadline_ends_by_itself() -> None:
    for calls, seconds in ((HttpCalls(None), CONFIGURED), (HttpCalls(30), None)):
        with call_of(calls, seconds=seconds) as call:
            assert call.deadline is None
            await asyncio.sleep(0)


async def test_deadline_counts_from_the_arrival_of_the_head() -> None:
    now = time.monotonic()
    with call_of(HttpCalls(30), ago=10) as call:
        assert call.deadline == pytest.approx(now + 20, abs=5)
    with call_of(HttpCalls(30), ago=10, seconds=15) as call:
        assert call.deadline == pytest.approx(now + 5, abs=4)


async def test_deadline_can_be_brought_forward_and_not_put_off() -> None:
    with call_of(HttpCalls(30)) as call:
        before = call.deadline
        assert before is not None
        call.limit(before + 5)
        assert call.deadline == before


@pytest.mark.parametrize("seconds", [30, None])
async def test_deadline_that_was_brought_forward_ends_the_call(seconds: float | None) -> None:
    async def limited() -> None:
        with call_of(HttpCalls(None), seconds=seconds) as call:
            call.limit(time.monotonic() + 0.01)
            await asyncio.Event().wait()

    assert await code_of(limited()) is StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("options", [{}, {"ago": 30.0}, {"seconds": 0.01}])
async def test_deadline_ends_what_runs_and_the_task_goes_on(options: dict[str, Any]) -> None:
    with pytest.raises(ServingError) as caught:
        await forever(HttpCalls(0.01 if not options else 30), **options)
    assert (caught.value.code, caught.value.status.reason) == (StatusCode.DEADLINE_EXCEEDED, Reason.JOB_EXPIRED)
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_error_of_the_work_itself_is_kept() -> None:
    with pytest.raises(ServingError) as caught, call_of(HttpCalls(30)):
        raise ServingError(StatusCode.NOT_FOUND, "no")
    assert caught.value.code is StatusCode.NOT_FOUND


async def test_cancelling_the_task_is_no_error_of_the_call() -> None:
    task = asyncio.ensure_future(forever(HttpCalls(30)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_drain_waits_for_what_is_inside_and_lets_only_earlier_connections_in() -> None:
    calls, gate, order = HttpCalls(None), asyncio.Event(), []

    async def work(after_drain: bool = False) -> None:
        with call_of(calls, after_drain=after_drain):
            await gate.wait()
            order.append("answered")

    inside = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    drain = asyncio.ensure_future(calls.drain(30))
    await asyncio.sleep(0)
    with pytest.raises(HttpError, match="the server is being stopped") as caught:
        await work(after_drain=True)
    assert (caught.value.code, caught.value.http) == (StatusCode.UNAVAILABLE, 503)
    assert caught.value.headers == {"connection": "close"}
    order.append("refused")
    late = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    gate.set()
    await drain
    order.append("drained")
    await asyncio.gather(inside, late)
    assert order == ["refused", "answered", "answered", "drained"]


async def test_what_is_inside_when_the_grace_is_over_is_ended_and_a_shorter_grace_wins() -> None:
    calls = HttpCalls(None)
    inside = asyncio.ensure_future(forever(calls))
    await asyncio.sleep(0)
    patient = asyncio.ensure_future(calls.drain(30))
    await asyncio.sleep(0)
    await calls.drain(0)
    await patient
    assert await code_of(inside) is StatusCode.UNAVAILABLE
    assert await code_of(forever(calls)) is StatusCode.UNAVAILABLE, "nor are others let in from now on"
