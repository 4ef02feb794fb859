from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import GRPC, REST, RequestMetrics
from tfs_lite.metrics.tensorflow import TensorflowMetrics

SERVING = ":tensorflow:serving:"


class Counted(TensorflowMetrics):
    def request(self, method: str, entrypoint: str, code: StatusCode = StatusCode.OK) -> None:
        """A request of one millisecond, half of it in the model."""
        record = RequestRecord(method, "m", entrypoint, run_seconds=0.0005)
        RequestMetrics(CollectorRegistry(), lambda name: True, self).observe(record, code, 0.001)

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """By name and label values, as they stand on the page: the usual parser renames counters."""
        found = {}
        for line in self.page().decode().splitlines():
            if not line.startswith("#"):
                labels, value = line.removeprefix(SERVING).rsplit(" ", 1)
                name, _, pairs = labels.partition("{")
                found[name, tuple(re.findall(r'="([^"]*)"', pairs))] = float(value)
        return found


@pytest.fixture
def metrics() -> Counted:
    return Counted()


def test_the_usual_parser_reads_the_page(metrics: Counted) -> None:
    metrics.request("Predict", GRPC)
    names = {family.name for family in text_string_to_metric_families(metrics.page().decode())}
    assert names == {f"{SERVING}{name}" for name in ("request_count", "request_latency", "runtime_latency")}


LATENCY = "request_latency_sum"
REQUESTS: list[tuple[str, str, StatusCode, dict[Any, float]]] = [
    (
        *("Predict", GRPC, StatusCode.OK),
        {(LATENCY, ("m", "Predict", "GRPC")): 1000, ("runtime_latency_sum", ("m", "Predict", "TF1")): 500},
    ),
    ("Predict", GRPC, StatusCode.NOT_FOUND, {}),
    ("Predict", REST, StatusCode.OK, {(LATENCY, ("m", "predict", "REST")): 1000}),
    ("Classify", REST, StatusCode.OK, {(LATENCY, ("m", "classify", "REST")): 1000}),
    ("GetModelStatus", REST, StatusCode.OK, {(LATENCY, ("m", "", "REST")): 1000}),
    ("", REST, StatusCode.OK, {(LATENCY, ("m", "", "REST")): 1000}),
]


@pytest.mark.parametrize(("method", "entrypoint", "code", "times"), REQUESTS)
def test_a_request_is_counted_and_timed_unless_it_failed(
    metrics: Counted, method: str, entrypoint: str, code: StatusCode, times: dict[Any, float]
) -> None:
    metrics.request(method, entrypoint, code)
    found = metrics.samples()
    assert found["request_count", ("m", code.name)] == 1
    assert {key: found.get(key) for key in times} == times
    assert code is StatusCode.OK or len(found) == 1


@pytest.mark.parametrize("method", ["MultiInference", "GetModelMetadata", "GetModelStatus"])
def test_other_methods_of_grpc_are_not_counted(metrics: Counted, method: str) -> None:
    metrics.request(method, GRPC)
    assert metrics.page() == b""


def test_examples_and_warm_ups_are_counted(metrics: Counted) -> None:
    metrics.on_examples("m", 3)
    metrics.on_warm_up("/models/m/1", OK, 0.5, 3)
    metrics.on_warm_up("/models/m/2", Status(StatusCode.DATA_LOSS, "cut off"), 0.1, 1)
    found = metrics.samples()
    assert found["request_example_count_total", ("m",)] == 3
    assert found["request_example_counts_bucket", ("m", "2")] == 0
    assert found["request_example_counts_bucket", ("m", "4")] == 1
    assert found["model_warmup_records_read", ("/models/m/1", "OK")] == 3
    assert found["model_warmup_latency_count", ("/models/m/2", "DATA_LOSS")] == 1


def test_the_cells_of_a_model_go_with_it_and_a_counter_is_found_by_its_path(metrics: Counted) -> None:
    metrics.request("Predict", GRPC)
    metrics.on_logged("m", "OK")
    assert metrics.counter_value("/tensorflow/serving/request_count") == 1
    assert metrics.counter_value("/tensorflow/serving/nothing") is None
    metrics.model_gone("m")
    assert metrics.page() == b""
