"""Whatever the order of events: every call of a batching servable gets its own answer, once, and in time.

The servable is the real one, with its real threads, of which one at a time goes on, and only when it is told to
(:mod:`tests.support.schedulers.interleaving`). In half of the stories threads also stop between critical sections,
callers and timers among them, so that others come in between. Time is virtual. A run is its seed; one that fails
prints it:

    python -m pytest tests/simulation/test_batcher.py --hypothesis-seed=N
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.profiles import CountedMachine, SeededRuns
from tests.support.schedulers.batcher_checker import BatcherChecker
from tests.support.schedulers.batcher_models import NOT_RUN, GatedModel, Run, Verdict
from tests.support.schedulers.interleaving import (
    MOST_STEPS,
    InterleavingScheduler,
    ThreadState,
    Violation,
    no_threads_left,
)
from tfs_lite.schedulers.batching import batcher, execution
from tfs_lite.schedulers.batching.assembly import split_outputs
from tfs_lite.schedulers.batching.queue import BatchJob, JobQueue
from tfs_lite.schedulers.batching.retries import Loss, Retries
from tfs_lite.schedulers.batching.settings import BatchSettings, QueuePolicy, SendWhen, TimeoutAction
from tfs_lite.schedulers.batching.signature_queue import SignatureQueue
from tfs_lite.testing.lifecycle.clock import VirtualClock

T = TypeVar("T")


CALLS = 10
"""So many at least come before the servable is closed."""
DELAY = 0.25
TIMES = st.sampled_from([0.0625, 0.125, DELAY, 0.5, 1.0])
INDICES = st.integers(0, 5)
POLICIES = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(TimeoutAction),
    default_timeout=st.sampled_from([0.0, 0.125, 0.5]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 1, 2, 4]),
)
VERDICTS = st.sampled_from(
    [Verdict.FINE] * 6 + [Verdict.FAILS] * 2 + [Verdict.LOST] * 2 + [Verdict.UNREAD, Verdict.BUSY]
)
MOVES = st.lists(INDICES, max_size=6)
"""On a scheduler that goes stepwise: who takes the next steps."""


@st.composite
def any_settings(draw: st.DrawFn) -> BatchSettings:
    """Whatever may be configured, on a small scale."""
    found = BatchSettings(
        max_queued_calls=draw(st.sampled_from([1, 2, 4, 1000, 1000])),
        preserve_ordering=draw(st.sampled_from([False, False, True])),
    )
    if draw(st.sampled_from([False, False, True])):
        levels = draw(st.integers(1, 3))
        found = replace(
            found,
            priority_levels=levels,
            default_priority=draw(st.integers(1, levels)),
            policies=draw(st.dictionaries(st.integers(1, levels), POLICIES, max_size=2)),
        )
    if draw(st.sampled_from([False, False, True])):
        found = replace(found, default_policy=draw(POLICIES))
    most = draw(st.sampled_from([0, 1, 2, 4, 4, 7]))
    if not most:
        return found
    send = draw(st.sampled_from(SendWhen))
    split = draw(st.booleans())
    sizes = st.lists(st.integers(1, most), max_size=2, unique=True)
    return replace(
        found,
        max_batch_size=most,
        preferred=tuple(sorted(draw(sizes))),
        send=send,
        max_delay=DELAY if send is SendWhen.WAIT else 0.0,
        allowed_sizes=tuple(sorted({*draw(sizes), most})) if draw(st.booleans()) else (),
        pad_variable_length=draw(st.booleans()),
        split_large=split,
        max_request_rows=draw(st.sampled_from([0, most, 2 * most + 1])) if split else 0,
        max_queued_rows=draw(st.sampled_from([0, 0, 4, 10])),
    )


class Batcher(CountedMachine):
    """One rule per thing that can happen to a servable."""

    closing = False
    scheduler: InterleavingScheduler
    checker: BatcherChecker

    @initialize(
        wanted=any_settings(),
        models=st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (3, 1)]),
        stepwise=st.booleans(),
        retries=st.sampled_from([None, True, True, False]),
    )
    def begin(self, wanted: BatchSettings, models: tuple[int, int], stepwise: bool, retries: bool | None) -> None:
        """So many models, each with so many threads."""
        self.scheduler = scheduler = InterleavingScheduler(VirtualClock(), stepwise)
        count, threads = models
        runs: list[Run] = []
        servable = scheduler.make_servable(
            [GatedModel(scheduler, runs, threads) for _ in range(count)],
            wanted,
            threads=threads,
            retries=None if retries is None else Retries(retries),
        )
        self.checker = BatcherChecker(scheduler, wanted, servable, retries)
        self._go_on()

    def teardown(self) -> None:
        if hasattr(self, "checker"):
            self._end()

    @rule(
        signature=st.sampled_from("aab"),
        rows=st.integers(0, 7),
        width=st.sampled_from([2, 2, 3]),
        outputs=st.sampled_from([(), ("y",), ("id",), ("id", "y")]),
        bad=st.sampled_from([""] * 7 + ["poisoned", "deadly"]),
        rest=st.fixed_dictionaries({"priority": st.integers(0, 4), "timeout": st.sampled_from([0.0, 0.0625, 2.0])}),
        patience=st.sampled_from([None] * 4 + [0.0, 0.0625, 0.125, 0.5, 1.0]),
        apart=st.booleans(),
        moves=MOVES,
    )
    def submit(
        self,
        signature: str,
        rows: int,
        width: int,
        outputs: tuple[str, ...],
        bad: str,
        rest: dict[str, Any],
        patience: float | None,
        apart: bool,
        moves: list[int],
    ) -> None:
        deadline = None if patience is None else self.scheduler.clock.monotonic() + patience
        request = self.checker.make_call(
            signature, rows, width, outputs, bad == "poisoned", bad == "deadly", deadline=deadline, **rest
        )
        self._do(partial(self.checker.submit, request), apart, moves)

    @rule(signature=st.sampled_from("aab"), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), moves=MOVES)
    def submit_some(self, signature: str, sizes: list[int], moves: list[int]) -> None:
        """Plain calls, one after the other."""
        for rows in sizes:
            self._do(
                partial(self.checker.submit, self.checker.make_call(signature, rows, 2, (), False, deadline=None)),
                False,
            )
        self._go_on(moves)

    @precondition(lambda self: self.checker.requests)
    @rule(index=INDICES, apart=st.booleans(), moves=MOVES)
    def cancel(self, index: int, apart: bool, moves: list[int]) -> None:
        """One of the last ones; it may have been answered."""
        request = self.checker.requests[-1 - index % len(self.checker.requests)]
        self._do(partial(self.checker.cancel, request), apart, moves)

    @rule(seconds=TIMES, moves=MOVES)
    def let_time_pass(self, seconds: float, moves: list[int]) -> None:
        self.checker.note_time()
        self.scheduler.clock.advance(seconds)
        self._go_on(moves)

    @precondition(lambda self: self.scheduler.in_state(ThreadState.IN_RUN))
    @rule(index=INDICES, verdict=VERDICTS, moves=MOVES)
    def finish_run(self, index: int, verdict: Verdict, moves: list[int]) -> None:
        self._finish_run(index, verdict)
        self._go_on(moves)

    @precondition(lambda self: self.scheduler.in_state(ThreadState.IN_RUN))
    @rule(index=INDICES, moves=MOVES)
    def finish_run_well(self, index: int, moves: list[int]) -> None:
        self._finish_run(index, Verdict.FINE)
        self._go_on(moves)

    @precondition(lambda self: self.scheduler.in_state(ThreadState.RECOVERING))
    @rule(index=INDICES, moves=MOVES)
    def recover(self, index: int, moves: list[int]) -> None:
        self.scheduler.step(_pick(self.scheduler.in_state(ThreadState.RECOVERING), index))
        self._go_on(moves)

    @precondition(lambda self: self.scheduler.ready)
    @rule(moves=MOVES)
    def go_on(self, moves: list[int]) -> None:
        self._go_on(moves)

    @precondition(lambda self: self.scheduler.ready)
    @rule()
    def settle(self) -> None:
        self.scheduler.settle()
        self._go_on()

    @precondition(lambda self: not self.closing and len(self.checker.requests) >= CALLS)
    @rule(sure=st.sampled_from([False] * 3 + [True]), moves=MOVES)
    def close(self, sure: bool, moves: list[int]) -> None:
        if sure:
            self.closing = True
            self.scheduler.start("closer", self.checker.close)
            self._go_on(moves)

    def _finish_run(self, index: int, verdict: Verdict) -> None:
        worker = _pick(self.scheduler.in_state(ThreadState.IN_RUN), index)
        run = next(model.under_way[worker] for model in self.checker.models if worker in model.under_way)
        run.verdict = verdict
        self.checker.losses += verdict in NOT_RUN
        self.scheduler.step(worker)

    def _do(self, act: Any, apart: bool, moves: Sequence[int] = ()) -> None:
        """On a thread of its own, or at once."""
        if apart and self.scheduler.stepwise:
            self.scheduler.start("caller", act)
        else:
            act()
        self._go_on(moves)

    def _go_on(self, moves: Sequence[int] = ()) -> None:
        self.count_step()
        self.scheduler.check()
        if self.scheduler.stepwise:
            for index in moves:
                if ready := self.scheduler.ready:
                    self.scheduler.step(_pick(ready, index))
        else:
            self.scheduler.settle()
        if self.scheduler.is_quiet:
            self.checker.check_idle()

    def _end(self) -> None:
        """Whatever is under way ends, well."""
        if not self.closing:
            self.scheduler.settle()
            self.checker.check_idle()
            self.scheduler.start("closer", self.checker.close)
        for _ in range(MOST_STEPS):
            self.scheduler.settle()
            if self.scheduler.in_state(ThreadState.IN_RUN):
                self._finish_run(0, Verdict.FINE)
            elif self.scheduler.in_state(ThreadState.RECOVERING):
                self.scheduler.step(self.scheduler.in_state(ThreadState.RECOVERING)[0])
            elif not self.scheduler.threads:
                break
            else:
                raise Violation(f"nobody can go on: {[(a.thread.name, a.state) for a in self.scheduler.threads]}")
        self.scheduler.clock.advance(10.0)
        self.scheduler.settle()
        self.checker.finish()
        self.scheduler.check()


def _pick(choices: Sequence[T], index: int) -> T:
    return choices[index % len(choices)]


RUNS = SeededRuns(
    Batcher, "tests/simulation/test_batcher.py", runs=10, steps=50, batches=(8, 200), min_steps=(3_000, 80_000)
)


@pytest.mark.timeout(1200)  # a story that fails is made as short as possible before it is told
def test_every_call_is_answered_once_and_rightly_whatever_happens(request: pytest.FixtureRequest) -> None:
    with no_threads_left():
        RUNS.check(request.config.getoption("--hypothesis-seed"))


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.UNREAD, Verdict.BUSY])
def test_call_behind_a_part_that_was_lost_is_told_so_where_nothing_is_queued_again(verdict: Verdict) -> None:
    """Its batch has failed, and its own part of it is not run any more."""
    with no_threads_left():
        story = Batcher()
        story.begin(
            wanted=BatchSettings(max_batch_size=2, max_queued_calls=2), models=(1, 1), stepwise=True, retries=None
        )
        story.submit_some(signature="a", sizes=[1, 1], moves=[])
        story.settle()
        story.finish_run(index=0, verdict=Verdict.FAILS, moves=[])
        story.finish_run(index=0, verdict=verdict, moves=[0, 0])
        story.teardown()


# The simulation notices what it is there to notice.


def _never_wakes(queue: SignatureQueue, job: BatchJob) -> bool:
    queue.add(job)
    return False


def _swapped(*arguments: Any) -> Any:
    answers = split_outputs(*arguments)
    return [answers[1], answers[0], *answers[2:]] if len(answers) > 1 else answers


def _from_behind(queue: JobQueue, number: int) -> list[BatchJob]:
    jobs = list(queue)[-number:]
    for job in jobs:
        queue.remove(job)
    return jobs


def _expired(queue: JobQueue, now: float) -> list[Any]:
    queue.next_expiry = inf
    return []


def _drops(queue: SignatureQueue) -> list[BatchJob]:
    JobQueue.clear(queue)
    return []


def _never_full(queue: JobQueue, job: BatchJob) -> None:
    refusal_of_queue(queue, job)


def _always(retries: Retries, loss: Loss, now: float) -> list[BatchJob]:
    return [*loss.inside, *loss.behind]


def _never(retries: Retries, loss: Loss, now: float) -> list[BatchJob]:
    return []


refusal_of_queue = JobQueue.refusal
BREAKS = {
    "a worker is not woken": (SignatureQueue, "admit", _never_wakes),
    "calls get rows of others": (execution, "split_outputs", _swapped),
    "the last call is served first": (JobQueue, "take", _from_behind),
    "deadlines are not kept": (JobQueue, "sweep", _expired),
    "calls that wait are forgotten": (SignatureQueue, "clear", _drops),
    "the queue has no end": (JobQueue, "refusal", _never_full),
    "a call that ends workers runs again and again": (Retries, "choose", _always),
    "a call that may run again fails": (Retries, "choose", _never),
    "nobody waits for a lost worker": (batcher, "PATIENCE", 0.5),
}
SOONEST = {"deadlines are not kept": 5}
"""The batch that notices the mistake soonest, with today's hypothesis; it is tried before the others."""


@pytest.mark.parametrize("what", BREAKS)
def test_mistake_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BREAKS[what])
    with pytest.raises((Violation, ExceptionGroup)):
        RUNS.find_failure([SOONEST.get(what, 0), *range(200)])
