"""The facts about a model at one moment, gathered from the manager, the source, the journal and the config.

Every part is read under its own short lock; nothing waits, and nothing is decided here. The parts are read one after
the other, so that a version may have moved on between two of them: what a lookup finds comes from the same look at the
manager as the version's state.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from tfs_lite.config.text import YAML_ENDINGS
from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.state import TimedState
from tfs_lite.core.status import OK, ServingError, Status
from tfs_lite.managers.harness import HOLDS_RESOURCES, LEAVING
from tfs_lite.managers.labels import instead_of
from tfs_lite.managers.survey import LoadStage, LoadView, ManagerView, VersionView
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.metrics.requests import RequestTotals
from tfs_lite.operations.failed_requests.feature import Failures
from tfs_lite.operations.failed_requests.ring import FailedRequest
from tfs_lite.operations.guard.evidence import TrialCounts
from tfs_lite.operations.guard.feature import Guard
from tfs_lite.operations.guard.stage import GuardView
from tfs_lite.operations.guard.trial import Rejection, Running, Stage
from tfs_lite.server.runtime.health import Health
from tfs_lite.serving.config_checks import scan_policy
from tfs_lite.serving.config_sources import ModelLocator
from tfs_lite.serving.repository.control import RepositoryControl
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.serving.standing import StandingRefusal
from tfs_lite.serving.view import Burden
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.sources.version_scan import LatestPolicy, SpecificPolicy, VersionPolicy
from tfs_lite.storage.fetch import FetchProgress
from tfs_lite.storage.store import StorageCondition
from tfs_lite.workers.supervisor import Unanswered

MAX_DEPTH = 3
"""The depth to which the models of ensembles are followed."""
MAX_UNKNOWN = 32
"""Versions on disk that are listed although nothing was ever done with them."""
FAILING_SECONDS = 300.0
"""Failed requests of so long are worth a word, if they are at least these, and this share of all."""
LEAST_FAILED, LEAST_SHARE = 5, 0.01
LEAST_ALL = 2
"""So many are worth a word if they are all there were."""
NEARLY_ALL = 0.9
"""The share of a version's requests at which it counts as failing, or as answering, altogether."""
OF_LOAD = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"})
"""The codes of failures that say nothing of a version's files: there is too much to do, or nobody waits any more."""
NO_REPORT = SourceReport("")
"""The report of a source that has not looked at the model."""
NO_BURDEN = Burden(0, None, ())
"""The burden of a version that is not available."""
NO_VERSION = SpecificPolicy(())
"""The policy of a model of a repository whose config has been wrong since the start."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The reason why a version on disk is not offered yet. ``retry_at``: when that may change by itself, in seconds
    since 1970; ``hashed`` of ``size`` bytes have been compared with the manifest (None: none are being). ``fetch``: its
    files are being brought from a storage."""

    reason: str
    since: float | None = None
    retry_at: float | None = None
    hashed: tuple[int, int] | None = None
    fetch: FetchProgress | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of the last minute, on average: the seconds that a call waited for its run, and those of a run (0:
    nothing ran). Of the last five minutes: the requests, and how many of them failed."""

    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    requests: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Failing:
    """A share of a version's requests has failed in the last five minutes. ``worst`` is the last of those that ended
    alike and are most. ``before``: the version before it, which answered nearly all of its requests, while this one
    fails nearly all for what it is; None: that is not so."""

    requests: int
    failures: int
    worst: FailedRequest | None = None
    before: int | None = None

    @property
    def share(self) -> float:
        return self.failures / self.requests


Paces: TypeAlias = Callable[[ServableId], Pace | None]
"""The function from a version to its pace; None: nothing of it has run in the last minute, or the dashboard is off. Any
thread."""


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """One version. ``view`` is the manager's, None if it does not manage the version; ``state`` the last event.
    ``leaving`` are the workers of what was withdrawn or replaced and answers its last requests.
    ``place``: why it answers although the version policy would not take it; it follows on "version 1".
    ``on_disk`` is None where the source does not look. ``sequences``: how many have not ended of a version that is
    withdrawn, and until when it waits for them, in seconds since 1970. ``replicas`` is a summary. ``arrived``:
    when the source has seen its directory first."""

    version: int
    view: VersionView | None = None
    state: TimedState | None = None
    aspired: bool = False
    on_disk: bool | None = None
    incomplete: Incomplete | None = None
    remark: Status = OK
    burden: Burden = NO_BURDEN
    pace: Pace | None = None
    failing: Failing | None = None
    silence: Status = OK
    sequences: tuple[int, float] | None = None
    replicas: str = ""
    arrived: float | None = None
    place: str = ""
    leaving: tuple[WorkerState, ...] = ()
    unanswered: Unanswered | None = None

    @property
    def answers(self) -> bool:
        """Whether a lookup finds it."""
        return self.view is not None and self.view.answers

    @property
    def load(self) -> LoadView | None:
        """Its load, while that is not decided."""
        return self.view.load if self.view is not None else None

    @property
    def is_overdue(self) -> bool:
        """Whether its load or unload takes longer than the bound."""
        return self.view is not None and self.view.state.is_overdue

    @property
    def since(self) -> float | None:
        """When it came into its state, in seconds since 1970; None: it has had none."""
        return self.state.time if self.state is not None else None


@dataclass(frozen=True, slots=True)
class ManagerOverview:
    """A manager's versions as a whole: by model and number, those that are at work with their loads, those that are
    leaving, and who holds how much of which kind of memory (by device and resource), the largest first."""

    by_model: Mapping[str, Mapping[int, VersionView]] = field(default_factory=dict)
    at_work: Mapping[ServableId, LoadView] = field(default_factory=dict)
    leaving: tuple[ServableId, ...] = ()
    holders: Mapping[tuple[str, str], Sequence[tuple[int, ServableId]]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: ManagerView) -> ManagerOverview:
        by_model: dict[str, dict[int, VersionView]] = {}
        at_work, leaving = {}, []
        holders: dict[tuple[str, str], list[tuple[int, ServableId]]] = {}
        for servable_id, found in view.versions.items():
            by_model.setdefault(servable_id.name, {})[servable_id.version] = found
            if found.load is not None and found.load.stage is LoadStage.AT_WORK:
                at_work[servable_id] = found.load
            if found.state.state in LEAVING and not found.state.is_overdue:
                leaving.append(servable_id)
            if found.state.state in HOLDS_RESOURCES:
                for each, count in found.estimate.entries.items():
                    holders.setdefault((each.device, each.kind), []).append((count, servable_id))
        for of_kind in holders.values():
            of_kind.sort(reverse=True)
        return cls(by_model, at_work, tuple(leaving), holders)


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """The facts that are the same for every model. ``taken`` and ``monotonic`` are the same moment, in seconds since
    1970 and of ``time.monotonic``. ``known`` are the names of models; ``offered`` those that a load call could load.
    ``refused_config`` is the config file or repository that is not in force, ``has_yaml`` whether the server's config
    file is YAML. ``refused_models`` are those of the repository that cannot be served as they are."""

    taken: float
    monotonic: float
    manager: ManagerView
    control_mode: str = "poll"
    polls: bool = True
    source: str = "config"
    version_policy: str = "availability"
    memory: ResourceAllocation = NO_RESOURCES
    draining: bool = False
    known: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    refused_config: StandingRefusal | None = None
    has_yaml: bool = False
    refused_models: Mapping[str, Status] = field(default_factory=dict)
    overview: ManagerOverview = field(default_factory=lambda: ManagerOverview())
    beside_models: str = ""

    @property
    def by_calls(self) -> bool:
        """Whether only load and unload calls change what is served."""
        return self.control_mode == "explicit"

    @property
    def looks_again(self) -> bool:
        """Whether the source looks at the disk again."""
        return self.control_mode == "poll" and self.polls and not self.draining

    def wall(self, monotonic: float) -> float:
        """Seconds since 1970."""
        return self.taken - (self.monotonic - monotonic)


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One model. ``versions`` has every version of which anything is known. ``config_name`` is the config beside its
    versions, empty without one. ``looked``: the source has looked at its base path. ``exists``: the asked version has a
    directory now, which the source may not have seen. ``unmarked``: the repository has a directory of its name that
    holds no version. ``refused``: why nothing was begun with a version, by a load call or because it is unknown which
    versions are wanted, by version. ``others``: the models that its versions wait for. ``report`` is the source's last.
    ``unread_policy``: why its version policy stays as it was, whatever the config beside its versions says. ``storage``
    is that of a base path that is a URL, else None. ``guard``: how it stands with the guard, and the counts of its
    trial."""

    name: str
    server: ServerSnapshot
    configured: bool
    versions: Mapping[int, VersionSnapshot] = field(default_factory=dict)
    policy: VersionPolicy = field(default_factory=LatestPolicy)
    base_path: str = ""
    config_name: str = ""
    labels: Mapping[str, int] = field(default_factory=dict)
    report: SourceReport = NO_REPORT
    problem_since: float | None = None
    looked: bool = True
    exists: bool = False
    unmarked: bool = False
    refused: Mapping[int, Status] = field(default_factory=dict)
    others: Mapping[str, ModelSnapshot] = field(default_factory=dict)
    unread_policy: Status = OK
    storage: StorageCondition | None = None
    guard: tuple[GuardView, TrialCounts] | None = None

    @property
    def rejected(self) -> Mapping[int, Rejection]:
        """The versions that must not answer, by number."""
        return {each.version: each for each in self.guard[0].rejected} if self.guard is not None else {}

    @property
    def trial(self) -> Running | None:
        """The trial that runs."""
        trial = self.guard[0].trial if self.guard is not None else None
        return trial if trial is not None and trial.stage is not Stage.ARMED else None

    @property
    def latest(self) -> int | None:
        """The version that answers requests which name none."""
        return max((version for version in self.answering if version not in self.rejected), default=None)

    def meaning(self, label: str) -> int | None:
        """The version that answers requests by the label, if one does."""
        version = self.labels[label]
        if version not in self.rejected:
            return version
        instead = instead_of(version, self.answering, self.rejected)
        return self.latest if instead is None else instead

    @property
    def problem(self) -> Status:
        """The reason why the source has nothing to offer."""
        return self.report.problem

    @property
    def wants_unknown(self) -> bool:
        """Whether it is unknown which versions are wanted: the config beside them has been wrong since the start."""
        return not self.unread_policy.ok and self.policy == NO_VERSION

    @property
    def answering(self) -> list[int]:
        """The versions that lookups find, ascending."""
        return sorted(version for version, found in self.versions.items() if found.answers)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The facts that are looked up once for all models."""

    server: ServerSnapshot
    configured: frozenset[str]
    burdens: Mapping[ServableId, Burden]
    sequences: Mapping[ServableId, tuple[int, float]]
    replicas: Mapping[ServableId, str]
    leaving: Mapping[ServableId, Sequence[WorkerState]]
    totals: Callable[[], Mapping[tuple[str, str], RequestTotals]]


class Snapshots:
    """Any thread but the event loop's may call any method."""

    def __init__(self, core: ServerCore, health: Health, repository: RepositoryControl | None, pace_of: Paces) -> None:
        """``repository`` loads models by call; None: there are no such calls."""
        self._core = core
        self._health = health
        self._repository = repository
        self._pace_of = pace_of
        self._locator = ModelLocator(core.options)

    def of_model(self, ref: ModelRef) -> ModelSnapshot:
        shared = self._shared()
        server, snapshot = shared.server, self._model(ref.name, shared)
        asked = snapshot.labels.get(ref.label) if ref.label is not None else ref.version
        if not snapshot.configured and self._repository is not None:
            snapshot = replace(snapshot, server=replace(server, offered=tuple(self._locator.names())))
        if not snapshot.configured and ref.name not in server.refused_models:
            snapshot = replace(snapshot, unmarked=self._locator.is_unmarked(ref.name))
        if asked is not None and snapshot.base_path and snapshot.storage is None:
            exists = self._is_directory(os.path.join(snapshot.base_path, str(asked)))
            snapshot = replace(snapshot, exists=exists)
        return self._with_others(snapshot, shared, MAX_DEPTH)

    def _is_directory(self, path: str) -> bool:
        """False for one on a disk that does not answer."""
        try:
            return self._core.disk_calls.call(f"the directory {os.path.basename(path)}", lambda: os.path.isdir(path))
        except ServingError:
            return False

    def of_all(self) -> Iterator[ModelSnapshot]:
        """The snapshots of every model of the config, of each other that still has a version, and of those of the
        repository that are refused. They share one look at the manager."""
        shared = self._shared()
        server = shared.server
        for name in dict.fromkeys((*server.known, *sorted({*server.overview.by_model, *server.refused_models}))):
            yield self._with_others(self._model(name, shared), shared, MAX_DEPTH)

    def _shared(self) -> _Shared:
        core, server = self._core, self._server(self._core.manager.survey())
        leaving: dict[ServableId, list[WorkerState]] = {}
        for worker in core.view.workers():
            if worker.drains:
                leaving.setdefault(worker.id, []).append(worker)
        return _Shared(
            server,
            configured=frozenset(server.known),
            burdens=dict(core.view.burdens()),
            sequences=core.sequences.routes.draining(),
            replicas={each.id: each.summary for each in core.view.replicas()},
            leaving=leaving,
            totals=cache(core.metrics.requests.totals),
        )

    def _server(self, view: ManagerView) -> ServerSnapshot:
        core, options = self._core, self._core.options
        return ServerSnapshot(
            taken=core.clock.time(),
            monotonic=view.now,
            manager=view,
            control_mode=options.model_control_mode,
            polls=options.file_system_poll_wait_seconds > 0,
            source=_source_of(options.model_repository, options.model_config_file),
            version_policy=options.aspired_version_policy,
            memory=core.resources.tracker.total,
            draining=self._health.draining or core.waiter.closed,
            known=core.states.configured,
            trusted=options.trusted_model_base_paths,
            refused_config=core.refusals.config,
            has_yaml=options.model_config_file.endswith(YAML_ENDINGS),
            refused_models=core.refusals.models,
            overview=ManagerOverview.of(view),
            beside_models=core.resources.tracker.beside_models,
        )

    def _model(self, name: str, shared: _Shared) -> ModelSnapshot:
        core = self._core
        config, report, since = core.sources.configs.get(name), core.states.source_report(name), core.states.since(name)
        found = core.sources.found(name)
        policy = scan_policy(config) if config is not None else LatestPolicy()
        refused = self._repository.refused.get(name, {}) if self._repository is not None else {}
        unread = core.states.unread_policies.get(name, OK)
        if not unread.ok and policy == NO_VERSION and found is not None:
            refused = dict.fromkeys(found.versions, unread)
        return ModelSnapshot(
            name,
            shared.server,
            configured=name in shared.configured,
            versions=self._versions(name, shared, since),
            policy=policy,
            base_path=config.base_path if config is not None else "",
            config_name=found.config if found is not None else "",
            labels=core.labels.table.get(name, {}),
            report=report or NO_REPORT,
            problem_since=since.get(None),
            looked=report is not None,
            refused=refused,
            unread_policy=unread,
            storage=core.sources.conditions().get(name),
            guard=guard.reports.trial(name) if (guard := core.find(Guard)) is not None else None,
        )

    def _versions(self, name: str, shared: _Shared, since: Mapping[int | None, float]) -> dict[int, VersionSnapshot]:
        core, server = self._core, shared.server
        report, found = core.states.source_report(name), core.sources.found(name)
        states, remarks = core.states.version_states(name), core.states.remarks(name)
        arrived, places = core.states.arrived(name), core.states.places(name)
        aspired = {item.version for item in core.states.aspired(name)}
        managed = server.overview.by_model.get(name, {})
        waiting = dict(report.waiting) if report is not None else {}
        on_disk = found.versions if found is not None else frozenset()
        versions = {}
        for version in known_versions(managed, states, aspired, waiting, on_disk):
            servable_id = ServableId(name, version)
            incomplete = None
            if version in waiting:
                incomplete = self._incomplete(name, version, waiting[version], since.get(version), server)
            sequences = shared.sequences.get(servable_id)
            pace = self._pace_of(servable_id) if servable_id in shared.burdens else None
            versions[version] = VersionSnapshot(
                version,
                view=managed.get(version),
                state=states.get(version),
                aspired=version in aspired,
                on_disk=version in on_disk if found is not None else None,
                incomplete=incomplete,
                remark=remarks.get(version, OK),
                burden=shared.burdens.get(servable_id, NO_BURDEN),
                pace=pace,
                failing=self._failing(servable_id, pace, shared) if pace is not None else None,
                silence=core.view.silence(servable_id),
                sequences=(sequences[0], server.wall(sequences[1])) if sequences else None,
                replicas=shared.replicas.get(servable_id, ""),
                arrived=arrived.get(version),
                place=places.get(version, ""),
                leaving=tuple(shared.leaving.get(servable_id, ())),
                unanswered=core.opener.unanswered(servable_id),
            )
        return versions

    def _failing(self, servable_id: ServableId, pace: Pace, shared: _Shared) -> Failing | None:
        least = min(LEAST_FAILED, max(LEAST_ALL, pace.requests))
        if pace.failures < least or pace.failures < pace.requests * LEAST_SHARE:
            return None
        failures, oldest = self._core.find(Failures), shared.server.taken - FAILING_SECONDS
        last = failures.ring.of_model(servable_id.name) if failures is not None else []
        kept = [each for each in last if each.version == servable_id.version and each.time >= oldest]
        alike = Counter((each.code, each.stage) for each in kept)
        most = alike.most_common(1)[0][0] if alike else None
        worst = next((each for each in kept if (each.code, each.stage) == most), None)
        found = Failing(pace.requests, pace.failures, worst)
        if worst is None or worst.code in OF_LOAD or found.share < NEARLY_ALL:
            return found
        return replace(found, before=answered_before(shared.totals(), servable_id))

    def _incomplete(
        self, name: str, version: int, reason: str, since: float | None, server: ServerSnapshot
    ) -> Incomplete:
        sources, servable_id = self._core.sources, ServableId(name, version)
        found = sources.found(name)
        retry_at = found.unfinished.get(version) if found is not None else None
        again = server.wall(retry_at) if retry_at is not None else None
        fetch, checked = sources.fetches().get(servable_id), sources.checking().get(servable_id)
        hashed = (checked.read_bytes or 0, checked.expected_bytes or 0) if checked is not None else None
        return Incomplete(reason, since, again, hashed, fetch)

    def _with_others(self, snapshot: ModelSnapshot, shared: _Shared, depth: int) -> ModelSnapshot:
        """The snapshot with the models that its versions wait for, and what those wait for."""
        names = set(waited_for(snapshot.versions.values())) - {snapshot.name}
        if not names or not depth:
            return snapshot
        others = {name: self._model(name, shared) for name in names}
        followed = {name: self._with_others(other, shared, depth - 1) for name, other in others.items()}
        return replace(snapshot, others=followed)


