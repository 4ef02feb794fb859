"""The response cache of the server: its option, its metrics, and what empties it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import LifecycleEvent, Replaced

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore

LOCAL = "local"
MAX_BYTES = 1 << 50


def cache_bytes(text: str) -> int:
    """How large ``--cache_config`` wants the cache: ``local,size=N`` in bytes, or N alone; 0 for an empty text: no
    cache. INVALID_ARGUMENT."""
    if not text:
        return 0
    kind, found, rest = text.partition(",")
    if not found and kind.isascii() and kind.isdecimal():
        return _size(kind, text)
    if kind != LOCAL:
        raise _refusal(text, f'there is no cache "{kind:.64}"')
    settings = [setting.partition("=") for setting in rest.split(",")] if rest else []
    if [name for name, _, _ in settings] != ["size"]:
        raise _refusal(text, "its one setting is size")
    return _size(settings[0][2], text)


class Cache(Feature):
    """``cache`` None: the options want none."""

    def __init__(self, core: ServerCore) -> None:
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
        yield CounterMetricFamily(f"{prefix}_evictions", "Answers that went to make room.", use.evictions)
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
    "misses": "Calls that were not.",
    "hit_seconds": "Time of lookups that found an answer.",
    "miss_seconds": "Time of lookups that found none, and of inserting.",
    "too_large": "Answers that are larger than the cache.",
}


def _size(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdecimal()) or not 0 < int(digits) <= MAX_BYTES:
        raise _refusal(text, f"size has to be a number of bytes from 1 to {MAX_BYTES}")
    return int(digits)


def _refusal(text: str, reason: str) -> ServingError:
    return invalid_argument(f'cache_config is "{text:.128}", expected local,size=BYTES: {reason}')
