"""The series of the metrics page about versions, memory and reloads.

Counters follow the manager's events, and those of a configured model begin with 0: an alert on an increase sees the
first failure only if there was a number before it. Everything that is a state (versions, memory, queues) is read when
the page is asked for, so it can neither grow without bound nor be out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.servable import ServableId, VersionState
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.batches import BatchMetrics, BatchStateCollector
from tfs_lite.metrics.generation import GenerationMetrics
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import (
    LifecycleEvent,
    LoadAttempted,
    ModelAdded,
    ModelGone,
    Reloaded,
    StateChanged,
    WarmedUp,
)
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.model_states import ModelReport
from tfs_lite.serving.opening.device_resources import ResourceUse
from tfs_lite.serving.parts import Parts
from tfs_lite.serving.view import View

_RESULTS = ("ok", "failed")
LOAD_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics(Feature):
    """Everything that the server counts: requests, batches, what language models do, and the lifecycle. The series of a
    version end with it, those of a model some time after it has left the config."""

    def __init__(self, core: Parts, view: View) -> None:
        self._registry = registry = core.registry
        self.requests = RequestMetrics(registry, core.states.is_configured)
        self.batches = BatchMetrics(registry, self.requests.tensorflow)
        self.generation = GenerationMetrics(registry)
        self._lifecycle = LifecycleMetrics(registry)
        registry.register(
            StateCollector(
                core.states.reports,
                view.device_memory,
                view.queues,
                view.can_be_asked,
                core.states.state_seconds,
                view.hanging,
                view.draining,
            )
        )
        registry.register(BatchStateCollector(view.queued_rows, view.workers))

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case StateChanged(timed):
                self._on_state(timed.state)
            case LoadAttempted(attempt) if not attempt.status.waits:
                self._lifecycle.on_attempt(attempt)
            case Reloaded(ok):
                self._lifecycle.on_reload(ok)
            case WarmedUp(report):
                tensorflow = self.requests.tensorflow
                tensorflow.on_warm_up(report.directory, report.status, report.seconds, report.records)
            case ModelAdded(name):
                self._lifecycle.model_added(name)
                self.requests.model_added(name)
            case ModelGone(name):
                for metrics in (self._lifecycle, self.requests, self.batches, self.generation):
                    metrics.model_gone(name)

    def value(self, name: str) -> float:
        """The first cell of a counter, under TensorFlow Serving's name or ours; 0 if there is no such counter."""
        value = self.requests.tensorflow.counter_value(name)
        if value is not None:
            return value
        samples = (sample for family in self._registry.collect() for sample in family.samples)
        return next((sample.value for sample in samples if sample.name in (name, f"{name}_total")), 0.0)

    def _on_state(self, event: ServableState) -> None:
        self._lifecycle.on_event(event)
        of_versions = (self.requests, self.batches, self.generation)
        if event.state is ManagerState.AVAILABLE:
            for metrics in of_versions:
                metrics.version_back(event.id)
        elif event.state is ManagerState.END:
            for metrics in of_versions:
                metrics.version_gone(event.id)


class LifecycleMetrics:
    """Called on the publisher's thread of each event; every method is short."""

    def __init__(self, registry: CollectorRegistry) -> None:
        model = ("model",)
        self._loads = Counter("tfs_lite_model_loads", "Versions that became available.", model, registry=registry)
        self._failures = Counter(
            "tfs_lite_model_load_failures", "Versions that were given up.", model, registry=registry
        )
        self._unloads = Counter("tfs_lite_model_unloads", "Versions that were unloaded.", model, registry=registry)
        self._attempts = Counter(
            "tfs_lite_model_load_attempts", "Calls of a loader.", ("model", "result"), registry=registry
        )
        self._seconds = Histogram(
            "tfs_lite_model_load_seconds",
            "Duration of successful loads.",
            model,
            buckets=LOAD_BUCKETS,
            registry=registry,
        )
        self._reloads = Counter("tfs_lite_config_reloads", "Configs applied.", ("result",), registry=registry)
        for result in _RESULTS:
            self._reloads.labels(result)

    def on_event(self, event: ServableState) -> None:
        name = event.id.name
        if event.state is ManagerState.AVAILABLE:
            self._loads.labels(name).inc()
        elif event.state is ManagerState.END and event.health.ok:
            self._unloads.labels(name).inc()
        elif event.state is ManagerState.END and event.health.code is not StatusCode.CANCELLED:
            self._failures.labels(name).inc()

    def on_attempt(self, attempt: LoadAttempt) -> None:
        self._attempts.labels(attempt.id.name, "ok" if attempt.status.ok else "failed").inc()
        if attempt.status.ok:
            self._seconds.labels(attempt.id.name).observe(attempt.seconds)

    def model_added(self, name: str) -> None:
        """The model is in the config from now on: its counters are there."""
        for metric in (self._loads, self._failures, self._unloads):
            metric.labels(name)
        for result in _RESULTS:
            self._attempts.labels(name, result)

    def model_gone(self, name: str) -> None:
        """Its series go."""
        for metric in (self._loads, self._failures, self._unloads, self._seconds):
            remove_series(metric, name)
        for result in _RESULTS:
            remove_series(self._attempts, name, result)

    def on_reload(self, ok: bool) -> None:
        self._reloads.labels("ok" if ok else "failed").inc()


