from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument, not_found
from tfs_lite.metrics.ended_requests import EndedRequest
from tfs_lite.metrics.requests import KEPT_VERSIONS, MOST_NOTED, RequestMetrics
from tfs_lite.metrics.tensorflow_text import MAX_CELLS
from tfs_lite.transport.peer import Peer
from tfs_lite.transport.table import CallContext


def page(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> RequestMetrics:
    return RequestMetrics(registry, lambda name: name == "m")


def serve(metrics: RequestMetrics, version: int) -> None:
    metrics.started(ServableId("m", version))
    with metrics.record("Predict", "m") as record:
        record.version = version
    metrics.finished(ServableId("m", version))


def test_latency_is_kept_per_model_and_version_until_the_model_is_gone(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    for version in (1, 2, 2):
        serve(metrics, version)
    for version, times in (("1", 1), ("2", 2)):
        labels = {"model": "m", "version": version}
        assert registry.get_sample_value("tfs_lite_request_seconds_count", labels) == times
    metrics.model_gone("m")
    assert 'model="m"' not in page(registry)


@pytest.mark.parametrize("number", [1, MOST_NOTED - 1, MOST_NOTED, 5 * MOST_NOTED + 3])
def test_every_request_is_on_the_page_that_is_read_after_it(
    metrics: RequestMetrics, registry: CollectorRegistry, number: int
) -> None:
    for _ in range(number):
        serve(metrics, 1)
    assert count(registry, "OK", version="1") == number
    assert registry.get_sample_value("tfs_lite_request_seconds_count", {"model": "m", "version": "1"}) == number
    assert metrics.tensorflow.counter_value("/tensorflow/serving/request_count") == number


def test_requests_that_were_noted_go_with_their_model(metrics: RequestMetrics, registry: CollectorRegistry) -> None:
    serve(metrics, 1)
    metrics.model_gone("m")
    assert 'model="m"' not in page(registry)


def test_names_from_requests_do_not_become_labels(metrics: RequestMetrics, registry: CollectorRegistry) -> None:
    for name in ("x1", "x2", "x3"):
        with pytest.raises(Exception, match="no"), metrics.record("Predict", name):
            raise not_found("no")
    assert "x1" not in page(registry)
    assert count(registry, "NOT_FOUND", version="", model="unknown") == 3


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


def test_version_that_is_loaded_again_keeps_its_series_whatever_is_unloaded_then(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    serve(metrics, 1)
    metrics.version_gone(ServableId("m", 1))
    metrics.version_back(ServableId("m", 1))
    for version in range(2, KEPT_VERSIONS + 4):
        serve(metrics, version)
        metrics.version_gone(ServableId("m", version))
    assert [f'version="{version}"' in page(registry) for version in (1, 2, 3)] == [True, False, False]
    metrics.version_gone(ServableId("m", 1))
    assert 'version="4"' not in page(registry)


def test_call_that_ended_unread_is_a_request_of_an_unknown_model(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    for path in ("/tensorflow.serving.PredictionService/Predict", "/inference.GRPCInferenceService/ModelInfer"):
        metrics.unread(path, 1, "gone", 1, None)
    assert count(registry, "CANCELLED", version="", model="unknown") == 1
    other = ("/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ModelStreamInfer")
    before = page(registry)
    for path in other:
        metrics.unread(path, 1, "gone", 1, None)
    assert page(registry) == before, "such calls are never counted, or each of their requests is"


def test_listeners_are_told_why_a_call_ended_unread_and_of_many_refused_at_once_in_one_go(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    told: list[EndedRequest] = []
    metrics.on_failure(told.append)
    path = "/tensorflow.serving.PredictionService/Predict"
    metrics.unread(path, 8, "too large", 1, CallContext(None, {"x-request-id": "abc"}, peer=Peer("10.0.0.7")))
    metrics.unread(path, 14, "too late", 1000, None)
    assert [(ended.method, ended.code.name, ended.message) for ended in told] == [
        ("Predict", "RESOURCE_EXHAUSTED", "too large"),
        ("Predict", "UNAVAILABLE", "too late (and 999 more calls at this moment)"),
    ]
    assert (told[0].context.request_id, told[0].context.peer) == ("abc", "10.0.0.7")
    assert count(registry, "RESOURCE_EXHAUSTED", version="", model="unknown") == 1
    assert count(registry, "UNAVAILABLE", version="", model="unknown") == 1000


def test_a_request_that_cannot_be_read_is_counted_and_told(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    told: list[EndedRequest] = []
    metrics.on_failure(told.append)
    with pytest.raises(ServingError), metrics.reading("Predict", CallContext(None)):
        raise invalid_argument("no message")
    with metrics.reading("Predict", CallContext(None)):
        pass
    assert [ended.message for ended in told] == ["no message"]
    assert count(registry, "INVALID_ARGUMENT", version="", model="unknown") == 1


def fail(metrics: RequestMetrics, error: BaseException, deadline: float | None = None) -> None:
    with metrics.record("Predict", "m") as record:
        record.version, record.deadline = 1, deadline
        raise error


def count(registry: CollectorRegistry, code: str, version: str = "1", model: str = "m") -> float | None:
    labels = {"model": model, "version": version, "method": "Predict", "code": code}
    return registry.get_sample_value("tfs_lite_requests_total", labels)


def in_flight(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("tfs_lite_requests_in_flight", {"model": "m", "version": "1"})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (not_found("no"), "NOT_FOUND"),
        (asyncio.CancelledError(), "CANCELLED"),
        (GeneratorExit(), "CANCELLED"),
        (ValueError("a bug"), "INTERNAL"),
    ],
    ids=["error", "cancelled", "closed", "bug"],
)
def test_a_request_counts_under_the_code_that_it_ended_with(
    metrics: RequestMetrics, registry: CollectorRegistry, error: BaseException, code: str
) -> None:
    with pytest.raises(type(error)):
        fail(metrics, error)
    assert count(registry, code) == 1
    assert registry.get_sample_value("tfs_lite_request_seconds_count", {"model": "m", "version": "1"}) is None


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()], ids=["cancelled", "closed"])
def test_a_request_that_is_cancelled_when_its_time_is_up_has_missed_its_deadline(
    metrics: RequestMetrics, registry: CollectorRegistry, error: BaseException
) -> None:
    for deadline in (monotonic() - 1, monotonic() + 60):
        with pytest.raises(type(error)):
            fail(metrics, error, deadline)
    assert (count(registry, "DEADLINE_EXCEEDED"), count(registry, "CANCELLED")) == (1, 1)


@pytest.mark.parametrize(("left", "code"), [(5.0, "DEADLINE_EXCEEDED"), (20.0, "CANCELLED")])
def test_a_client_whose_deadline_ends_the_way_of_its_request_before_ours_has_missed_it_too(
    metrics: RequestMetrics, registry: CollectorRegistry, left: float, code: str
) -> None:
    record = metrics.record("Predict", "m")
    record.version, now = 1, monotonic()
    record.started, record.deadline = now + left - 100.0, now + left
    record.end(asyncio.CancelledError())
    assert count(registry, code) == 1


def test_a_full_queue_is_counted_by_model(metrics: RequestMetrics, registry: CollectorRegistry) -> None:
    for _ in range(2):
        with pytest.raises(ServingError, match="full"):
            fail(metrics, ServingError(StatusCode.UNAVAILABLE, "full"))
    assert registry.get_sample_value("tfs_lite_requests_rejected_total", {"model": "m"}) == 2


def test_requests_in_flight_are_those_that_started_and_did_not_finish(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    metrics.started(ServableId("m", 1))
    metrics.started(ServableId("m", 1))
    for left in (1, 0):
        metrics.finished(ServableId("m", 1))
        assert in_flight(registry) == left


def test_requests_are_counted_under_the_names_of_tensorflow_serving_too(metrics: RequestMetrics) -> None:
    with metrics.record("Predict", "m") as record:
        record.version, record.run_seconds = 1, 0.0005
    lines = metrics.tensorflow.page().decode().splitlines()
    assert ':tensorflow:serving:request_count{model_name="m",status="OK"} 1' in lines
    assert ':tensorflow:serving:request_latency_count{model_name="m",API="Predict",entrypoint="GRPC"} 1' in lines
    assert ':tensorflow:serving:runtime_latency_sum{model_name="m",API="Predict",runtime="TF1"} 500' in lines


def test_counting_goes_on_after_series_were_dropped_on_either_page(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    serve(metrics, 1)
    metrics.tensorflow.model_gone("m")
    serve(metrics, 1)
    assert count(registry, "OK") == 2
    assert metrics.tensorflow.counter_value("/tensorflow/serving/request_count") == 1
    metrics.model_gone("m")
    serve(metrics, 1)
    metrics.started(ServableId("m", 1))
    assert count(registry, "OK") == 1
    assert in_flight(registry) == 1


def test_names_pushed_out_of_the_other_page_are_counted_again(registry: CollectorRegistry) -> None:
    metrics = RequestMetrics(registry, lambda name: True)
    for name in ("m", *(f"n{number}" for number in range(MAX_CELLS)), "m", "m"):
        with metrics.record("Predict", name):
            pass
    assert count(registry, "OK", version="") == 3
    assert ':tensorflow:serving:request_count{model_name="m",status="OK"} 2' in metrics.tensorflow.page().decode()


def test_requests_on_many_threads_are_all_counted(metrics: RequestMetrics, registry: CollectorRegistry) -> None:
    def work(_: int) -> None:
        for _ in range(300):
            serve(metrics, 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert count(registry, "OK") == 1200
    assert in_flight(registry) == 0
