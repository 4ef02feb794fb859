"""Spans to a collector: OpenTelemetry's messages, by POST over HTTP, as OpenTelemetry's environment variables say.

The messages are those of ``opentelemetry-proto``. OpenTelemetry's own exporter for Python takes spans of its SDK only,
and making and encoding those takes four times the CPU of the messages, in the process that serves.

Sources: OpenTelemetry's specifications of OTLP 1.9 (what is retried) and of its exporters (the variables). Timeouts
are in seconds, as for OpenTelemetry's own exporter for Python.
"""

from __future__ import annotations

import gzip
import os
import random
import ssl
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote

from tfs_lite.core.status import failed_precondition
from tfs_lite.server.traces.spans import SERVER, Span
from tfs_lite.serving.statistics.trace_config import TraceConfig

DEFAULT_URL = "http://localhost:4318"
PATH = "/v1/traces"
TIMEOUT = 10.0
"""Seconds for all attempts of one export."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 5.0
"""Seconds before the second attempt, and at most before any."""
RETRIED = (429, 502, 503, 504)
_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
_REMOTE_KNOWN, _REMOTE = 0x100, 0x200
"""Of the flags of a span: whether it is known that its parent is another process', and that it is."""


class SpanEncoder:
    """Makes the body of an export. ``resource``: what is said of this server."""

    def __init__(self, resource: Mapping[str, str]) -> None:
        """FAILED_PRECONDITION without the extra ``otel``."""
        try:
            from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        except ImportError as error:
            raise failed_precondition(
                f"trace_config: mode=opentelemetry needs the extra otel: pip install 'tfs-lite[otel]' ({error})"
            ) from None
        self._message: Callable[[], Any] = ExportTraceServiceRequest
        self._resource = resource
        self._offset = time.time_ns() - time.monotonic_ns()

    def encode(self, spans: Sequence[Span]) -> bytes:
        message = self._message()
        of_resource = message.resource_spans.add()
        _add_attributes(of_resource.resource.attributes, self._resource)
        of_scope = of_resource.scope_spans.add()
        of_scope.scope.name = "tfs_lite"
        for span in spans:
            self._add(of_scope.spans, span)
        body: bytes = message.SerializeToString()
        return body

    def _add(self, spans: Any, span: Span) -> None:
        is_server, parent = span.kind == SERVER, span.parent
        added = spans.add(
            trace_id=span.id.trace.to_bytes(16),
            span_id=span.id.span.to_bytes(8),
            name=_text(span.name),
            kind=2 if is_server else 1,
            start_time_unix_nano=self._wall(span.start),
            end_time_unix_nano=self._wall(span.end),
            trace_state=span.state,
            flags=_REMOTE_KNOWN | _REMOTE if is_server and parent is not None else _REMOTE_KNOWN,
        )
        if parent is not None:
            added.parent_span_id = parent.span.to_bytes(8)
        _add_attributes(added.attributes, span.attributes)
        for name, at in span.events:
            added.events.add(name=name, time_unix_nano=self._wall(at))
        for link in span.links:
            added.links.add(trace_id=link.trace.to_bytes(16), span_id=link.span.to_bytes(8), flags=_REMOTE_KNOWN)
        if span.error is not None:
            added.status.code = 2
            added.status.message = _text(span.error)

    def _wall(self, at: float) -> int:
        """Nanoseconds since 1970."""
        return round(at * 1e9) + self._offset


def _add_attributes(pairs: Any, attributes: Mapping[str, str | int | float | bool]) -> None:
    for key, value in attributes.items():
        into = pairs.add(key=key).value
        if isinstance(value, str):
            into.string_value = _text(value)
        elif isinstance(value, bool):
            into.bool_value = value
        elif isinstance(value, int):
            into.int_value = value
        else:
            into.double_value = value


