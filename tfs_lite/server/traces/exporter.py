"""Brings the spans of chosen requests to a collector, by OTLP over HTTP.

    offer (the event loop) -> a queue with a bound -> the thread tfs-traces: spans -> OTLPSpanExporter -> the collector

Nothing of OpenTelemetry's SDK runs on the event loop. The SDK's own processor is not used: its thread would be a second
one, and it neither counts what it drops nor ends in a given time. A collector that is down or slow costs traces, which
are counted, and nothing else. Processes that are forked from this one have no such thread and send nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.model import BatchTrace
from tfs_lite.core.status import failed_precondition
from tfs_lite.metrics.ended_requests import EndedRequest
from tfs_lite.server.traces.spans import SERVER, BatchLinks, ChosenRequest, Span, SpanId, batch_span, request_spans
from tfs_lite.serving.statistics.trace_config import TraceConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

QUEUE, DELAY, BATCH = 2048, 5000, 512
"""Requests that wait, milliseconds until they are exported, spans that are sent at once."""
BATCH_SECONDS = 1.0
"""How long after its end the span of a batch waits for requests that have not ended."""
FLUSH_SECONDS = 2.0
LOG_SECONDS = 60.0
"""Between two lines about a collector that does not take spans."""
FULL, REFUSED = "queue_full", "not_taken"
_EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
logger = logging.getLogger(__name__)


def check_extra() -> None:
    """FAILED_PRECONDITION unless the extra ``otel`` is installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        raise failed_precondition(
            f"trace_config: mode=opentelemetry needs the extra otel: pip install 'tfs-lite[otel]' ({error})"
        ) from None


class TraceExporter:
    """``start`` -> ``offer``, on one thread -> ``close``. ``send`` takes spans, and returns whether they have reached
    the collector; it may block."""

    def __init__(
        self,
        config: TraceConfig,
        send: Callable[[Sequence[Span]], bool],
        stop: Callable[[], None],
        on_exported: Callable[[EndedRequest], None] = ignore,
    ) -> None:
        """``stop`` makes a ``send`` that blocks return. ``on_exported`` is told, on the exporter's thread, which
        requests have reached the collector."""
        self._on_exported = on_exported
        self._requests: dict[SpanId, EndedRequest] = {}
        self._send = send
        self._stop = stop
        self._most = config.max_queue_size or _environment("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)
        self._delay = (config.schedule_delay or _environment("OTEL_BSP_SCHEDULE_DELAY", DELAY)) / 1e3
        self._batch = config.max_export_batch_size or _environment("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH)
        self._wake_at = min(self._batch, max(self._most // 2, 1))
        self._queue: deque[ChosenRequest] = deque()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._batches: dict[BatchTrace, BatchLinks] = {}
        self._logged = -LOG_SECONDS
        self.dropped = Counter({FULL: 0, REFUSED: 0})
        """Traces that were lost, by reason."""
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
            taken = self._send(spans)
        except Exception:
            logger.exception("spans could not be exported")
            taken = False
        if taken:
            self.exported += len(requests)
            for ended in requests:
                self._on_exported(ended)
            return
        self.dropped[REFUSED] += len(requests)
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            logger.warning("the collector of traces does not take them; %d are lost so far", self.dropped.total())


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


def make_exporter(config: TraceConfig, on_exported: Callable[[EndedRequest], None] = ignore) -> TraceExporter | None:
    """None where ``OTEL_SDK_DISABLED`` is true. FAILED_PRECONDITION without the extra ``otel``."""
    check_extra()
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes = dict(config.resource)
    if not named:
        attributes.setdefault("service.name", "tfs_lite")
    convert = _Converter(Resource.create({}).merge(Resource(attributes)))
    exporter = OTLPSpanExporter(endpoint=config.url)
    logging.getLogger(_EXPORTER_LOG).addFilter(_RareLines())

    def send(spans: Sequence[Span]) -> bool:
        return exporter.export([convert(span) for span in spans]) is SpanExportResult.SUCCESS

    return TraceExporter(config, send, exporter.shutdown, on_exported)


class _RareLines(logging.Filter):
    """One line of a kind each :data:`LOG_SECONDS`: the library writes one for each attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, kind = time.monotonic(), record.msg
        if now - self._written.get(kind, -LOG_SECONDS) < LOG_SECONDS:
            return False
        if len(self._written) > 100:
            self._written.clear()
        self._written[kind] = now
        return True


class _Converter:
    """Makes OpenTelemetry's spans of ours."""

    def __init__(self, resource: Resource) -> None:
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._resource = resource
        self._scope = InstrumentationScope("tfs_lite")
        self._offset = time.time_ns() - time.monotonic_ns()

    def __call__(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import Link, SpanKind
        from opentelemetry.trace.status import Status, StatusCode

        status = Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error)
        return ReadableSpan(
            name=span.name,
            context=_context(span.id, state=span.state),
            parent=None if span.parent is None else _context(span.parent, span.kind == SERVER, span.state),
            resource=self._resource,
            attributes=dict(span.attributes),
            events=[Event(name, timestamp=self._wall(at)) for name, at in span.events],
            links=[Link(_context(link)) for link in span.links],
            kind=SpanKind.SERVER if span.kind == SERVER else SpanKind.INTERNAL,
            status=status,
            start_time=self._wall(span.start),
            end_time=self._wall(span.end),
            instrumentation_scope=self._scope,
        )

    def _wall(self, at: float) -> int:
        """Nanoseconds since 1970."""
        return round(at * 1e9) + self._offset


def _context(found: SpanId, remote: bool = False, state: str = "") -> Any:
    """``state`` is a ``tracestate``; members of it that W3C does not know are left out."""
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    members = TraceState.from_header([state]) if state else None
    return SpanContext(found.trace, found.span, remote, TraceFlags(TraceFlags.SAMPLED), members)


def _environment(name: str, usual: int) -> int:
    """A whole number above 0 of the environment; anything else counts as not given."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdigit() and int(text) > 0 else usual
