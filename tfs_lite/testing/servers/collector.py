"""A collector of traces for tests: an HTTP server on loopback that takes OTLP and keeps every span.

It needs ``opentelemetry-proto``, which comes with the extra ``otel``.
"""

from __future__ import annotations

import gzip
import ssl
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """Ids in hexadecimal, times in nanoseconds since 1970. ``state`` is the ``tracestate``, ``resource``
    that of the process that sent it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, int], ...]
    links: tuple[tuple[str, str], ...]
    failed: bool
    state: str
    resource: Mapping[str, Any]


class TraceCollector:
    """A ``with`` block. ``status`` is what requests are answered; while ``open`` is cleared they wait for it. With a
    ``context`` it speaks TLS."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.status = 200
        self.open = threading.Event()
        self.open.set()
        self.requests = 0
        self._lock = threading.Lock()  # guards the spans and the number of requests
        self._spans: list[CollectedSpan] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._scheme = "http" if context is None else "https"
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="collector", daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    @property
    def spans(self) -> list[CollectedSpan]:
        """All that have come."""
        with self._lock:
            return list(self._spans)

    def of_trace(self, trace_id: str) -> dict[str, CollectedSpan]:
        """By name; of several with one name the last."""
        return {span.name: span for span in self.spans if span.trace_id == trace_id}

    def take(self, body: bytes) -> None:
        self.open.wait(60)
        with self._lock:
            self.requests += 1
            if self.status == 200:
                self._spans += _read(body)

    def __enter__(self) -> TraceCollector:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(collector: TraceCollector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            elif self.headers.get("content-encoding") == "deflate":
                body = zlib.decompress(body)
            collector.take(body)
            try:
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:
                pass  # the exporter did not wait

        def log_message(self, *values: Any) -> None:
            pass

    return Handler


def _read(body: bytes) -> list[CollectedSpan]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest.FromString(body)
    return [
        CollectedSpan(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.kind,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            _attributes(span.attributes),
            tuple((event.name, event.time_unix_nano) for event in span.events),
            tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            span.status.code == 2,
            span.trace_state,
            _attributes(resource.resource.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
