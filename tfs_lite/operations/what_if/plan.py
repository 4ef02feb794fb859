"""The plan of what the manager would do with new lists of wanted versions: its own rules, played through to the end at
once.

The rules are those of :class:`~tfs_lite.managers.aspired_versions_manager.AspiredVersionsManager`: what a list keeps,
drops and renews; the transition policy, asked in the same way; the same decision about memory. In place of loads there
is what is expected of them; once they have ended, the source lists anew, as it does when it learns of a failure. Loads
and unloads run side by side in a manager and one after the other here: which versions load and unload is the same, only
the order of different models is not promised.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.admission import Admission, Demand, decide
from tfs_lite.managers.harness import LEAVING, REMOVABLE, HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import Action, ActionKind, Policy
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.operations.what_if.forecast import BEGIN, Fate

NOT_AVAILABLE = "it is not available yet"
HAS_FAILED = "it has failed, and is not tried any more"


class ExpectedEnd(enum.Enum):
    """The end of a load, as far as its files tell."""

    LOADS = "loads"
    FAILS = "fails"
    """It would be tried, and fail."""
    NEVER_BEGINS = "never begins"
    """The manager gets the version with an error."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The facts about the load of one version before it begins. ``why`` says why it would not succeed."""

    outcome: ExpectedEnd = ExpectedEnd.LOADS
    needs: ResourceAllocation = NO_RESOURCES
    why: str = ""


@dataclass(frozen=True, slots=True)
class Managed:
    """A manager at one moment: every version, and what those in memory ``hold``. ``tracker`` None: nothing is
    reserved."""

    versions: Sequence[ServableStateSnapshot]
    held: Mapping[ServableId, ResourceAllocation]
    policy: Policy
    tracker: ResourceTracker | None = None


