"""A batching servable on an :class:`InterleavingScheduler`, with a checker of every call and run.

fixture = BatcherFixture(BatchSettings(max_batch_size=4))
request = fixture.ask(rows=2)
fixture.finish()
fixture.close()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.schedulers.batcher_checker import BatcherChecker, CheckedCall
from tests.support.schedulers.batcher_models import NOT_RUN, GatedModel, Run, Verdict
from tests.support.schedulers.interleaving import InterleavingScheduler, SteppedWorker, ThreadState
from tfs_lite.schedulers.batching.retries import Retries
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.testing.lifecycle.clock import VirtualClock


class BatcherFixture:
    """``ask`` submits a call at once, ``end_run`` ends a run, and all else settles by itself."""

    def __init__(
        self, settings: BatchSettings, models: int = 1, threads: int = 1, stepwise: bool = False, **rest: Any
    ) -> None:
        self.scheduler = InterleavingScheduler(VirtualClock(), stepwise)
        self.clock = self.scheduler.clock
        self.runs: list[Run] = []
        self._threads = threads
        self.models = [self._model() for _ in range(models)]
        retries = rest.pop("retries", None)
        made = None if retries is None else Retries(retries)
        self.servable = self.scheduler.make_servable(self.models, settings, threads=threads, retries=made, **rest)
        self.checker = BatcherChecker(self.scheduler, settings, self.servable, retries)
        if not stepwise:
            self.scheduler.settle()

    def _model(self) -> GatedModel:
        return GatedModel(self.scheduler, self.runs, self._threads)

    def make_call(
        self, rows: int = 1, signature: str = "a", width: int = 2, outputs: tuple[str, ...] = (), **rest: Any
    ) -> CheckedCall:
        """A call that is not submitted yet."""
        poisoned = rest.pop("poisoned", False)
        return self.checker.make_call(signature, rows, width, outputs, poisoned, **{"deadline": None, **rest})

    def ask(self, *arguments: Any, **rest: Any) -> CheckedCall:
        """Submits a call of :meth:`make_call`."""
        request = self.make_call(*arguments, **rest)
        self.checker.submit(request)
        self.scheduler.settle()
        return request

    def cancel(self, request: CheckedCall) -> None:
        self.checker.cancel(request)
        self.scheduler.settle()

    def running(self) -> list[SteppedWorker]:
        return self.scheduler.in_state(ThreadState.IN_RUN)

    def end_run(self, worker: SteppedWorker, verdict: Verdict = Verdict.FINE) -> None:
        """Other threads do not go on."""
        next(model.under_way[worker] for model in self.models if worker in model.under_way).verdict = verdict
        self.checker.losses += verdict in NOT_RUN
        self.scheduler.step(worker)

    def finish(self, verdict: Verdict = Verdict.FINE, index: int = 0) -> None:
        """Ends a run; then all that can go on does."""
        self.end_run(self.running()[index], verdict)
        self.scheduler.settle()

    def recover(self) -> None:
        self.scheduler.step(self.scheduler.in_state(ThreadState.RECOVERING)[0])
        self.scheduler.settle()

    def advance(self, seconds: float) -> None:
        self.checker.note_time()
        self.clock.advance(seconds)
        self.scheduler.settle()

    def add_models(self, count: int) -> list[GatedModel]:
        new = [self._model() for _ in range(count)]
        self.models += new
        assert self.scheduler.resize(self.servable, new, [])
        self.checker.models = tuple(self.models)
        return new

    def remove_models(self, *models: Any) -> None:
        assert self.scheduler.resize(self.servable, [], models)

    def sizes(self) -> list[int]:
        """Rows of every run so far."""
        return [len(run.ids) for run in self.runs]

    def close(self) -> None:
        """Ends everything and checks what is left. Nothing the second time."""
        if not self.checker.closing:
            self.scheduler.start("closer", self.checker.close)
        self.scheduler.settle()
        while self.running() or self.scheduler.in_state(ThreadState.RECOVERING):
            if self.running():
                self.finish()
            else:
                self.recover()
        self.checker.finish()
        self.scheduler.check()


MakeBatcher = Callable[..., BatcherFixture]
