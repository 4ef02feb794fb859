"""The guard as a feature of a server: the stage, the evidence of each trial, what runs failures again, and the file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfs_lite.core.clock import Timer
from tfs_lite.core.history import acting
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.status import ServingError, Status
from tfs_lite.core.threads import PeriodicThread
from tfs_lite.core.trial import Trial
from tfs_lite.operations.guard.doors import GuardDoors
from tfs_lite.operations.guard.evidence import TrialCounts, TrialEvidence
from tfs_lite.operations.guard.report import GUARD, GuardReports
from tfs_lite.operations.guard.reruns import Reruns
from tfs_lite.operations.guard.stage import GuardEffects, GuardStage, GuardView, files_of
from tfs_lite.operations.guard.state_file import StateFile, with_files
from tfs_lite.operations.guard.trial import (
    NO_JUDGEMENT,
    OFF,
    Command,
    Items,
    Judgement,
    Running,
    TrialSettings,
    guarded,
)
from tfs_lite.server.feature import Doors, ServerFeature
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.router import Api
from tfs_lite.serving.lifecycle_events import LifecycleEvent, ModelGone
from tfs_lite.serving.repository.control import START
from tfs_lite.serving.repository.plan import every_version
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.look import FoundVersions
from tfs_lite.transport.table import Method

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore

TICK_SECONDS = 1.0
DISK_SECONDS = 10.0
"""What was found on disk counts for so long, if the looks of the source find nothing new."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """Every version of a model that was complete at ``at`` of the monotonic clock, when the source had ``found``
    this."""

    items: Mapping[int, ServableData[StoragePath]]
    found: FoundVersions | None
    at: float


class Guard(ServerFeature):
    """Trials of pushed versions, and the way back to older ones. Any thread may call any method.

    The thread ``tfs-guard`` moves trials on: each second while there are any, else when something happens. It starts
    with the first list. Threads ``tfs-guard-runs`` run failures again, from the first trial on.
    """

    def __init__(self, core: ServerCore) -> None:
        options = core.options
        self._core = core
        self._trials: dict[str, Mapping[int, Trial]] = {}  # in the order in which trials were armed
        self.trials = self._trials
        self._lock = threading.Lock()  # guards the next two
        self._evidence: dict[ServableId, TrialEvidence] = {}  # any thread may look one up without it
        self._on_disk: dict[str, _OnDisk] = {}
        self._warned = set[str]()  # models whose trial the policy does not allow
        self._reruns = Reruns(core.handle, core.clock)
        self._unsaved = ""  # why the last write has failed; only the guard's thread writes
        self.reports = GuardReports(core, self.view, self.counts, self._look, lambda: self._unsaved)
        self._thread = PeriodicThread("tfs-guard", self._tick, None)
        self._life = threading.Lock()  # guards the next three
        self._started = self._stopped = False
        self._timer: Timer | None = None
        self._loads_on = False  # whether the loads of the start are over
        self._hurries = False  # whether one more thread loads
        effects = GuardEffects(
            hold=self._hold,
            set_trials=self._set_trials,
            judgement=self._judgement,
            wake=self._wake,
            on_disk=self._look,
            reject=lambda name, versions: core.sources.reject(name, versions),
            report=self.reports.on_effect,
            save=self._save,
            hurry=self._hurry,
        )
        told = (lambda revision: revision, _without_order) if options.is_explicit else (files_of, files_of)
        self._stage = GuardStage(effects, core.clock, self._settings_of, *told)
        self._file: StateFile | None = None
        if options.state_directory:
            self._file = StateFile(options.state_directory, core.clock.time, counts_ends=not options.is_explicit)
            saved = self._file.read()
            self._stage.restore(with_files(saved, _at_start) if options.is_explicit else saved)

    # For those who ask.

    def view(self, name: str) -> GuardView | None:
        """How the model stands; None for one without a list."""
        return self._stage.view(name)

    def counts(self, id: ServableId) -> TrialCounts | None:
        """How requests have ended on a version that is on trial; None for any other."""
        found = self._evidence.get(id)
        return found.counts if found is not None else None

    def command(self, name: str, command: Command) -> None:
        """Carries an order out; see :meth:`GuardStage.command`."""
        self._stage.command(name, command)
        self._wake()

    def guarded(self, name: str, items: Items) -> Items:
        """The list that goes on to the manager where the source has this one, as trials stand now. Asks the disk."""
        listed = {item.id.version for item in items}
        there = {} if self._stage.state(name).at_rest else (self._look(name) or {})
        unlisted = {version: item for version, item in there.items() if version not in listed}
        return guarded(items, self._stage.state(name), unlisted)

    def rejected(self, name: str) -> Mapping[int, Status]:
        return self._stage.rejected(name)

    def accepted(self, id: ServableId) -> bool:
        return self._stage.accepts(id)

    # Lists and events.

    def observe(self, callback: AspiredVersionsCallback[StoragePath]) -> AspiredVersionsCallback[StoragePath]:
        return self._stage.observe(callback)

    def on_event(self, event: LifecycleEvent) -> None:
        if isinstance(event, ModelGone):
            with self._lock:
                self._on_disk.pop(event.name, None)
            self._warned.discard(event.name)
        self.reports.on_event(event)
        self._stage.on_event(event)

    # What people see and say.

    def attach(self, doors: Doors) -> None:
        self._doors = GuardDoors(self.reports, self.command)

    def http(self, resources: HttpResources) -> Sequence[Api[Any]]:
        return (self._doors.http(resources),)

    def grpc(self) -> Sequence[Method]:
        return self._doors.grpc()

    def close_doors(self) -> None:
        self._doors.close()

    # From start to close.

    def start(self) -> None:
        """What was rejected before is known to the sources before they look for the first time."""
        saved = self._stage.saved()
        for name, model in saved.items():
            self._core.sources.reject(name, set(model.rejected))
        if self._file is not None:
            self._file.write(saved)

    def first_load_ended(self) -> None:
        self._loads_on = True

    def stopping(self) -> None:
        """Trials go on with the next server."""
        with self._life:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()
        if self._file is not None:
            self._file.close(self._stage.saved())
        self._thread.stop()
        self._reruns.close()

    # The thread.

    def _wake(self) -> None:
        """Starts the thread where it does not run yet."""
        with self._life:
            if self._stopped:
                return
            if not self._started:
                try:
                    self._thread.start()
                except ServingError as error:  # the next event tries again
                    logger.warning("%s", error)
                    return
                self._started = True
        self._thread.wake()

    def _tick(self) -> None:
        if self._unsaved:
            self._save()
        with acting(GUARD):
            goes_on = self._stage.tick()
        with self._lock:  # not after the last counts of a trial
            counts = {id: evidence.counts for id, evidence in self._evidence.items()}
            for id, found in counts.items():
                self.reports.metrics.on_counts(id, found)
        for id, found in counts.items():
            self.reports.on_counts(id, found)
        if goes_on or self._unsaved:
            with self._life:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = None if self._stopped else self._core.clock.call_later(TICK_SECONDS, self._wake)

    # What the stage asks and does; see GuardEffects.

    def _hold(self, id: ServableId, held: bool) -> None:
        self._core.manager.hold(id, held)
        if not held:
            self._core.labels.wait(id, self._core.states.is_available)

    def _hurry(self, waits: bool) -> None:
        """One more thread loads while a way back waits for a load. At the start there are more of them anyway."""
        threads = self._core.options.num_load_threads
        if threads and self._loads_on and waits != self._hurries:
            self._hurries = waits
            self._core.manager.set_num_load_threads(threads + waits)

    def _set_trials(self, name: str, trials: Sequence[Running]) -> None:
        found = dict[int, Trial]()
        with self._lock:
            before = {id: evidence for id, evidence in self._evidence.items() if id.name == name}
            for trial in trials:
                id = ServableId(name, trial.new)
                evidence = before.pop(id, None)
                if evidence is not None and evidence.files != trial.files:
                    self._forget(evidence)
                    evidence = None
                evidence = evidence or TrialEvidence(id, trial.old, self._core.clock.monotonic, trial.files)
                evidence.old = trial.old
                self._evidence[id] = evidence
                self._reruns.watch(evidence)
                found[trial.new] = Trial(trial.old, evidence.on_end, trial.settings.repeats, evidence.nonfinite_fails)
            for evidence in before.values():
                del self._evidence[evidence.id]
                self._forget(evidence)
        if found.keys() != self._trials.get(name, found).keys() or not found:
            self._trials.pop(name, None)
        if found:
            self._trials[name] = found

    def _forget(self, evidence: TrialEvidence) -> None:
        """Called with the lock held."""
        self._reruns.forget(evidence)
        self.reports.metrics.on_counts(evidence.id, evidence.counts, last=True)

    def _judgement(self, id: ServableId) -> Judgement:
        found = self._evidence.get(id)
        if found is None:
            return NO_JUDGEMENT
        old_run_ms = self.reports.run_ms(ServableId(id.name, found.old))
        return found.judgement(self._core.clock.monotonic(), old_run_ms)

    def _settings_of(self, item: ServableData[StoragePath]) -> TrialSettings:
        """The settings of a load of the item now: those of the model's config, else the flags."""
        options, name = self._core.options, item.id.name
        settings = self._core.model_configs(item.payload, name)
        own, repeats = settings.guard, settings.retry_lost_batches
        bake_seconds = options.bake_seconds if own.bake_seconds is None else own.bake_seconds
        if options.aspired_version_policy == "resource":
            if bake_seconds and name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "model %s: its guard.bake_seconds is ignored: with --aspired_version_policy=resource the old "
                    "version goes before the new one is loaded",
                    name,
                )
            return OFF
        return TrialSettings(
            bake_seconds,
            options.bake_requests if own.bake_requests is None else own.bake_requests,
            (own.bake_verdict or options.bake_verdict) == "tell",
            repeats,
        )

    def _look(self, name: str) -> Mapping[int, ServableData[StoragePath]] | None:
        """Every complete version of the model, as it would be offered; None if the disk does not tell."""
        core, now = self._core, self._core.clock.monotonic()
        found = core.sources.found(name)
        with self._lock:
            known = self._on_disk.get(name)
        if known is not None and known.found == found and now < known.at + DISK_SECONDS:
            return known.items
        look = self._look_beside if core.options.is_explicit else core.sources.complete
        try:
            items = core.disk_calls.call(f"the versions of model {name}", lambda: look(name))
        except ServingError:
            return None
        if items is not None:
            with self._lock:
                self._on_disk[name] = _OnDisk(items, found, now)
        return items

    def _look_beside(self, name: str) -> Mapping[int, ServableData[StoragePath]] | None:
        """Where versions come by calls: the directories of the model's base path. Raises ServingError."""
        model = self._core.sources.configs.get(name)
        if model is None:
            return None
        settings = self._core.model_configs(model.base_path, name)
        return {
            each.version: ServableData.ok(ServableId(name, each.version), each.path, f"{each.state}-guard")
            for each in every_version(model, settings, RealDisk())
        }

    def _save(self) -> None:
        """A write that fails is tried again each second."""
        file = self._file
        if file is None:
            return
        try:
            self._unsaved = self._core.disk_calls.call("the state directory", lambda: file.write(self._stage.saved()))
        except ServingError as error:
            if not self._unsaved:
                logger.error("what the guard remembers is not written: %s", error)
            self._unsaved = str(error)


def _at_start(revision: str) -> str:
    """The revision that the same files have where a server that is told what to load begins with them."""
    return f"{_without_order(revision)}-{START}"


def _without_order(revision: str) -> str:
    """The part of the revision that tells the files, where a server is told what to load."""
    return revision.rpartition("-")[0]
