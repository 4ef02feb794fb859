from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tfs_lite.core.model import BatchReport
from tfs_lite.core.servable import ServableId
from tfs_lite.metrics.batches import BatchMetrics, BatchStateCollector, WorkerState
from tfs_lite.metrics.series import KEPT_VERSIONS
from tfs_lite.metrics.tensorflow import TensorflowMetrics

M1 = ServableId("m", 1)
LABELS = {"model": "m", "version": "1"}
OUTCOMES = ("answered", "lost", "failed")


@pytest.fixture
def tensorflow() -> TensorflowMetrics:
    return TensorflowMetrics()


@pytest.fixture
def metrics(registry: CollectorRegistry, tensorflow: TensorflowMetrics) -> BatchMetrics:
    return BatchMetrics(registry, tensorflow)


def report(
    servable_id: ServableId = M1,
    rows: int = 3,
    padding: int = 1,
    seconds: float = 0.02,
    waits: tuple[float, ...] = (0.004, 0.0002),
    ok: bool = True,
) -> BatchReport:
    return BatchReport(servable_id, rows, padding, seconds, waits, ok)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"tfs_lite_{name}", LABELS | labels)


def page(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def test_a_run_is_counted_in_every_histogram(metrics: BatchMetrics, registry: CollectorRegistry) -> None:
    metrics.on_batch(report())
    for name, expected in {
        "size_sum": 3,
        "padding_rows_sum": 1,
        "calls_sum": 2,
        "run_seconds_sum": 0.02,
        "failures_total": 0,
    }.items():
        assert value(registry, f"batch_{name}") == expected
    assert [value(registry, "batch_size_bucket", le=limit) for limit in ("2.0", "4.0")] == [0, 1]
    assert value(registry, "batch_run_seconds_bucket", le="0.025") == 1
    metrics.on_batch(report(padding=0))
    assert [value(registry, "batch_padding_rows_bucket", le=limit) for limit in ("0.0", "1.0")] == [1, 2]


def test_every_call_of_a_run_has_its_wait_counted(metrics: BatchMetrics, registry: CollectorRegistry) -> None:
    metrics.on_batch(report(waits=(0.004, 0.0002, 0.0002, 60.0)))
    assert value(registry, "batch_queue_seconds_count") == 4
    assert value(registry, "batch_queue_seconds_bucket", le="0.00025") == 2
    assert value(registry, "batch_queue_seconds_bucket", le="0.005") == 3
    assert value(registry, "batch_queue_seconds_bucket", le="30.0") == 3
    assert value(registry, "batch_queue_seconds_sum") == pytest.approx(60.0044)


def test_a_failed_run_is_counted_but_not_timed(metrics: BatchMetrics, registry: CollectorRegistry) -> None:
    metrics.on_batch(report(ok=False))
    assert value(registry, "batch_failures_total") == 1
    assert value(registry, "batch_run_seconds_count") == 0
    assert value(registry, "batch_size_count") == 1


def test_runs_with_calls_that_were_queued_again_are_counted_by_what_became_of_them(
    metrics: BatchMetrics, registry: CollectorRegistry
) -> None:
    for ok, lost, again in ((True, False, True), (True, False, True), (False, True, True), (False, False, True)):
        metrics.on_run(replace(report(ok=ok), lost=lost, again=again))
    metrics.on_run(report())
    counted = {outcome: value(registry, "batches_queued_again_total", outcome=outcome) for outcome in OUTCOMES}
    assert counted == {"answered": 2, "lost": 1, "failed": 1}


def test_runs_on_many_threads_are_all_counted(
    metrics: BatchMetrics, registry: CollectorRegistry, tensorflow: TensorflowMetrics
) -> None:
    def work(_: int) -> None:
        for number in range(200):
            metrics.on_batch(report(ServableId("m", number % 2 + 1)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for version in ("1", "2"):
        assert value(registry, "batch_size_count", version=version) == 400
        assert value(registry, "batch_queue_seconds_count", version=version) == 800
    assert tensorflow.counter_value("/tensorflow/serving/batching_session/wrapped_run_count") == 800


def test_series_of_versions_that_are_gone_are_dropped_the_oldest_first(
    metrics: BatchMetrics, registry: CollectorRegistry
) -> None:
    for version in range(1, KEPT_VERSIONS + 3):
        metrics.on_batch(report(ServableId("m", version)))
        metrics.version_gone(ServableId("m", version))
    for version in (1, 2):
        assert f'version="{version}"' not in page(registry)
    for version in range(3, KEPT_VERSIONS + 3):
        assert f'version="{version}"' in page(registry)


def test_version_that_is_loaded_again_keeps_its_series_whatever_is_unloaded_then(
    metrics: BatchMetrics, registry: CollectorRegistry
) -> None:
    for version in (1, *range(2, KEPT_VERSIONS + 4)):
        metrics.on_batch(report(ServableId("m", version)))
        metrics.version_gone(ServableId("m", version))
        metrics.version_back(ServableId("m", 1))
    assert [f'version="{version}"' in page(registry) for version in (1, 2, 3)] == [True, False, False]


def test_model_that_is_gone_leaves_nothing_and_others_stay(metrics: BatchMetrics, registry: CollectorRegistry) -> None:
    for version in (1, 2):
        metrics.on_batch(report(ServableId("m", version)))
    metrics.on_batch(report(ServableId("n", 1)))
    metrics.model_gone("m")
    assert 'model="m"' not in page(registry)
    assert 'model="n"' in page(registry)
    metrics.on_batch(report())
    assert value(registry, "batch_size_count") == 1, "its series begin again from nothing"


def test_what_waits_and_who_works_is_read_when_asked_for(registry: CollectorRegistry) -> None:
    waiting: list[tuple[ServableId, int]] = [(M1, 7)]
    workers = [
        WorkerState(M1, 0, "process", True, 4321, 2),
        WorkerState(M1, 1, "process", False, None, 3, "by other means"),
        WorkerState(M1, 2, "ray", True, 77, node="gpu-a"),
    ]
    registry.register(BatchStateCollector(lambda: waiting, lambda: workers))
    assert value(registry, "queue_rows") == 7
    assert value(registry, "worker_up", instance="0") == 1
    assert value(registry, "worker_up", instance="1") == 0
    assert value(registry, "worker_restarts_total", instance="1") == 3
    assert value(registry, "worker_info", instance="0", kind="process", pid="4321", reason="") == 1
    assert value(registry, "worker_info", instance="1", kind="process", pid="", reason="by other means") == 1
    assert value(registry, "worker_info", instance="2", kind="ray", pid="77", reason="", node="gpu-a") == 1
    waiting.clear()
    workers.clear()
    assert 'model="m"' not in page(registry)


def test_the_usual_parser_reads_the_page(metrics: BatchMetrics, registry: CollectorRegistry) -> None:
    metrics.on_batch(report())
    names = {family.name for family in text_string_to_metric_families(page(registry))}
    histograms = ("queue_seconds", "size", "padding_rows", "calls", "run_seconds")
    assert {f"tfs_lite_batch_{name}" for name in (*histograms, "failures")} <= names


def test_tensorflow_serving_counts_batches_without_a_model(
    metrics: BatchMetrics, tensorflow: TensorflowMetrics
) -> None:
    metrics.on_batch(report(rows=3, padding=1, waits=(0.004, 0.0002)))
    metrics.on_batch(report(ServableId("n", 7), rows=4, padding=0, waits=(0.0001,)))
    lines = tensorflow.page().decode().splitlines()
    name = ":tensorflow:serving:batching_session:"
    for line in (
        f'{name}queuing_latency_bucket{{thread_pool_name="",le="100"}} 1',
        f'{name}queuing_latency_bucket{{thread_pool_name="",le="207.36"}} 2',
        f'{name}queuing_latency_sum{{thread_pool_name=""}} 4300',
        f'{name}queuing_latency_count{{thread_pool_name=""}} 3',
        f"{name}wrapped_run_count{{}} 2",
        f'{name}processed_batch_size_bucket{{le="2"}} 0',
        f'{name}processed_batch_size_bucket{{le="4"}} 2',
        f'{name}padding_size_sum{{execution_batch_size="4"}} 1',
        f'{name}padding_size_count{{execution_batch_size="4"}} 2',
    ):
        assert line in lines


def test_runs_of_single_calls_are_no_batches_of_tensorflow_serving(
    metrics: BatchMetrics, registry: CollectorRegistry, tensorflow: TensorflowMetrics
) -> None:
    metrics.on_run(report(rows=1, padding=0, waits=(0.001,)))
    assert value(registry, "batch_size_count") == 1
    assert tensorflow.page() == b""
