"""The state of every model, put together from five places.

    manager's events   which state each version is in
    the source         which versions are wanted, which still wait and why, why a model has nothing to offer
    the load journal   why the last attempt failed, while the next one is still to come
    the config         which models are served at all
    remarks            what those who change a version that serves have to say about it

:func:`visible_versions` is the rule by which these become the list that clients see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tfs_lite.core.clock import Clock
from tfs_lite.core.servable import GOES_ON_WITH, STAYS_UNTIL, ServableData, ServableId, VersionState, VersionStatus
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.state import ManagerState, TimedState
from tfs_lite.core.status import OK, Reason, Status, StatusCode, listed
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.load_journal import LoadAttempt, LoadJournal
from tfs_lite.sources.source_config import SourceReport

_WIRE = {
    ManagerState.START: VersionState.START,
    ManagerState.LOADING: VersionState.LOADING,
    ManagerState.AVAILABLE: VersionState.AVAILABLE,
    ManagerState.UNLOADING: VersionState.UNLOADING,
    ManagerState.END: VersionState.END,
}
MOST_NAMED = 5
"""Versions in one text."""
FILES_OF_BEFORE = f"{GOES_ON_WITH} files of before"
ON_THE_WAY = (ManagerState.START, ManagerState.LOADING)


def visible_versions(
    states: Mapping[int, TimedState],
    waiting: Mapping[int, str],
    last_attempt: Callable[[int], LoadAttempt | None],
    remarks: Mapping[int, Status] = MappingProxyType({}),
    rejected: Mapping[int, Status] = MappingProxyType({}),
) -> tuple[VersionStatus, ...]:
    """Highest version first. A version that waits shows as START with the reason, unless the manager still has it; one
    between two attempts shows the last attempt's error, and one that is available, or whose load or unload is overdue,
    what is remarked about it. One that is ``rejected`` shows why it must not answer, and as END unless it goes on."""
    found: dict[int, VersionStatus] = {}
    for version, timed in states.items():
        health = timed.state.health
        if timed.state.state in ON_THE_WAY and health.ok and (attempt := last_attempt(version)):
            health = attempt.status
        remark = remarks.get(version, OK)
        is_available = timed.state.state is ManagerState.AVAILABLE
        if health.ok and timed.state.state is not ManagerState.END and is_available != is_overdue(remark):
            health = remark
        found[version] = VersionStatus(version, _WIRE[timed.state.state], health)
    for version, reason in waiting.items():
        if version not in found or found[version].state is VersionState.END:
            found[version] = VersionStatus(version, VersionState.START, Status(StatusCode.UNAVAILABLE, reason))
    for version, why in rejected.items():
        known = found.get(version)
        state = VersionState.END if known is None or known.state is VersionState.START else known.state
        found[version] = VersionStatus(version, state, why)
    return tuple(found[version] for version in sorted(found, reverse=True))


DIRECTORY_GONE = "stays, though there is no such version directory any more"


def places_of(states: Mapping[int, TimedState], aspired: Iterable[int], report: SourceReport) -> dict[int, str]:
    """The reasons, by version, why an available version stays though it is no longer wanted or its directory is gone,
    and what it stands in for. The words follow on "it" or "version 1"."""
    available = {version for version, timed in states.items() if timed.state.state is ManagerState.AVAILABLE}
    wanted = set(report.waiting if report.keeps else aspired)
    found: dict[int, str] = {}
    if wanted and not available & wanted:
        found = dict.fromkeys(available, _why_it_stays(wanted, report.waiting))
    elif report.keeps:
        found = dict.fromkeys(available - report.on_disk, DIRECTORY_GONE)
    for version in available & report.stand_ins:
        found[version] = f"stands in for {report.stands_in_for(version)}"
    return found


def _why_it_stays(wanted: Collection[int], waiting: Mapping[int, str]) -> str:
    text = f"{STAYS_UNTIL} {' or '.join(map(str, sorted(wanted)[:MOST_NAMED]))} is available"
    (one, *more) = wanted
    return f"{text}, which waits: {waiting[one]}" if one in waiting and not more else text


def is_overdue(remark: Status) -> bool:
    """Whether it is about a load or an unload that takes too long; such a remark is not about a version that serves."""
    return remark.reason is Reason.OVERDUE


class ModelStates:
    """Any thread may call any method; none of them waits for anything but this object's short lock."""

    def __init__(
        self,
        monitor: ServableStateMonitor,
        journal: LoadJournal,
        changes: ChangeNotifier,
        clock: Clock,
        silence: Callable[[ServableId], Status] = lambda servable_id: OK,
        rejected: Callable[[str], Mapping[int, Status]] = lambda name: MappingProxyType({}),
    ) -> None:
        """``silence``: why a version that is available refuses every request; OK: it does not. ``rejected``: the
        versions of a model that must not answer although they are on disk, and why."""
        self._silence = silence
        self._rejected = rejected
        self._monitor = monitor
        self._journal = journal
        self._changes = changes
        self._clock = clock
        self.unread_policies: Mapping[str, Status] = {}
        """See :meth:`policies_not_read`; replaced as a whole."""
        self._lock = threading.Lock()  # guards the fields below
        self._configured: dict[str, None] = {}  # in the order of the config; replaced as a whole
        self._aspired: dict[str, tuple[ServableId, ...]] = {}
        self._given_up: dict[str, frozenset[int]] = {}  # those of them whose failure the source knows
        self._source: dict[str, SourceReport] = {}
        self._since: dict[str, dict[int | None, float]] = {}  # since when versions wait, and the model has a problem
        self._arrived: dict[str, dict[int, float]] = {}  # when a version's directory was seen first
        self._remarks: dict[str, dict[int, Status]] = {}  # by name and version

    # What is served.

    @property
    def configured(self) -> tuple[str, ...]:
        """The served models, in the order of the config."""
        return tuple(self._configured)

    def is_configured(self, name: str) -> bool:
        return name in self._configured

    def configure(self, names: Iterable[str]) -> None:
        """These models are served now. What was known from the source about other models is forgotten."""
        with self._lock:
            self._configured = dict.fromkeys(names)
            kept: dict[str, Any]
            for kept in (self._source, self._since, self._arrived, self._aspired, self._given_up, self._remarks):
                for name in [name for name in kept if name not in self._configured]:
                    del kept[name]
        self._changes.notify()

    # What the source says.

    def on_source_report(self, report: SourceReport) -> None:
        now = self._clock.time()
        with self._lock:
            known, before = self._since.get(report.name, {}), self._source.get(report.name)
            if before is not None:  # a fetch that has failed has done so now
                known = {
                    version: at for version, at in known.items() if version not in before.fetching - report.fetching
                }
            since: dict[int | None, float] = {version: known.get(version, now) for version in report.waiting}
            if not report.problem.ok:
                since[None] = known.get(None, now)
            self._since[report.name] = since
            arrived = self._arrived.get(report.name, {})
            self._arrived[report.name] = {version: arrived.get(version, now) for version in report.on_disk}
            self._source[report.name] = report
        self._changes.notify(report.name)

    def observe(self, callback: AspiredVersionsCallback[Any]) -> AspiredVersionsCallback[Any]:
        """A callback that notes which versions are wanted and passes each list on."""

        def note(name: str, versions: Sequence[ServableData[Any]]) -> None:
            wanted = tuple(item.id for item in versions)
            given_up = frozenset(item.id.version for item in versions if item.given_up)
            with self._lock:
                changed = (self._aspired.get(name), self._given_up.get(name)) != (wanted, given_up)
                self._aspired[name], self._given_up[name] = wanted, given_up
            callback(name, versions)
            if changed:
                self._changes.notify(name)

        return note

    # What is said of a version that serves.

    def remark(self, servable_id: ServableId, status: Status | None) -> None:
        """The status of the version while it is available: why it is not quite what was asked for. None: it is. With
        the reason ``OVERDUE``: its status until its load or unload has ended."""
        with self._lock:
            of_model = self._remarks.setdefault(servable_id.name, {})
            before = of_model.pop(servable_id.version, None)
            if status is not None:
                of_model[servable_id.version] = status
            if not of_model:
                del self._remarks[servable_id.name]
        if before != status:
            self._changes.notify(servable_id.name)

    # What is known.

    def aspired(self, name: str) -> tuple[ServableId, ...]:
        with self._lock:
            return self._aspired.get(name, ())

    def given_up(self, name: str) -> frozenset[int]:
        """The versions of the last list, or of one before, whose failure the source knew: what stands in for them is in
        that list, too."""
        with self._lock:
            return self._given_up.get(name, frozenset())

    def source_report(self, name: str) -> SourceReport | None:
        with self._lock:
            return self._source.get(name)

    def since(self, name: str) -> Mapping[int | None, float]:
        """The moment, in seconds since 1970, since which the source reports a version as waiting, from the end of its
        fetch on if that has failed, and (None) the model as having a problem."""
        with self._lock:
            return dict(self._since.get(name, {}))

    def arrived(self, name: str) -> Mapping[int, float]:
        """The moment when each version that has a directory was seen first, in seconds since 1970; equal for those that
        one look has found."""
        with self._lock:
            return dict(self._arrived.get(name, {}))

    def remarks(self, name: str) -> dict[int, Status]:
        """The remarks about versions that serve; one of them is that their files have changed and are not complete."""
        with self._lock:
            source = self._source.get(name)
            return {**_remarks_about_files(source), **self._remarks.get(name, {})}

    def places(self, name: str) -> dict[int, str]:
        """The reasons why versions serve that would not, if the wanted ones did; see :func:`places_of`."""
        report = self.source_report(name)
        wanted = [servable_id.version for servable_id in self.aspired(name)]
        return places_of(self.version_states(name), wanted, report) if report is not None else {}

    def version_states(self, name: str) -> Mapping[int, TimedState]:
        """The last event of each version."""
        return self._monitor.get_version_states(name)

    def state_seconds(self, name: str) -> dict[int, float]:
        """The seconds that each version has been in the state that :meth:`report` shows."""
        now, states = self._clock.time(), self.version_states(name)
        since = {version: timed.time for version, timed in states.items()}
        lived = {version for version, timed in states.items() if timed.state.state is not ManagerState.END}
        since |= {
            version: at for version, at in self.since(name).items() if version is not None and version not in lived
        }
        return {version: max(now - began, 0.0) for version, began in since.items()}

    def is_available(self, servable_id: ServableId) -> bool:
        state = self._monitor.get_state(servable_id)
        return state is not None and state.state is ManagerState.AVAILABLE

    def last_attempt(self, servable_id: ServableId) -> LoadAttempt | None:
        """The last attempt to load the version; None before the first."""
        return self._journal.last(servable_id)

    def report(self, name: str) -> ModelReport:
        source = self.source_report(name)
        states, remarks = self.version_states(name), self.remarks(name)
        said = {v: Status(StatusCode.UNAVAILABLE, f"it {text}") for v, text in self.places(name).items()}
        versions = visible_versions(
            states,
            source.waiting if source else {},
            lambda version: self.last_attempt(ServableId(name, version)),
            said | remarks | self._silences(name, states),
            self._rejected(name),
        )
        passed_over = source.passed_over.items() if source else ()
        remark = "; ".join(f"{other} beside the versions is passed over: {why}" for other, why in passed_over)
        return ModelReport(name, versions, self._problem(name, source), remark)

    def _problem(self, name: str, source: SourceReport | None) -> Status:
        """The reason why the model has nothing to offer. An unknown policy is named instead of the empty one."""
        problem, unread = source.problem if source is not None else OK, self.unread_policies.get(name, OK)
        if problem.ok or unread.ok:
            return problem
        return replace(unread, message=f"model {name}: no version is wanted, for its config is wrong: {unread.message}")

    def _silences(self, name: str, states: Mapping[int, TimedState]) -> dict[int, Status]:
        available = [version for version, timed in states.items() if timed.state.state is ManagerState.AVAILABLE]
        found = {version: self._silence(ServableId(name, version)) for version in available}
        return {version: status for version, status in found.items() if not status.ok}

    def policies_not_read(self, models: Mapping[str, Status]) -> None:
        """Takes the reasons, by name, why the configs of models of a repository are wrong, so that their version
        policies are not known or stay as they were. One thread."""
        self.unread_policies = models
        self._changes.notify()

    def reports(self) -> list[ModelReport]:
        """Every configured model, in the order of the config."""
        return [self.report(name) for name in self._configured]


def _remarks_about_files(source: SourceReport | None) -> Mapping[int, Status]:
    changing = source.changing if source is not None else {}
    return {version: Status(StatusCode.UNAVAILABLE, f"{FILES_OF_BEFORE}: {why}") for version, why in changing.items()}


@dataclass(frozen=True, slots=True)
class Answering:
    """The number of models that are to answer, and those of them that have no version that answers."""

    total: int = 0
    silent: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return self.total - len(self.silent)

    @property
    def names(self) -> str:
        """Some names of those that do not answer."""
        return listed(self.silent)

    def __str__(self) -> str:
        """``1 of 2 models answers``."""
        models = "model" if self.total == 1 else "models"
        return f"{self.count} of {self.total} {models} {'answers' if 1 in (self.count, self.total) else 'answer'}"


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The report of one model for clients: its versions, the highest first, why it has none to offer, and a remark
    about what lies beside the versions."""

    name: str
    versions: tuple[VersionStatus, ...] = ()
    problem: Status = OK
    remark: str = ""

    @property
    def available(self) -> bool:
        return any(version.state is VersionState.AVAILABLE for version in self.versions)
