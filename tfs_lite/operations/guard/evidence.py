"""The evidence against a version on trial: its failures, what running them again has shown, and the verdict.

A model is a function: what it does wrong, it does again. So no rate of failures is compared, and no client's request is
needed for a comparison: some of the failures are run again later on both versions (:mod:`.reruns`), and each span of
10 s has one vote.

    on_end -> 6 failures of each 10 s wait for 10 s -> due -> both versions -> on_pair -> a vote each 10 s -> judgement

If both versions fail equally often at that later moment, for each request, then a vote against the new one is as likely
as one for it. Each term of :func:`log_evidence` is then the wealth of a gambler in a fair game, so that it ever reaches
10,000 with a probability of at most 0.0001, however often one looks.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tfs_lite.core.servable import ServableId
from tfs_lite.core.trial import FAILED, Ending, TrialEnding
from tfs_lite.operations.guard.trial import Judgement
from tfs_lite.protocols.dtypes import array_bytes
from tfs_lite.protocols.runs import Run

SPAN_SECONDS = 10.0
"""Each span of so many seconds keeps a few failures, and has one vote."""
KEPT_IN_SPAN = 6
DELAY_SECONDS = 10.0
"""A failure is run again so much later: what disturbs both versions, or one of them for a moment, has passed."""
MOST_WAITING = 24
"""Failures of one version that wait to be run again. Further ones are only counted."""
MAX_INPUT_BYTES = 64 << 20
"""The inputs of all failures of one version that wait or run."""
PACE = 9.0
"""After a pair, running again pauses for so many times what the faster side took: a tenth of one thread at most."""
NO_OUTCOME_PAUSE = 1.0
"""Seconds without running again after a pair without an outcome: a version is busy or gone."""
PATIENCE_SECONDS = 10.0
PATIENCE_TIMES = 5.0
"""A side that takes longer than both of so many seconds and so many times the other side has failed."""
MOST_SECONDS = 60.0
"""The longest wait for a side. Past it on both sides, a pair has no outcome."""
ENOUGH = 10_000.0
"""The evidence with which rule 1 is met."""
WEIGHTS = ((0.6, 0.15), (0.75, 0.2), (0.9, 0.25), (1.0, 0.4))
"""The shares of votes against the new version that are bet on, and the part of the stake on each."""
LEANING_VOTES = 2
RULE_2_FAILURES = 10
RULE_2_SECONDS = 10.0
MEANT_NONFINITE = 16
"""After so many pairs in a row in which both answered NaN or inf, they are meant, and are looked at no more."""
SLOWER = 1.5
"""A version whose runs take so many times as long as the old one's is said to be slow. It is not judged by that."""
KEPT_FAILURES = 3
MAX_TEXT = 300
"""Characters of a kept error, and of a kept request id."""
_VALUE_BYTES = 50
"""The bytes that a string takes in addition to its characters."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One of the first failures of the new version. ``request_id`` may be empty. ``error`` is the code and the message,
    or the words for an answer that is not finite."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """How the requests of a trial have ended on the new version. Answers from the response cache are not among them.

    ``requests``: those that it answered well or failed. ``failed``: faults, refusals, answers with NaN or inf, and late
    ones. ``shielded``: of these, the old version answered. ``lost``: of these, the client got an error. ``load``:
    requests that the server was too busy for; they are neither answered nor failed. The times in a model are summed,
    in seconds: ``run_seconds`` over the requests that the new one answered well, ``old_run_seconds`` over the shielded
    ones.
    """

    requests: int = 0
    failed: int = 0
    shielded: int = 0
    lost: int = 0
    faults: int = 0
    refused: int = 0
    nonfinite: int = 0
    late: int = 0
    load: int = 0
    run_seconds: float = 0.0
    old_run_seconds: float = 0.0
    failures: tuple[Failure, ...] = ()

    @property
    def answered(self) -> int:
        """Requests that the new version answered well."""
        return self.requests - self.failed

    @property
    def run_ms(self) -> float | None:
        """Milliseconds in the new model, a mean; None if it has answered nothing."""
        return self.run_seconds * 1e3 / self.answered if self.answered else None

    @property
    def old_run_ms(self) -> float | None:
        """Milliseconds in the old model, a mean over the shielded requests; None if there are none."""
        return self.old_run_seconds * 1e3 / self.shielded if self.shielded else None


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A failure that is to be run again on both versions, at ``due`` of the clock or later. ``nonfinite``: the answer
    had NaN or inf. ``size``: bytes of its inputs. ``asked``: as in :class:`~tfs_lite.core.trial.TrialEnding`."""

    runs: tuple[Run, ...]
    due: float
    nonfinite: bool
    size: int
    asked: ServableId | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """How one side of a pair has run. ``seconds``: its time, up to its end or until it was given up. ``failed``: by its
    status. ``nonfinite``: an answer with NaN or inf. ``ended``: it was not given up."""

    seconds: float
    failed: bool = False
    nonfinite: bool = False
    ended: bool = True


