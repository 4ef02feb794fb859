"""Counts and times of requests, by model, version, method and code.

Label values come from requests, so they are bounded: a model that is not served counts as ``unknown``, and of the
versions that a model has unloaded only the latest keep their series.

Every request is counted, so counting has to be cheap: what is to be counted is noted, and added up for many requests
at once, at the latest when the counts are read. The cells of each kind of request, under our names and TensorFlow
Serving's, are looked up once and cached until a series is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, perf_counter
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
    add_sorted,
)
from tfs_lite.metrics.tensorflow import GRPC_METHODS, MICROSECONDS, TensorflowMetrics

__all__ = ["GRPC", "KEPT_VERSIONS", "PREDICTIONS", "REST", "RecordedRequest", "RequestMetrics", "RequestRecord"]

GRPC = "GRPC"
REST = "REST"
UNKNOWN = "unknown"
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PREDICTIONS = (*GRPC_METHODS, "MultiInference", "ModelInfer", "PredictStreamed", "Completions", "ChatCompletions")
UNARY = (*GRPC_METHODS, "MultiInference", "ModelInfer", "GetModelMetadata", "GetModelStatus")
"""Methods of gRPC whose calls are one counted request each."""
REJECTED = (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)
MOST_NOTED = 64
"""Requests that are noted before they are added up. More would save little, and hold up the one that adds them."""
_OK = StatusCode.OK

Kind: TypeAlias = tuple[str, str, str, int | None, StatusCode]
"""Method, model, entrypoint, version, code."""


@dataclass(slots=True)
class RequestRecord:
    """One request while it runs. ``version``, ``run_seconds`` (the time in the model), ``deadline`` (in seconds of
    ``time.monotonic``) and ``late`` (the reason of a missed deadline; None: no special one) are set once they are
    known."""

    method: str
    model: str
    entrypoint: str
    version: int | None = None
    run_seconds: float = 0.0
    deadline: float | None = None
    late: Reason | None = None


class RecordedRequest(RequestRecord):
    """Times a block, or what ends with ``end``."""

    __slots__ = ("_metrics", "_started")

    def __init__(self, metrics: RequestMetrics, method: str, model: str, entrypoint: str) -> None:
        self.method = method
        self.model = model
        self.entrypoint = entrypoint
        self.version = None
        self.run_seconds = 0.0
        self.deadline = None
        self.late = None
        self._metrics = metrics
        self._started = perf_counter()

    def __enter__(self) -> RecordedRequest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Counts the request under OK, or under the code of the error that ended it."""
        self._metrics.observe(self, _OK if error is None else self._code_of(error), perf_counter() - self._started)

    def _code_of(self, error: BaseException) -> StatusCode:
        """A request that is cancelled when its time is up has missed its deadline."""
        if isinstance(error, ServingError):
            return error.code
        if not isinstance(error, asyncio.CancelledError | GeneratorExit):
            return StatusCode.INTERNAL
        late = self.deadline is not None and monotonic() >= self.deadline
        return StatusCode.DEADLINE_EXCEEDED if late else StatusCode.CANCELLED


class _KindCells(NamedTuple):
    """The cells of one kind of request. ``seconds`` is ours; ``latency`` and ``runtime`` are TensorFlow Serving's, in
    microseconds."""

    counts: tuple[Cell, ...]
    seconds: Cell | None
    latency: Cell | None
    runtime: Cell | None


