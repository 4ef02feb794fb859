"""The metrics of TensorFlow Serving under its names, for existing dashboards.

They are counted by the same calls as ours and printed on a page of their own. Metrics of TensorFlow itself are left
out, and so is ``batching_session/input_batch_size``, which counts a request once for each of its tensors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tfs_lite.core.status import Status, StatusCode
from tfs_lite.metrics.series import Cell, SeriesLock, add_sorted
from tfs_lite.metrics.tensorflow_text import RawCounter, RawHistogram, RawMetric, exponential_buckets

CONTENT_TYPE = "text/plain; charset=utf-8"
PREFIX = "/tensorflow/serving/"
BATCHING = f"{PREFIX}batching_session/"
RUNTIME = "TF1"
"""The label value that dashboards select by."""
POOL = ""
"""The name of the thread pool in the stock server."""
MICROSECONDS = exponential_buckets(10, 1.8, 33)
QUEUING = exponential_buckets(100, 1.2, 52)
QUEUING_SECONDS = tuple(limit / 1e6 for limit in QUEUING)
EXAMPLES = exponential_buckets(1, 2, 15)
BATCH_SIZES = exponential_buckets(1, 2, 14)
GRPC_METHODS = ("Predict", "Classify", "Regress")
"""The methods of gRPC that TensorFlow Serving counts. Over REST it counts every request."""


@dataclass(frozen=True, slots=True)
class RequestCells:
    """The cells of one kind of request; ``requests`` is None for requests that TensorFlow Serving does not count. The
    times are in microseconds, with the limits MICROSECONDS."""

    requests: Cell | None = None
    latency: Cell | None = None
    runtime: Cell | None = None


class TensorflowMetrics:
    """The metrics of TensorFlow Serving: ``requests.lock`` guards what is counted for each request, ``batches.lock``
    what is counted for each run of a model. Any thread; methods that need a lock say so."""

    def __init__(self) -> None:
        self.requests, self.batches = SeriesLock(), SeriesLock()
        self._requests = RawCounter(
            f"{PREFIX}request_count",
            "Requests answered, by model and status; of gRPC, those to Predict, Classify and Regress.",
            ("model_name", "status"),
            self.requests,
        )
        self._latency = RawHistogram(
            f"{PREFIX}request_latency",
            "Microseconds from the arrival of a request to its answer; failures are left out.",
            ("model_name", "API", "entrypoint"),
            MICROSECONDS,
            self.requests,
        )
        self._runtime = RawHistogram(
            f"{PREFIX}runtime_latency",
            "Microseconds that a request spent in the model; failures are left out.",
            ("model_name", "API", "runtime"),
            MICROSECONDS,
            self.requests,
        )
        self._examples = RawHistogram(
            f"{PREFIX}request_example_counts", "Examples in a MultiInference request.", ("model",), EXAMPLES
        )
        self._example_total = RawCounter(
            f"{PREFIX}request_example_count_total", "Examples of all MultiInference requests.", ("model",)
        )
        self._logged = RawCounter(
            f"{PREFIX}request_log_count",
            "Requests that were sampled for the request log, by the outcome of writing them.",
            ("model_name", "status_code"),
        )
        warm_up = ("model_path", "status")
        self._warm_up = RawHistogram(
            f"{PREFIX}model_warmup_latency", "Microseconds that a version's warm-up took.", warm_up, MICROSECONDS
        )
        self._warm_up_records = RawCounter(
            f"{PREFIX}model_warmup_records_read", "Records of warm-up files that were replayed.", warm_up
        )
        self._queuing = RawHistogram(
            f"{BATCHING}queuing_latency",
            "Microseconds that a request waited for its batch.",
            ("thread_pool_name",),
            QUEUING,
            self.batches,
        )
        self._runs = RawCounter(f"{BATCHING}wrapped_run_count", "Batches that were run.", (), self.batches)
        self._processed = RawHistogram(
            f"{BATCHING}processed_batch_size", "Rows of a batch, padding included.", (), BATCH_SIZES, self.batches
        )
        self._padding = RawHistogram(
            f"{BATCHING}padding_size",
            "Rows of padding in a batch, by the size of the batch.",
            ("execution_batch_size",),
            BATCH_SIZES,
            self.batches,
        )

    @property
    def _all(self) -> tuple[RawMetric, ...]:
        by_model_name: tuple[RawMetric, ...] = (self._requests, self._latency, self._runtime, self._logged)
        others = (self._examples, self._example_total, self._warm_up, self._warm_up_records)
        return (*by_model_name, *others, self._queuing, self._runs, self._processed, self._padding)

    def request_cells(self, method: str, model: str, over_grpc: bool, code: StatusCode) -> RequestCells:
        """The cells are valid until ``requests.dropped`` changes. Called under ``requests.lock``."""
        if over_grpc and method not in GRPC_METHODS:
            return RequestCells()
        requests = self._requests.cells.cell((model, code.name))
        if code is not StatusCode.OK:
            return RequestCells(requests)
        verb = method in GRPC_METHODS
        api = method if over_grpc else method.lower() if verb else ""
        latency = self._latency.cells.cell((model, api, "GRPC" if over_grpc else "REST"))
        return RequestCells(requests, latency, self._runtime.cells.cell((model, method, RUNTIME)) if verb else None)

    def count_batch(self, waits: Sequence[float], waited: float, rows: int, padding: int) -> None:
        """Counts a run of a model. ``waits``: the seconds that its calls waited, in ascending order; ``waited``: their
        sum. Called under ``batches.lock``."""
        size = rows + padding
        add_sorted(self._queuing.cells.cell((POOL,)), QUEUING_SECONDS, waits, waited * 1e6)
        self._runs.cells.cell(())[0] += 1
        for cell, value in ((self._processed.cells.cell(()), size), (self._padding.cells.cell((str(size),)), padding)):
            cell[bisect_left(BATCH_SIZES, value)] += 1
            cell[-1] += value

    def on_examples(self, model: str, number: int) -> None:
        """Counts the examples of a MultiInference request."""
        self._examples.observe((model,), number)
        self._example_total.add((model,), number)

    def on_logged(self, model: str, code: str) -> None:
        """Counts a logged request by its outcome."""
        self._logged.add((model, code))

    def on_warm_up(self, path: str, status: Status, seconds: float, records: int) -> None:
        """Counts a warm-up. The status message is no label, because it is unbounded."""
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
        """The value of the first cell of the metric with this path; None if there is no such metric."""
        metric = {
            f"{PREFIX}request_count": self._requests,
            f"{PREFIX}request_example_count_total": self._example_total,
            f"{PREFIX}request_log_count": self._logged,
            f"{PREFIX}model_warmup_records_read": self._warm_up_records,
            f"{BATCHING}wrapped_run_count": self._runs,
        }.get(name)
        return None if metric is None else metric.value()
