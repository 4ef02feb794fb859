"""Counts and times of requests, by model, version, method and code.

Label values come from requests, so they are bounded: a model that is not served counts as ``unknown``, and of the
versions that a model has unloaded only the latest keep their series.

Every request is counted, so counting has to be cheap: what is to be counted is noted, and added up for many requests
at once, at the latest when the counts are read. The cells of each kind of request, under our names and TensorFlow
Serving's, are looked up once and cached until a series is dropped.

Others may want to know about requests when they end: about those that have failed (``on_failure``), of which at most
:data:`MOST_FAILURES` a second are told, or about every one (``on_end``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry

from tfs_lite.core.request_context import Carrier
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.ended_requests import EndedRequest, ended_request
from tfs_lite.metrics.request_records import ASKED, RecordedRequest, RequestRecord
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

__all__ = ["GRPC", "KEPT_VERSIONS", "PREDICTIONS", "REST", "RequestMetrics"]

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
MOST_FAILURES = 100
"""Failed requests of a second that listeners are told about; they do not hear of the others."""
_OK = StatusCode.OK

Kind: TypeAlias = tuple[str, str, str, int | None, StatusCode]
"""The kind of a request: method, model, entrypoint, version, code."""

FailureListener: TypeAlias = Callable[[EndedRequest], None]
"""A function called on the event loop with each failed request; must be short and must not raise."""
EndListener: TypeAlias = Callable[[RecordedRequest, StatusCode, float, BaseException | None], None]
"""The same, with the record, the code, the seconds and the error. :func:`ended_request` makes a value of them, before
the listener returns."""


class _KindCells(NamedTuple):
    """The cells of one kind of request. ``seconds`` is ours; ``latency`` and ``runtime`` are TensorFlow Serving's, in
    microseconds."""

    counts: tuple[Cell, ...]
    seconds: Cell | None
    latency: Cell | None
    runtime: Cell | None


@dataclass(slots=True)
class RequestTotals:
    """Predictions of one version since its series began: how many by code, the cell of the times of those answered
    (:data:`LATENCY_BUCKETS`, in seconds), and how many are inside now."""

    codes: dict[str, float] = field(default_factory=dict)
    seconds: Cell = field(default_factory=lambda: [0.0] * (len(LATENCY_BUCKETS) + 2))
    in_flight: int = 0


class _Reading:
    """See :meth:`RequestMetrics.reading`."""

    __slots__ = ("_carrier", "_method", "_metrics")

    def __init__(self, metrics: RequestMetrics, method: str, carrier: Carrier) -> None:
        self._metrics = metrics
        self._method = method
        self._carrier = carrier

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._metrics.record(self._method, UNKNOWN, GRPC, self._carrier).end(error)


class RequestMetrics:
    """Counts requests. ``is_known`` tells whether a model of that name is served. Everything is counted under
    TensorFlow Serving's names, too, in ``tensorflow``."""

    def __init__(
        self, registry: CollectorRegistry, is_known: Callable[[str], bool], tensorflow: TensorflowMetrics | None = None
    ) -> None:
        self._is_known = is_known
        self.server_timing = ASKED
        """NEVER, ASKED or ALWAYS: which answers say how long their request took."""
        self.listens = False
        """Whether anybody wants to know of every request."""
        self.notes_calls = False
        """Whether calls to models note what traces need of them."""
        self._end_listeners: list[EndListener] = []
        self._failure_listeners: list[FailureListener] = []
        self._failure_second = 0
        self._failures = 0
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

    def record(
        self, method: str, model: str, entrypoint: str = GRPC, carrier: Carrier | None = None
    ) -> RecordedRequest:
        """Times the block and counts it under its final code. ``carrier`` is what has brought the request."""
        return RecordedRequest(self, method, model, entrypoint, carrier)

    def on_failure(self, listener: FailureListener) -> None:
        """Tells the listener about requests that fail, at most :data:`MOST_FAILURES` a second. Before the first
        request."""
        self._failure_listeners.append(listener)

    def on_end(self, listener: EndListener) -> None:
        """Tells the listener about every request that ends, until ``off_end``."""
        self._end_listeners = [*(other for other in self._end_listeners if other != listener), listener]
        self.listens = True

    def off_end(self, listener: EndListener) -> None:
        self._end_listeners = [other for other in self._end_listeners if other != listener]
        self.listens = bool(self._end_listeners)

    def tell(self, record: RecordedRequest, code: StatusCode, seconds: float, error: BaseException | None) -> None:
        """The request of the record has ended. On the event loop."""
        for listener in self._end_listeners:
            listener(record, code, seconds, error)
        if code is not _OK and self._failure_listeners:
            second = int(record.started + seconds)
            if second != self._failure_second:
                self._failure_second, self._failures = second, 0
            self._failures += 1
            if self._failures > MOST_FAILURES:
                return
            ended = ended_request(record, code, seconds, error)
            for tell in self._failure_listeners:
                tell(ended)

    def observe(self, record: RequestRecord, code: StatusCode, seconds: float) -> None:
        """Counts the request of the record under this code."""
        model, version = record.model, record.version
        if version is None and model and not self._is_known(model):
            model = UNKNOWN
        kind = (record.method, model, record.entrypoint, version, code)
        self._noted.append((kind, seconds, record.run_seconds))
        if len(self._noted) >= MOST_NOTED:
            self._guard.add_up_now()

    def add_exemplar(self, ended: EndedRequest, at: float) -> None:
        """The trace of the request can be found by its id. ``at`` is when the request ended, in seconds since 1970."""
        if ended.code is _OK and ended.method in PREDICTIONS:
            with self._guard:
                labels = (ended.model, "" if ended.version is None else str(ended.version))
                self._seconds.add_exemplar(labels, ended.seconds, ended.trace_id, at)

    def unread(self, path: str, code: int, text: str, count: int, carrier: Carrier | None) -> None:
        """Calls of gRPC have ended with this status before anything of them was read; so the model is not known. All
        are counted, and listeners are told of one."""
        method = path.rpartition("/")[2]
        if method not in UNARY:
            return
        if count > 1:
            self._noted.extend([((method, UNKNOWN, GRPC, None, StatusCode(code)), 0.0, 0.0)] * (count - 1))
            text = f"{text} (and {count - 1} more calls at this moment)"
        self.record(method, UNKNOWN, GRPC, carrier).end(ServingError(StatusCode(code), text))

    def reading(self, method: str, carrier: Carrier) -> _Reading:
        """Counts a request of gRPC that the block, which reads it, refuses: its model is not known then."""
        return _Reading(self, method, carrier)

    def _add_up(self) -> None:
        """Adds up what was counted; called under the lock."""
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

    def totals(self) -> dict[tuple[str, str], RequestTotals]:
        """The totals by model and version; the version is empty for predictions that reached none."""
        found: dict[tuple[str, str], RequestTotals] = {}
        with self._guard:
            counts, seconds = self._count.snapshot(), self._seconds.snapshot()
            in_flight = {labels: len(cell) for labels, cell in self._in_flight.snapshot().items()}
        for (model, version, method, code), (count,) in counts.items():
            if method in PREDICTIONS:
                codes = found.setdefault((model, version), RequestTotals()).codes
                codes[code] = codes.get(code, 0.0) + count
        for (model, version), cell in seconds.items():
            found.setdefault((model, version), RequestTotals()).seconds = cell
        for (model, version), inside in in_flight.items():
            found.setdefault((model, version), RequestTotals()).in_flight = inside
        return found

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded; its series are dropped after some more unloads."""
        with self._guard:
            self._gone.version(servable_id)

    def version_back(self, servable_id: ServableId) -> None:
        """The version is loaded, perhaps again: its series stay."""
        with self._guard:
            self._gone.back(servable_id)

    def model_added(self, name: str) -> None:
        """The model is served from now on: the count of its refused requests is there."""
        with self._guard:
            self._rejected.cell((name,))

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
        """Makes the cells of a kind of request; called under the lock. A new cell may push out an older one, and then
        every cached cell is looked up anew."""
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
