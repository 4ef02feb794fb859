"""The metrics of TensorFlow Serving, under its names, for the dashboards that people already have.

They are fed where ours are, by the same calls, and printed on a page of their own. What steers TensorFlow itself is
left out, and so are the batching metrics as long as there is no batching.
"""

from __future__ import annotations

from tfs_lite.core.status import Status, StatusCode
from tfs_lite.server.raw_metrics import RawCounter, RawHistogram, RawMetric, exponential_buckets

CONTENT_TYPE = "text/plain"
PREFIX = "/tensorflow/serving/"
RUNTIME = "TF1"
"""The value that dashboards select by; it says nothing about PyTorch."""
MICROSECONDS = exponential_buckets(10, 1.8, 33)
EXAMPLES = exponential_buckets(1, 2, 15)
GRPC_METHODS = ("Predict", "Classify", "Regress")
"""gRPC's other methods are not counted upstream. Over REST every request is."""


class UpstreamMetrics:
    """Any thread may call any method."""

    def __init__(self) -> None:
        latency = ("model_name", "API", "entrypoint")
        self._requests = RawCounter(f"{PREFIX}request_count", ("model_name", "status"))
        self._latency = RawHistogram(f"{PREFIX}request_latency", latency, MICROSECONDS)
        self._runtime = RawHistogram(f"{PREFIX}runtime_latency", ("model_name", "API", "runtime"), MICROSECONDS)
        self._examples = RawHistogram(f"{PREFIX}request_example_counts", ("model",), EXAMPLES)
        self._example_total = RawCounter(f"{PREFIX}request_example_count_total", ("model",))
        self._logged = RawCounter(f"{PREFIX}request_log_count", ("model_name", "status_code"))
        warm_up = ("model_path", "status")
        self._warm_up = RawHistogram(f"{PREFIX}model_warmup_latency", warm_up, MICROSECONDS)
        self._warm_up_records = RawCounter(f"{PREFIX}model_warmup_records_read", warm_up)

    @property
    def _all(self) -> tuple[RawMetric, ...]:
        by_model_name: tuple[RawMetric, ...] = (self._requests, self._latency, self._runtime, self._logged)
        return (*by_model_name, self._examples, self._example_total, self._warm_up, self._warm_up_records)

    def on_request(
        self, method: str, model: str, over_grpc: bool, code: StatusCode, seconds: float, run_seconds: float
    ) -> None:
        """A request was answered, in ``seconds``, of which the model ran ``run_seconds``."""
        if over_grpc and method not in GRPC_METHODS:
            return
        self._requests.add((model, code.name))
        if code is not StatusCode.OK:
            return
        verb = method in GRPC_METHODS
        api = method if over_grpc else method.lower() if verb else ""
        self._latency.observe((model, api, "GRPC" if over_grpc else "REST"), seconds * 1e6)
        if verb:
            self._runtime.observe((model, method, RUNTIME), run_seconds * 1e6)

    def on_examples(self, model: str, number: int) -> None:
        """A MultiInference request with so many examples."""
        self._examples.observe((model,), number)
        self._example_total.add((model,), number)

    def on_logged(self, model: str, code: str) -> None:
        """A request was logged, or should have been."""
        self._logged.add((model, code))

    def on_warm_up(self, path: str, status: Status, seconds: float, records: int) -> None:
        """The message is not part of the label: it may be anything."""
        self._warm_up.observe((path, status.code.name), seconds * 1e6)
        self._warm_up_records.add((path, status.code.name), records)

    def model_gone(self, name: str) -> None:
        for metric in (self._requests, self._latency, self._runtime, self._logged):
            metric.forget("model_name", name)
        for metric in (self._examples, self._example_total):
            metric.forget("model", name)

    def page(self) -> bytes:
        """The whole page."""
        return "".join(f"{line}\n" for metric in self._all for line in metric.lines()).encode()

    def counter_value(self, name: str) -> float | None:
        """The first cell of the metric with this path; None if there is no such metric."""
        metric = {
            f"{PREFIX}request_count": self._requests,
            f"{PREFIX}request_example_count_total": self._example_total,
            f"{PREFIX}request_log_count": self._logged,
            f"{PREFIX}model_warmup_records_read": self._warm_up_records,
        }.get(name)
        return None if metric is None else metric.value()
