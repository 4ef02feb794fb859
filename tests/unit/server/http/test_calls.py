from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.server.http.calls import CONFIGURED, HttpCall, HttpCalls, Written
from tfs_lite.server.http.message import Headers, HttpHead, IncomingBody, Request, Response
from tfs_lite.server.http.replies import HttpError


def call_of(
    calls: HttpCalls, ago: float = 0.0, after_drain: bool = False, seconds: float | None = CONFIGURED
) -> HttpCall:
    """A call for a request that arrived whole that many seconds ago."""
    body = IncomingBody(whole=b"")
    request = Request(HttpHead("POST", "/", Headers()), body, time.monotonic() - ago, after_drain)
    record = RequestMetrics(CollectorRegistry(), lambda name: True).record("Predict", "m", "REST")
    record.late = Reason.JOB_EXPIRED
    return calls.call(request, record, seconds)


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


async def test_time_of_a_call_runs_from_when_its_body_has_come() -> None:
    body, calls = IncomingBody(), HttpCalls(30)
    request = Request(HttpHead("POST", "/", Headers()), body, time.monotonic() - 100)
    record = RequestMetrics(CollectorRegistry(), lambda name: True).record("Predict", "m", "REST")
    with calls.call(request, record) as call:
        before = time.monotonic()
        body.end()
        assert call.deadline is not None
        assert call.deadline >= before + 30
        call.limit(20)
        assert before + 20 <= call.deadline < before + 25


async def test_deadline_counts_from_the_arrival_of_the_request() -> None:
    now = time.monotonic()
    with call_of(HttpCalls(30), ago=10) as call:
        assert call.deadline == pytest.approx(now + 20, abs=5)
    with call_of(HttpCalls(30), ago=10, seconds=15) as call:
        assert call.deadline == pytest.approx(now + 5, abs=4)


async def test_deadline_can_be_brought_forward_and_not_put_off() -> None:
    with call_of(HttpCalls(30)) as call:
        before = call.deadline
        assert before is not None
        call.limit(35)
        assert call.deadline == before


@pytest.mark.parametrize("seconds", [30, None])
async def test_deadline_that_was_brought_forward_ends_the_call(seconds: float | None) -> None:
    async def limited() -> None:
        with call_of(HttpCalls(None), seconds=seconds) as call:
            call.limit(0.01)
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


class Model:
    """A request that a model has, whose end the test says."""

    def __init__(self) -> None:
        self.cancelled = False
        self.ended: Callable[[], None] = ignore
        self.answer: Any = b""

    def then(self, ended: Callable[[], None]) -> None:
        self.ended = ended

    def result(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def cancel(self) -> None:
        self.cancelled = True
        self.ended()

    def end(self, answer: Any) -> None:
        self.answer = answer
        self.ended()


class Replied:
    """A call that is a reply, and what came of it."""

    def __init__(self, calls: HttpCalls, seconds: float | None = None) -> None:
        self.registry = CollectorRegistry()
        self.model = Model()
        self.results: list[Any] = []
        self.ended, self.may_write = asyncio.Event(), asyncio.Event()
        record = RequestMetrics(self.registry, lambda name: True).record("Predict", "m", "REST")
        request = Request(HttpHead("POST", "/", Headers()), IncomingBody(whole=b""), time.monotonic())
        self.reply = calls.call(request, record, seconds).reply(self.model, self._write)
        self.reply.finish = lambda done, result: done(cast(Any, result))
        self.reply.then(self._done)

    def _done(self, result: Any) -> None:
        self.results.append(result)
        self.ended.set()

    def _write(self, answer: bytes) -> Written:
        return self._write_slowly(answer) if answer == b"large" else Response(answer)

    async def _write_slowly(self, answer: bytes) -> Response:
        await self.may_write.wait()
        return Response(answer)

    @property
    def codes(self) -> list[str]:
        """Under which the request was counted."""
        samples = [sample for metric in self.registry.collect() for sample in metric.samples]
        return [sample.labels["code"] for sample in samples if sample.name == "tfs_lite_requests_total"]


async def test_reply_ends_with_the_answer_of_its_model() -> None:
    replied = Replied(HttpCalls(30))
    replied.model.end(b"fine")
    assert [result.body for result in replied.results] == [b"fine"]
    assert replied.codes == ["OK"]
    replied.reply.cancel()
    assert not replied.model.cancelled


async def test_reply_ends_with_the_failure_of_its_model() -> None:
    replied, failure = Replied(HttpCalls(30)), ServingError(StatusCode.NOT_FOUND, "gone")
    replied.model.end(failure)
    assert replied.results == [failure]
    assert replied.codes == ["NOT_FOUND"]


async def test_reply_that_takes_long_to_write_is_written_beside_the_loop() -> None:
    replied = Replied(HttpCalls(30))
    replied.model.end(b"large")
    assert not replied.results
    replied.may_write.set()
    await replied.ended.wait()
    assert replied.results[0].body == b"large"
    assert replied.codes == ["OK"]


@pytest.mark.parametrize("answer", [None, b"large"], ids=["in the model", "while it is written"])
async def test_reply_whose_deadline_passes_ends_with_that(answer: bytes | None) -> None:
    replied = Replied(HttpCalls(None), seconds=0.01)
    if answer is not None:
        replied.model.end(answer)
    await replied.ended.wait()
    assert replied.results[0].code is StatusCode.DEADLINE_EXCEEDED
    assert replied.codes == ["DEADLINE_EXCEEDED"]
    assert replied.model.cancelled
    replied.may_write.set()
    replied.model.end(b"late")
    assert len(replied.results) == 1


@pytest.mark.parametrize("answer", [None, b"large"], ids=["in the model", "while it is written"])
async def test_reply_to_a_client_that_has_gone_is_counted_and_forgotten(answer: bytes | None) -> None:
    calls = HttpCalls(30)
    replied = Replied(calls)
    if answer is not None:
        replied.model.end(answer)
    replied.reply.cancel()
    replied.reply.cancel()
    assert replied.model.cancelled
    replied.may_write.set()
    await calls.drain(30)
    assert not replied.results
    assert replied.codes == ["CANCELLED"]


async def test_drain_waits_for_replies_and_then_ends_them() -> None:
    calls = HttpCalls(None)
    first, second = Replied(calls), Replied(calls)
    draining = asyncio.create_task(calls.drain(30))
    await asyncio.sleep(0)
    first.model.end(b"in time")
    await calls.drain(0)
    await draining
    assert first.results[0].body == b"in time"
    assert second.results[0].code is StatusCode.UNAVAILABLE
    assert second.codes == ["UNAVAILABLE"]
