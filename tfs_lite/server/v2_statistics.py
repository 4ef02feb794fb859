"""What V2's statistics and Triton's ``nv_`` metrics say about each version: requests by their end, rows, runs, times.

Requests are counted when they end (``on_call``), runs of the model when they end (``on_batch``). A request that was
refused before it was let into a queue counts nowhere; each request of a batch is charged the whole time of its batch.
Source: the statistics extension of the V2 protocol.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tfs_lite.core.model import BatchReport, PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.server.v2_control import InferBatchStatistics, InferStatistics, ModelStatistics, StatisticDuration

MAX_BATCH_SIZES = 1000
"""Told apart, of one version; larger numbers of sizes are not counted by size."""
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's words for why a request failed: a timeout in the queue, the caller, the model, anything else."""


class _Duration:
    """A count and seconds."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    @property
    def value(self) -> StatisticDuration:
        return StatisticDuration(self.count, round(self.seconds * 1e9))

    @property
    def microseconds(self) -> int:
        return round(self.seconds * 1e6)


class _Compute:
    """Of a run: putting the inputs together, the model, handing the outputs out."""

    __slots__ = ("infer", "input", "output")

    def __init__(self) -> None:
        self.input, self.infer, self.output = _Duration(), _Duration(), _Duration()

    def add(self, seconds: float, moving: tuple[float, float]) -> None:
        self.input.add(moving[0])
        self.output.add(moving[1])
        self.infer.add(max(seconds - moving[0] - moving[1], 0.0))


@dataclass(slots=True)
class _Version:
    """The counts of one loaded version."""

    ensemble: bool = False
    last: int = 0
    rows: int = 0
    runs: int = 0
    success: _Duration = field(default_factory=_Duration)
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    failed: _Duration = field(default_factory=_Duration)
    queue: _Duration = field(default_factory=_Duration)
    compute: _Compute = field(default_factory=_Compute)
    batches: dict[int, _Compute] = field(default_factory=dict)
    hits: _Duration = field(default_factory=_Duration)
    misses: _Duration = field(default_factory=_Duration)


class InferenceBook:
    """Any thread may call any method. Order for a version: ``opened`` -> counts -> ``closed``, after which it counts
    from zero."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._lock = threading.Lock()  # guards the next one and what is in it
        self._versions: dict[ServableId, _Version] = {}

    def opened(self, servable_id: ServableId, ensemble: bool = False) -> None:
        """``ensemble``: it has no runs of its own; its requests are counted as such."""
        with self._lock:
            self._versions[servable_id] = _Version(ensemble)

    def closed(self, servable_id: ServableId) -> None:
        with self._lock:
            self._versions.pop(servable_id, None)

    def on_call(self, servable_id: ServableId, call: PredictCall, result: Mapping[str, Tensor] | Status) -> None:
        """A request has ended."""
        failed = isinstance(result, Status)
        if failed and not call.admitted:
            return
        seconds = self._monotonic() - call.arrived if call.arrived else call.queue_seconds + call.run_seconds
        with self._lock:
            version = self._versions.get(servable_id)
            if version is None:
                return
            if isinstance(result, Status):
                version.failed.add(seconds)
                version.failures[reason_of(result, version.ensemble)] += 1
                return
            version.success.add(seconds)
            version.queue.add(call.queue_seconds)
            if version.ensemble:
                self._count_run(version, _rows(call), call.run_seconds, (0.0, 0.0))
            version.compute.add(call.run_seconds, call.moving_seconds)

    def on_batch(self, report: BatchReport) -> None:
        """A model was run; failed runs count as executions, without rows."""
        with self._lock:
            version = self._versions.get(report.id)
            if version is not None:
                self._count_run(version, report.rows, report.run_seconds, report.moving_seconds, report)

    def on_cache(self, servable_id: ServableId, hit: bool, seconds: float) -> None:
        """The response cache was asked. A hit is a request that is no inference."""
        with self._lock:
            version = self._versions.get(servable_id)
            if version is None:
                return
            (version.hits if hit else version.misses).add(seconds)

    def statistics(self, servable_ids: Iterable[ServableId]) -> list[ModelStatistics]:
        """One entry for each, zeros for a version that nobody called."""
        with self._lock:
            return [_statistics(found, self._versions.get(found) or _Version()) for found in servable_ids]

    def lines(self) -> Iterator[str]:
        """Triton's metrics as Prometheus text."""
        with self._lock:
            versions = sorted(self._versions.items())
            texts = [_metric_lines(name, kind, read, versions) for name, kind, read in _METRICS]
            texts.append(_failure_lines(versions))
        for text in texts:
            yield from text

    def _count_run(
        self,
        version: _Version,
        rows: int,
        seconds: float,
        moving: tuple[float, float],
        report: BatchReport | None = None,
    ) -> None:
        """With the lock held."""
        version.runs += 1
        version.last = round(self._wall() * 1e3)
        if report is None or report.ok:
            version.rows += rows
        size = rows + (report.padding if report is not None else 0)
        if size in version.batches or len(version.batches) < MAX_BATCH_SIZES:
            version.batches.setdefault(size, _Compute()).add(seconds, moving)


