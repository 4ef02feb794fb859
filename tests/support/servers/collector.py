"""A collector of traces for tests: a server on loopback that takes OTLP, over HTTP or gRPC, and keeps every span.

It needs ``opentelemetry-proto``, which comes with the extra ``otel``.
"""

from __future__ import annotations

import base64
import gzip
import json
import ssl
import threading
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import json_format


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
    """A ``with`` block, over HTTP. ``status`` is what requests are answered; while ``open`` is cleared they wait. Of
    each request it says that it ``rejects`` so many spans, with these ``words``. With a ``context`` it speaks TLS.
    ``heads`` are the headers of all requests."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.status = 200
        self.open = threading.Event()
        self.open.set()
        self.requests = 0
        self.rejects, self.words = 0, ""
        self.heads: list[dict[str, str]] = []
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

    def take(self, body: bytes, head: Mapping[str, str], as_json: bool = False) -> Any:
        """The answer."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        self.open.wait(60)
        with self._lock:
            self.requests += 1
            self.heads.append({name.lower(): value for name, value in head.items()})
            if self.status == 200:
                self._spans += _read(body, as_json)
            answer = ExportTraceServiceResponse()
            if self.rejects or self.words:
                answer.partial_success.rejected_spans = self.rejects
                answer.partial_success.error_message = self.words
            return answer

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
            as_json = self.headers["content-type"] == "application/json"
            answer = collector.take(body, dict(self.headers), as_json)
            data = json_format.MessageToJson(answer).encode() if as_json else answer.SerializeToString()
            try:
                self.send_response(collector.status)
                self.send_header("content-type", self.headers["content-type"])
                self.send_header("content-length", str(len(data)))
                if collector.status == 302:
                    self.send_header("location", "/elsewhere")
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # the exporter did not wait

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *values: Any) -> None:
            pass

    return Handler


class GrpcTraceCollector(TraceCollector):
    """The same over gRPC, by gRPC's library. ``code`` is what calls are answered, with these ``details`` of their
    status."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        super().__init__()
        self._server.server_close()
        self.code = grpc.StatusCode.OK
        self.details = b""
        export = grpc.unary_unary_rpc_method_handler(
            self._export, response_serializer=lambda answer: answer.SerializeToString()
        )
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._pool = ThreadPoolExecutor(1)
        self._grpc = grpc.server(self._pool)
        self._grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": export})])
        if credentials is None:
            self.port = self._grpc.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._grpc.add_secure_port("127.0.0.1:0", credentials)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _export(self, body: bytes, context: grpc.ServicerContext) -> Any:
        answer = self.take(body, dict(context.invocation_metadata()))
        if self.code is not grpc.StatusCode.OK:
            if self.details:
                context.set_trailing_metadata([("grpc-status-details-bin", self.details)])
            context.abort(self.code, "not now")
        return answer

    def __enter__(self) -> GrpcTraceCollector:
        self._pool.submit(int).result()  # its thread is there from the start
        self._grpc.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open.set()
        self._grpc.stop(None).wait()
        self._pool.shutdown()


def _read(body: bytes, as_json: bool) -> list[CollectedSpan]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    if as_json:
        tree = json.loads(body)
        for of_resource in tree["resourceSpans"]:
            for scope in of_resource["scopeSpans"]:
                for span in scope["spans"]:
                    for ids in (span, *span.get("links", ())):
                        for name in ids.keys() & {"traceId", "spanId", "parentSpanId"}:
                            ids[name] = base64.b64encode(bytes.fromhex(ids[name])).decode()
                    assert isinstance(span["kind"], int), "OTLP's JSON has numbers for enums"
        request = json_format.ParseDict(tree, ExportTraceServiceRequest())
    else:
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
