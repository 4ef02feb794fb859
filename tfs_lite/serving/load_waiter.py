"""Waiting until new models have answered: available, failed, or nothing there to load.

:func:`judge` decides for one model from a snapshot; it also says for how long a verdict must hold before it counts,
because right after a change the snapshot may still show the past (the end of an earlier incarnation, a directory
that is just being made). :class:`ModelWaiter` looks again whenever something changes.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tfs_lite.core.clock import Clock
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, TimedState
from tfs_lite.core.status import OK, Reason, ServingError, Status, StatusCode
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.model_states import ModelStates

GRACE = 1.0
"""Seconds that a bad verdict must hold when it may be about the past."""
SETTLING = 60.0
"""Seconds that files may take to settle, or to be checked, before that is an answer."""


class Answer(enum.Enum):
    """What a model has said so far."""

    PENDING = "nothing yet"
    AVAILABLE = "a version answers requests"
    FAILED = "no version will, as things stand"
    GONE = "the model is no longer served"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known about one model at one moment."""

    configured: bool
    aspired: tuple[ServableId, ...] = ()
    states: Mapping[int, TimedState] = field(default_factory=dict)
    attempts: Mapping[int, LoadAttempt] = field(default_factory=dict)
    problem: Status = OK
    waiting: Mapping[int, str] = field(default_factory=dict)
    settling: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """``holds_after``: seconds for which the same answer must stand. ``reasons`` are ready to be shown. ``waits``: a
    version waits for other models, and may yet be loaded when they are."""

    answer: Answer
    holds_after: float = 0.0
    reasons: tuple[tuple[str, Status], ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class WaitRules:
    """``since``: wall-clock time from which on an event is about the present. ``first_attempt_counts``: a failed
    attempt is an answer, even if others follow."""

    since: float
    first_attempt_counts: bool


def judge(name: str, snapshot: Snapshot, rules: WaitRules) -> Verdict:
    """Pure."""
    if not snapshot.configured:
        return Verdict(Answer.GONE)
    wanted = [(servable_id, snapshot.states.get(servable_id.version)) for servable_id in snapshot.aspired]
    if any(timed and timed.state.state is ManagerState.AVAILABLE for _, timed in wanted):
        return Verdict(Answer.AVAILABLE)
    if wanted:
        return _judge_versions(snapshot, rules)
    if snapshot.waiting:
        reasons = tuple(
            (f"{{name: {name} version: {version}}}", Status(StatusCode.UNAVAILABLE, reason))
            for version, reason in snapshot.waiting.items()
        )
        return Verdict(Answer.FAILED, SETTLING if snapshot.settling else GRACE, reasons)
    if not snapshot.problem.ok:
        return Verdict(Answer.FAILED, GRACE, ((f"{{name: {name}}}", snapshot.problem),))
    return Verdict(Answer.PENDING)


def _judge_versions(snapshot: Snapshot, rules: WaitRules) -> Verdict:
    """Some versions are wanted and none is available: failed once each of them has."""
    reasons: list[tuple[str, Status]] = []
    answered, fresh, waits = True, True, False
    for servable_id in snapshot.aspired:
        timed, attempt = snapshot.states.get(servable_id.version), snapshot.attempts.get(servable_id.version)
        if timed and timed.state.state is ManagerState.END and not timed.state.health.ok:
            reasons.append((str(servable_id), timed.state.health))
            fresh = fresh and timed.time >= rules.since
        elif attempt and not attempt.status.ok:
            reasons.append((str(servable_id), attempt.status))
            for_models = attempt.status.reason is Reason.WAITS_FOR_MODELS
            answered, waits = answered and (rules.first_attempt_counts or for_models), waits or for_models
        else:
            answered = False
    if not answered:
        return Verdict(Answer.PENDING, reasons=tuple(reasons))
    return Verdict(Answer.FAILED, 0.0 if fresh and not waits else GRACE, tuple(reasons), waits)


def together(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """What waits for other models has not answered as long as any of those has not."""
    undecided = any(verdict.answer is Answer.PENDING for verdict in verdicts.values())
    return {
        name: replace(verdict, answer=Answer.PENDING) if undecided and verdict.waits else verdict
        for name, verdict in verdicts.items()
    }


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The last verdict of every model."""

    verdicts: Mapping[str, Verdict]

    @property
    def failed(self) -> dict[str, Verdict]:
        good = (Answer.AVAILABLE, Answer.GONE)
        return {name: verdict for name, verdict in self.verdicts.items() if verdict.answer not in good}

    @property
    def error(self) -> ServingError | None:
        """UNKNOWN, in the words that clients of TensorFlow Serving look for; None if nothing failed."""
        if not self.failed:
            return None
        entries = "".join(
            f"{{{what} due to error: {status}}}, "
            for name, verdict in self.failed.items()
            for what, status in verdict.reasons or ((f"{{name: {name}}}", _NO_ANSWER),)
        )
        return ServingError(StatusCode.UNKNOWN, f"{len(self.failed)} model(s) did not become available: {{{entries}}}")


_NO_ANSWER = Status(StatusCode.DEADLINE_EXCEEDED, "no version had been loaded, nor had failed, when the wait ended")


class ModelWaiter:
    """Blocks its caller, who must not be the event loop. :meth:`close` ends every wait, also later ones."""

    def __init__(self, view: ModelStates, changes: ChangeNotifier, clock: Clock) -> None:
        self._view = view
        self._changes = changes
        self._clock = clock
        self._closed = threading.Event()

    def wait(
        self, names: Iterable[str], timeout: float | None, *, since: float, first_attempt_counts: bool = False
    ) -> WaitResult:
        """The verdicts once all are final, or as they stand after ``timeout`` seconds or when closed."""
        rules = WaitRules(since, first_attempt_counts)
        ends = None if timeout is None else self._clock.monotonic() + timeout
        names, held = tuple(names), dict[str, tuple[Answer, float]]()
        while True:
            count, now = self._changes.count, self._clock.monotonic()
            verdicts = together({name: judge(name, self._snapshot(name), rules) for name in names})
            pauses = [self._pause(name, verdict, held, now) for name, verdict in verdicts.items()]
            if all(pause == 0 for pause in pauses) or self._closed.is_set() or (ends is not None and now >= ends):
                return WaitResult(verdicts)
            limits = [pause for pause in pauses if pause] + ([ends - now] if ends is not None else [])
            self._changes.wait_beyond(count, min(limits, default=None))

    def close(self) -> None:
        self._closed.set()
        self._changes.ring()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @staticmethod
    def _pause(name: str, verdict: Verdict, held: dict[str, tuple[Answer, float]], now: float) -> float | None:
        """Seconds until the verdict counts: 0 now, None as long as it does not change."""
        if verdict.answer is Answer.PENDING:
            held.pop(name, None)
            return None
        answer, begun = held.get(name, (None, now))
        if answer is not verdict.answer:
            begun = now
        held[name] = (verdict.answer, begun)
        return max(begun + verdict.holds_after - now, 0.0)

    def _snapshot(self, name: str) -> Snapshot:
        aspired, report = self._view.aspired(name), self._view.source_report(name)
        attempts = {item.version: self._view.last_attempt(item) for item in aspired}
        return Snapshot(
            configured=name in self._view.configured,
            aspired=aspired,
            states=self._view.states(name),
            attempts={version: attempt for version, attempt in attempts.items() if attempt},
            problem=report.problem if report else OK,
            waiting=report.waiting if report else {},
            settling=report.settling if report else frozenset(),
        )
