from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.support.errors import refusal
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.serving.cache_size import cache_bytes
from tfs_lite.serving.response_cache import CacheCollector

ID = ServableId("m", 1)


@pytest.mark.parametrize(("text", "size"), [("", 0), ("local,size=1048576", 1048576), ("1048576", 1048576)])
def test_the_option_says_how_large_the_cache_is(text, size):
    assert cache_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("local", "local,", "local,size", "local,size=", "local,size=x", "local,size=-1", "local,size=0", "0", "1.5"),
        *("local,size=1,size=2", "local,size=1,ttl=3", "redis,host=h", "local;size=1", "size=1", "local,size=\u0663"),
        f"local,size={2**60}",
    ],
)
def test_an_option_that_cannot_be_read_is_refused_with_what_is_expected(text):
    assert "expected local,size=BYTES" in refusal(cache_bytes, text)


def test_metrics_show_the_cache_and_the_versions_that_use_it():
    cache, registry = ResponseCache(2000), CollectorRegistry()
    registry.register(CacheCollector(cache))
    cache.open(ID)
    cache.insert(ID, b"a", {"y": np.zeros(1000, np.uint8)})
    cache.insert(ID, b"b", {"y": np.zeros(1000, np.uint8)})
    cache.count(ID, misses=2, seconds=0.5)
    cache.count(ID, hits=3, seconds=0.25)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"tfs_lite_response_cache_{name}", labels)

    labels = {"model": "m", "version": "1"}
    assert value("max_bytes") == 2000
    assert value("entries") == 1
    assert value("bytes") == cache.use.bytes > 1000
    assert value("evictions_total") == 1
    assert (value("hits_total", **labels), value("misses_total", **labels)) == (3, 2)
    assert (value("hit_seconds_total", **labels), value("miss_seconds_total", **labels)) == (0.25, 0.5)
    assert value("too_large_total", **labels) == 0
    cache.forget(ID)
    assert value("hits_total", **labels) is None
