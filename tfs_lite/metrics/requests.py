"""Counts and times of requests, by model, version, method and code.

Label values come from requests, so they are bounded: a model that is not served counts as ``unknown``, and the
series of versions that are gone are dropped, the oldest first, once a model has left a number of them behind.

Every request is counted, so counting is short: where a kind of request is counted, under our names and upstream's, is
looked up once and kept until a series is dropped.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.metrics.series import (
    KEPT_VERSIONS,
    Cell,
    CounterSeries,
    GoneVersions,
    HistogramSeries,
    LengthSeries,
    SeriesCollector,
)
from tfs_lite.metrics.tensorflow import GRPC_METHODS, MICROSECONDS, UpstreamMetrics

__all__ = ["GRPC", "KEPT_VERSIONS", "PREDICTIONS", "REST", "RequestMetrics", "RequestRecord"]

GRPC = "GRPC"
REST = "REST"
UNKNOWN = "unknown"
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PREDICTIONS = (*GRPC_METHODS, "MultiInference", "ModelInfer", "PredictStreamed", "Completions", "ChatCompletions")
REJECTED = (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)
_OK = StatusCode.OK

Kind: TypeAlias = tuple[str, str, str, int | None, StatusCode]
"""Method, model, entrypoint, version, code."""


@dataclass(slots=True)
class RequestRecord:
    """One request while it runs. ``version``, ``run_seconds``, the time in the model, and ``late``, what it means that
    the deadline has passed (None: nothing but that), are filled in once they are known."""

    method: str
    model: str
    entrypoint: str
    version: int | None = None
    run_seconds: float = 0.0
    late: Reason | None = None


class _Recorded(RequestRecord):
    """Times a block."""

    __slots__ = ("_metrics", "_started")

    def __init__(self, metrics: RequestMetrics, method: str, model: str, entrypoint: str) -> None:
        self.method = method
        self.model = model
        self.entrypoint = entrypoint
        self.version = None
        self.run_seconds = 0.0
        self.late = None
        self._metrics = metrics
        self._started = perf_counter()

    def __enter__(self) -> RequestRecord:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._metrics.observe(self, _OK if error is None else _code_of(error), perf_counter() - self._started)


class _Line(NamedTuple):
    """Where one kind of request is counted: numbers of one, and times, in seconds and upstream in microseconds."""

    counts: tuple[Cell, ...]
    seconds: Cell | None
    latency: Cell | None
    runtime: Cell | None


class RequestMetrics:
    """Any thread may call any method. ``is_known`` says whether a model of that name is served. What is counted here is
    counted under ``upstream``'s names too."""

    def __init__(
        self, registry: CollectorRegistry, is_known: Callable[[str], bool], upstream: UpstreamMetrics | None = None
    ) -> None:
        self._is_known = is_known
        self.upstream = upstream or UpstreamMetrics()
        self._guard = guard = self.upstream.requests
        version = ("model", "version")
        self._count = CounterSeries(guard, "tfs_lite_requests", "Requests answered.", (*version, "method", "code"))
        self._seconds = HistogramSeries(
            guard,
            "tfs_lite_request_seconds",
            "Time from the arrival of a prediction to its answer; failures are left out.",
            version,
            LATENCY_BUCKETS,
        )
        self._rejected = CounterSeries(
            guard, "tfs_lite_requests_rejected", "Requests refused because a queue was full.", ("model",)
        )
        self._inside = LengthSeries(guard, "tfs_lite_requests_in_flight", "Requests that hold a version.", version)
        self._gone = GoneVersions(self._drop)
        self._lines: dict[Kind, _Line] = {}  # guarded by the guard's lock, with the next one
        self._dropped = guard.dropped
        self._inside_of: dict[tuple[str, int], Cell] = {}
        registry.register(SeriesCollector(guard, (self._count, self._seconds, self._rejected, self._inside)))

    def record(self, method: str, model: str, entrypoint: str = GRPC) -> _Recorded:
        """Times the block and counts it under the code that it ended with."""
        return _Recorded(self, method, model, entrypoint)

    def observe(self, record: RequestRecord, code: StatusCode, seconds: float) -> None:
        """The request of the record was answered with this code."""
        model, version = record.model, record.version
        if version is None and model and not self._is_known(model):
            model = UNKNOWN
        kind = (record.method, model, record.entrypoint, version, code)
        guard = self._guard
        with guard.lock:
            line = self._lines.get(kind) if guard.dropped == self._dropped else None
            counts, own, latency, runtime = line or self._make_line(kind)
            for count in counts:
                count[0] += 1
            if own is not None:
                own[bisect_left(LATENCY_BUCKETS, seconds)] += 1
                own[-1] += seconds
            if latency is not None:
                micros = seconds * 1e6
                latency[bisect_left(MICROSECONDS, micros)] += 1
                latency[-1] += micros
            if runtime is not None:
                micros = record.run_seconds * 1e6
                runtime[bisect_left(MICROSECONDS, micros)] += 1
                runtime[-1] += micros

    def entered(self, servable_id: ServableId) -> None:
        """A request took a handle of this version."""
        key = (servable_id.name, servable_id.version)
        inside = self._inside_of.get(key)
        if inside is None:
            inside = self._find_inside(key)
        inside.append(1)

    def left(self, servable_id: ServableId) -> None:
        """It gave the handle back."""
        inside = self._inside_of.get((servable_id.name, servable_id.version))
        if inside:
            inside.pop()

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded: its series go when enough younger ones have gone too."""
        with self._guard.lock:
            self._gone.version(servable_id)

    def model_gone(self, name: str) -> None:
        """The model is served no more: all its series go."""
        with self._guard.lock:
            self._gone.model(name)
            self._rejected.drop(model=name)
        self.upstream.model_gone(name)

    def _drop(self, **labels: str) -> None:
        for series in (self._count, self._seconds, self._inside):
            series.drop(**labels)
        version = labels.get("version")
        for key in [key for key in self._inside_of if key[0] == labels["model"] and version in (None, str(key[1]))]:
            del self._inside_of[key]

    def _find_inside(self, key: tuple[str, int]) -> Cell:
        with self._guard.lock:
            cell = self._inside_of[key] = self._inside.cell((key[0], str(key[1])))
            return cell

    def _make_line(self, kind: Kind) -> _Line:
        """Called under the lock. What is made may push out cells that older lines hold: those are looked up anew."""
        method, model, entrypoint, number, code = kind
        version = "" if number is None else str(number)
        upstream = self.upstream.request_cells(method, model, entrypoint == GRPC, code)
        counts = [self._count.cell((model, version, method, code.name))]
        if upstream.requests is not None:
            counts.append(upstream.requests)
        if code in REJECTED:
            counts.append(self._rejected.cell((model,)))
        timed = code is StatusCode.OK and method in PREDICTIONS
        seconds = self._seconds.cell((model, version)) if timed else None
        if self._dropped != self._guard.dropped:
            self._lines.clear()
            self._dropped = self._guard.dropped
        line = self._lines[kind] = _Line(tuple(counts), seconds, upstream.latency, upstream.runtime)
        return line


def _code_of(error: BaseException) -> StatusCode:
    if isinstance(error, ServingError):
        return error.code
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return StatusCode.CANCELLED
    return StatusCode.INTERNAL