def answered_before(totals: Mapping[tuple[str, str], RequestTotals], servable_id: ServableId) -> int | None:
    """The version that had requests before this one, if it answered nearly all of them. ``totals``: by model and
    version, as text; it is empty for requests that reached none."""
    name, number = servable_id.name, servable_id.version
    lower = [int(version) for model, version in totals if model == name and version and int(version) < number]
    before = max(lower, default=None)
    codes = totals[name, str(before)].codes if before is not None else {}
    return before if codes and codes.get("OK", 0) >= NEARLY_ALL * sum(codes.values()) else None


def known_versions(
    managed: Iterable[int],
    states: Iterable[int],
    aspired: Iterable[int],
    waiting: Iterable[int],
    on_disk: frozenset[int],
) -> list[int]:
    """The versions of which anything is known, the highest first; of those that are only on disk, a few."""
    known = {*managed, *states, *aspired, *waiting}
    return sorted(known | set(sorted(on_disk - known, reverse=True)[:MAX_UNKNOWN]), reverse=True)


def waited_for(versions: Iterable[VersionSnapshot]) -> list[str]:
    """The models that have to be available first, each once."""
    found: dict[str, None] = {}
    for version in versions:
        if version.load is not None and version.load.failure is not None:
            found |= dict.fromkeys(version.load.failure.models)
        found |= dict.fromkeys(version.silence.models)
    return list(found)


def _source_of(repository: str, config_file: str) -> str:
    if repository:
        return "--model_repository"
    return "--model_config_file" if config_file else "--model_name and --model_base_path"
