"""An ended request as a value that may be kept: for logs, traces and the list of failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tfs_lite.core.model import RUNNING, CallTrace, PredictCall, ServableCall
from tfs_lite.core.request_context import RequestContext
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.metrics.request_records import RecordedRequest, RequestRecord

MAX_ERROR_TEXT = 500
"""Characters of a failure's text that are kept."""
_OK = StatusCode.OK


class CallTimes(NamedTuple):
    """One call to a model, in seconds; ``arrived`` of ``time.monotonic``. ``rows`` are its own, ``batch_rows`` those of
    the run that answered it (0: not known). ``halved``: its batch had failed, and was tried again in halves."""

    arrived: float
    queue_seconds: float
    run_seconds: float
    copy_seconds: tuple[float, float]
    rows: int
    batch_rows: int
    halved: bool
    trace: CallTrace | None


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """An ended request, as a value that may be kept. Times are in seconds, ``arrived`` (its head had come) and
    ``started`` (it was whole, and its turn) of ``time.monotonic``; ``seconds`` run from ``started``.

    ``stage`` is where it ended: ``route``, ``decode``, ``check``, ``queue``, ``run``, ``encode``, ``send``; ``done``: a
    success. ``message`` and ``reason`` are empty and None then. ``queue_seconds`` is the longest wait of its calls,
    ``run_seconds`` the longest time in the model. ``trace_id``: of the trace that it belongs to, which need not have
    been recorded; empty if it belongs to none. ``shielded_from`` is that of the record."""

    method: str
    model: str
    entrypoint: str
    version: int | None
    code: StatusCode
    message: str
    reason: Reason | None
    stage: str
    context: RequestContext
    trace_id: str
    arrived: float
    started: float
    seconds: float
    queue_seconds: float
    run_seconds: float
    calls: tuple[CallTimes, ...]
    shielded_from: str = ""

    @property
    def rows(self) -> int:
        return sum(call.rows for call in self.calls)

    @property
    def batch_rows(self) -> int:
        """Rows of the largest run that it was in; 0: not known."""
        return max((call.batch_rows for call in self.calls), default=0)

    @property
    def halved(self) -> bool:
        """Whether a batch with it had failed, and was tried again in halves."""
        return any(call.halved for call in self.calls)


def ended_request(
    record: RecordedRequest, code: StatusCode, seconds: float, error: BaseException | None
) -> EndedRequest:
    """Makes the value of a record while a listener is called: later the record has no calls any more."""
    calls = tuple([_times(call) for call in record.calls])
    reason = error.status.reason if isinstance(error, ServingError) else None
    text = "" if code is _OK else str(error or "") or code.name
    return EndedRequest(
        record.method,
        record.model,
        record.entrypoint,
        record.version,
        code,
        text[:MAX_ERROR_TEXT],
        reason,
        "check" if reason is Reason.INVALID_ITEM else _stage(record, code),
        record.context,
        record.trace_id or (record.context.trace.trace_id if record.context.trace is not None else ""),
        record.arrived,
        record.started,
        seconds,
        max([call.queue_seconds for call in calls], default=0.0),
        max([call.run_seconds for call in calls], default=0.0),
        calls,
        record.shielded_from,
    )


def _times(call: ServableCall) -> CallTimes:
    rows = next((array.shape[0] for array in call.inputs.values() if array.shape), 1)
    return CallTimes(
        call.arrived,
        call.queue_seconds,
        call.run_seconds,
        call.copy_seconds,
        rows,
        call.batch_rows if isinstance(call, PredictCall) else 0,
        isinstance(call, PredictCall) and call.halved,
        call.trace,
    )


def _stage(record: RequestRecord, code: StatusCode) -> str:
    """The stage in which a request has ended."""
    if code is _OK:
        return "done"
    if record.sending:
        return "send" if code is StatusCode.CANCELLED else "run"
    if record.answered:
        return "encode"
    calls = record.calls
    if any(call.run_seconds or call.ticket is RUNNING for call in calls):
        return "run"
    if calls and not (code is StatusCode.INVALID_ARGUMENT and not calls[0].admitted):
        return "queue"
    if record.version is not None:
        return "check"
    return "decode" if code is StatusCode.INVALID_ARGUMENT else "route"
