"""Runs failures of versions on trial again, on both versions, and tells the evidence of each trial how they went.

    TrialEvidence.due -> the version that is drawn -> the other one -> TrialEvidence.on_pair

A pair never disturbs requests for long: it takes the queue of the version as any request does, one pair of a trial runs
at a time, and the evidence leaves a pause behind each. A side that has not answered in time is given up: its calls
leave the queue, and what already runs holds its version until it ends, as the call of a client that has gone does.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import cast

from tfs_lite.core.clock import Clock
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import RUNNING, PredictCall, Servable
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor, find_signature
from tfs_lite.core.status import ServingError, Status
from tfs_lite.core.threads import join, start
from tfs_lite.core.trial import FAILED
from tfs_lite.operations.guard.evidence import MOST_SECONDS, PATIENCE_SECONDS, Pair, Ran, TrialEvidence, patience
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.server.inference.shield import all_finite, ending_of, may_repeat

logger = logging.getLogger(__name__)
HandleOf = Callable[[ModelRef], ServableHandle]
AT_ONCE = 4
"""The most pairs that run at a time, each of another trial: a version that hangs must not keep the others waiting."""
LOOK_SECONDS = 1.0
"""Between looks at the trials, while there are any: a failure that was just kept is due much later."""
_MARGIN = 0.001
"""Seconds by which a side is past its patience, and not at it, when it is given up."""


class Reruns:
    """Runs one pair of each trial at a time, of the trials in turn, on threads ``tfs-guard-runs``: as many as there
    have been trials at a time, at most :data:`AT_ONCE`. They sleep while there is no trial. Any thread may call any
    method. ``watch``* and ``forget``* -> ``close``."""

    def __init__(self, handle: HandleOf, clock: Clock, random: Random | None = None) -> None:
        """``handle``: of a version by number, as ``ServerCore.handle``. ``random`` draws the side that runs first."""
        self._handle = handle
        self._clock = clock
        self._random = random or Random()
        self._changed = threading.Condition()  # guards the fields below, and the sides of the pairs that run
        self._trials: list[TrialEvidence] = []  # the one whose turn is next comes first
        self._threads: list[threading.Thread] = []
        self._closed = False

    def watch(self, evidence: TrialEvidence) -> None:
        """Runs the failures of this trial again from now on. If the system refuses a thread, that is logged, and the
        next trial tries again."""
        with self._changed:
            if self._closed or evidence in self._trials:
                return
            self._trials.append(evidence)
            self._staff()
            self._changed.notify_all()

    def forget(self, evidence: TrialEvidence) -> None:
        """The trial is over: no pair of it begins any more, and one that runs is given up."""
        with self._changed:
            if evidence in self._trials:
                self._trials.remove(evidence)
            self._changed.notify_all()

    def close(self) -> None:
        """Gives up the pairs that run, and joins each thread within :data:`~tfs_lite.core.threads.JOIN_SECONDS`."""
        with self._changed:
            self._closed = True
            self._trials.clear()
            self._changed.notify_all()
            threads = tuple(self._threads)
        for thread in threads:
            join(thread)

    def _staff(self) -> None:
        """Called with the lock held. A thread counts once it has been started."""
        if len(self._threads) >= min(AT_ONCE, len(self._trials)):
            return
        thread = threading.Thread(target=self._run, name="tfs-guard-runs", daemon=True)
        try:
            start(thread)
        except ServingError as error:
            logger.warning("%s; failures of versions on trial are run again late", error)
        else:
            self._threads.append(thread)

    # On the threads.

    def _run(self) -> None:
        while not self._closed:
            if not self._run_next():
                self._sleep()

    def _run_next(self) -> bool:
        """Runs the pair that is due, if there is one."""
        now = self._clock.monotonic()
        for evidence in tuple(self._trials):
            pair = evidence.due(now)
            if pair is not None:
                self._take_turn(evidence)
                self._tell(evidence, pair)
                return True
        return False

    def _sleep(self) -> None:
        """Until a pair may be due, or the trials change."""
        trials = tuple(self._trials)
        times = [time for evidence in trials if (time := evidence.next_at) is not None]
        wake_at = min([self._clock.monotonic() + LOOK_SECONDS, *times]) if trials else math.inf
        self._wait(lambda: tuple(self._trials) != trials, wake_at)

    def _take_turn(self, evidence: TrialEvidence) -> None:
        """The others come before it the next time."""
        with self._changed:
            if evidence in self._trials:
                self._trials.remove(evidence)
                self._trials.append(evidence)

    def _tell(self, evidence: TrialEvidence, pair: Pair) -> None:
        new = old = None
        try:
            new, old = self._run_pair(evidence, pair)
        except BaseException:
            logger.exception("a failed request of %s could not be run again", evidence.id)
        finally:
            evidence.on_pair(pair, new, old)

    def _run_pair(self, evidence: TrialEvidence, pair: Pair) -> tuple[Ran | None, Ran | None]:
        """How the new and the old version ran it; None for one that says nothing."""
        sides = list[_Side]()
        try:
            for version in (evidence.id.version, evidence.old):
                sides.append(self._side(evidence, version, pair.asked))
            self._run_sides(evidence, pair, *self._random.sample(sides, 2))
            with self._changed:
                new, old = sides
                return (new.ran, old.ran) if self._goes_on(evidence) else (None, None)
        except ServingError:  # a version is gone
            return None, None
        finally:
            for side in sides:
                side.give_up()

    def _side(self, evidence: TrialEvidence, version: int, asked: ServableId | None) -> _Side:
        """NOT_FOUND if the version is gone, or the ensemble that was asked."""
        name, answered = evidence.id.name, partial(evidence.answered_by, version)
        handle = self._handle(ModelRef(name, version))
        if asked is None:
            return _Side([handle], {name: version}, answered, self._clock, self._changed)
        try:
            ensemble = self._handle(ModelRef(asked.name, asked.version))
        except ServingError:
            handle.release()
            raise
        return _Side([ensemble, handle], {name: version}, answered, self._clock, self._changed)

    def _run_sides(self, evidence: TrialEvidence, pair: Pair, first: _Side, second: _Side) -> None:
        """Returns when nothing more is to be learnt, at most :data:`PATIENCE_SECONDS` and :data:`MOST_SECONDS` later.
        The second side begins when the first has ended, or has taken so long that it may have failed by that."""
        first.begin(pair.runs)
        self._wait(lambda: first.over or not self._goes_on(evidence), first.started + PATIENCE_SECONDS + _MARGIN)
        if not self._goes_on(evidence):
            return
        second.begin(pair.runs)
        while not (first.over and second.over) and self._goes_on(evidence):
            over = (first.over, second.over)
            ends = max(first.given_up_at(second), second.given_up_at(first))
            if self._clock.monotonic() >= ends:
                return
            self._wait(partial(self._has_changed, evidence, first, second, over), ends)

    def _has_changed(self, evidence: TrialEvidence, first: _Side, second: _Side, over: tuple[bool, bool]) -> bool:
        return (first.over, second.over) != over or not self._goes_on(evidence)

    def _goes_on(self, evidence: TrialEvidence) -> bool:
        return evidence in self._trials

    def _wait(self, ready: Callable[[], bool], at: float) -> None:
        """Waits until something is ready, the clock says ``at``, or the end."""
        clock = self._clock
        timer = clock.call_later(at - clock.monotonic(), self._wake) if at < math.inf else None
        with self._changed:
            while not (self._closed or ready() or clock.monotonic() >= at):
                self._changed.wait()
        if timer is not None:
            timer.cancel()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _Side:
    """The runs of a failure on one version, or on an ensemble that takes the version in its steps. It holds both until
    the last call was answered. ``_answer`` is called on the servable's threads, everything else on that of the
    pair."""

    def __init__(
        self,
        handles: Sequence[ServableHandle],
        instead: Mapping[str, int],
        answered: Callable[[], int],
        clock: Clock,
        changed: threading.Condition,
    ) -> None:
        """The first of the ``handles`` is asked. ``instead``: the version that the side is about, by its name.
        ``answered`` counts the requests that this version has answered so far."""
        self.started = math.inf
        self.seconds = 0.0
        """The time that it took, once it is over, with its wait in the queue."""
        self._handles = handles
        self._servable: Servable = handles[0].servable
        self._instead = instead
        self._answered = answered
        self._answered_before = 0
        self._clock = clock
        self._changed = changed  # guards the fields below; notified at the end
        self._begun = False
        self._left = 1  # calls that are not answered
        self._calls: Sequence[PredictCall] = ()
        self._failed = self._nonfinite = self._nothing = False

    @property
    def over(self) -> bool:
        return self._left == 0

    @property
    def ran(self) -> Ran | None:
        """How it has run so far; None if that says nothing. The wait in a queue does not count, as long as the queue
        moves: the new version has many more requests than the old one."""
        if self._nothing or not self._begun:
            return None
        if self.over:
            waited = max((call.queue_seconds for call in self._calls), default=0.0)
            return Ran(max(self.seconds - waited, 0.0), self._failed, self._nonfinite)
        runs = any(call.ticket is RUNNING for call in self._calls)
        if not runs and self._answered() > self._answered_before:
            return None
        return Ran(self._clock.monotonic() - self.started, self._failed, self._nonfinite, ended=False)

    def given_up_at(self, other: _Side) -> float:
        """The time after which it makes no difference any more whether it ends."""
        if self.over:
            return -math.inf
        return self.started + min(MOST_SECONDS, patience(other.seconds) + _MARGIN if other.over else MOST_SECONDS)

    def begin(self, runs: Sequence[Run]) -> None:
        """Checks the inputs against the version's own signatures, and queues the calls."""
        self.started, self._begun = self._clock.monotonic(), True
        self._answered_before = self._answered()
        traits, signatures = self._servable.traits, self._servable.signatures
        if not may_repeat(traits):
            self._end(nothing=True)
            return
        try:
            calls = [self._call(run, signatures) for run in runs]
        except Exception:  # a client would get an error, too
            self._end(failed=True)
            return
        self._calls, self._left = calls, len(calls)
        for call in calls:
            self._servable.submit(call)

    def _call(self, run: Run, signatures: Mapping[str, Signature]) -> PredictCall:
        """Without a deadline, because the thread that waits gives it up, and past the response cache."""
        key = run.signature or DEFAULT_SIGNATURE
        inputs = call_inputs(find_signature(signatures, key), run)
        return PredictCall(key, inputs, run.outputs, None, self._answer, instead=self._instead)

    def give_up(self) -> None:
        """No thread waits for it any more: what waits leaves the queue."""
        if not self._begun:
            self._release()
        elif not self.over:
            for call in self._calls:
                self._servable.cancel(call)

    def _answer(self, answer: Mapping[str, Tensor] | Status) -> None:
        if isinstance(answer, Status):
            failed = ending_of(answer) in FAILED
            self._end(failed=failed, nothing=not failed)
        else:
            self._end(nonfinite=not all_finite((cast(Mapping[str, Array], answer),)))

    def _end(self, *, failed: bool = False, nonfinite: bool = False, nothing: bool = False) -> None:
        """One call has ended, or it was refused before the first."""
        with self._changed:
            self._failed |= failed
            self._nonfinite |= nonfinite
            self._nothing |= nothing
            self._left -= 1
            over = self._left == 0
            if over:
                self.seconds = self._clock.monotonic() - self.started
                self._changed.notify_all()
        if over:
            self._release()

    def _release(self) -> None:
        for handle in self._handles:
            handle.release()
