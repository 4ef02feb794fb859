"""The view of what a server serves at this moment, read from its parts. Nothing here changes anything.

Any thread may call any method of a :class:`View`; none blocks on a disk or on a load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tfs_lite.core.loader import LoadProgress
from tfs_lite.core.model import Servable, SharedRuns
from tfs_lite.core.servable import DOES_NOT_ANSWER, ModelRef, ServableId, VersionState, VersionStatus
from tfs_lite.core.state import ManagerState, ReplicaReport, TimedState
from tfs_lite.core.status import OK, Reason, ServingError, Status, StatusCode, not_found
from tfs_lite.managers.harness import step_of
from tfs_lite.managers.labels import instead_of
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.schedulers.ensemble.models import model_text
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.model_states import ON_THE_WAY, Answering, ModelReport
from tfs_lite.serving.opening.device_resources import ResourceUse
from tfs_lite.serving.opening.servable_factory import worker_states
from tfs_lite.serving.parts import Parts

ANSWERING_AGE = 1.0
"""Seconds for which the answer to probes is kept."""


@dataclass(frozen=True, slots=True)
class Burden:
    """A version that is available: how many calls wait, what every further one would be answered at once (None: that
    depends), its workers, and whether its calls share runs."""

    pending: int
    refusal: Status | None
    workers: tuple[WorkerState, ...]
    shared_runs: SharedRuns = SharedRuns.BY_CONFIG


class View:
    """The queries of a core."""

    def __init__(self, core: Parts) -> None:
        self._core = core
        self._answering: tuple[int, float, Answering] | None = None  # changes, time; replaced as a whole

    # Models.

    def status(self, ref: ModelRef) -> list[VersionStatus]:
        """Every version of the model, the highest first, or the one asked for. NOT_FOUND if there is none. A label
        stands for the version that answers by it."""
        version, report = self._core.labels.version(ref), self._core.states.report(ref.name)
        rejected = self._core.features.rejected(ref.name)
        if ref.label is not None and (version is None or version in rejected):
            available = self._core.manager.available_versions(ref.name)
            instead = None if version is None else instead_of(version, available, rejected)
            version = self.latest(ref.name, version) if instead is None else instead
        if version is not None:
            found = [item for item in report.versions if item.version == version]
            if not found:
                raise not_found(f"Could not find version {version} of model {ref.name}")
            return found
        if not report.versions:
            problem = report.problem.message.removeprefix(f"model {ref.name}: ")
            raise not_found(f"Could not find any versions of model {ref.name}{problem and ': '}{problem}")
        return list(report.versions)

    def latest(self, name: str, otherwise: int | None = None) -> int | None:
        """The version that answers requests which name none; ``otherwise``: there is none."""
        with suppress(ServingError), self._core.manager.get_servable_handle(ModelRef(name)) as handle:
            return handle.id.version
        return otherwise

    def known_models(self) -> list[ModelReport]:
        """Every model of the config and every one that ever had a version, by name."""
        names = {*self._core.states.configured, *self._core.monitor.get_all_servable_states()}
        return [self._core.states.report(name) for name in sorted(names)]

    def availability(self) -> list[tuple[str, list[int], float]]:
        """The availability of every known model: its name, the versions that answer requests now, and since when one of
        them does, in seconds since 1970 (0: none does)."""
        found = []
        for report in self.known_models():
            states = self._core.monitor.get_version_states(report.name).items()
            since = {version: at.time for version, at in states if at.state.state is ManagerState.AVAILABLE}
            found.append((report.name, sorted(since), min(since.values(), default=0.0)))
        return found

    def answering(self) -> Answering:
        """The models that are to be served, and which of them have a version that can be asked. One that a call has
        unloaded is not to be served; one that could not be loaded at the start is. Probes ask often, so that the answer
        is kept until a state changes, a second at most."""
        changes, now = self._core.changes.count, self._core.clock.monotonic()
        known = self._answering
        if known is None or known[0] != changes or now - known[1] > ANSWERING_AGE:
            names = dict.fromkeys((*self._core.states.configured, *self._asked_at_start()))
            found = {name: self._core.states.version_states(name).values() for name in names}
            wanted = [name for name, events in found.items() if self._is_to_answer(name, events)]
            silent = [name for name in wanted if not any(map(self._answers, found[name]))]
            known = self._answering = changes, now, Answering(len(wanted), tuple(silent))
        return known[2]

    def _answers(self, event: TimedState) -> bool:
        return _is_available(event) and self.can_be_asked(event.state.id)

    def _asked_at_start(self) -> Iterable[str]:
        """The models that ``--load_model`` names: one that could not be loaded is not in the config."""
        names = self._core.options.load_model
        return self._core.monitor.get_all_servable_states() if "*" in names else names

    def _is_to_answer(self, name: str, events: Collection[TimedState]) -> bool:
        options = self._core.options
        if not options.is_explicit or self._core.states.aspired(name):
            return True
        if not events:  # its name or its config is wrong: no version of it was ever begun
            return name in options.load_model
        return any(event.state.state in ON_THE_WAY or not event.state.health.ok for event in events)

    def is_model_available(self, name: str) -> bool | None:
        """Whether a version is available that can be asked; None for a model that is not in the config."""
        if not self._core.states.is_configured(name):
            return None
        versions = self._core.states.report(name).versions
        available = (version for version in versions if version.state is VersionState.AVAILABLE)
        return any(self.can_be_asked(ServableId(name, version.version)) for version in available)

    def can_be_asked(self, servable_id: ServableId) -> bool:
        """False for a version that is available and refuses every request; it stays available."""
        return self.silence(servable_id).ok

    def silence(self, servable_id: ServableId) -> Status:
        """The reason why a version that is available refuses every request: none of its workers is up, or the model of
        a step is missing or is silent itself (``models`` names these). OK for every other. Any thread, cheap."""
        return self._silence(servable_id, {servable_id})

    def _silence(self, servable_id: ServableId, seen: set[ServableId]) -> Status:
        """``seen``: the versions that were looked at before, so that each is looked at once."""
        try:
            handle = self._core.manager.get_servable_handle(ModelRef(servable_id.name, servable_id.version))
        except ServingError:
            return OK  # it is not available, and its state says so
        with handle:
            workers = tuple(worker_states(servable_id, handle.servable))
            composing = handle.servable.traits.composing
        if not (silence := self._core.features.silence(servable_id)).ok:
            return silence
        if workers and not any(worker.up for worker in workers):
            return Status(StatusCode.UNAVAILABLE, f"{DOES_NOT_ANSWER}: {_why_down(workers)}")
        silent = {name: why for name, version in composing if (why := self._why_silent(name, version, seen))}
        if silent:
            text = f"{DOES_NOT_ANSWER}: {'; '.join(silent.values())}"
            return Status(StatusCode.UNAVAILABLE, text, Reason.WAITS_FOR_MODELS, tuple(silent))
        return OK

    def _why_silent(self, name: str, version: int | None, seen: set[ServableId]) -> str:
        """The reason in words why the model of a step is silent; empty if it answers."""
        try:
            with self._core.manager.get_servable_handle(ModelRef(name, version)) as handle:
                found = handle.id
        except ServingError:
            return f"{model_text((name, version))} of its steps is not available"
        if found in seen:
            return ""
        seen.add(found)
        why = self._silence(found, seen)
        return "" if why.ok else f"{model_text((name, version))} of its steps {why.message.removeprefix('it ')}"

    def live_versions(self, name: str) -> set[int]:
        """The versions that have begun and not ended: being loaded, serving, or on their way out."""
        states = self._core.monitor.get_version_states(name)
        return {version for version, timed in states.items() if timed.state.state is not ManagerState.END}

    def last_attempts(self, name: str) -> dict[int, LoadAttempt]:
        """The last attempt to load each version that has not ended."""
        found = ((v, self._core.journal.last(ServableId(name, v))) for v in self._core.monitor.get_version_states(name))
        return {version: attempt for version, attempt in found if attempt is not None}

    def load_progress(self, servable_id: ServableId) -> LoadProgress | None:
        """The progress of the version's load, also of a second load while the first serves, and of the check of its
        digests before; None while nothing is done for it, or where its loader does not measure it."""
        return self._core.journal.progress(servable_id) or self._core.sources.checking().get(servable_id)

    def loads(self) -> dict[ServableId, LoadProgress]:
        """The progress of every load that :meth:`load_progress` tells of."""
        return self._core.sources.checking() | self._core.journal.running()

    def replicas(self) -> Iterable[ReplicaReport]:
        """The replicas of every version that has some in a cluster, also while it is loaded."""
        return self._core.features.replicas()

    # Numbers.

    def device_memory(self) -> list[ResourceUse]:
        """The memory that the versions hold on each device, as their loaders estimate it, and the device's total."""
        return list(self._core.resources.use(self._core.journal))

    def queues(self, names: Collection[str] | None = None) -> Iterator[tuple[ServableId, int]]:
        """The number of calls that wait for each version that is available, or for those of these models."""
        return ((servable_id, servable.pending) for servable_id, servable in self._servables(names))

    def burdens(self, name: str | None = None) -> Iterator[tuple[ServableId, Burden]]:
        """The load that requests put on every version that is available, or on those of one model."""
        for servable_id, servable in self._servables(None if name is None else (name,)):
            workers = tuple(worker_states(servable_id, servable))
            yield servable_id, Burden(servable.pending, servable.refusal(None), workers, servable.traits.shared_runs)

    def workers(self, name: str | None = None) -> Iterator[WorkerState]:
        """The workers of every instance that answers requests, or of one model's, then those of instances that answer
        their last."""
        for servable_id, servable in self._servables(None if name is None else (name,)):
            yield from worker_states(servable_id, servable)
        for handle in self._core.manager.get_leaving_servable_handles(name):
            with handle:
                yield from worker_states(handle.id, handle.servable, drains=True)

    def hanging(self) -> Iterator[tuple[str, str, float]]:
        """The steps that take longer than their bound, also those of a load that was replaced or is to take a place:
        the model, ``disk``, ``load``, ``drain`` or ``unload``, and for how many seconds it has gone on."""
        for name, seconds in self._core.sources.hanging().items():
            yield name, "disk", seconds
        now = self._core.clock.time()
        survey = self._core.manager.survey()
        for servable_id, view in survey.versions.items():
            for step, since in view.hangs_beside:
                yield servable_id.name, step.value, survey.now - since
            if view.state.is_overdue:
                timed = self._core.states.version_states(servable_id.name).get(servable_id.version)
                passed = max(now - timed.time, 0.0) if timed is not None else 0.0
                yield servable_id.name, step_of(view.state.state).value, passed

    def draining(self) -> Iterator[tuple[ServableId, int]]:
        """The number of requests and sequences that each version waits for that was withdrawn, or replaced by another
        load."""
        versions = self._core.manager.survey().versions
        return ((servable_id, view.leaving) for servable_id, view in versions.items() if view.leaving)

    def queued_rows(self) -> Iterator[tuple[ServableId, int]]:
        """The number of rows that wait for each version that is available."""
        return ((servable_id, servable.pending_rows) for servable_id, servable in self._servables())

    def _servables(self, names: Collection[str] | None = None) -> Iterator[tuple[ServableId, Servable]]:
        """Every version that is available, or those of these models, each while a handle holds it."""
        for servable_id, handle in self._core.manager.get_available_servable_handles(names).items():
            with handle:
                yield servable_id, handle.servable


def _is_available(event: TimedState) -> bool:
    return event.state.state is ManagerState.AVAILABLE


def _why_down(workers: Sequence[WorkerState]) -> str:
    """``workers``: all that a version has; none is up."""
    first = next((worker for worker in workers if worker.failure), workers[0])
    what = "its process" if len(workers) == 1 else f"each of its {len(workers)} processes"
    text = f"{what} ended ({first.cause or 'the cause is not known yet'})"
    if first.failure:
        return f"{text} and could not be started again: {first.failure}"
    return f"{text} and is being started again"