class TrialEvidence:
    """The evidence of one trial, in seconds of ``monotonic``. Made when the version is armed; spans count from then.

    Threads: ``on_end`` on the event loop, everything else on any thread. It keeps a bounded number of failures, whose
    inputs have at most :data:`MAX_INPUT_BYTES`.
    """

    def __init__(self, id: ServableId, old: int, monotonic: Callable[[], float], files: str = "") -> None:
        """``id``: the new version, with these ``files``. ``old``: the version that answered before it."""
        self.id = id
        self.files = files
        self.old = old
        self._monotonic = monotonic
        self._begun = monotonic()
        self._well = 0  # these two are written by the event loop alone, without the lock
        self._run_seconds = 0.0
        self._lock = threading.Lock()  # guards the fields below
        self._endings = dict.fromkeys(Ending, 0)
        self._shielded = self._unanswered = 0
        self._old_run_seconds = 0.0
        self._failures: list[Failure] = []
        self._asked = self._faults_alone = 0  # failures that rule 2 counts: the old one could be asked; it never could
        self._first_failure = math.inf
        self._span = 0
        self._kept_in = -1  # the span of ``_kept``
        self._kept = 0
        self._waiting: deque[Pair] = deque()
        self._bytes = 0
        self._running: Pair | None = None
        self._not_before = 0.0
        self._only_new = self._only_old = 0  # pairs of this span in which one side alone failed
        self._against = self._for = 0
        self._meant = 0  # pairs in a row with NaN or inf on both sides
        self._nonfinite_fails = True
        self._rule = 0

    # Requests.

    def on_end(self, ending: TrialEnding) -> None:
        """Counts a request that has ended on the new version, and may keep it to be run again. On the event loop; a
        request that was answered well costs a fraction of a microsecond."""
        if ending.cached:
            return
        kind = ending.ending
        if kind is Ending.WELL or (kind is Ending.NONFINITE and not self._nonfinite_fails):
            self._well += 1
            self._run_seconds += ending.run_seconds
            return
        with self._lock:
            self._endings[kind] += 1
            if kind in FAILED:
                self._fail(ending, self._monotonic())

    def _fail(self, ending: TrialEnding, now: float) -> None:
        kind = ending.ending
        self._shielded += ending.shielded
        self._unanswered += not ending.shielded and kind is not Ending.NONFINITE
        if ending.shielded:
            self._old_run_seconds += ending.old_run_seconds
        if len(self._failures) < KEPT_FAILURES:
            error = kind.value if ending.status.ok else str(ending.status)
            self._failures.append(Failure(ending.request_id[:MAX_TEXT], error[:MAX_TEXT]))
        if ending.shielded or ending.old_failed or ending.runs:
            self._asked += 1
            self._first_failure = min(self._first_failure, now)
        elif kind is Ending.FAULT:
            self._faults_alone += 1
            self._first_failure = min(self._first_failure, now)
        if ending.runs:
            self._keep(ending, now)

    def _keep(self, ending: TrialEnding, now: float) -> None:
        """Failures that are too large count among the first of their span, so that few are measured."""
        span = self._span_of(now)
        if span != self._kept_in:
            self._kept_in, self._kept = span, 0
        if self._kept >= KEPT_IN_SPAN or len(self._waiting) >= MOST_WAITING:
            return
        self._kept += 1
        runs: Sequence[Run] = ending.runs
        size = input_bytes(runs)
        if self._bytes + size <= MAX_INPUT_BYTES:
            self._bytes += size
            nonfinite = ending.ending is Ending.NONFINITE
            self._waiting.append(Pair(tuple(runs), now + DELAY_SECONDS, nonfinite, size, ending.asked))

    # Pairs.

    def due(self, now: float) -> Pair | None:
        """The next failure that is to be run again now, once; None if there is none, or while one runs. The caller must
        tell ``on_pair`` how it went, whatever happens."""
        with self._lock:
            if not self._waiting or self._running is not None or now < self._next_at():
                return None
            self._running = self._waiting.popleft()
            return self._running

    @property
    def next_at(self) -> float | None:
        """The time at which ``due`` has something; None while nothing waits or a pair runs."""
        with self._lock:
            return self._next_at() if self._waiting and self._running is None else None

    def _next_at(self) -> float:
        return max(self._waiting[0].due, self._not_before)

    def on_pair(self, pair: Pair, new: Ran | None, old: Ran | None) -> None:
        """Takes how the pair ran; None for a side that says nothing: the version was busy or gone."""
        now = self._monotonic()
        with self._lock:
            self._advance(now)
            self._running = None
            self._bytes -= pair.size
            if new is None or old is None:
                self._not_before = now + NO_OUTCOME_PAUSE
                return
            self._not_before = now + PACE * min(new.seconds, old.seconds)
            if pair.nonfinite:
                self._meant = self._meant + 1 if new.nonfinite and old.nonfinite else 0
                if self._meant >= MEANT_NONFINITE:
                    self._nonfinite_fails = False
            new_failed, old_failed = failures(new, old, self._nonfinite_fails)
            self._only_new += new_failed and not old_failed
            self._only_old += old_failed and not new_failed

    def answered_by(self, version: int) -> int:
        """The requests of the trial that this one of the two versions has answered well. Any thread."""
        return self._well if version == self.id.version else self._shielded

    def nonfinite_fails(self) -> bool:
        """Whether NaN and inf are failures: until they turn out to be meant. Any thread."""
        return self._nonfinite_fails

    # Votes and verdict.

    def advance(self, now: float) -> None:
        """Counts the vote of the span that is over, if one is. At least once each span, by the caller that judges."""
        with self._lock:
            self._advance(now)

    def _advance(self, now: float) -> None:
        span = self._span_of(now)
        if span <= self._span:
            return
        self._span = span
        self._against += self._only_new > self._only_old
        self._for += self._only_old > self._only_new
        self._only_new = self._only_old = 0
        if not self._rule and log_evidence(self._against, self._for) >= math.log(ENOUGH):
            self._rule = 1

    def _span_of(self, now: float) -> int:
        return int((now - self._begun) / SPAN_SECONDS)

    def judgement(self, now: float, old_run_ms: float | None = None) -> Judgement:
        """Takes the votes up to now, and says how it stands. A rule that was met once stays met. ``old_run_ms``: the
        mean time of a run of the old version; it is told where the new one is slower."""
        with self._lock:
            self._advance(now)
            if not self._rule and self._is_broken(now):
                self._rule = 2
            against, votes_for = self._against, self._for
            leaning = not self._rule and against >= LEANING_VOTES and log_evidence(against, votes_for) > 0
            counts = self._counts()
            text = self._words(counts, old_run_ms)
            return Judgement(
                self._rule, leaning, against, votes_for, needed(votes_for), self._well, counts.failed, text
            )

    def _is_broken(self, now: float) -> bool:
        """Rule 2: nothing was answered well yet, and the old version can do better."""
        enough = self._asked + self._faults_alone >= RULE_2_FAILURES
        return enough and not self._well and now - self._first_failure >= RULE_2_SECONDS and self._old_answers()

    def _old_answers(self) -> bool:
        return 2 * self._shielded >= self._asked

    @property
    def counts(self) -> TrialCounts:
        """Any thread."""
        with self._lock:
            return self._counts()

    def _counts(self) -> TrialCounts:
        ended, well = self._endings, self._well
        failed = sum(ended[kind] for kind in FAILED)
        return TrialCounts(
            requests=well + failed,
            failed=failed,
            shielded=self._shielded,
            lost=self._unanswered,
            faults=ended[Ending.FAULT],
            refused=ended[Ending.REFUSAL],
            nonfinite=ended[Ending.NONFINITE],
            late=ended[Ending.LATE],
            load=ended[Ending.LOAD],
            run_seconds=self._run_seconds,
            old_run_seconds=self._old_run_seconds,
            failures=tuple(self._failures),
        )

    def _words(self, counts: TrialCounts, old_run_ms: float | None) -> str:
        """For example ``31 of 1204 requests failed, version 7 answered all; votes: 15 against it, 0 for it:
        INTERNAL: ...``, where the error is that of the first failure."""
        text = f"{counts.failed} of {counts.requests} requests failed"
        if self._asked:
            answered = "all" if counts.shielded == counts.failed else f"{counts.shielded} of them"
            text += f", version {self.old} answered {answered}"
        if self._against or self._for:
            text += f"; votes: {self._against} against it, {self._for} for it"
        if counts.run_ms and old_run_ms and counts.run_ms >= SLOWER * old_run_ms:
            times = counts.run_ms / old_run_ms
            text += f"; a run takes {counts.run_ms:.3g} ms, {times:.2g} times as long as on version {self.old}"
        return f"{text}: {counts.failures[0].error}" if counts.failures else text


