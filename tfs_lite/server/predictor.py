"""The one path of a request to a model, whatever protocol and method it came by.

    which version -> [plan: which signature, are the names right, decode] -> which outputs -> do dtypes and shapes fit
    -> hand the calls to the servable -> wait for the answers, the deadline or the client's going

The plan is passed in: it is all that protocols and methods differ in before the model runs. It may ask for several
runs; all of them are answered by the same version. The handle is held until the servable has answered every run, also
when the client has gone in the meantime: the model may still be reading the inputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, cast

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, invalid_argument
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.protocols.serving import ModelRef
from tfs_lite.protocols.tensor_proto import MAX_FILL_BYTES, Array
from tfs_lite.server.deadlines import Deadlines
from tfs_lite.server.outbox import Outbox
from tfs_lite.server.request_metrics import RequestMetrics, RequestRecord

Lookup: TypeAlias = Callable[[ModelRef], ServableHandle]
"""Resolves name, version or label to a handle; raises ServingError."""

Plan: TypeAlias = Callable[[Mapping[str, Signature]], Sequence[Run] | Awaitable[Sequence[Run]]]
"""From the signatures of the version to what is to be run, once at least; raises ServingError."""

Result: TypeAlias = Mapping[str, Tensor] | Status


@dataclass(slots=True)
class Inference:
    """The answer of exactly one version: the outputs of each run."""

    id: ServableId
    runs: Sequence[Run]
    outputs: Sequence[Mapping[str, Array]]

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def output(self) -> Mapping[str, Array]:
        return self.outputs[0]


class Predictor:
    """Used on one event loop only. ``max_bytes`` bounds what a default may be repeated to."""

    def __init__(self, lookup: Lookup, metrics: RequestMetrics, max_bytes: int = MAX_FILL_BYTES) -> None:
        self._lookup = lookup
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._outbox: Outbox[tuple[_Request, int, Result]] | None = None
        self._deadlines: Deadlines[_Request] | None = None

    async def infer(self, model: ModelRef, plan: Plan, record: RequestRecord, deadline: float | None) -> Inference:
        """``deadline`` is in seconds of the event loop's clock, which is ``time.monotonic``. Fills in the version and
        the time in the model of ``record``. Raises ServingError; CancelledError when the client has gone, after which
        the answers are dropped."""
        handle = self._lookup(model)
        record.version = handle.id.version
        try:
            servable: Servable = handle.servable
            if getattr(servable, "has_item_steps", False):
                record.late = Reason.JOB_EXPIRED
            signatures = servable.signatures
            planned = plan(signatures)
            runs = planned if isinstance(planned, list | tuple) else await cast("Awaitable[Sequence[Run]]", planned)
            if not runs:
                raise invalid_argument("nothing is to be run")
            request = _Request(handle, len(runs), self._outbox or self._open(), self._metrics, record.late)
            calls = [
                PredictCall(
                    run.signature, self._inputs(signatures, run), run.outputs, deadline, partial(request.done, index)
                )
                for index, run in enumerate(runs)
            ]
        except BaseException:
            handle.release()
            raise
        outputs = await self._answers(request, servable, calls, deadline)
        for call in calls:
            record.run_seconds += call.run_seconds
        return Inference(request.id, runs, outputs)

    def _inputs(self, signatures: Mapping[str, Signature], run: Run) -> Mapping[str, Array]:
        signature = signatures[run.signature]
        return run.inputs if run.fits is signature else call_inputs(signature, run, self._max_bytes)

    async def _answers(
        self, request: _Request, servable: Servable, calls: Sequence[PredictCall], deadline: float | None
    ) -> Sequence[Mapping[str, Array]]:
        """Queues every call; all answers in order, or the first failure, and then the others are not worth running."""
        deadlines = self._deadlines
        assert deadlines is not None
        self._metrics.entered(request.id)
        for call in calls:
            servable.submit(call)
        if deadline is not None:
            deadlines.add(request, deadline)
        try:
            return await request.answer
        except BaseException:
            for call in calls:
                servable.cancel(call)
            raise
        finally:
            if deadline is not None:
                deadlines.discard(request)

    def _open(self) -> Outbox[tuple[_Request, int, Result]]:
        """On the first request, when there is a loop."""
        self._outbox = Outbox(_settle)
        self._deadlines = Deadlines(self._outbox.loop, _expire)
        return self._outbox


class _Request:
    """A request whose calls are inside. ``done`` is called by the servable, on any thread, once for each call; the rest
    happens on the loop. Holds the version until the last call is answered."""

    __slots__ = ("_handle", "_left", "_metrics", "_outbox", "answer", "id", "late", "outputs")

    def __init__(
        self,
        handle: ServableHandle,
        calls: int,
        outbox: Outbox[tuple[_Request, int, Result]],
        metrics: RequestMetrics,
        late: Reason | None,
    ) -> None:
        self.id = handle.id
        self.late = late
        self._handle = handle
        self._left = calls
        self._outbox = outbox
        self._metrics = metrics
        self.outputs: list[Mapping[str, Array]] = [{}] * calls
        self.answer: asyncio.Future[Sequence[Mapping[str, Array]]] = outbox.loop.create_future()

    def done(self, index: int, result: Result) -> None:
        self._outbox.post((self, index, result))

    def settle(self, index: int, result: Result) -> None:
        self._left -= 1
        if not self._left:
            self._metrics.left(self.id)
            self._handle.release()
        if self.answer.done() or self._outbox.loop.is_closed():
            return
        if isinstance(result, Status):
            self.answer.set_exception(ServingError(result.code, result.message, result.reason))
            return
        self.outputs[index] = cast("Mapping[str, Array]", result)
        if not self._left:
            self.answer.set_result(self.outputs)


def _settle(item: tuple[_Request, int, Result]) -> None:
    request, index, result = item
    request.settle(index, result)


def _expire(request: _Request) -> None:
    if not request.answer.done():
        message = "the deadline passed before the model had answered"
        request.answer.set_exception(ServingError(StatusCode.DEADLINE_EXCEEDED, message, request.late))
