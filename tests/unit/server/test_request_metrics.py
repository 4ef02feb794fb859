from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import not_found
from tfs_lite.server.request_metrics import KEPT_VERSIONS, RequestMetrics


def page(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> RequestMetrics:
    return RequestMetrics(registry, lambda name: name == "m")


def serve(metrics: RequestMetrics, version: int) -> None:
    metrics.entered(ServableId("m", version))
    with metrics.record("Predict", "m") as record:
        record.version = version
    metrics.left(ServableId("m", version))


def test_latency_is_kept_per_model_and_version(metrics: RequestMetrics, registry: CollectorRegistry) -> None:
    serve(metrics, 1)
    serve(metrics, 2)
    serve(metrics, 2)
    for version, count in (("1", 1), ("2", 2)):
        labels = {"model": "m", "version": version}
        assert registry.get_sample_value("tfs_lite_request_seconds_count", labels) == count


def test_names_from_requests_do_not_become_labels(metrics: RequestMetrics, registry: CollectorRegistry) -> None:
    for name in ("x1", "x2", "x3"):
        with pytest.raises(Exception, match="no"), metrics.record("Predict", name):
            raise not_found("no")
    assert "x1" not in page(registry)
    labels = {"model": "unknown", "version": "", "method": "Predict", "code": "NOT_FOUND"}
    assert registry.get_sample_value("tfs_lite_requests_total", labels) == 3


def test_series_of_versions_that_are_gone_are_dropped_the_oldest_first(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    for version in range(1, KEPT_VERSIONS + 4):
        serve(metrics, version)
        metrics.version_gone(ServableId("m", version))
    for version in (1, 2, 3):
        assert f'version="{version}"' not in page(registry)
    for version in range(4, KEPT_VERSIONS + 4):
        assert f'version="{version}"' in page(registry)


def test_version_that_comes_and_goes_again_counts_once(metrics: RequestMetrics, registry: CollectorRegistry) -> None:
    serve(metrics, 1)
    for _ in range(3 * KEPT_VERSIONS):
        metrics.version_gone(ServableId("m", 1))
    assert 'version="1"' in page(registry)


def test_model_that_is_gone_leaves_nothing(metrics: RequestMetrics, registry: CollectorRegistry) -> None:
    serve(metrics, 1)
    serve(metrics, 2)
    metrics.model_gone("m")
    assert 'model="m"' not in page(registry)
