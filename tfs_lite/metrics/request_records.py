"""One request while it runs, and what its answer says of it when it ends.

Times are in seconds of ``time.monotonic``. A record does not count: it tells its observer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Protocol

from tfs_lite.core.model import ServableCall
from tfs_lite.core.request_context import (
    REQUEST_ID,
    SERVER_TIMING,
    WANTS_TIMING,
    Carrier,
    RequestContext,
    TraceContext,
    checked_id,
    read_context,
)
from tfs_lite.core.status import Reason, ServingError, StatusCode

NEVER, ASKED, ALWAYS = "never", "asked", "always"
"""The values that say who gets ``Server-Timing``."""
_OK = StatusCode.OK


class Observer(Protocol):
    """Learns how requests end. On the event loop."""

    server_timing: str
    """NEVER, ASKED or ALWAYS: which answers say how long their request took."""
    listens: bool
    """Whether it wants to be told of every request, and not of failures alone."""

    def observe(self, record: RequestRecord, code: StatusCode, seconds: float) -> None:
        """Counts the request of the record under this code."""

    def tell(self, record: RecordedRequest, code: StatusCode, seconds: float, error: BaseException | None) -> None:
        """The request of the record has ended."""


@dataclass(slots=True)
class RequestRecord:
    """One request while it runs. ``version``, ``run_seconds`` (the time in the model), ``deadline`` (in seconds of
    ``time.monotonic``) and ``late`` (the reason of a missed deadline; None: no special one) are set once they are
    known. ``calls`` are those to the model, ``answered`` tells whether the model has answered all of them, ``sending``
    whether a part of its answer has been handed on; ``sent_id`` is the id that the request names in its body.
    ``shielded_from``: the version on trial on which it has failed, ``name@version``, before an older one answered it;
    else empty."""

    method: str
    model: str
    entrypoint: str
    version: int | None = None
    run_seconds: float = 0.0
    deadline: float | None = None
    late: Reason | None = None
    calls: Sequence[ServableCall] = ()
    answered: bool = False
    sending: bool = False
    sent_id: str = ""
    shielded_from: str = ""


class RecordedRequest(RequestRecord):
    """Times a block, or what ends with ``end``. ``started`` is in seconds of ``time.monotonic``; ``trace_id`` is set
    when it has ended, and is traced."""

    __slots__ = ("_carrier", "_context", "_observer", "started", "trace_id")

    def __init__(
        self, observer: Observer, method: str, model: str, entrypoint: str, carrier: Carrier | None = None
    ) -> None:
        self.method = method
        self.model = model
        self.entrypoint = entrypoint
        self.version = None
        self.run_seconds = 0.0
        self.deadline = None
        self.late = None
        self.calls = ()
        self.answered = False
        self.sending = False
        self.sent_id = ""
        self.shielded_from = ""
        self.trace_id = ""
        self._observer = observer
        self._carrier = carrier
        self._context: RequestContext | None = None
        self.started = monotonic()

    @property
    def context(self) -> RequestContext:
        """The caller, request id and trace of the request; read when it is wanted first."""
        context = self._context
        if context is None:
            context = self._context = read_context(self._carrier, self.sent_id)
        return context

    @property
    def caller(self) -> TraceContext | None:
        """The span of the client that the request belongs to."""
        carrier = self._carrier
        return self.context.trace if carrier is not None and carrier.marked else None

    @property
    def arrived(self) -> float:
        """The time when the request's head had come, in seconds of ``time.monotonic``."""
        carrier = self._carrier
        return self.started if carrier is None else min(carrier.arrived or self.started, self.started)

    def __enter__(self) -> RecordedRequest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(error)

    def mark(self) -> None:
        """Names the request in its answer, for a stream whose head is sent before the request has ended."""
        if self._carrier is not None:
            self._carrier.mark(REQUEST_ID, self.context.request_id)

    def end(self, error: BaseException | None = None) -> None:
        """Counts the request under OK, or under the code of the error that ended it. Before the answer is sent."""
        observer, carrier, seconds = self._observer, self._carrier, monotonic() - self.started
        code = _OK if error is None else self._code_of(error)
        observer.observe(self, code, seconds)
        if code is not _OK or observer.listens:
            observer.tell(self, code, seconds, error)
        if carrier is not None:
            if carrier.marked or code is not _OK or observer.server_timing == ALWAYS:
                self._mark_answer(carrier, code, seconds)
            elif not carrier.names_requests:
                pass
            elif self._context is None and not self.sent_id:
                carrier.mark_with_new_id()
            else:
                carrier.mark(REQUEST_ID, self.context.request_id)
        self.calls = ()  # they refer to the request, and so to this record

    def _mark_answer(self, carrier: Carrier, code: StatusCode, seconds: float) -> None:
        if code is not _OK or carrier.names_requests or checked_id(carrier.header(REQUEST_ID)):
            carrier.mark(REQUEST_ID, self.context.request_id)
        timing = self._observer.server_timing
        if timing == ALWAYS or (timing == ASKED and carrier.marked and carrier.header(WANTS_TIMING) == "1"):
            carrier.mark(SERVER_TIMING, timing_line(self, seconds))

    def _code_of(self, error: BaseException) -> StatusCode:
        """The code of a request that ends with this error."""
        if isinstance(error, ServingError):
            return error.code
        if not isinstance(error, asyncio.CancelledError | GeneratorExit):
            return StatusCode.INTERNAL
        late = is_late(self.deadline, self.started, monotonic())
        return StatusCode.DEADLINE_EXCEEDED if late else StatusCode.CANCELLED


def is_late(deadline: float | None, started: float, now: float) -> bool:
    """Whether a request that is cancelled now has missed its deadline: in the last tenth of its time, or later. The
    clock of the client, which cancels then, began before the request came."""
    return deadline is not None and now >= deadline - (deadline - started) / 10


def timing_line(record: RecordedRequest, seconds: float) -> str:
    """The value of ``Server-Timing`` for a request that ends now, ``seconds`` after it had started: its parts, of which
    the sum is at most the total."""
    received = record.started - record.arrived
    parts, left = [("recv", received)], seconds
    calls = record.calls
    first = min([call.arrived for call in calls if call.arrived], default=0.0)
    if first:
        wait = max(call.queue_seconds for call in calls)
        run = max(call.run_seconds for call in calls)
        for name, wanted in (("decode", first - record.started), ("queue", wait), ("compute", run), ("encode", left)):
            value = min(max(wanted, 0.0), left)
            left -= value
            parts.append((name, value))
    parts.append(("total", received + seconds))
    return ", ".join([f"{name};dur={int(value * 1e6) / 1e3:.3f}" for name, value in parts])
