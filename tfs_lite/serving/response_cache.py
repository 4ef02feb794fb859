"""The response cache of the server: its metrics, and what empties it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.serving.cache_size import cache_bytes
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import LifecycleEvent, Replaced
from tfs_lite.serving.parts import Parts


class ResponseCacheFeature(Feature):
    """``cache`` None: the options want none."""

    def __init__(self, core: Parts) -> None:
        size = cache_bytes(core.options.cache_config)
        self.cache = ResponseCache(size) if size else None
        if self.cache is not None:
            core.registry.register(CacheCollector(self.cache))

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case Replaced(servable_id) if self.cache is not None:
                self.cache.replaced(servable_id)


class CacheCollector(Collector):
    """Reads the numbers once per page, on the thread that makes the page."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        use = self._cache.use
        prefix = "tfs_lite_response_cache"
        yield GaugeMetricFamily(f"{prefix}_max_bytes", "What the cache may take.", use.max_bytes)
        yield GaugeMetricFamily(f"{prefix}_bytes", "What it takes, about.", use.bytes)
        yield GaugeMetricFamily(f"{prefix}_entries", "Answers in the cache.", use.entries)
        yield CounterMetricFamily(f"{prefix}_evictions", "Answers that the cache dropped to make room.", use.evictions)
        yield from self._of_versions()

    def _of_versions(self) -> Iterator[Metric]:
        counts = self._cache.counts()
        for field, text in _FIELDS.items():
            family = CounterMetricFamily(f"tfs_lite_response_cache_{field}", text, labels=("model", "version"))
            for servable_id, count in counts.items():
                family.add_metric((servable_id.name, str(servable_id.version)), getattr(count, field))
            yield family


_FIELDS = {
    "hits": "Calls that were answered from the cache.",
    "misses": "Calls that were not answered from the cache.",
    "hit_seconds": "Time of lookups that found an answer.",
    "miss_seconds": "Time of lookups that found none, and of inserting.",
    "too_large": "Answers that were not kept, because they are larger than the cache.",
}
