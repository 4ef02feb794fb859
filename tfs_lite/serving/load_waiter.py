"""Waiting for the outcome of new models: available, failed, or nothing there to load.

:func:`outcome_of` decides for one model from a snapshot. It also says for how long an outcome must hold before it
counts, because right after a change the snapshot may still show the past (the end of an earlier incarnation, a
directory that is just being made). :class:`ModelWaiter` looks again whenever something changes.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tfs_lite.core.clock import Clock
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, TimedState
from tfs_lite.core.status import OK, ServingError, Status, StatusCode
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.model_states import ModelStates, is_overdue

GRACE = 1.0
"""Seconds that a failure must hold when it may be about the past."""
SETTLING = 60.0
"""Seconds that files may take to settle, or to be checked, before that counts as a failure."""


class Outcome(enum.Enum):
    """What has become of a model so far."""

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
    overdue: Mapping[int, Status] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """``holds_after``: seconds for which the same outcome must hold. ``reasons`` are ready to be shown. ``waits``: a
    version waits for other models or for room in the cluster, and may yet be loaded when they come."""

    outcome: Outcome
    holds_after: float = 0.0
    reasons: tuple[tuple[str, Status], ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class WaitRules:
    """``since``: wall-clock time from which on an event is about the present. ``first_attempt_counts``: a failed
    attempt is a failure of the version, even if others follow."""

    since: float
    first_attempt_counts: bool


def outcome_of(name: str, snapshot: Snapshot, rules: WaitRules) -> ModelOutcome:
    """What the snapshot says about the model."""
    if not snapshot.configured:
        return ModelOutcome(Outcome.GONE)
    wanted = [(servable_id, snapshot.states.get(servable_id.version)) for servable_id in snapshot.aspired]
    if any(timed and timed.state.state is ManagerState.AVAILABLE for _, timed in wanted):
        return ModelOutcome(Outcome.AVAILABLE)
    if wanted:
        return _of_versions(snapshot, rules)
    if snapshot.waiting:
        reasons = tuple(
            (f"{{name: {name} version: {version}}}", Status(StatusCode.UNAVAILABLE, reason))
            for version, reason in snapshot.waiting.items()
        )
        return ModelOutcome(Outcome.FAILED, SETTLING if snapshot.settling else GRACE, reasons)
    if not snapshot.problem.ok:
        return ModelOutcome(Outcome.FAILED, GRACE, ((f"{{name: {name}}}", snapshot.problem),))
    return ModelOutcome(Outcome.PENDING)


def _of_versions(snapshot: Snapshot, rules: WaitRules) -> ModelOutcome:
    """Some versions are wanted and none is available: failed once each of them has."""
    reasons: list[tuple[str, Status]] = []
    decided, fresh, waits = True, True, False
    for servable_id in snapshot.aspired:
        timed, attempt = snapshot.states.get(servable_id.version), snapshot.attempts.get(servable_id.version)
        if timed and timed.state.state is ManagerState.END and not timed.state.health.ok:
            reasons.append((str(servable_id), timed.state.health))
            fresh = fresh and timed.time >= rules.since
        elif attempt and not attempt.status.ok:
            reasons.append((str(servable_id), attempt.status))
            it_waits = attempt.status.waits
            decided, waits = decided and (rules.first_attempt_counts or it_waits), waits or it_waits
        elif servable_id.version in snapshot.overdue:  # it may never end
            reasons.append((str(servable_id), snapshot.overdue[servable_id.version]))
            decided = decided and rules.first_attempt_counts
        else:
            decided = False
    if not decided:
        return ModelOutcome(Outcome.PENDING, reasons=tuple(reasons))
    return ModelOutcome(Outcome.FAILED, 0.0 if fresh and not waits else GRACE, tuple(reasons), waits)


def combined(outcomes: Mapping[str, ModelOutcome]) -> dict[str, ModelOutcome]:
    """A failure that waits for something is pending as long as any model is."""
    undecided = any(found.outcome is Outcome.PENDING for found in outcomes.values())
    return {
        name: replace(found, outcome=Outcome.PENDING) if undecided and found.waits else found
        for name, found in outcomes.items()
    }


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The last outcome of every model."""

    outcomes: Mapping[str, ModelOutcome]

    @property
    def failed(self) -> dict[str, ModelOutcome]:
        good = (Outcome.AVAILABLE, Outcome.GONE)
        return {name: found for name, found in self.outcomes.items() if found.outcome not in good}

    @property
    def error(self) -> ServingError | None:
        """UNKNOWN, in the words that clients of TensorFlow Serving look for; None if nothing failed."""
        if not self.failed:
            return None
        entries = "".join(
            f"{{{what} due to error: {status}}}, "
            for name, found in self.failed.items()
            for what, status in found.reasons or ((f"{{name: {name}}}", _UNDECIDED),)
        )
        return ServingError(StatusCode.UNKNOWN, f"{len(self.failed)} model(s) did not become available: {{{entries}}}")


_UNDECIDED = Status(StatusCode.DEADLINE_EXCEEDED, "no version had been loaded, nor had failed, when the wait ended")


class ModelWaiter:
    """Blocks its caller, which must not be the event loop. :meth:`close` ends every wait, also later ones."""

    def __init__(self, states: ModelStates, changes: ChangeNotifier, clock: Clock) -> None:
        self._states = states
        self._changes = changes
        self._clock = clock
        self._closed = threading.Event()

    def wait(
        self, names: Iterable[str], timeout: float | None, *, since: float, first_attempt_counts: bool = False
    ) -> WaitResult:
        """The outcomes once all are final, or as they stand after ``timeout`` seconds or when closed."""
        rules = WaitRules(since, first_attempt_counts)
        ends = None if timeout is None else self._clock.monotonic() + timeout
        names, held = tuple(names), dict[str, tuple[Outcome, float]]()
        while True:
            count, now = self._changes.count, self._clock.monotonic()
            outcomes = combined({name: outcome_of(name, self._snapshot(name), rules) for name in names})
            pauses = [self._pause(name, found, held, now) for name, found in outcomes.items()]
            if all(pause == 0 for pause in pauses) or self._closed.is_set() or (ends is not None and now >= ends):
                return WaitResult(outcomes)
            limits = [pause for pause in pauses if pause] + ([ends - now] if ends is not None else [])
            self._changes.wait_since(count, min(limits, default=None))

    def close(self) -> None:
        self._closed.set()
        self._changes.notify()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @staticmethod
    def _pause(name: str, found: ModelOutcome, held: dict[str, tuple[Outcome, float]], now: float) -> float | None:
        """Seconds until the outcome counts: 0 for at once, None for a model that is pending."""
        if found.outcome is Outcome.PENDING:
            held.pop(name, None)
            return None
        before, begun = held.get(name, (None, now))
        if before is not found.outcome:
            begun = now
        held[name] = (found.outcome, begun)
        return max(begun + found.holds_after - now, 0.0)

    def _snapshot(self, name: str) -> Snapshot:
        aspired, report = self._states.aspired(name), self._states.source_report(name)
        attempts = {item.version: self._states.last_attempt(item) for item in aspired}
        return Snapshot(
            configured=self._states.is_configured(name),
            aspired=aspired,
            states=self._states.version_states(name),
            attempts={version: attempt for version, attempt in attempts.items() if attempt},
            problem=report.problem if report else OK,
            waiting=report.waiting if report else {},
            settling=report.settling if report else frozenset(),
            overdue={version: remark for version, remark in self._states.remarks(name).items() if is_overdue(remark)},
        )
