"""The guard's place in the chain of lists: between the sources and everything that follows them.

Every list passes :meth:`GuardStage.observe`. The stage adds the old version of a trial, drops what is rejected, and
sends the last list again when its own state has changed.

Locks: the stage's lock is held while it computes and while it passes a list on, so lists of a model keep their order;
it lies below the locks of sources. Effects that may call back (``GuardEffects``, second group) are carried out later,
without it, by :meth:`GuardStage.tick` and :meth:`GuardStage.command`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from tfs_lite.core.clock import Clock
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, failed_precondition, not_found
from tfs_lite.operations.guard.trial import (
    LAST_VOTES_SECONDS,
    MAX_REMEMBERED,
    NO_JUDGEMENT,
    NO_STATE,
    OFF,
    BakeEnded,
    Command,
    Effect,
    Items,
    Judgement,
    ModelState,
    Outcome,
    Rejection,
    Renewed,
    Running,
    Seen,
    Stage,
    TakenBack,
    TrialSettings,
    Verb,
    guarded,
    nothing,
    step,
)
from tfs_lite.serving.lifecycle_events import LifecycleEvent, LoadAttempted, LoadParked, ModelGone, StateChanged

logger = logging.getLogger(__name__)
MAX_STEPS = 1000
"""The most steps of one model at a time; more of them are a defect."""
MAX_GIVEN = 4
"""The most trials that end early for one load without memory; after so many it does not fit for other reasons."""


def files_of(revision: str) -> str:
    """The part of a revision that tells the files of a version, without its configs."""
    return revision.partition("/")[0]


@dataclass(frozen=True, slots=True)
class GuardEffects:
    """What the stage asks and does.

    Called under the stage's lock; short, and they take no lock of a source and call nothing of the stage:

    ``hold(id, held)``: whether the version must not be "latest" where any other is; also before it is known to the
    manager, and after it is gone. ``set_trials(name, trials)``: all trials of the model from now on, armed ones too, so
    that requests are shielded from the first one; a trial whose ``new`` and ``files`` were there before goes on with
    its evidence, also where its ``stage`` or ``old`` has changed. ``judgement(id)``: how the trial of this new version
    stands; ``NO_JUDGEMENT`` where nothing is known. ``wake()``: the guard's thread is to call ``tick`` soon; also
    called under the manager's bus.

    Called without the stage's lock, but perhaps on a source's thread while it sends a list (so it must take no lock
    that is held then): ``on_disk(name)``: the items, as the source would offer them, of every version that is there and
    complete (in the last list or not); None where that cannot be told now, and what was known stays. It must not raise.

    Called without any lock, on the guard's thread or that of a command: ``reject(name, versions)``: all rejected
    versions of the model from now on, for the source's stand-ins. ``report(name, effect)``: something has happened, for
    history and metrics. ``save()``: ``saved`` has changed. ``hurry(waits)``: whether a way back waits for a load, after
    each ``tick`` and ``command``; a load that hangs must not be in its way.
    """

    hold: Callable[[ServableId, bool], None]
    set_trials: Callable[[str, Sequence[Running]], None]
    judgement: Callable[[ServableId], Judgement]
    wake: Callable[[], None]
    on_disk: Callable[[str], Mapping[int, ServableData[StoragePath]] | None]
    reject: Callable[[str, frozenset[int]], None]
    report: Callable[[str, Effect], None]
    save: Callable[[], None]
    hurry: Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """How the last trial of a model ended, and when, in seconds since 1970."""

    version: int
    outcome: Outcome
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class GuardView:
    """How a model stands, for reports. ``trial``: the one that runs, or the highest that is armed. ``since`` and
    ``until``: the begin of its stage and the earliest end, in seconds since 1970; None while it is armed.
    ``rejected``: the highest version first. ``going_back``: the version that an operator waits for. ``ended``: the last
    trial that ended, since the start."""

    name: str
    trial: Running | None = None
    since: float | None = None
    until: float | None = None
    judgement: Judgement = NO_JUDGEMENT
    rejected: tuple[Rejection, ...] = ()
    going_back: int | None = None
    ended: EndedTrial | None = None


@dataclass(slots=True)
class _Model:
    """What the stage keeps of a model; guarded by the stage's lock. ``known``: the items of every version that is there
    and could be offered. ``settings``: with the revision that they were read for. ``failed_as``: the revision of a
    version when it has failed; another one is loaded anew. ``told``: the state that others know; with ``items`` and
    ``ended`` read without the lock, as the values of these three are replaced."""

    name: str
    state: ModelState = NO_STATE
    told: ModelState = NO_STATE
    items: Items = ()
    passed: Items = ()
    known: Mapping[int, ServableData[StoragePath]] = field(default_factory=nothing)
    settings: dict[int, tuple[str, TrialSettings]] = field(default_factory=dict)
    available: frozenset[int] = frozenset()
    failed: Mapping[int, Status] = field(default_factory=nothing)
    failed_as: dict[int, str] = field(default_factory=dict)
    ended: EndedTrial | None = None

    @property
    def listed(self) -> dict[int, ServableData[StoragePath]]:
        return {item.id.version: item for item in self.items}

    @property
    def unlisted(self) -> dict[int, ServableData[StoragePath]]:
        listed = self.listed
        return {version: item for version, item in self.known.items() if version not in listed}

    @property
    def waits_for_way_back(self) -> bool:
        """Whether an older version must be loaded before it answers in place of a rejected one. Any thread."""
        rejected = self.told.rejected.keys()
        if self.told.going_back is not None or not rejected or self.available - rejected:
            return self.told.going_back is not None
        return any(item.id.version not in rejected | self.failed.keys() for item in self.passed)


class GuardStage:
    """``restore`` -> ``observe`` -> lists, events, commands and ticks in any order, from any thread."""

    def __init__(
        self,
        effects: GuardEffects,
        clock: Clock,
        settings_of: Callable[[ServableData[StoragePath]], TrialSettings],
        files_of: Callable[[str], str] = files_of,
        content_of: Callable[[str], str] = files_of,
    ) -> None:
        """``settings_of`` gives the settings that a load of the item would have, ``OFF`` under the policy resource; it
        may read the disk, and is called without the stage's lock, once for each revision of a version. ``files_of``
        gives the part of a revision that ends a rejection when it changes: in the mode explicit the whole of it,
        because each call to load is an order. ``content_of`` gives the part that is the same for the same files when
        the model has been away; then its trial begins anew."""
        self._effects, self._clock = effects, clock
        self._settings_of, self._files_of, self._content_of = settings_of, files_of, content_of
        self._callback: AspiredVersionsCallback[StoragePath] | None = None
        self._events: deque[LifecycleEvent] = deque()
        self._lock = threading.Lock()  # guards the models and the next four; held while a list goes on
        self._models: dict[str, _Model] = {}
        self._parked: set[ServableId] = set()  # versions whose load waits for memory or place, or was refused for it
        self._given: dict[ServableId, int] = {}  # how many trials have ended for such a load
        self._leaving: set[ServableId] = set()  # versions that are being unloaded
        self._touched: set[str] = set()  # models of which something was heard since the last tick
        self._carrying = threading.Lock()  # serialises what is carried out; no source's lock is held with it
        self._calls: deque[Callable[[], None]] = deque()

    def observe(self, callback: AspiredVersionsCallback[StoragePath]) -> AspiredVersionsCallback[StoragePath]:
        """The callback for the sources; called once."""
        self._callback = callback
        return self._on_list

    def on_event(self, event: LifecycleEvent) -> None:
        """Queues what concerns the guard and wakes its thread; takes no lock of the stage. Needs ``StateChanged``,
        ``LoadParked``, ``LoadAttempted`` and ``ModelGone``."""
        if isinstance(event, StateChanged | LoadParked | LoadAttempted | ModelGone):
            self._events.append(event)
            self._effects.wake()

    def tick(self) -> bool:
        """Takes what has happened, moves every trial on, and carries effects out. Whether it must be called again in a
        second although nothing wakes it. One at a time."""
        for name in self._restless():
            on_disk = self._effects.on_disk(name)
            with self._lock:
                model = self._models.get(name)
                if model is not None:
                    self._look(model, on_disk)
        with self._lock:
            self._take_events()
            giver, names = self._gives_memory(), self._touched | set(self._restless())
            self._touched.clear()
            for model in [self._models[name] for name in sorted(names & self._models.keys())]:
                self._move(model, memory_needed=model is giver)
        self._carry_out()
        self._hurry()
        return bool(self._restless())

    def command(self, name: str, command: Command) -> None:
        """Carries an order out; returns when the list is sent, not when it is done. Raises ServingError and nothing has
        changed: NOT_FOUND for an unknown model or version, FAILED_PRECONDITION where there is nothing to do."""
        on_disk = self._effects.on_disk(name)
        try:
            with self._lock:
                self._take_events()
                model = self._models.get(name)
                if model is None or not model.items:
                    raise not_found(f"model {name} is not served")
                self._look(model, on_disk)
                self._move(model)
                if command.verb is Verb.UNDO and not model.state.trials:
                    what = f"model {name} has no trial; tfs-lite rollback {name} goes back to an older version"
                    raise failed_precondition(what)
                try:
                    self._step(model, command)
                except ServingError as error:
                    raise ServingError(error.code, f"model {name}: {error.status.message}") from None
                self._move(model)
        finally:
            self._carry_out()
            self._hurry()

    # What it says. Any thread; never waits for a list.

    def view(self, name: str) -> GuardView | None:
        """None for a model without a list."""
        model = self._models.get(name)
        if model is None or not model.items:
            return None
        state, since, until, judgement = model.told, None, None, NO_JUDGEMENT
        trial = state.running or next(iter(state.trials), None)
        if trial is not None:
            judgement = self._effects.judgement(ServableId(name, trial.new))
        if trial is not None and trial.stage is not Stage.ARMED:
            since = self._clock.time() - (self._clock.monotonic() - trial.since)
            until = since + trial.settings.bake_seconds + LAST_VOTES_SECONDS
        rejected = tuple(state.rejected[version] for version in sorted(state.rejected, reverse=True))
        going_back = state.going_back.to if state.going_back is not None else None
        return GuardView(name, trial, since, until, judgement, rejected, going_back, model.ended)

    def rejected(self, name: str) -> Mapping[int, Status]:
        """The versions that the guard keeps from answering: ABORTED, with the reason."""
        rejected = self.state(name).rejected
        return {version: Status(StatusCode.ABORTED, rejection.why) for version, rejection in rejected.items()}

    def accepts(self, id: ServableId) -> bool:
        """Whether an operator takes the version as it is: its load skips the replay gate."""
        return id.version in self.state(id.name).ungated

    def state(self, name: str) -> ModelState:
        """As of the last list that went on."""
        model = self._models.get(name)
        return NO_STATE if model is None else model.told

    # Over a restart.

    def saved(self) -> Mapping[str, ModelState]:
        """What a restart must know, of the models that have anything to remember."""
        found = {name: model.told.remembered for name, model in list(self._models.items())}
        return {name: state for name, state in found.items() if state != NO_STATE}

    def restore(self, saved: Mapping[str, ModelState]) -> None:
        """Before ``observe``. A trial whose version has other files at its first list is forgotten. The source hears of
        rejected versions with the first ``tick``; lists that come before that are guarded all the same."""
        for name, state in saved.items():
            self._models[name] = _Model(name, state, state)
            self._tell_rejected(name, frozenset(), state.rejected.keys())

    # Lists.

    def _on_list(self, name: str, items: Items) -> None:
        """Called by a source, under its lock."""
        with self._lock:
            self._take_events()
            model = self._models.get(name) or _Model(name)
            unread = self._unread(model, items)
            rests = model.state.at_rest
        settings = {item.id.version: (item.revision, self._read(item)) for item in unread}
        on_disk = None if rests else self._effects.on_disk(name)
        with self._lock:
            model = self._models.setdefault(name, model)
            self._take_list(model, items, settings)
            self._look(model, on_disk)
            self._move(model, always=True)
        if self._calls:
            self._effects.wake()

    def _unread(self, model: _Model, items: Items) -> list[ServableData[StoragePath]]:
        """The items whose settings may be needed: those that may be a push."""
        read = {version: revision for version, (revision, _) in model.settings.items()}
        new = [item for item in items if item.status.ok and read.get(item.id.version) != item.revision]
        known = model.state.armed.keys() | model.state.rejected.keys()
        taken = model.available & model.state.accepted.keys()
        return [item for item in new if item.id.version not in taken and (model.available or item.id.version in known)]

    def _read(self, item: ServableData[StoragePath]) -> TrialSettings:
        try:
            return self._settings_of(item)
        except ServingError as error:
            logger.info("%s: no trial, its settings cannot be read: %s", item.id, error)
            return OFF

    def _take_list(self, model: _Model, items: Items, settings: Mapping[int, tuple[str, TrialSettings]]) -> None:
        if not model.items:
            model.state = replace(model.state, armed=self._armed_again(model, items))
        model.items = items
        kept = {version: found for version, found in model.settings.items() if version in model.listed}
        model.settings = {**kept, **settings}
        known = model.known
        if model.state.at_rest:  # the disk is not asked then; what is loaded may become an old version with this list
            known = {version: item for version, item in known.items() if version in model.available}
        model.known = {**known, **model.listed}
        model.failed = {v: status for v, status in model.failed.items() if self._still_failed(model, v)}

    def _armed_again(self, model: _Model, items: Items) -> Mapping[int, Running]:
        """The trials of before the model went, of versions that have come back with the same files."""
        armed = dict(model.state.armed)
        for item in items:
            trial = armed.get(item.id.version)
            if trial is not None and self._content_of(trial.files) == self._content_of(item.revision):
                armed[trial.new] = replace(trial, files=self._files_of(item.revision))
        return armed

    def _still_failed(self, model: _Model, version: int) -> bool:
        """Whether the manager does not begin it anew for this list. What it begins for another reason, it says."""
        item = model.known.get(version)
        return item is None or item.revision == model.failed_as.get(version)

    def _look(self, model: _Model, on_disk: Mapping[int, ServableData[StoragePath]] | None) -> None:
        """Takes what is there; what has been passed on already stays as it was passed."""
        if on_disk is None:
            return
        passed = {item.id.version: item for item in model.passed if item.id.version in on_disk}
        model.known = {**on_disk, **passed, **model.listed}

    # Events.

    def _take_events(self) -> None:
        while self._events:
            match self._events.popleft():
                case StateChanged(timed):
                    self._take_state(timed.state)
                case LoadParked(id):
                    self._parked.add(id)
                case LoadAttempted(attempt) if attempt.status.reason is Reason.WAITS_FOR_PLACE:
                    self._parked.add(attempt.id)
                case ModelGone(name):
                    self._forget(name)

    def _take_state(self, state: ServableState) -> None:
        id, version = state.id, state.id.version
        self._parked.discard(id)
        self._leaving.discard(id)
        if state.state is ManagerState.UNLOADING:
            self._leaving.add(id)
        elif state.health.code is StatusCode.RESOURCE_EXHAUSTED:
            self._parked.add(id)
        if state.state is ManagerState.AVAILABLE or (state.state is ManagerState.END and state.health.ok):
            self._given.pop(id, None)
        model = self._models.get(id.name)
        if model is None:
            return
        self._touched.add(id.name)
        if state.state is ManagerState.AVAILABLE:
            model.available |= {version}
        else:
            model.available -= {version}
        failed = {other: status for other, status in model.failed.items() if other != version}
        if state.state is ManagerState.END and not state.health.ok and self._is_passed(id):
            failed[version] = state.health
            item = model.known.get(version)
            model.failed_as[version] = item.revision if item is not None else ""
        model.failed = {other: failed[other] for other in sorted(failed)[-MAX_REMEMBERED:]}
        model.failed_as = {other: model.failed_as[other] for other in model.failed}

    def _forget(self, name: str) -> None:
        """The model is out of the config for good."""
        model = self._models.pop(name, None)
        if model is None:
            return
        self._tell_rejected(name, model.told.rejected.keys(), frozenset())
        self._effects.set_trials(name, ())
        if model.told.remembered != NO_STATE:
            self._call(self._effects.save)

    # Moving on; all of it under the lock.

    def _gives_memory(self) -> _Model | None:
        """The model that gives its old version's memory to a load that waits: one at a time, the oldest trial first,
        and none while something is on its way out already."""
        waiting = [id for id in self._parked if self._is_passed(id) and self._given.get(id, 0) < MAX_GIVEN]
        if not waiting or any(not self._is_passed(id) for id in self._leaving):
            return None
        baking = [
            (running.since, model.name, model)
            for model in self._models.values()
            if (running := model.state.running) is not None
            and running.old not in model.listed
            and not self._judgement(model).leaning
        ]
        if not baking:
            return None
        giver, running = min(baking)[2], min(baking)[2].state.running
        assert running is not None
        self._given[min(waiting)] = self._given.get(min(waiting), 0) + 1
        self._leaving.add(ServableId(giver.name, running.old))
        return giver

    def _is_passed(self, id: ServableId) -> bool:
        model = self._models.get(id.name)
        return model is not None and any(item.id == id for item in model.passed)

    def _judgement(self, model: _Model) -> Judgement:
        running = model.state.running
        return NO_JUDGEMENT if running is None else self._effects.judgement(ServableId(model.name, running.new))

    def _move(self, model: _Model, memory_needed: bool = False, always: bool = False) -> None:
        """Steps until nothing changes, and passes on what follows. ``always``: the list is passed on in any case."""
        before = _revisions(model.passed)
        try:
            model.passed = self._decide(model, memory_needed)
        except Exception:
            logger.exception("the list of model %s goes on without the guard", model.name)
            model.passed = model.items
        if (always or _revisions(model.passed) != before) and self._callback is not None:
            self._callback(model.name, model.passed)

    def _decide(self, model: _Model, memory_needed: bool) -> Items:
        """The list that goes on. Whatever must be in force before that is."""
        self._settle(model, memory_needed)
        told, state = model.told, model.state
        self._tell_rejected(model.name, told.rejected.keys(), state.rejected.keys())
        if state.trials != told.trials:
            self._effects.set_trials(model.name, state.trials if model.items else ())
        if state.remembered != told.remembered:
            self._call(self._effects.save)
        model.told = state
        on_disk = {v: item for v, item in model.unlisted.items() if v not in model.failed or _is_kept(state, v)}
        return guarded(model.items, state, on_disk)

    def _tell_rejected(self, name: str, before: Set[int], now: Set[int]) -> None:
        """The manager hears of rejected versions now, the source soon."""
        for version in sorted(before ^ now):
            self._effects.hold(ServableId(name, version), version in now)
        if before != now:
            rejected = frozenset(now)
            self._call(lambda: self._effects.reject(name, rejected))

    def _settle(self, model: _Model, memory_needed: bool = False) -> None:
        for _ in range(MAX_STEPS):
            if not self._step(model, None, memory_needed):
                return
            memory_needed = False
        logger.error("the guard of model %s does not come to rest; this is a defect: %s", model.name, model.state)

    def _step(self, model: _Model, command: Command | None = None, memory_needed: bool = False) -> bool:
        """Whether anything has changed. Raises ServingError for a command."""
        seen = Seen(
            listed={version: self._files_of(item.revision) for version, item in model.listed.items()},
            on_disk={version: self._files_of(item.revision) for version, item in model.unlisted.items()},
            available=model.available,
            failed=model.failed,
            memory_needed=memory_needed,
            judgement=self._judgement(model),
            at=self._clock.time(),
        )
        settings = {version: found for version, (_, found) in model.settings.items()}
        state, effects = step(self._clock.monotonic(), settings, model.state, seen, command)
        if state == model.state and not effects:
            return False
        model.state = state
        for effect in effects:
            self._note(model, effect)
        return True

    def _note(self, model: _Model, effect: Effect) -> None:
        match effect:
            case Renewed(version):
                model.failed = {other: status for other, status in model.failed.items() if other != version}
            case BakeEnded(trial, outcome, text):
                model.ended = EndedTrial(trial.new, outcome, text, self._clock.time())
            case TakenBack(rejection):
                model.ended = EndedTrial(rejection.version, Outcome.TAKEN_BACK, rejection.why, rejection.at)
            case _:
                pass
        self._call(lambda: self._effects.report(model.name, effect))

    # What is done without the lock.

    def _restless(self) -> list[str]:
        models = list(self._models.values())
        return [model.name for model in models if model.items and (model.told.trials or model.told.going_back)]

    def _hurry(self) -> None:
        with self._carrying:
            self._effects.hurry(any(model.waits_for_way_back for model in list(self._models.values())))

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def _carry_out(self) -> None:
        with self._carrying:
            while self._calls:
                try:
                    self._calls.popleft()()
                except Exception:
                    logger.exception("the guard cannot do what follows from a trial")


def _is_kept(state: ModelState, version: int) -> bool:
    """Whether a trial or an operator wants the version, also where its load has failed."""
    return any(version in (trial.new, trial.old) for trial in state.trials)


def _revisions(items: Items) -> list[tuple[int, str, bool]]:
    return [(item.id.version, item.revision, item.given_up) for item in items]
