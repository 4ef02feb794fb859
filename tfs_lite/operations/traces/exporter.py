"""Brings the spans of chosen requests to a collector, by OTLP.

    offer (the event loop) -> a queue with a bound -> the thread tfs-traces: spans -> a message -> the collector

A collector that is down or slow costs traces, which are counted, and nothing else. Processes that are forked from this
one have no such thread and send nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.model import BatchTrace
from tfs_lite.metrics.ended_requests import EndedRequest
from tfs_lite.operations.traces.collector_client import CollectorClient, check_certificates
from tfs_lite.operations.traces.environment import JSON, read_environment
from tfs_lite.operations.traces.otlp import ALL, Attempt, SpanEncoder, message_of_an_export
from tfs_lite.operations.traces.spans import SERVER, BatchLinks, ChosenRequest, Span, SpanId, batch_span, request_spans
from tfs_lite.serving.statistics.trace_config import TraceConfig

BATCH_SECONDS = 1.0
"""The seconds after its end for which the span of a batch waits for requests that have not ended."""
FLUSH_SECONDS = 2.0
LOG_SECONDS = 60.0
"""The seconds between two lines about a collector that does not take spans."""
FULL, REFUSED, REJECTED = "queue_full", "not_taken", "rejected"
logger = logging.getLogger(__name__)


class TraceExporter:
    """``start`` -> ``offer``, on one thread -> ``close``. ``send`` takes spans, and returns how many of them
    the collector has not taken, and why; it may block."""

    def __init__(
        self,
        queue: int,
        delay: float,
        batch: int,
        send: Callable[[Sequence[Span]], Attempt],
        stop: Callable[[], None],
        on_exported: Callable[[EndedRequest], None] = ignore,
    ) -> None:
        """``queue``: the most requests that wait; ``delay``: seconds until they are exported; ``batch``: spans that are
        sent at once. ``stop`` makes a ``send`` that blocks return. ``on_exported`` is told, on the exporter's thread,
        which requests have reached the collector."""
        self._on_exported = on_exported
        self._requests: dict[SpanId, EndedRequest] = {}
        self._send = send
        self._stop = stop
        self._most = queue
        self._delay = delay
        self._batch = batch
        self._wake_at = min(self._batch, max(self._most // 2, 1))
        self._queue: deque[ChosenRequest] = deque()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._batches: dict[BatchTrace, BatchLinks] = {}
        self._logged = -LOG_SECONDS
        self.dropped = Counter({FULL: 0, REFUSED: 0, REJECTED: 0})
        """Traces that were lost, by reason. Of an export that the collector took a part of, as many count as lost as it
        rejected spans: it does not say which."""
        self.exported = 0
        """Traces that the collector has taken."""
        self._thread = threading.Thread(target=self._run, name="tfs-traces", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, chosen: ChosenRequest) -> None:
        """Drops the request when too many wait."""
        if len(self._queue) >= self._most:
            self.dropped[FULL] += 1
            return
        self._queue.append(chosen)
        if len(self._queue) >= self._wake_at:
            self._wake.set()

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Sends what waits, for at most so many seconds."""
        ends = time.monotonic() + seconds
        self._closed.set()
        self._wake.set()
        self._thread.join(seconds)
        self._stop()
        self._thread.join(max(ends - time.monotonic(), 0.1))

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(self._delay)
            self._wake.clear()
            self._export_waiting()
        self._export_waiting(last=True)

    def _export_waiting(self, last: bool = False) -> None:
        now = time.monotonic()
        over = [batch for batch in self._batches if now - batch.started - batch.report.run_seconds > BATCH_SECONDS]
        spans: list[Span] = []
        for _ in range(len(self._queue)):
            chosen = self._queue.popleft()
            try:
                spans += request_spans(chosen, self._batches)
                self._requests[chosen.id] = chosen.ended
            except Exception:
                logger.exception("the spans of a request could not be made")
                continue
            while len(spans) >= self._batch:
                self._export(spans[: self._batch])
                del spans[: self._batch]
        for batch in list(self._batches) if last else over:
            spans.append(batch_span(batch, self._batches.pop(batch)))
        for start in range(0, len(spans), self._batch):
            self._export(spans[start : start + self._batch])

    def _export(self, spans: Sequence[Span]) -> None:
        requests = [self._requests.pop(span.id) for span in spans if span.kind == SERVER]
        try:
            sent = self._send(spans)
        except Exception as error:
            logger.exception("spans could not be exported")
            sent = Attempt(ALL, str(error))
        lost = min(sent.rejected, len(requests))
        self.exported += len(requests) - lost
        if sent.rejected >= len(spans):
            self.dropped[REFUSED] += lost
            self._log(f"the collector of traces does not take them ({sent.why})")
        elif sent.rejected:
            self.dropped[REJECTED] += lost
            self._log(f"the collector of traces rejects {sent.rejected} of {len(spans)} spans ({sent.why})")
        else:
            for ended in requests:
                self._on_exported(ended)
            if sent.why:
                self._log(f"the collector of traces takes them and says: {sent.why}")

    def _log(self, text: str) -> None:
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            logger.warning("%s; %d are lost so far", text, self.dropped.total())


class TraceCollector(Collector):
    """Metrics of an exporter."""

    def __init__(self, exporter: TraceExporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterable[Metric]:
        dropped = CounterMetricFamily("tfs_lite_traces_dropped", "Traces that were lost.", labels=["reason"])
        for reason, number in self._exporter.dropped.items():
            dropped.add_metric([reason], number)
        yield dropped
        yield CounterMetricFamily(
            "tfs_lite_traces_exported", "Traces that the collector has taken.", value=self._exporter.exported
        )


def make_exporter(
    config: TraceConfig,
    environment: Mapping[str, str] = os.environ,
    on_exported: Callable[[EndedRequest], None] = ignore,
) -> TraceExporter | None:
    """None where the environment wants no traces. What it asks for and does not get is named in the log.
    FAILED_PRECONDITION without the extra ``otel``."""
    message_of_an_export()
    found = read_environment(config, environment)
    problem = check_certificates(found.otlp) if found.exports and found.otlp.secure else ""
    for complaint in (*found.complaints, *([f"traces are lost: {problem}"] if problem else [])):
        logger.warning("traces: %s", complaint)
    if not found.exports:
        logger.info("no traces are sent: the environment says so (OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER or _SAMPLER)")
        return None
    encoder = SpanEncoder(found.resource, found.limits, found.otlp.protocol == JSON)
    client = CollectorClient(found.otlp)
    logger.info("traces go to %s by %s", found.otlp.place, found.otlp.protocol)
    return TraceExporter(
        found.queue,
        found.delay,
        found.batch,
        lambda spans: client.send(encoder.encode(spans)),
        client.close,
        on_exported,
    )
