"""Runs one batch through a model, and answers every call of it, whatever happens.

calls -> assemble -> Model.run -> split_outputs -> on_done of each call
                      failed, and there were several: each half on its own, until the call at fault is alone
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from tfs_lite.core.clock import Clock
from tfs_lite.core.model import BatchReport, Model, OnBatch, PredictCall, WorkerLost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.schedulers.batching.assembly import assemble, split_outputs
from tfs_lite.schedulers.batching.signature_queue import SignatureQueue

Answer = Mapping[str, Tensor] | Status
CANCELLED = Status(StatusCode.CANCELLED, "the caller cancelled the request")
logger = logging.getLogger(__name__)


def finish(call: PredictCall, answer: Answer, name: str) -> None:
    """Answers a call; ``name`` is the servable it was sent to, for the log."""
    try:
        call.on_done(answer)
    except Exception:
        logger.exception("a caller of %s broke its contract: on_done must not raise", name)


class Execution:
    """Used by any number of threads, each with a model of its own or one that allows several. ``ended`` is called with
    the queue, the time, the rows and the seconds of every run whose calls are to be answered, before they are."""

    def __init__(
        self,
        servable_id: ServableId,
        name: str,
        clock: Clock,
        on_batch: OnBatch,
        ended: Callable[[SignatureQueue, float, int, float], None],
    ) -> None:
        self._id = servable_id
        self._name = name
        self._clock = clock
        self._on_batch = on_batch
        self._ended = ended

    def run(self, model: Model, queue: SignatureQueue, calls: Sequence[PredictCall], sizes: Sequence[int]) -> None:
        """Answers every call; ``sizes`` are their rows. Raises WorkerLost, after having answered with it, when the
        model has to recover."""
        started = self._clock.monotonic()
        answers, padding, lost, inside = self._attempt(model, queue, calls, sizes)
        ended = self._clock.monotonic()
        ok = not isinstance(answers[0], Status)
        moving = (inside[0] - started, ended - inside[1]) if inside else (0.0, 0.0)
        self._report(calls, sum(sizes), padding, ended - started, moving, ok)
        if not ok and lost is None and len(calls) > 1:
            self._run_halves(model, queue, calls, sizes)
            return
        self._ended(queue, ended, sum(sizes), ended - started)
        for call, answer in zip(calls, answers, strict=True):
            call.run_seconds, call.moving_seconds = ended - started, moving
            finish(call, answer, self._name)
        if lost is not None:
            raise lost

    def _attempt(
        self, model: Model, queue: SignatureQueue, calls: Sequence[PredictCall], sizes: Sequence[int]
    ) -> tuple[Sequence[Answer], int, WorkerLost | None, tuple[float, float] | None]:
        """Returns an answer for each call, the rows of padding, the loss of the worker if it came, and when the model
        was entered and left, if it was."""
        padding = 0
        try:
            batch = assemble(queue.rule, model, queue.key, calls, sizes, queue.settings)
            padding = batch.padding
            entered = self._clock.monotonic()
            results = model.run(queue.key, batch.inputs, batch.outputs)
            inside = (entered, self._clock.monotonic())
            return split_outputs(queue.rule, batch, results, calls, sizes), padding, None, inside
        except WorkerLost as error:
            return [error.status] * len(calls), padding, error, None
        except ServingError as error:
            return [error.status] * len(calls), padding, None, None
        except BaseException as error:
            logger.exception("%s broke its contract: it may only raise ServingError", self._name)
            status = Status(StatusCode.INTERNAL, f"{self._name} failed: {type(error).__name__}")
            return [status] * len(calls), padding, None, None

    def _run_halves(
        self, model: Model, queue: SignatureQueue, calls: Sequence[PredictCall], sizes: Sequence[int]
    ) -> None:
        middle = len(calls) // 2
        try:
            self.run(model, queue, calls[:middle], sizes[:middle])
        except WorkerLost as error:
            for call in calls[middle:]:
                finish(call, error.status, self._name)
            raise
        self.run(model, queue, calls[middle:], sizes[middle:])

    def _report(
        self,
        calls: Sequence[PredictCall],
        rows: int,
        padding: int,
        seconds: float,
        moving: tuple[float, float],
        ok: bool,
    ) -> None:
        waits = tuple([call.queue_seconds for call in calls])
        try:
            self._on_batch(BatchReport(self._id, rows, padding, seconds, waits, ok, moving))
        except Exception:
            logger.exception("a run of %s could not be counted", self._name)