class StateCollector(Collector):
    """Reads the current state once per page, on the thread that makes the page."""

    def __init__(
        self,
        reports: Callable[[], Sequence[ModelReport]],
        resources: Callable[[], Iterable[ResourceUse]],
        queues: Callable[[], Iterable[tuple[ServableId, int]]],
        can_be_asked: Callable[[ServableId], bool],
        state_seconds: Callable[[str], Mapping[int, float]],
        hanging: Callable[[], Iterable[tuple[str, str, float]]] = lambda: (),
        draining: Callable[[], Iterable[tuple[ServableId, int]]] = lambda: (),
    ) -> None:
        """``reports`` has every configured model; ``can_be_asked`` is False for an available version that has lost all
        its replicas; ``state_seconds``: by version, for how long it has been in its state. ``hanging``: model, what
        goes on beyond its bound, and for how many seconds. ``draining``: the requests that withdrawn
        versions wait for."""
        self._reports = reports
        self._resources = resources
        self._queues = queues
        self._can_be_asked = can_be_asked
        self._state_seconds = state_seconds
        self._hanging = hanging
        self._draining = draining

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        reports = self._reports()
        yield self._available(reports)
        yield self._states(reports)
        yield self._seconds(reports)
        yield from self._memory()
        yield self._depths()
        yield self._drains()
        yield self._hangs()

    def _available(self, reports: Iterable[ModelReport]) -> Metric:
        available = GaugeMetricFamily(
            "tfs_lite_model_available",
            "1 while a version of the model answers requests, 0 of every other model of the config.",
            labels=("model",),
        )
        for report in reports:
            serving = (item.version for item in report.versions if item.state is VersionState.AVAILABLE)
            answers = any(self._can_be_asked(ServableId(report.name, version)) for version in serving)
            available.add_metric((report.name,), int(answers))
        return available

    def _states(self, reports: Iterable[ModelReport]) -> Metric:
        states = GaugeMetricFamily(
            "tfs_lite_model_version_state", "1 for the state a version is in.", labels=("model", "version", "state")
        )
        for report in reports:
            for version in report.versions:
                states.add_metric((report.name, str(version.version), version.state.name), 1)
        return states

    def _seconds(self, reports: Iterable[ModelReport]) -> Metric:
        """The seconds for versions that have not ended."""
        seconds = GaugeMetricFamily(
            "tfs_lite_version_state_seconds",
            "Seconds for which a version has been in its state; versions that have ended are left out.",
            labels=("model", "version", "state"),
        )
        for report in reports:
            known = self._state_seconds(report.name)
            for item in report.versions:
                if item.state is not VersionState.END and item.version in known:
                    seconds.add_metric((report.name, str(item.version), item.state.name), known[item.version])
        return seconds

    def _memory(self) -> Iterator[Metric]:
        labels = ("device", "instance")
        used = GaugeMetricFamily("tfs_lite_memory_used_bytes", "Memory set aside for models.", labels=labels)
        total = GaugeMetricFamily("tfs_lite_memory_total_bytes", "Memory that models may take.", labels=labels)
        for use in self._resources():
            used.add_metric((use.device, str(use.instance)), use.used)
            total.add_metric((use.device, str(use.instance)), use.total)
        yield from (used, total)

    def _depths(self) -> Metric:
        depths = GaugeMetricFamily(
            "tfs_lite_queue_depth", "Requests that wait for a version's thread.", labels=("model", "version")
        )
        for servable_id, depth in self._queues():
            depths.add_metric((servable_id.name, str(servable_id.version)), depth)
        return depths

    def _drains(self) -> Metric:
        requests = GaugeMetricFamily(
            "tfs_lite_draining_requests",
            "Requests and sequences that a version waits for which was withdrawn or replaced, before it is unloaded.",
            labels=("model", "version"),
        )
        for servable_id, count in self._draining():
            requests.add_metric((servable_id.name, str(servable_id.version)), count)
        return requests

    def _hangs(self) -> Metric:
        """The longest of each kind."""
        seconds = GaugeMetricFamily(
            "tfs_lite_hanging_seconds",
            "Seconds for which a look at a model's disk, a load, a drain or an unload has gone on beyond its bound.",
            labels=("model", "what"),
        )
        longest: dict[tuple[str, str], float] = {}
        for name, what, passed in self._hanging():
            longest[name, what] = max(passed, longest.get((name, what), 0.0))
        for (name, what), passed in longest.items():
            seconds.add_metric((name, what), passed)
        return seconds


def remove_series(metric: Counter | Gauge | Histogram, *labels: str) -> None:
    """Older releases of prometheus_client raise when there is nothing to remove."""
    try:
        metric.remove(*labels)
    except KeyError:
        return
