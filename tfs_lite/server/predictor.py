"""The one path of a request to a model, whatever protocol and method it came by.

    which version -> [plan: which signature, are the names right, decode] -> which outputs -> do dtypes and shapes fit
    -> hand the calls to the servable -> wait for the answers, the deadline or the client's going

The plan is passed in: it is all that protocols and methods differ in before the model runs. It may ask for several
runs; all of them are answered by the same version. The handle is held until the servable has answered every run, also
when the client has gone in the meantime: the model may still be reading the inputs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.protocols.serving import ModelRef
from tfs_lite.protocols.tensor_proto import MAX_FILL_BYTES, Array
from tfs_lite.server.request_metrics import RequestMetrics, RequestRecord

logger = logging.getLogger(__name__)

Lookup: TypeAlias = Callable[[ModelRef], ServableHandle]
"""Resolves name, version or label to a handle; raises ServingError."""


Plan: TypeAlias = Callable[[Mapping[str, Signature]], Awaitable[Sequence[Run]]]
"""From the signatures of the version to what is to be run, once at least; raises ServingError."""


@dataclass(frozen=True, slots=True)
class Inference:
    """The answer of exactly one version: the outputs of each run."""

    id: ServableId
    runs: tuple[Run, ...]
    outputs: tuple[Mapping[str, Array], ...]

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def output(self) -> Mapping[str, Array]:
        return self.outputs[0]


class Predictor:
    """Used on the event loop only. ``max_bytes`` bounds what a default may be repeated to."""

    def __init__(self, lookup: Lookup, metrics: RequestMetrics, max_bytes: int = MAX_FILL_BYTES) -> None:
        self._lookup = lookup
        self._metrics = metrics
        self._max_bytes = max_bytes

    async def infer(self, model: ModelRef, plan: Plan, record: RequestRecord, deadline: float | None) -> Inference:
        """``deadline`` is in seconds of the event loop's clock, which is ``time.monotonic``. Fills in the version and
        the time in the model of ``record``. Raises ServingError; CancelledError when the client has gone, after which
        the answers are dropped."""
        handle = self._lookup(model)
        record.version = handle.id.version
        try:
            servable: Servable = handle.servable
            runs = tuple(await plan(servable.signatures))
            calls = [self._call(servable.signatures[run.signature], run, deadline) for run in runs]
            if not calls:
                raise invalid_argument("nothing is to be run")
        except BaseException:
            handle.release()
            raise
        servable_id, answers = handle.id, _submit(handle, calls, self._metrics)
        outputs = await _answers_or_deadline(calls, answers, deadline)
        record.run_seconds = sum(call.run_seconds for call in calls)
        return Inference(servable_id, runs, outputs)

    def _call(self, signature: Signature, run: Run, deadline: float | None) -> PredictCall:
        arrays = call_inputs(signature, run, self._max_bytes)
        return PredictCall(run.signature, arrays, run.outputs, deadline, on_done=lambda result: None)


Answer: TypeAlias = "asyncio.Future[Mapping[str, Tensor]]"


def _submit(handle: ServableHandle, calls: Sequence[PredictCall], metrics: RequestMetrics) -> list[Answer]:
    """Queues every call; the handle is released after the last of them."""
    loop = asyncio.get_running_loop()
    holder = Holder(handle, len(calls), metrics)
    answers: list[Answer] = []
    for call in calls:
        answers.append(loop.create_future())
        call.on_done = _when_done(loop, holder, answers[-1])
    servable: Servable = handle.servable
    for call in calls:
        servable.submit(call)
    return answers


class Holder:
    """Holds a version for a number of calls. ``done`` is called on any thread, once for each."""

    def __init__(self, handle: ServableHandle, calls: int, metrics: RequestMetrics) -> None:
        self.id = handle.id
        self._handle = handle
        self._metrics = metrics
        self._lock = threading.Lock()  # guards _left
        self._left = calls
        metrics.entered(handle.id)

    def done(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._metrics.left(self.id)
            self._handle.release()


def _when_done(
    loop: asyncio.AbstractEventLoop, holder: Holder, answer: Answer
) -> Callable[[Mapping[str, Tensor] | Status], None]:
    """Called by the servable, on any thread: the model is done with the inputs."""

    def done(result: Mapping[str, Tensor] | Status) -> None:
        holder.done()
        try:
            loop.call_soon_threadsafe(_settle, answer, result)
        except RuntimeError:
            logger.debug("an answer of %s came after the event loop had closed", holder.id)

    return done


def _settle(answer: Answer, result: Mapping[str, Tensor] | Status) -> None:
    if answer.done():
        return
    if isinstance(result, Status):
        answer.set_exception(ServingError(result.code, result.message))
    else:
        answer.set_result(result)


async def _answers_or_deadline(
    calls: Sequence[PredictCall], answers: Sequence[Answer], deadline: float | None
) -> tuple[Mapping[str, Array], ...]:
    """All answers, in order; or the first failure, and then the others are not worth running."""
    timer = None
    if deadline is not None:
        timer = asyncio.get_running_loop().call_at(deadline, _expire, answers)
    try:
        outputs = (await answers[0],) if len(answers) == 1 else tuple(await asyncio.gather(*answers))
        return cast(tuple[Mapping[str, Array], ...], outputs)
    finally:
        if timer is not None:
            timer.cancel()
        for call in calls:
            call.cancelled = True  # without effect on a call that was answered


def _expire(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(
                ServingError(StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the model had answered")
            )
