"""Waiting for the outcome of new models: available, failed, or nothing there to load.

:func:`outcome_of` decides for one model from a snapshot. It also says for how long an outcome must hold before it
counts, because right after a change the snapshot may still show the past (the end of an earlier incarnation, a
directory that is just being made). :class:`ModelWaiter` looks again whenever something changes.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
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
"""Seconds that files may take to settle before that counts as a failure."""


class OutcomeKind(enum.Enum):
    """The fate of a model so far."""

    PENDING = "nothing yet"
    AVAILABLE = "a version answers requests"
    FAILED = "no version will, as things stand"
    GONE = "the model is no longer served"


@dataclass(frozen=True, slots=True)
class WaitSnapshot:
    """The state of one model at one moment. ``given_up``: versions whose failure the source knows, so that what stands
    in for them is among the ``aspired``. ``fetching``: versions whose files are being read before they are offered."""

    configured: bool
    aspired: tuple[ServableId, ...] = ()
    states: Mapping[int, TimedState] = field(default_factory=dict)
    attempts: Mapping[int, LoadAttempt] = field(default_factory=dict)
    problem: Status = OK
    waiting: Mapping[int, str] = field(default_factory=dict)
    settling: frozenset[int] = frozenset()
    fetching: frozenset[int] = frozenset()
    given_up: frozenset[int] = frozenset()
    overdue: Mapping[int, Status] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """``holds_after``: seconds for which the same outcome must hold. ``reasons`` are ready to be shown. ``waits``: a
    version waits for other models or for room in the cluster, and may yet be loaded when they come."""

    outcome: OutcomeKind
    holds_after: float = 0.0
    reasons: tuple[tuple[str, Status], ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class WaitRules:
    """``since``: wall-clock time from which on an event is about the present. ``first_attempt_counts``: a failed
    attempt is a failure of the version, even if others follow."""

    since: float
    first_attempt_counts: bool


def outcome_of(name: str, snapshot: WaitSnapshot, rules: WaitRules) -> ModelOutcome:
    """The outcome that the snapshot shows for the model."""
    if not snapshot.configured:
        return ModelOutcome(OutcomeKind.GONE)
    wanted = [(servable_id, snapshot.states.get(servable_id.version)) for servable_id in snapshot.aspired]
    if any(timed and timed.state.state is ManagerState.AVAILABLE for _, timed in wanted):
        return ModelOutcome(OutcomeKind.AVAILABLE)
    found = _without_versions(name, snapshot) if not wanted else _of_versions(snapshot, rules)
    if snapshot.fetching:  # takes as long as it takes
        return ModelOutcome(OutcomeKind.PENDING, reasons=found.reasons)
    return found


def _without_versions(name: str, snapshot: WaitSnapshot) -> ModelOutcome:
    """No version is wanted, or none that can be offered."""
    if snapshot.waiting:
        reasons = tuple(
            (f"{{name: {name} version: {version}}}", Status(StatusCode.UNAVAILABLE, reason))
            for version, reason in snapshot.waiting.items()
        )
        return ModelOutcome(OutcomeKind.FAILED, SETTLING if snapshot.settling else GRACE, reasons)
    if not snapshot.problem.ok:
        return ModelOutcome(OutcomeKind.FAILED, GRACE, ((f"{{name: {name}}}", snapshot.problem),))
    return ModelOutcome(OutcomeKind.PENDING)


def _of_versions(snapshot: WaitSnapshot, rules: WaitRules) -> ModelOutcome:
    """Some versions are wanted and none is available: failed once each of them has."""
    reasons: list[tuple[str, Status]] = []
    decided, fresh, waits = True, True, False
    for servable_id in snapshot.aspired:
        timed, attempt = snapshot.states.get(servable_id.version), snapshot.attempts.get(servable_id.version)
        if timed and timed.state.state is ManagerState.END and not timed.state.health.ok:
            reasons.append((str(servable_id), timed.state.health))
            fresh = fresh and timed.time >= rules.since and servable_id.version in snapshot.given_up
        elif attempt and not attempt.status.ok:
            reasons.append((str(servable_id), attempt.status))
            fresh = fresh and servable_id.version in snapshot.given_up
            it_waits = attempt.status.waits
            decided, waits = decided and (rules.first_attempt_counts or it_waits), waits or it_waits
        elif servable_id.version in snapshot.overdue:  # it may never end
            reasons.append((str(servable_id), snapshot.overdue[servable_id.version]))
            decided = decided and rules.first_attempt_counts
        else:
            decided = False
    if not decided:
        return ModelOutcome(OutcomeKind.PENDING, reasons=tuple(reasons))
    return ModelOutcome(OutcomeKind.FAILED, 0.0 if fresh and not waits else GRACE, tuple(reasons), waits)


def combined(outcomes: Mapping[str, ModelOutcome]) -> dict[str, ModelOutcome]:
    """A failure that waits for something is pending as long as any model is."""
    undecided = any(found.outcome is OutcomeKind.PENDING for found in outcomes.values())
    return {
        name: replace(found, outcome=OutcomeKind.PENDING) if undecided and found.waits else found
        for name, found in outcomes.items()
    }


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The last outcome of every model."""

    outcomes: Mapping[str, ModelOutcome]

    @property
    def failed(self) -> dict[str, ModelOutcome]:
        good = (OutcomeKind.AVAILABLE, OutcomeKind.GONE)
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


