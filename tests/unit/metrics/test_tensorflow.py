from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.metrics.tensorflow import UpstreamMetrics

SERVING = ":tensorflow:serving:"


def samples(metrics: UpstreamMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name and label values, as they stand on the page: the usual parser renames counters."""
    lines = [line for line in metrics.page().decode().splitlines() if not line.startswith("#")]
    found = {}
    for line in lines:
        labels, value = line.removeprefix(SERVING).rsplit(" ", 1)
        name, _, pairs = labels.partition("{")
        found[name, tuple(re.findall(r'="([^"]*)"', pairs))] = float(value)
    return found


def test_the_usual_parser_reads_the_page() -> None:
    metrics = UpstreamMetrics()
    metrics.on_request("Predict", "m", True, StatusCode.OK, 0.001, 0.0005)
    names = {family.name for family in text_string_to_metric_families(metrics.page().decode())}
    assert names == {f"{SERVING}{name}" for name in ("request_count", "request_latency", "runtime_latency")}


def test_a_prediction_over_grpc_is_counted_timed_and_its_runtime_is_told() -> None:
    metrics = UpstreamMetrics()
    metrics.on_request("Predict", "m", True, StatusCode.OK, 0.001, 0.0005)
    found = samples(metrics)
    assert found["request_count", ("m", "OK")] == 1
    assert found["request_latency_sum", ("m", "Predict", "GRPC")] == 1000
    assert found["runtime_latency_sum", ("m", "Predict", "TF1")] == 500


def test_a_failure_is_counted_but_not_timed() -> None:
    metrics = UpstreamMetrics()
    metrics.on_request("Predict", "m", True, StatusCode.NOT_FOUND, 0.001, 0)
    assert samples(metrics) == {("request_count", ("m", "NOT_FOUND")): 1}


@pytest.mark.parametrize("method", ["MultiInference", "GetModelMetadata", "GetModelStatus"])
def test_other_methods_of_grpc_are_not_counted_as_upstream_does_not(method: str) -> None:
    metrics = UpstreamMetrics()
    metrics.on_request(method, "m", True, StatusCode.OK, 0.001, 0)
    assert metrics.page() == b""


@pytest.mark.parametrize(
    ("method", "api"), [("Predict", "predict"), ("Classify", "classify"), ("GetModelStatus", ""), ("", "")]
)
def test_every_request_over_rest_is_counted_under_its_verb(method: str, api: str) -> None:
    metrics = UpstreamMetrics()
    metrics.on_request(method, "m", False, StatusCode.OK, 0.001, 0)
    found = samples(metrics)
    assert found["request_count", ("m", "OK")] == 1
    assert found["request_latency_count", ("m", api, "REST")] == 1


def test_examples_of_a_multi_inference_are_counted() -> None:
    metrics = UpstreamMetrics()
    metrics.on_examples("m", 3)
    found = samples(metrics)
    assert found["request_example_count_total", ("m",)] == 3
    assert found["request_example_counts_bucket", ("m", "2")] == 0
    assert found["request_example_counts_bucket", ("m", "4")] == 1


def test_warm_up_is_told_by_path_and_status() -> None:
    metrics = UpstreamMetrics()
    metrics.on_warm_up("/models/m/1", OK, 0.5, 3)
    metrics.on_warm_up("/models/m/2", Status(StatusCode.DATA_LOSS, "cut off"), 0.1, 1)
    found = samples(metrics)
    assert found["model_warmup_records_read", ("/models/m/1", "OK")] == 3
    assert found["model_warmup_latency_count", ("/models/m/2", "DATA_LOSS")] == 1


def test_a_model_that_is_gone_takes_its_cells_along() -> None:
    metrics = UpstreamMetrics()
    metrics.on_request("Predict", "m", True, StatusCode.OK, 0.001, 0.0005)
    metrics.on_logged("m", "OK")
    metrics.model_gone("m")
    assert metrics.page() == b""


def test_a_counter_is_found_by_its_path() -> None:
    metrics = UpstreamMetrics()
    metrics.on_request("Predict", "m", True, StatusCode.OK, 0.001, 0.0005)
    assert metrics.counter_value("/tensorflow/serving/request_count") == 1
    assert metrics.counter_value("/tensorflow/serving/nothing") is None
