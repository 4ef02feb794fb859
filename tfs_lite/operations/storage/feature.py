"""The series of the metrics page about models whose base path is a URL.

Requests are counted whatever they are for. All others are of models, and begin with 0 for each model that has a
storage: an alert on an increase sees the first failure only if there was a number before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import (
    CacheEvicted,
    FetchDone,
    FetchFailed,
    LifecycleEvent,
    ModelGone,
    StorageAsked,
)
from tfs_lite.serving.metrics import remove_series
from tfs_lite.storage.store import StorageCondition

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore

FETCH_BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


class StorageMetrics(Feature):
    """Any thread may call any method."""

    def __init__(self, core: ServerCore) -> None:
        self._counts = FetchCounts(core.registry)
        core.registry.register(
            StorageCollector(lambda: core.sources.conditions(), lambda: core.sources.cache_use(), self._counts)
        )

    def on_event(self, event: LifecycleEvent) -> None:
        self._counts.on_event(event)


class FetchCounts:
    """The counts of requests, fetches and evictions. Each method is short."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "tfs_lite_storage_requests",
            "Requests to storages; the result is ok, or the name of a status code.",
            ("scheme", "operation", "result"),
            registry=registry,
        )
        self._seconds = Histogram(
            "tfs_lite_fetch_seconds",
            "Duration of the fetches that brought all files of a version.",
            ("model",),
            buckets=FETCH_BUCKETS,
            registry=registry,
        )
        self._lock = threading.Lock()  # guards the three below
        self._fetches: dict[tuple[str, str], int] = {}  # by model and result
        self._bytes: dict[str, int] = {}
        self._evictions = 0

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case StorageAsked(scheme, operation, result):
                self._requests.labels(scheme, operation, result).inc()
            case FetchDone(servable_id, _, fetched, seconds):
                self._count(servable_id.name, "ok", fetched)
                self._seconds.labels(servable_id.name).observe(seconds)
            case FetchFailed(servable_id, _, fetched):
                self._count(servable_id.name, "failed", fetched)
            case CacheEvicted():
                with self._lock:
                    self._evictions += 1
            case ModelGone(name):
                self._forget(name)

    def _count(self, name: str, result: str, fetched: int) -> None:
        with self._lock:
            self._fetches[name, result] = self._fetches.get((name, result), 0) + 1
            self._bytes[name] = self._bytes.get(name, 0) + fetched

    def _forget(self, name: str) -> None:
        with self._lock:
            self._bytes.pop(name, None)
            for key in [key for key in self._fetches if key[0] == name]:
                del self._fetches[key]
        remove_series(self._seconds, name)

    def read(self) -> tuple[dict[tuple[str, str], int], dict[str, int], int]:
        """Fetches by model and result, fetched bytes by model, evictions."""
        with self._lock:
            return dict(self._fetches), dict(self._bytes), self._evictions


class StorageCollector(Collector):
    """Reads the rest once per page, on the thread that makes the page. A server without a URL has none of it."""

    def __init__(
        self,
        conditions: Callable[[], Mapping[str, StorageCondition]],
        cache_use: Callable[[], tuple[int, int] | None],
        counts: FetchCounts,
    ) -> None:
        """``conditions``: by model, of every model whose base path is a URL. ``cache_use``: the bytes in the cache of
        files, and the most that it may hold; None without one."""
        self._conditions = conditions
        self._cache_use = cache_use
        self._counts = counts

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        conditions, cache = self._conditions(), self._cache_use()
        yield self._listed(conditions)
        yield from self._fetches(conditions)
        if cache is not None:
            yield GaugeMetricFamily("tfs_lite_model_cache_bytes", "Bytes in the cache of files.", value=cache[0])
            yield GaugeMetricFamily("tfs_lite_model_cache_limit_bytes", "Bytes that it may hold.", value=cache[1])

    def _listed(self, conditions: Mapping[str, StorageCondition]) -> Metric:
        """A model that was never listed has 0, so that its alert does not wait for the first listing."""
        listed = GaugeMetricFamily(
            "tfs_lite_storage_listed_timestamp_seconds",
            "When the storage of a model's base path was listed last, in seconds since 1970; 0: not yet.",
            labels=("model",),
        )
        for name, condition in conditions.items():
            listed.add_metric((name,), condition.last_good or 0)
        return listed

    def _fetches(self, conditions: Mapping[str, StorageCondition]) -> Iterator[Metric]:
        ended, sizes, evictions = self._counts.read()
        fetches = CounterMetricFamily(
            "tfs_lite_fetches", "Fetches of versions that have ended.", labels=("model", "result")
        )
        zeros = dict.fromkeys(((name, result) for name in conditions for result in ("ok", "failed")), 0)
        for labels, count in (zeros | ended).items():
            fetches.add_metric(labels, count)
        yield fetches
        fetched = CounterMetricFamily(
            "tfs_lite_fetched_bytes", "Bytes of versions that storages have sent.", labels=("model",)
        )
        for name, count in (dict.fromkeys(conditions, 0) | sizes).items():
            fetched.add_metric((name,), count)
        yield fetched
        yield CounterMetricFamily(
            "tfs_lite_model_cache_evictions",
            "Versions that were removed from the cache of files, for others.",
            value=evictions,
        )
