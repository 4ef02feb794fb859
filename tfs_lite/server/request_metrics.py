"""Counts and times of requests, by model, version, method and code.

Label values come from requests, so they are bounded: a model that is not served counts as ``unknown``, and the
series of versions that are gone are dropped, the oldest first, once a model has left a number of them behind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.upstream_metrics import GRPC_METHODS, UpstreamMetrics

GRPC = "GRPC"
REST = "REST"
UNKNOWN = "unknown"
KEPT_VERSIONS = 8
"""Versions of a model whose series stay readable after they are gone."""
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PREDICTIONS = (*GRPC_METHODS, "MultiInference")
REJECTED = (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)


@dataclass(slots=True)
class RequestRecord:
    """One request while it runs. ``version`` and ``run_seconds``, the time in the model, are filled in once they are
    known."""

    method: str
    model: str
    entrypoint: str
    version: int | None = None
    run_seconds: float = 0.0


class RequestMetrics:
    """Any thread may call any method. ``is_known`` says whether a model of that name is served. What is counted here is
    counted under ``upstream``'s names too."""

    def __init__(
        self, registry: CollectorRegistry, is_known: Callable[[str], bool], upstream: UpstreamMetrics | None = None
    ) -> None:
        self._is_known = is_known
        self.upstream = upstream or UpstreamMetrics()
        self._count = Counter(
            "tfs_lite_requests", "Requests answered.", ("model", "version", "method", "code"), registry=registry
        )
        self._seconds = Histogram(
            "tfs_lite_request_seconds",
            "Time from the arrival of a prediction to its answer; failures are left out.",
            ("model", "version"),
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._rejected = Counter(
            "tfs_lite_requests_rejected", "Requests refused because a queue was full.", ("model",), registry=registry
        )
        self._inside = Gauge(
            "tfs_lite_requests_in_flight", "Requests that hold a version.", ("model", "version"), registry=registry
        )
        self._lock = threading.Lock()  # guards the two below
        self._seen: dict[tuple[str, str], set[tuple[str, str]]] = {}
        self._gone: dict[str, deque[str]] = {}

    @contextmanager
    def record(self, method: str, model: str, entrypoint: str = GRPC) -> Iterator[RequestRecord]:
        """Times the block and counts it under the code that it ended with."""
        record, started = RequestRecord(method, model, entrypoint), time.perf_counter()
        code = StatusCode.OK
        try:
            yield record
        except ServingError as error:
            code = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            code = StatusCode.CANCELLED
            raise
        except BaseException:
            code = StatusCode.INTERNAL
            raise
        finally:
            self._observe(record, code, time.perf_counter() - started)

    def entered(self, servable_id: ServableId) -> None:
        """A request took a handle of this version."""
        self._inside.labels(servable_id.name, str(servable_id.version)).inc()

    def left(self, servable_id: ServableId) -> None:
        self._inside.labels(servable_id.name, str(servable_id.version)).dec()

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded: its series go when enough younger ones have gone too."""
        with self._lock:
            gone = self._gone.setdefault(servable_id.name, deque())
            version = str(servable_id.version)
            if version in gone:
                gone.remove(version)
            gone.append(version)
            if len(gone) > KEPT_VERSIONS:
                self._drop(servable_id.name, gone.popleft())

    def model_gone(self, name: str) -> None:
        """The model is served no more: all its series go."""
        with self._lock:
            self._gone.pop(name, None)
            for model, version in [key for key in self._seen if key[0] == name]:
                self._drop(model, version)
            remove_series(self._rejected, name)
        self.upstream.model_gone(name)

    def _drop(self, model: str, version: str) -> None:
        for method, code in self._seen.pop((model, version), ()):
            remove_series(self._count, model, version, method, code)
        for metric in (self._seconds, self._inside):
            remove_series(metric, model, version)

    def _observe(self, record: RequestRecord, code: StatusCode, seconds: float) -> None:
        known = record.version is not None or self._is_known(record.model) or not record.model
        model = record.model if known else UNKNOWN
        self.upstream.on_request(record.method, model, record.entrypoint == GRPC, code, seconds, record.run_seconds)
        version = "" if record.version is None else str(record.version)
        with self._lock:
            self._seen.setdefault((model, version), set()).add((record.method, code.name))
        self._count.labels(model, version, record.method, code.name).inc()
        if code is StatusCode.OK and record.method in PREDICTIONS:
            self._seconds.labels(model, version).observe(seconds)
        if code in REJECTED:
            self._rejected.labels(model).inc()


def remove_series(metric: Counter | Gauge | Histogram, *labels: str) -> None:
    """Older releases of prometheus_client raise when there is nothing to remove."""
    try:
        metric.remove(*labels)
    except KeyError:
        return
