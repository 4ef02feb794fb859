"""Runs one batch through a model, and answers every call of it, whatever happens.

calls -> assemble -> Model.run -> split_outputs -> on_done of each call
                      failed, and there were several: each half on its own, until the call at fault is alone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfs_lite.core.clock import Clock
from tfs_lite.core.model import BatchReport, Model, OnBatch, PredictCall, WorkerLost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status
from tfs_lite.schedulers.batching.assembly import assemble, split_outputs
from tfs_lite.schedulers.batching.signature_queue import SignatureQueue
from tfs_lite.schedulers.calls import Answer, count_run, failure_of, finish


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
        waits = tuple([call.queue_seconds for call in calls])
        report = BatchReport(self._id, sum(sizes), padding, ended - started, waits, ok, moving)
        count_run(self._on_batch, report, self._name)
        if not ok and lost is None and len(calls) > 1:
            self._run_halves(model, queue, calls, sizes)
            return
        self._ended(queue, ended, sum(sizes), ended - started)
        for call, answer in zip(calls, answers, strict=True):
            call.run_seconds, call.copy_seconds = ended - started, moving
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
        except BaseException as error:
            lost = error if isinstance(error, WorkerLost) else None
            return [failure_of(error, self._name)] * len(calls), padding, lost, None

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
