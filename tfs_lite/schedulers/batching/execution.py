"""Runs one batch through a model, and answers every call of it, unless the worker's process was lost.

calls -> assemble -> Model.run -> split_outputs -> on_done of each call
                      failed, and there were several: each half on its own, until the call at fault is alone;
                      the same, and without a run, for calls that the model takes alone and not together
                      the outputs have no row for each row: every call alone, then and ever after
                      the process was lost, or busy: a Loss, and no answer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tfs_lite.core.clock import Clock
from tfs_lite.core.model import BatchReport, BatchTrace, Model, OnBatch, PredictCall, WorkerBusy, WorkerLost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status
from tfs_lite.schedulers.batching.assembly import assemble, split_outputs, wanted_outputs
from tfs_lite.schedulers.batching.queue import BatchJob
from tfs_lite.schedulers.batching.retries import Loss
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.signature_queue import SignatureQueue
from tfs_lite.schedulers.calls import Answer, complete, count_run, failure_of, finish


class Execution:
    """Runs batches, on any number of threads, each with a model of its own or one that allows several. ``ended`` is
    called with the queue, the time, the rows and the seconds of every run whose calls are to be answered, before they
    are."""

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

    def run(self, model: Model, queue: SignatureQueue, jobs: Sequence[BatchJob]) -> Loss | None:
        """Answers the call of every job but those of the loss, which comes if the model could not run them. After a
        WorkerLost it has to recover."""
        calls, sizes = [job.call for job in jobs], [job.size for job in jobs]
        if len(calls) > 1 and queue.sharing.may_run_apart and (apart := self._apart(queue, calls, sizes)) is not None:
            return apart(model, queue, jobs)
        started = self._clock.monotonic()
        rule = None if jobs[0].alone else queue.rule
        answers, padding, lost, inside = self._attempt(model, queue, calls, sizes, rule)
        ended = self._clock.monotonic()
        loss = None if lost is None else Loss(lost, jobs)
        if loss is not None and loss.unread:
            return loss
        ok = loss is None and not isinstance(answers[0], Status)
        moving = (inside[0] - started, ended - inside[1]) if inside else (0.0, 0.0)
        waits = tuple([call.queue_seconds for call in calls])
        again = any(job.again for job in jobs)
        report = BatchReport(self._id, sum(sizes), padding, ended - started, waits, ok, moving, loss is not None, again)
        count_run(self._on_batch, report, self._name)
        _trace(calls, report, started)
        if loss is not None:
            return loss
        alone = queue.evidence is not None and queue.evidence.may_share is False
        if not ok and (len(calls) > 1 or (alone and padding)):
            for call in calls:
                call.halved = True
            return self._run_alone(model, queue, jobs) if alone else self._run_halves(model, queue, jobs)
        self._ended(queue, ended, report.rows, ended - started)
        given: Sequence[Any] = answers  # all of them outputs if the run went well
        for call, answer in zip(calls, given, strict=True):
            call.run_seconds, call.copy_seconds, call.batch_rows = ended - started, moving, report.rows
            wanted = call.outputs or queue.outputs
            if ok and len(answer) < len(wanted):
                answer = complete(call, answer, wanted, f"model {self._id.name} version {self._id.version}")
            finish(call, answer, self._name)
        return None

    def _attempt(
        self,
        model: Model,
        queue: SignatureQueue,
        calls: Sequence[PredictCall],
        sizes: Sequence[int],
        rule: BatchRule | None,
    ) -> tuple[Sequence[Answer], int, WorkerLost | WorkerBusy | None, tuple[float, float] | None]:
        """Returns an answer for each call, the rows of padding, the loss of the worker if it came, and when the model
        was entered and left, if it was."""
        padding = 0
        try:
            settings, evidence = queue.settings, queue.evidence
            if evidence is not None and not evidence.shows(wanted_outputs(calls)):
                settings = replace(settings, allowed_sizes=())
            batch = assemble(rule, model, queue.key, calls, sizes, settings)
            padding = batch.padding
            entered = self._clock.monotonic()
            results = model.run(queue.key, batch.inputs, batch.outputs)
            inside = (entered, self._clock.monotonic())
            if evidence is not None and rule is not None:
                evidence.note(results, batch.rows + padding)
            if queue.sharing.lengths is not None and rule is not None:
                queue.sharing.lengths.note(batch.inputs, results)
            return split_outputs(rule, batch, results, calls, sizes), padding, None, inside
        except (WorkerLost, WorkerBusy) as lost:
            return [], padding, lost, None
        except BaseException as error:
            return [failure_of(error, self._name)] * len(calls), padding, None, None

    def _apart(
        self, queue: SignatureQueue, calls: Sequence[PredictCall], sizes: Sequence[int]
    ) -> Callable[[Model, SignatureQueue, Sequence[BatchJob]], Loss | None] | None:
        """How calls run that may not share a run; None if they may."""
        sharing, rows = queue.sharing, sum(sizes)
        if not sharing.shows_rows(wanted_outputs(calls), rows):
            return self._run_alone
        return None if sharing.takes([call.inputs for call in calls], rows) else self._run_halves

    def _run_halves(self, model: Model, queue: SignatureQueue, jobs: Sequence[BatchJob]) -> Loss | None:
        middle = len(jobs) // 2
        loss = self.run(model, queue, jobs[:middle])
        if loss is not None:
            return replace(loss, behind=[*loss.behind, *jobs[middle:]])
        return self.run(model, queue, jobs[middle:])

    def _run_alone(self, model: Model, queue: SignatureQueue, jobs: Sequence[BatchJob]) -> Loss | None:
        for index, job in enumerate(jobs, 1):
            loss = self.run(model, queue, [job])
            if loss is not None:
                return replace(loss, behind=[*loss.behind, *jobs[index:]])
        return None


def _trace(calls: Sequence[PredictCall], report: BatchReport, started: float) -> None:
    traces = [call.trace for call in calls if call.trace is not None]
    if traces:
        batch = BatchTrace(report, started)
        for trace in traces:
            trace.batches += (batch,)
