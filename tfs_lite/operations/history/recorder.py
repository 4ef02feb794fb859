"""Turns what the lifecycle does into events, each with who wanted it.

    source -> [here: which versions are wanted, and since when not, and why] -> router -> manager
    manager -> states, loads that are parked, versions that are drained       -> here
    journal -> attempts that failed                                            -> here
    reload  -> configs                                                         -> here, before they take effect

Who wants a version is settled when it appears in a list, or is gone from one: the origin that the calling thread acts
for (:func:`~tfs_lite.core.history.acting`), that of the config which the list is the first to follow, or else the poll.
What the manager then does with the version has the same cause.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfs_lite.config.diff import ConfigDiff
from tfs_lite.core.history import Cause, EventKind, History, Origin, current_origin
from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.state import ManagerState, TimedState
from tfs_lite.core.status import OK, Reason, Status, StatusCode
from tfs_lite.managers.labels import Labels
from tfs_lite.operations.history.memory import MemoryAccounts
from tfs_lite.serving.lifecycle_events import (
    CacheEvicted,
    Drained,
    FetchBegun,
    FetchDone,
    FetchFailed,
    LifecycleEvent,
    LoadAttempted,
    LoadParked,
    LoadWantedAnew,
    Replaced,
    StateChanged,
    StepOverdue,
    VersionsAspired,
    WorkerChanged,
)
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.sources.source_config import SourceReport

POLL = Origin(Cause.POLL)
FILES = Origin(Cause.FILES)
_NOT_FETCHED = "its files cannot be fetched: "
"""What a failed fetch says first, as the text of its event does."""


@dataclass(slots=True)
class _ListedModel:
    """The last words of the source about one model. ``expected``: who wanted the config that the next list follows."""

    wanted: dict[int, str] = field(default_factory=dict)  # version -> revision
    incomplete: frozenset[int] = frozenset()
    on_disk: frozenset[int] | None = None
    problem: Status = OK
    expected: Origin | None = None
    unfetched: set[int] = field(default_factory=set)  # versions whose last fetch has failed


@dataclass(slots=True)
class _RecordedVersion:
    """A version that is wanted, or that the manager works on. ``since``: when its present step began."""

    origin: Origin | None = None
    state: ManagerState | None = None
    since: float = 0.0
    exhausted: bool = False


class Recorder:
    """Any thread may call any method; each is short."""

    def __init__(
        self,
        history: History,
        accounts: MemoryAccounts,
        is_configured: Callable[[str], bool],
        rejected: Callable[[str], Mapping[int, Status]] = lambda name: {},
    ) -> None:
        """``rejected``: the versions of a model that a feature keeps from answering, each with the reason."""
        self._history = history
        self._accounts = accounts
        self._is_configured = is_configured
        self._rejected = rejected
        self._lock = threading.Lock()  # guards the fields below; nothing is called under it
        self._models: dict[str, _ListedModel] = {}
        self._versions: dict[ServableId, _RecordedVersion] = {}
        self._stopping: Origin | None = None

    def on_event(self, event: LifecycleEvent) -> None:
        """Takes the events of versions, and no others."""
        match event:
            case VersionsAspired(name, versions):
                self.on_list(name, versions)
            case StateChanged(timed):
                self.on_state(timed)
            case LoadAttempted(attempt):
                self.on_attempt(attempt)
            case LoadParked(servable_id, needs):
                self.on_parked(servable_id, needs)
            case StepOverdue(servable_id, status):
                self.on_overdue(servable_id, status)
            case Drained(servable_id, time):
                self.on_drained(servable_id, time)
            case LoadWantedAnew(servable_id):
                self.wanted_anew(servable_id)
            case Replaced(servable_id):
                self.on_replaced(servable_id)
            case WorkerChanged(servable_id, cause):
                self.on_worker(servable_id, cause)
            case _:
                self.on_files(event)

    # The server.

    def started(self, details: Mapping[str, Any]) -> None:
        self._history.append(EventKind.SERVER_STARTED, details=details)

    def stopping(self, origin: Origin) -> None:
        """Notes that the server stops: it is the cause of every unload from now on. May be called again."""
        with self._lock:
            first = self._stopping is None
            self._stopping = self._stopping or origin
        if first:
            self._history.append(EventKind.SERVER_STOPPING, origin=origin)

    # Files of storages.

    def on_files(self, event: LifecycleEvent) -> None:
        """Takes the events of fetches and of the cache, and no others. A fetch that follows a failed one is told when
        it ends, so that what fails with each poll is one event that counts."""
        append = self._history.append
        match event:
            case FetchBegun(servable_id, size):
                if not self._is_unfetched(servable_id):
                    append(EventKind.FETCH_BEGUN, *_of(servable_id), origin=POLL, details={"bytes": size})
            case FetchDone(servable_id, size, fetched, seconds, attempts):
                self._is_unfetched(servable_id, False)
                details = {"bytes": size, "fetched_bytes": fetched, "seconds": round(seconds, 3), "attempts": attempts}
                append(EventKind.FETCHED, *_of(servable_id), origin=POLL, details=details)
            case FetchFailed(servable_id, status, fetched, attempts):
                self._is_unfetched(servable_id, True)
                details = {"fetched_bytes": fetched, "attempts": attempts}
                why = replace(status, message=status.message.removeprefix(_NOT_FETCHED))
                append(EventKind.FETCH_FAILED, *_of(servable_id), origin=POLL, status=why, details=details)
            case CacheEvicted(key, size):
                append(EventKind.CACHE_EVICTED, details={"key": key, "bytes": size})

    def _is_unfetched(self, servable_id: ServableId, now: bool | None = None) -> bool:
        """Whether the last fetch of the version had failed; ``now`` is how this one has ended."""
        with self._lock:
            unfetched = self._models.setdefault(servable_id.name, _ListedModel()).unfetched
            before = servable_id.version in unfetched
            if now is not None:
                (unfetched.add if now else unfetched.discard)(servable_id.version)
        return before

    # Configs.

    def config_applied(self, difference: ConfigDiff, summary: str, before: Labels, now: Labels) -> None:
        """Just before the config takes effect. The one of the start is told as a whole, later ones model by model."""
        origin = current_origin()
        changes = {
            **{model.name: "added" for model in difference.added},
            **{model.name: "removed" for model in difference.removed},
            **{change.new.name: f"changed: {' and '.join(change.fields)}" for change in difference.changed},
        }
        if origin is not None:
            with self._lock:
                for name, change in changes.items():
                    if name in self._models or change != "removed":
                        self._models.setdefault(name, _ListedModel()).expected = origin
        self._history.append(EventKind.CONFIG_APPLIED, details={"summary": summary})
        if origin is None or origin.cause is not Cause.START:
            for name, change in changes.items():
                self._history.append(EventKind.CONFIG_APPLIED, name, details={"summary": change})
            self._labels_moved(before, now)

    def config_refused(self, status: Status, model: str = "") -> None:
        """``model``: the one that a call is about; empty for a config of all models."""
        self._history.append(EventKind.CONFIG_REFUSED, model, status=status)

    def _labels_moved(self, before: Labels, now: Labels) -> None:
        for name in {**before, **now}:
            old, new = before.get(name, {}), now.get(name, {})
            for label in {**old, **new}:
                if old.get(label) != new.get(label):
                    details = {"label": label, "from": old.get(label)}
                    self._history.append(EventKind.LABEL_MOVED, name, new.get(label), details=details)

    # What the source says.

    def on_source_report(self, report: SourceReport) -> None:
        incomplete = frozenset(report.waiting) & report.on_disk
        with self._lock:
            model = self._models.setdefault(report.name, _ListedModel())
            seen = incomplete - model.incomplete - model.wanted.keys()
            model.incomplete = model.incomplete & report.on_disk | incomplete
            if not report.problem.ok and not report.on_disk:
                model.expected = None  # no list follows that config; a later one follows the disk
            model.on_disk = report.on_disk
            before, model.problem = model.problem, report.problem
        if report.problem != before:
            kind = EventKind.BASE_PATH_GOOD if report.problem.ok else EventKind.BASE_PATH_PROBLEM
            self._history.append(kind, report.name, origin=POLL, status=report.problem)
        for version in sorted(seen):
            details = {"waits_for": report.waiting[version]}
            self._history.append(EventKind.SEEN, report.name, version, origin=POLL, details=details)

    def on_list(self, name: str, versions: Sequence[ServableData[Any]]) -> None:
        """Notes what has changed since the last list of the model."""
        wanted = {item.id.version: item.revision for item in versions}
        with self._lock:
            model = self._models.setdefault(name, _ListedModel())
            origin = current_origin() or model.expected or POLL
            before, model.wanted, model.expected = model.wanted, wanted, None
            completed, on_disk = model.incomplete & wanted.keys(), model.on_disk
            model.incomplete -= wanted.keys()
            changed = {version for version in wanted.keys() & before.keys() if wanted[version] != before[version]}
            by_call = origin.cause is Cause.REPOSITORY_CALL
            of_files = FILES if origin is POLL else origin
            for version in wanted.keys() - before.keys():
                self._settle(ServableId(name, version), origin)
            for version in changed:
                self._settle(ServableId(name, version), of_files)
            for version in before.keys() - wanted.keys():
                self._settle(ServableId(name, version), origin, wanted=False)
            if not wanted and not self._is_configured(name):
                del self._models[name]
        append = self._history.append
        for version in sorted(wanted.keys() | before.keys()):
            if version not in wanted:
                why = self._why_gone(name, version, wanted, origin, on_disk)
                append(EventKind.UNASPIRED, name, version, origin=origin, details={"why": why})
            elif version not in before:
                if version in completed:
                    append(EventKind.COMPLETE, name, version, origin=POLL)
                append(EventKind.ASPIRED, name, version, origin=origin)
            elif version in changed and not by_call:
                append(EventKind.FILES_CHANGED, name, version, origin=of_files)

    def _settle(self, servable_id: ServableId, origin: Origin, wanted: bool = True) -> None:
        """Notes who wants the version now, or no longer wants it. Called with the lock held."""
        version = self._versions.setdefault(servable_id, _RecordedVersion())
        version.origin, version.exhausted = origin, False
        if not wanted and version.state in (None, ManagerState.END):
            del self._versions[servable_id]

    def _why_gone(
        self, name: str, version: int, wanted: Iterable[int], origin: Origin, on_disk: frozenset[int] | None
    ) -> str:
        numbers = sorted(wanted)
        taken = ", ".join(map(str, numbers))
        only = f"only version{'s' if len(numbers) > 1 else ''} {taken}"
        if (reason := self._rejected(name).get(version)) is not None:
            return reason.message
        if origin.cause is Cause.GUARD:
            return f"the guard keeps it no more; wanted is {taken or 'none'}"
        if origin.cause is Cause.REPOSITORY_CALL:
            return f"the call wants {only}" if taken else "the call unloads the model"
        if not self._is_configured(name):
            return "the model is not in the config any more"
        if on_disk is not None and version not in on_disk:
            return f"directory {version} is gone"
        return f"the version policy wants {only} now" if taken else "the version policy wants no version now"

    def wanted_anew(self, servable_id: ServableId) -> None:
        """The thread's origin wants another load of a version that serves."""
        origin = current_origin()
        with self._lock:
            version = self._versions.get(servable_id)
            if version is not None and origin is not None:
                version.origin = origin

    # What the manager does.

    def on_state(self, timed: TimedState) -> None:
        """Each state of a version, inside the bus."""
        servable_id, state, health = timed.state.id, timed.state.state, timed.state.health
        if state is ManagerState.START:
            self._begun(servable_id, timed.time)
            return
        with self._lock:
            version = self._versions.setdefault(servable_id, _RecordedVersion())
            seconds = timed.time - version.since
            before, version.state, version.since = version.state, state, timed.time
            if state in (ManagerState.UNLOADING, ManagerState.END) and self._stopping and self._is_wanted(servable_id):
                version.origin = self._stopping
            origin = version.origin
            if state is ManagerState.END:
                version.exhausted = health.code is StatusCode.RESOURCE_EXHAUSTED
                if not self._is_wanted(servable_id):
                    del self._versions[servable_id]
        details: dict[str, Any] = {} if before in (None, ManagerState.END) else {"seconds": round(seconds, 3)}
        unloaded = state is ManagerState.END and before is ManagerState.UNLOADING
        if state is ManagerState.AVAILABLE or unloaded:
            details |= self._account(servable_id)
        if state is ManagerState.LOADING:
            details = {}
        self._history.append(_KINDS[state], *_of(servable_id), origin=origin, status=health, details=details)

    def _begun(self, servable_id: ServableId, time: float) -> None:
        """The manager has taken the version on: once more if it had lacked memory."""
        with self._lock:
            version = self._versions.setdefault(servable_id, _RecordedVersion())
            version.state, version.since = ManagerState.START, time
            if version.exhausted:
                version.origin, version.exhausted = Origin(Cause.MEMORY), False

    def on_parked(self, servable_id: ServableId, needs: ResourceAllocation) -> None:
        """Its load waits for memory."""
        bytes_needed = sum(needs.entries.values())
        details = {"waits_for": "memory", "bytes": bytes_needed}
        self._history.append(EventKind.PARKED, *_of(servable_id), origin=self._origin(servable_id), details=details)

    def on_overdue(self, servable_id: ServableId, status: Status) -> None:
        """Its load or unload takes longer than the bound."""
        self._history.append(EventKind.OVERDUE, *_of(servable_id), origin=self._origin(servable_id), status=status)

    def on_attempt(self, attempt: LoadAttempt) -> None:
        if attempt.status.ok:
            return
        kind = EventKind.PARKED if attempt.status.waits else EventKind.LOAD_ATTEMPT_FAILED
        if attempt.status.reason is Reason.HELD_BACK:
            kind = EventKind.HELD_BACK
        details = {"attempt": attempt.number, "seconds": round(attempt.seconds, 3)}
        origin = self._origin(attempt.id)
        self._history.append(kind, *_of(attempt.id), origin=origin, status=attempt.status, details=details)

    def on_replaced(self, servable_id: ServableId) -> None:
        """Another load of the version has taken its place."""
        details = {"loaded_anew": True, **self._account(servable_id)}
        origin = self._origin(servable_id)
        self._history.append(EventKind.AVAILABLE, *_of(servable_id), origin=origin, details=details)

    def on_drained(self, servable_id: ServableId, now: float) -> None:
        """The last handle is gone. Of a load that was replaced, nothing is told."""
        with self._lock:
            version = self._versions.get(servable_id)
            if version is None or version.state is not ManagerState.UNLOADING:
                return
            seconds, version.since, origin = now - version.since, now, version.origin
        details = {"seconds": round(seconds, 3)}
        self._history.append(EventKind.DRAINED, *_of(servable_id), origin=origin, details=details)

    # What else happens to a version.

    def on_leak(self, servable_id: ServableId, leaked: Mapping[str, int]) -> None:
        self._history.append(EventKind.LEAK, *_of(servable_id), details={"leaked": dict(leaked)})

    def on_worker(self, servable_id: ServableId, cause: str | None) -> None:
        """A process or replica of the version has ended, for this ``cause``; None: it runs again."""
        if cause is None:
            self._accounts.disturb()
            self._history.append(EventKind.WORKER_STARTED, *_of(servable_id))
        else:
            self._history.append(EventKind.WORKER_LOST, *_of(servable_id), details={"why": cause})

    def _is_wanted(self, servable_id: ServableId) -> bool:
        """Called with the lock held."""
        model = self._models.get(servable_id.name)
        return model is not None and servable_id.version in model.wanted

    def _origin(self, servable_id: ServableId) -> Origin | None:
        with self._lock:
            version = self._versions.get(servable_id)
            return version.origin if version is not None else None

    def _account(self, servable_id: ServableId) -> dict[str, Any]:
        memory = self._accounts.of_version(servable_id)
        return {"memory": memory.as_json()} if memory is not None else {}


_KINDS = {
    ManagerState.LOADING: EventKind.LOAD_BEGUN,
    ManagerState.AVAILABLE: EventKind.AVAILABLE,
    ManagerState.UNLOADING: EventKind.UNLOAD_BEGUN,
    ManagerState.END: EventKind.ENDED,
}


def _of(servable_id: ServableId) -> tuple[str, int]:
    return servable_id.name, servable_id.version