class RequestMetrics:
    """Any thread may call any method. ``is_known`` tells whether a model of that name is served. Everything is counted
    under TensorFlow Serving's names, too, in ``tensorflow``."""

    def __init__(
        self, registry: CollectorRegistry, is_known: Callable[[str], bool], tensorflow: TensorflowMetrics | None = None
    ) -> None:
        self._is_known = is_known
        self.tensorflow = tensorflow or TensorflowMetrics()
        self._guard = guard = self.tensorflow.requests
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
        self._in_flight = LengthSeries(guard, "tfs_lite_requests_in_flight", "Requests that hold a version.", version)
        self._gone = GoneVersions(self._drop)
        self._cells: dict[Kind, _KindCells] = {}  # guarded by the guard's lock, with the next one
        self._dropped = guard.dropped
        self._noted: deque[tuple[Kind, float, float]] = deque()
        guard.add_up = self._add_up
        self._in_flight_of: dict[tuple[str, int], Cell] = {}
        registry.register(SeriesCollector(guard, (self._count, self._seconds, self._rejected, self._in_flight)))

    def record(self, method: str, model: str, entrypoint: str = GRPC) -> RecordedRequest:
        """Times the block and counts it under its final code."""
        return RecordedRequest(self, method, model, entrypoint)

    def observe(self, record: RequestRecord, code: StatusCode, seconds: float) -> None:
        """Counts the request of the record under this code."""
        model, version = record.model, record.version
        if version is None and model and not self._is_known(model):
            model = UNKNOWN
        kind = (record.method, model, record.entrypoint, version, code)
        self._noted.append((kind, seconds, record.run_seconds))
        if len(self._noted) >= MOST_NOTED:
            self._guard.add_up_now()

    def unread(self, path: str, code: int, count: int) -> None:
        """Counts calls of gRPC that have ended before anything of them was read; so the model is not known."""
        method = path.rpartition("/")[2]
        if method in UNARY:
            self._noted.extend([((method, UNKNOWN, GRPC, None, StatusCode(code)), 0.0, 0.0)] * count)
            if len(self._noted) >= MOST_NOTED:
                self._guard.add_up_now()

    def _add_up(self) -> None:
        """Called under the lock."""
        noted, by_kind = self._noted, dict[Kind, tuple[list[float], list[float]]]()
        for _ in range(len(noted)):
            kind, seconds, run_seconds = noted.popleft()
            of_kind = by_kind.get(kind)
            if of_kind is None:
                of_kind = by_kind[kind] = [], []
            of_kind[0].append(seconds)
            of_kind[1].append(run_seconds)
        for kind, (times, runs) in by_kind.items():
            cells = self._cells.get(kind) if self._guard.dropped == self._dropped else None
            counts, own, latency, runtime = cells or self._make_cells(kind)
            for count in counts:
                count[0] += len(times)
            if own is not None:
                times.sort()
                add_sorted(own, LATENCY_BUCKETS, times, sum(times))
            for cell, values in ((latency, times), (runtime, runs)):
                if cell is not None:
                    micros = sorted([value * 1e6 for value in values])
                    add_sorted(cell, MICROSECONDS, micros, sum(micros))

    def started(self, servable_id: ServableId) -> None:
        """A request took a handle of this version."""
        key = (servable_id.name, servable_id.version)
        in_flight = self._in_flight_of.get(key)
        if in_flight is None:
            in_flight = self._find_in_flight(key)
        in_flight.append(1)

    def finished(self, servable_id: ServableId) -> None:
        """The request released its handle."""
        in_flight = self._in_flight_of.get((servable_id.name, servable_id.version))
        if in_flight:
            in_flight.pop()

    def in_flight(self, servable_id: ServableId) -> int:
        """How many requests hold a handle of the version now."""
        return len(self._in_flight_of.get((servable_id.name, servable_id.version), ()))

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded; its series are dropped after some more unloads."""
        with self._guard:
            self._gone.version(servable_id)

    def model_gone(self, name: str) -> None:
        """The model is no longer served; all its series are dropped."""
        with self._guard:
            self._gone.model(name)
            self._rejected.drop(model=name)
        self.tensorflow.model_gone(name)

    def _drop(self, **labels: str) -> None:
        for series in (self._count, self._seconds, self._in_flight):
            series.drop(**labels)
        version = labels.get("version")
        for key in [key for key in self._in_flight_of if key[0] == labels["model"] and version in (None, str(key[1]))]:
            del self._in_flight_of[key]

    def _find_in_flight(self, key: tuple[str, int]) -> Cell:
        with self._guard.lock:
            cell = self._in_flight_of[key] = self._in_flight.cell((key[0], str(key[1])))
            return cell

    def _make_cells(self, kind: Kind) -> _KindCells:
        """Called under the lock. A new cell may push out an older one, and then every cached cell is looked up anew."""
        method, model, entrypoint, number, code = kind
        version = "" if number is None else str(number)
        theirs = self.tensorflow.request_cells(method, model, entrypoint == GRPC, code)
        counts = [self._count.cell((model, version, method, code.name))]
        if theirs.requests is not None:
            counts.append(theirs.requests)
        if code in REJECTED:
            counts.append(self._rejected.cell((model,)))
        timed = code is StatusCode.OK and method in PREDICTIONS
        seconds = self._seconds.cell((model, version)) if timed else None
        if self._dropped != self._guard.dropped:
            self._cells.clear()
            self._dropped = self._guard.dropped
        cells = self._cells[kind] = _KindCells(tuple(counts), seconds, theirs.latency, theirs.runtime)
        return cells
