"""The series about storages: counted from events, and read from conditions and the cache."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.operations.storage.feature import FetchCounts, StorageCollector
from tfs_lite.serving.lifecycle_events import CacheEvicted, FetchDone, FetchFailed, ModelGone, StorageAsked
from tfs_lite.storage.store import StorageCondition

M1 = ServableId("m", 1)
AWAY = Status(StatusCode.UNAVAILABLE, "the storage answers 503 SlowDown")


class Page:
    """A page of metrics whose conditions and cache the test sets."""

    def __init__(self) -> None:
        self.conditions: dict[str, StorageCondition] = {}
        self.cache: tuple[int, int] | None = None
        self.registry = CollectorRegistry()
        self.counts = FetchCounts(self.registry)
        self.registry.register(StorageCollector(lambda: self.conditions, lambda: self.cache, self.counts))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"tfs_lite_{name}", labels)


def test_a_model_with_a_storage_begins_with_zeros_so_that_an_alert_sees_the_first_failure() -> None:
    page = Page()
    page.conditions["m"] = StorageCondition()
    assert page.value("fetches_total", model="m", result="failed") == 0
    assert page.value("fetches_total", model="m", result="ok") == 0
    assert page.value("fetched_bytes_total", model="m") == 0
    assert page.value("storage_listed_timestamp_seconds", model="m") == 0
    page.counts.on_event(FetchFailed(M1, AWAY, 30, 8))
    assert page.value("fetches_total", model="m", result="failed") == 1


def test_fetches_are_counted_with_the_bytes_that_came_over_the_network() -> None:
    page = Page()
    page.counts.on_event(FetchFailed(M1, AWAY, 30, 8))
    page.counts.on_event(FetchDone(M1, 100, 70, 2.5, 1))
    assert page.value("fetched_bytes_total", model="m") == 100
    assert page.value("fetch_seconds_sum", model="m") == 2.5
    assert page.value("fetch_seconds_count", model="m") == 1


def test_the_time_of_the_last_listing_stays_while_the_storage_is_away() -> None:
    page = Page()
    page.conditions["m"] = StorageCondition(1e9, 1e9 + 60, 3, "the storage does not answer")
    assert page.value("storage_listed_timestamp_seconds", model="m") == 1e9


def test_requests_evictions_and_the_size_of_the_cache_are_told() -> None:
    page = Page()
    for _ in range(2):
        page.counts.on_event(StorageAsked("s3", "list", "ok"))
    page.counts.on_event(StorageAsked("s3", "get", "unavailable"))
    page.counts.on_event(CacheEvicted("0" * 32, 5))
    page.cache = 7, 50
    assert page.value("storage_requests_total", scheme="s3", operation="list", result="ok") == 2
    assert page.value("storage_requests_total", scheme="s3", operation="get", result="unavailable") == 1
    assert page.value("model_cache_evictions_total") == 1
    assert (page.value("model_cache_bytes"), page.value("model_cache_limit_bytes")) == (7, 50)


def test_a_server_without_a_url_says_nothing_of_models_and_cache() -> None:
    page = Page()
    text = generate_latest(page.registry).decode()
    assert "model=" not in text
    assert "model_cache_bytes" not in text


def test_a_model_that_is_gone_leaves_nothing() -> None:
    page = Page()
    page.counts.on_event(FetchDone(M1, 100, 70, 2.5, 1))
    page.counts.on_event(ModelGone("m"))
    assert 'model="m"' not in generate_latest(page.registry).decode()