def reason_of(status: Status, ensemble: bool) -> str:
    """Triton's word for the failure of a request that had been let in."""
    if ensemble:
        return "OTHER"
    if status.reason is Reason.QUEUE_TIMEOUT:
        return "REJECTED"
    if status.code in (StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED):
        return "CANCELED"
    return "BACKEND" if status.code in (StatusCode.INTERNAL, StatusCode.INVALID_ARGUMENT) else "OTHER"


def _rows(call: PredictCall) -> int:
    """Of an ensemble's request, for which nobody else counts."""
    return max((array.shape[0] for array in call.inputs.values() if array.shape), default=1) or 1


def _statistics(servable_id: ServableId, version: _Version) -> ModelStatistics:
    compute = version.compute
    stats = InferStatistics(
        version.success.value,
        version.failed.value,
        version.queue.value,
        compute.input.value,
        compute.infer.value,
        compute.output.value,
        version.hits.value,
        version.misses.value,
    )
    batches = tuple(
        InferBatchStatistics(size, found.input.value, found.infer.value, found.output.value)
        for size, found in sorted(version.batches.items())
    )
    name, number = servable_id.name, str(servable_id.version)
    return ModelStatistics(name, number, version.last, version.rows, version.runs, stats, batches)


Read = Callable[[_Version], int | None]

_METRICS: tuple[tuple[str, str, Read], ...] = (
    ("nv_inference_request_success", "counter", lambda v: v.success.count),
    ("nv_inference_count", "counter", lambda v: v.rows),
    ("nv_inference_exec_count", "counter", lambda v: v.runs),
    ("nv_inference_request_duration_us", "counter", lambda v: v.success.microseconds),
    ("nv_inference_queue_duration_us", "counter", lambda v: v.queue.microseconds),
    ("nv_inference_compute_input_duration_us", "counter", lambda v: v.compute.input.microseconds),
    ("nv_inference_compute_infer_duration_us", "counter", lambda v: v.compute.infer.microseconds),
    ("nv_inference_compute_output_duration_us", "counter", lambda v: v.compute.output.microseconds),
    ("nv_cache_num_hits_per_model", "counter", lambda v: v.hits.count if _cached(v) else None),
    ("nv_cache_num_misses_per_model", "counter", lambda v: v.misses.count if _cached(v) else None),
    ("nv_cache_hit_duration_per_model", "counter", lambda v: v.hits.microseconds if _cached(v) else None),
    ("nv_cache_miss_duration_per_model", "counter", lambda v: v.misses.microseconds if _cached(v) else None),
)


def _cached(version: _Version) -> bool:
    return version.hits.count + version.misses.count > 0


def _metric_lines(name: str, kind: str, read: Read, versions: list[tuple[ServableId, _Version]]) -> list[str]:
    found = [(servable_id, read(version)) for servable_id, version in versions]
    lines = [
        f'{name}{{model="{_escaped(servable_id.name)}",version="{servable_id.version}"}} {value}'
        for servable_id, value in found
        if value is not None
    ]
    return [f"# TYPE {name} {kind}", *lines] if lines else []


def _failure_lines(versions: list[tuple[ServableId, _Version]]) -> list[str]:
    name = "nv_inference_request_failure"
    lines = [
        f'{name}{{model="{_escaped(servable_id.name)}",reason="{reason}",version="{servable_id.version}"}} {count}'
        for servable_id, version in versions
        for reason, count in version.failures.items()
    ]
    return [f"# TYPE {name} counter", *lines] if lines else []


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