def failures(new: Ran, old: Ran, nonfinite_fails: bool = True) -> tuple[bool, bool]:
    """Whether each side has failed: by its status, by NaN or inf, or because it took far longer than the other. Two
    sides that were given up have not."""
    if not new.ended and not old.ended:
        return False, False

    def has_failed(ran: Ran, other: Ran) -> bool:
        return ran.failed or (nonfinite_fails and ran.nonfinite) or ran.seconds > patience(other.seconds)

    return has_failed(new, old), has_failed(old, new)


def patience(other_seconds: float) -> float:
    """The seconds after which a side has failed, if the other one took so long."""
    return max(PATIENCE_SECONDS, PATIENCE_TIMES * other_seconds)


def log_evidence(against: int, votes_for: int) -> float:
    """The logarithm of E: the mean, by ``WEIGHTS``, of the wealth of gamblers who each begin with 1 and bet on a share
    ``t`` of votes against the new version. The expectation of E is 1 after any number of fair votes."""
    parts = [
        math.log(weight) + against * math.log(2 * t) + (votes_for * math.log(2 - 2 * t) if votes_for else 0.0)
        for t, weight in WEIGHTS
        if t < 1 or not votes_for
    ]
    most = max(parts)
    return most + math.log(sum(math.exp(part - most) for part in parts))


@functools.lru_cache(maxsize=1024)
def needed(votes_for: int) -> int:
    """The votes against the new version that suffice for rule 1, if so many are for it."""
    against = 0
    while log_evidence(against, votes_for) < math.log(ENOUGH):
        against += 1
    return against


def input_bytes(runs: Iterable[Run]) -> int:
    """About the bytes that the inputs take while they are kept."""
    return sum(array_bytes(array, _VALUE_BYTES) for run in runs for array in run.inputs.values())