Wanted = Mapping[str, Mapping[int, str]]
"""The wanted versions by stream: those of its next list with their revisions. A stream without a list keeps what it
has."""


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists of a source. ``given_up``: the versions that it knows to have failed. ``expected`` may leave out what
    would simply load."""

    wanted: Wanted
    expected: Mapping[ServableId, Expected] = field(default_factory=dict)
    given_up: frozenset[ServableId] = frozenset()


ListAgain = Callable[[Mapping[ServableId, bool]], Lists]
"""The function that gives the lists of the source once these versions have become available (True) or have failed
(False)."""


@dataclass(frozen=True, slots=True)
class Course:
    """The course of one version. ``after`` are the versions whose load or unload came before and had to. ``before``:
    the loads and unloads of the version itself that came first."""

    fate: Fate
    why: str = ""
    fits_now: bool | None = None
    after: tuple[ServableId, ...] = ()
    before: tuple[Fate, ...] = ()


def plan(managed: Managed, lists: Lists, list_again: ListAgain | None = None) -> dict[ServableId, Course]:
    """The course of every version that is managed or wanted. Without ``list_again`` no failure changes the lists."""
    return _Play(managed, lists, list_again).run()


@dataclass(slots=True)
class _Play:
    """The manager's tables while its rules are played through. ``steps`` are the actions so far."""

    managed: Managed
    lists: Lists
    list_again: ListAgain | None
    state: dict[ServableId, ServableStateSnapshot] = field(default_factory=dict)
    held: dict[ServableId, ResourceAllocation] = field(default_factory=dict)
    found: dict[ServableId, Course] = field(default_factory=dict)
    steps: list[Action] = field(default_factory=list)

    def run(self) -> dict[ServableId, Course]:
        self.held.update(self.managed.held)
        self._leave_out_what_goes()
        self._accept_lists()
        self._finish_what_is_under_way()
        self._act()
        while self._lists_change():
            self._accept_lists()
            self._act()
        for snapshot in self.state.values():
            self._conclude(snapshot)
        return dict(sorted(self.found.items()))

    def _act(self) -> None:
        while (action := self._next_action()) is not None:
            if action.kind is ActionKind.UNLOAD:
                self._unload(action)
            else:
                self._load(action)

    # The lists.

    def _lists_change(self) -> bool:
        """Whether the source lists other versions, as it learns of one that has failed, or is available after all."""
        ended = {HarnessState.READY: True, HarnessState.ERROR: False}
        outcomes = {id: ended[s.state] for id, s in self.state.items() if s.is_aspired and s.state in ended}
        known = self.lists.given_up
        if self.list_again is None or all(works is (id not in known) for id, works in outcomes.items()):
            return False
        again, before = self.list_again(outcomes), self.lists
        self.lists = replace(again, expected={**before.expected, **again.expected})
        return (again.wanted, again.given_up) != (before.wanted, before.given_up)

    def _accept_lists(self) -> None:
        for name, versions in self.lists.wanted.items():
            self._accept(name, versions)
        self.state = {id: replace(s, given_up=id in self.lists.given_up) for id, s in self.state.items()}

    def _leave_out_what_goes(self) -> None:
        """Leaves out the versions that are no longer wanted and not ready: they go in any case; a list that names it
        waits until it is gone."""
        for snapshot in self.managed.versions:
            if snapshot.is_aspired or snapshot.state is HarnessState.READY:
                self.state[snapshot.id] = snapshot
                continue
            self.held.pop(snapshot.id, None)
            if snapshot.state in LEAVING:
                self.found[snapshot.id] = Course(Fate.LEAVE)
            elif snapshot.state not in REMOVABLE:
                self.found[snapshot.id] = Course(Fate.CALL_OFF, NOT_AVAILABLE)

    def _accept(self, name: str, versions: Mapping[int, str]) -> None:
        for id in [id for id in self.state if id.name == name and id.version not in versions]:
            known = self.state[id]
            if known.state is HarnessState.READY:
                self.state[id] = replace(known, is_aspired=False)
            elif known.is_aspired:
                del self.state[id]
                self.held.pop(id, None)
                if known.state is not HarnessState.NEW:
                    has_failed = known.state is HarnessState.ERROR
                    self.found[id] = Course(Fate.CALL_OFF, HAS_FAILED if has_failed else NOT_AVAILABLE)
        for version, revision in versions.items():
            id = ServableId(name, version)
            kept = self.state.get(id)
            if kept is None or self._is_to_be_renewed(kept, revision):
                self._take_on(id, revision)
            elif not kept.is_aspired:
                self.state[id] = replace(kept, is_aspired=True)

    def _is_to_be_renewed(self, known: ServableStateSnapshot, revision: str) -> bool:
        if known.state is not HarnessState.ERROR:
            return False
        arrives = self._expected(known.id).outcome is not ExpectedEnd.NEVER_BEGINS
        return known.revision != revision or (arrives and not known.has_loader)

    def _take_on(self, id: ServableId, revision: str) -> None:
        expected = self._expected(id)
        self.state[id] = ServableStateSnapshot(id, HarnessState.NEW, True, revision)
        if expected.outcome is ExpectedEnd.NEVER_BEGINS:
            self._end(id, Status(StatusCode.INTERNAL, expected.why), Course(Fate.REFUSE, expected.why))

    # Actions.

    def _finish_what_is_under_way(self) -> None:
        """Loads that have been asked for end before anything else is decided."""
        for id, snapshot in list(self.state.items()):
            if snapshot.state in (HarnessState.LOAD_REQUESTED, HarnessState.LOAD_APPROVED, HarnessState.LOADING):
                self.state[id] = replace(snapshot, state=HarnessState.READY)
                self.held.setdefault(id, self._expected(id).needs)
                self.found[id] = Course(Fate.FINISH)
                self.steps.append(Action(ActionKind.LOAD, id))

    def _next_action(self) -> Action | None:
        """The next action, as the manager's tick chooses it: the first stream that has something to do, one that
        unloads before all others."""
        streams: dict[str, list[ServableStateSnapshot]] = {}
        for id in sorted(self.state):
            streams.setdefault(id.name, []).append(self.state[id])
        asked = [self.managed.policy.next_action(versions) for versions in streams.values()]
        actions = [action for action in asked if action is not None]
        return next((a for a in actions if a.kind is ActionKind.UNLOAD), actions[0] if actions else None)

    def _unload(self, action: Action) -> None:
        """Whatever had no room is tried again."""
        before = self._steps_of(action.id.name, ActionKind.LOAD)
        self._tell(action.id, Course(Fate.UNLOAD, after=before))
        del self.state[action.id]
        self.held.pop(action.id, None)
        self.steps.append(action)
        for id, snapshot in self.state.items():
            exhausted = snapshot.status.code is StatusCode.RESOURCE_EXHAUSTED and snapshot.has_loader
            if snapshot.state is HarnessState.ERROR and snapshot.is_aspired and exhausted:
                self.state[id] = ServableStateSnapshot(id, HarnessState.NEW, True, snapshot.revision)

    def _load(self, action: Action) -> None:
        id, expected, tracker = action.id, self._expected(action.id), self.managed.tracker
        fits_now: bool | None = None
        after = self._steps_of(id.name, ActionKind.UNLOAD)
        if tracker is not None and expected.needs.entries:
            fits_now = tracker.fits(self.managed.held.values(), expected.needs)
            demand = Demand(staying=list(self.held.values()), leaving=(), ahead=(), in_flight=False)
            if decide(tracker, demand, expected.needs) is not Admission.ADMIT:
                why = f"it has no room: {tracker.explain(self.held.values(), expected.needs)}"
                self._end(id, Status(StatusCode.RESOURCE_EXHAUSTED, why), Course(Fate.REFUSE, why, False))
                return
            if not fits_now:
                after = tuple(step.id for step in self.steps if step.kind is ActionKind.UNLOAD)
        if expected.outcome is ExpectedEnd.FAILS:
            self._end(id, Status(StatusCode.UNKNOWN, expected.why), Course(Fate.FAIL, expected.why, fits_now, after))
            return
        self.state[id] = replace(self.state[id], state=HarnessState.READY)
        self.held[id] = expected.needs
        self._tell(id, Course(Fate.LOAD, "", fits_now, after))
        self.steps.append(action)

    def _end(self, id: ServableId, status: Status, course: Course) -> None:
        self.state[id] = replace(self.state[id], state=HarnessState.ERROR, status=status)
        self._tell(id, course)

    def _tell(self, id: ServableId, course: Course) -> None:
        known = self.found.get(id)
        if known is not None and known.fate in (*BEGIN, Fate.UNLOAD):
            course = replace(course, before=(*known.before, known.fate))
        self.found[id] = course

    def _conclude(self, snapshot: ServableStateSnapshot) -> None:
        """The versions to which nothing has happened."""
        if snapshot.id in self.found:
            return
        if snapshot.state is HarnessState.ERROR:
            self.found[snapshot.id] = Course(Fate.FAILED, snapshot.status.message)
        elif snapshot.is_aspired:
            self.found[snapshot.id] = Course(Fate.STAY)
        else:
            self.found[snapshot.id] = Course(Fate.KEEP, "no other version of the model would be available")

    def _steps_of(self, name: str, kind: ActionKind) -> tuple[ServableId, ...]:
        return tuple(step.id for step in self.steps if step.kind is kind and step.id.name == name)

    def _expected(self, id: ServableId) -> Expected:
        return self.lists.expected.get(id, _NOTHING_KNOWN)


_NOTHING_KNOWN = Expected()