def _text(value: str) -> str:
    """A message takes no half of a character, which an error's text may have."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


class CollectorClient:
    """Sends bodies. ``send`` on one thread, ``close`` on any."""

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout: float, compression: str, context: ssl.SSLContext | None
    ) -> None:
        self._url = url
        self._headers = {**headers, "content-type": "application/x-protobuf", "user-agent": "tfs_lite"}
        if compression:
            self._headers["content-encoding"] = compression
        self._compress = _COMPRESS.get(compression, bytes)
        self._timeout = timeout
        self._context = context
        self._closed = threading.Event()

    def send(self, body: bytes) -> str:
        """Why the collector has not taken the spans; empty if it has. Tries again while that may help, for at most the
        timeout."""
        packed, ends, pause = self._compress(body), time.monotonic() + self._timeout, FIRST_PAUSE
        while True:
            why, again, wanted = self._attempt(packed, ends - time.monotonic())
            wait = max(wanted, pause * random.uniform(0.8, 1.2))
            if not again or time.monotonic() + wait >= ends or self._closed.wait(wait):
                return why
            pause = min(2 * pause, LONGEST_PAUSE)

    def close(self) -> None:
        """There are no more attempts."""
        self._closed.set()

    def _attempt(self, body: bytes, seconds: float) -> tuple[str, bool, float]:
        """Why it has failed, whether another attempt may help, and after how many seconds the collector wants it."""
        request = urllib.request.Request(self._url, body, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=max(seconds, 0.1), context=self._context):
                return "", False, 0.0
        except urllib.error.HTTPError as error:
            with error:
                after = error.headers.get("retry-after", "")
            return f"HTTP {error.code}", error.code in RETRIED, float(after) if after.isdigit() else 0.0
        except (OSError, ValueError, HTTPException) as error:
            return f"{self._url}: {error}", True, 0.0


def collector_client(config: TraceConfig, environment: Mapping[str, str] = os.environ) -> CollectorClient:
    """As the flag and the environment say. FAILED_PRECONDITION names a variable that cannot be used."""

    def said(name: str) -> tuple[str, str]:
        """The name of the variable, and what it says: that of traces before that of every signal."""
        own, common = f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"
        name = own if environment.get(own, "").strip() else common
        return name, environment.get(name, "").strip()

    name, url = said("ENDPOINT")
    if not name.endswith("TRACES_ENDPOINT"):
        url = (url or DEFAULT_URL).rstrip("/") + PATH
    if not (config.url or url).startswith(("http://", "https://")):
        raise failed_precondition(f"{name} is {url:.200}, expected http://HOST:PORT")
    name, text = said("TIMEOUT")
    try:
        timeout = float(text or TIMEOUT)
    except ValueError:
        timeout = 0.0
    if not 0 < timeout < 3600:
        raise failed_precondition(f"{name} is {text:.200}, expected seconds")
    name, compression = said("COMPRESSION")
    if compression not in ("", "none", *_COMPRESS):
        raise failed_precondition(f"{name} is {compression:.200}, expected none, {' or '.join(_COMPRESS)}")
    name, text = said("HEADERS")
    headers = {key.lower(): value for key, value in _pairs(name, text).items()}
    _, authority = said("CERTIFICATE")
    _, certificate = said("CLIENT_CERTIFICATE")
    _, key = said("CLIENT_KEY")
    context = None
    if authority or certificate:
        try:
            context = ssl.create_default_context(cafile=authority or None)
            if certificate:
                context.load_cert_chain(certificate, key or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (authority, certificate, key)))
            raise failed_precondition(f"certificates for the collector of traces ({files}): {error}") from None
    return CollectorClient(config.url or url, headers, timeout, "" if compression == "none" else compression, context)


def resource_of(config: TraceConfig, environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """What is said of this server: by the flag, before the environment."""
    name = "OTEL_RESOURCE_ATTRIBUTES"
    found = {"service.name": "tfs_lite", **_pairs(name, environment.get(name, ""))}
    service = environment.get("OTEL_SERVICE_NAME", "").strip()
    return {**found, **({"service.name": service} if service else {}), **config.resource}


def _pairs(name: str, text: str) -> dict[str, str]:
    """``NAME=VALUE,NAME=VALUE``, with percent escapes. FAILED_PRECONDITION for anything else."""
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not (equals and key.strip()):
            raise failed_precondition(f"{name}: {pair:.200}: expected NAME=VALUE")
        found[unquote(key.strip())] = unquote(value.strip())
    return found