class _Outcomes:
    """The outcome of each model, and since when it has it. One waiting thread uses it. While any model is pending, a
    look costs as much as there are models that have changed."""

    def __init__(self, names: Iterable[str], judge: Callable[[str], ModelOutcome]) -> None:
        self.found = dict.fromkeys(names, ModelOutcome(OutcomeKind.PENDING))
        self._judge = judge
        self._pending = set(self.found)
        self._waiting: set[str] = set()  # failed, and may yet be loaded while others are pending
        self._held: dict[str, tuple[OutcomeKind, float]] = {}  # since when the outcome is what it is

    def look(self, changed: Collection[str] | None, now: float) -> float | None:
        """Judges these models again (None: all). Seconds until every outcome counts: 0 for at once, None while any
        model is pending."""
        names = list(self.found) if changed is None else [name for name in changed if name in self.found]
        for name in names:
            found = self.found[name] = self._judge(name)
            _keep(self._pending, name, found.outcome is OutcomeKind.PENDING)
            _keep(self._waiting, name, found.waits)
            if self._held.get(name, (None, now))[0] is not found.outcome:
                self._held[name] = (found.outcome, now)
        if self._pending:
            for name in self._waiting:  # they count as pending, too
                self._held.pop(name, None)
            return None
        return max((self._pause(name, now) for name in self.found), default=0.0)

    def _pause(self, name: str, now: float) -> float:
        found = self.found[name]
        begun = self._held.setdefault(name, (found.outcome, now))[1]
        return max(begun + found.holds_after - now, 0.0)


def _keep(names: set[str], name: str, belongs: bool) -> None:
    if belongs:
        names.add(name)
    else:
        names.discard(name)


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
        outcomes = _Outcomes(names, lambda name: outcome_of(name, self._snapshot(name), rules))
        rules = WaitRules(since, first_attempt_counts)
        ends = None if timeout is None else self._clock.monotonic() + timeout
        count, changed = self._changes.count, None
        while True:
            now = self._clock.monotonic()
            pause = outcomes.look(changed, now)
            if pause == 0 or self._closed.is_set() or (ends is not None and now >= ends):
                return WaitResult(combined(outcomes.found))
            limits = [limit for limit in (pause, ends - now if ends is not None else None) if limit is not None]
            self._changes.wait_since(count, min(limits, default=None))
            before, count = count, self._changes.count
            changed = self._changes.changed_since(before)

    def wait_for_all(self) -> None:
        """Returns when every model of the config is available, or when closed."""
        missing = ""  # the first model that was not available

        def is_available(name: str) -> bool:
            return self._states.report(name).available

        def holds() -> bool:
            nonlocal missing
            if missing and self._states.is_configured(missing) and not is_available(missing):
                return False
            missing = next((name for name in self._states.configured if not is_available(name)), "")
            return not missing

        self.wait_until(holds)

    def wait_for_available(self, names: Iterable[str]) -> None:
        """Returns when each of these models has a version that is available, or when closed."""
        wanted = list(names)
        self.wait_until(lambda: all(self._states.report(name).available for name in wanted))

    def wait_until(self, holds: Callable[[], bool], ends: float | None = None) -> None:
        """Returns when ``holds`` says so, which is asked after each change, at ``ends`` (in seconds of ``monotonic``),
        or when closed."""
        while not self.closed:
            count = self._changes.count
            left = None if ends is None else ends - self._clock.monotonic()
            if holds() or (left is not None and left <= 0):
                return
            self._changes.wait_since(count, left)

    def close(self) -> None:
        """Any thread, also more than once."""
        self._closed.set()
        self._changes.notify()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def _snapshot(self, name: str) -> WaitSnapshot:
        given_up = self._states.given_up(name)  # before the list that it belongs to
        aspired, report = self._states.aspired(name), self._states.source_report(name)
        attempts = {item.version: self._states.last_attempt(item) for item in aspired}
        return WaitSnapshot(
            configured=self._states.is_configured(name),
            aspired=aspired,
            states=self._states.version_states(name),
            attempts={version: attempt for version, attempt in attempts.items() if attempt},
            problem=report.problem if report else OK,
            waiting=report.waiting if report else {},
            settling=report.settling if report else frozenset(),
            fetching=report.fetching if report else frozenset(),
            given_up=given_up,
            overdue={version: remark for version, remark in self._states.remarks(name).items() if is_overdue(remark)},
        )
