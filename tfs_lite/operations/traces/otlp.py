"""Spans as OpenTelemetry's messages, and what a collector answers.

The messages are those of ``opentelemetry-proto``. OpenTelemetry's own exporter for Python takes spans of its SDK only,
and making and encoding those takes four times the CPU of the messages, in the process that serves.

Source: OpenTelemetry's specification of OTLP 1.9 (JSON, what is retried, partial success).
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from tfs_lite.core.status import failed_precondition
from tfs_lite.operations.traces.environment import JSON, UNLIMITED, SpanLimits
from tfs_lite.operations.traces.spans import SERVER, Span

NO_LIMITS = SpanLimits()
ALL = 1 << 62
"""A number that is more than the spans sent."""
_REMOTE_KNOWN, _REMOTE = 0x100, 0x200
"""Bits in the flags of a span: whether it is known that its parent is another process', and that it is."""


class SpanEncoder:
    """Makes the body of an export. ``resource``: what is said of this server."""

    def __init__(self, resource: Mapping[str, str], limits: SpanLimits = NO_LIMITS, as_json: bool = False) -> None:
        """FAILED_PRECONDITION without the extra ``otel``."""
        self._message = message_of_an_export()
        self._resource = resource
        self._limits = limits
        self._as_json = as_json
        self._offset = time.time_ns() - time.monotonic_ns()

    def encode(self, spans: Sequence[Span]) -> bytes:
        message = self._message()
        of_resource = message.resource_spans.add()
        _add_attributes(of_resource.resource.attributes, self._resource)
        of_scope = of_resource.scope_spans.add()
        of_scope.scope.name = "tfs_lite"
        for span in spans:
            self._add(of_scope.spans, span)
        body: bytes = _json_of(message) if self._as_json else message.SerializeToString()
        return body

    def _add(self, spans: Any, span: Span) -> None:
        is_server, parent, limits = span.kind == SERVER, span.parent, self._limits
        added = spans.add(
            trace_id=span.id.trace.to_bytes(16),
            span_id=span.id.span.to_bytes(8),
            name=_text(span.name),
            kind=2 if is_server else 1,
            start_time_unix_nano=self._wall(span.start),
            end_time_unix_nano=self._wall(span.end),
            trace_state=span.state,
            flags=_REMOTE_KNOWN | _REMOTE if is_server and parent is not None else _REMOTE_KNOWN,
            dropped_attributes_count=max(len(span.attributes) - limits.attributes, 0),
            dropped_events_count=max(len(span.events) - limits.events, 0),
            dropped_links_count=max(len(span.links) - limits.links, 0),
        )
        if parent is not None:
            added.parent_span_id = parent.span.to_bytes(8)
        _add_attributes(added.attributes, dict(islice(span.attributes.items(), limits.attributes)), limits.value_length)
        for name, at in span.events[: limits.events]:
            added.events.add(name=name, time_unix_nano=self._wall(at))
        for link in span.links[: limits.links]:
            added.links.add(trace_id=link.trace.to_bytes(16), span_id=link.span.to_bytes(8), flags=_REMOTE_KNOWN)
        if span.error is not None:
            added.status.code = 2
            added.status.message = _text(span.error)

    def _wall(self, at: float) -> int:
        """Nanoseconds since 1970."""
        return round(at * 1e9) + self._offset


def message_of_an_export() -> Callable[[], Any]:
    """FAILED_PRECONDITION without the extra ``otel``."""
    try:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError as error:
        raise failed_precondition(
            f"trace_config: mode=opentelemetry needs the extra otel: pip install 'tfs-lite[otel]' ({error})"
        ) from None
    found: Callable[[], Any] = ExportTraceServiceRequest
    return found


def _json_of(message: Any) -> bytes:
    """OTLP's JSON is protobuf's but for ids, which are hexadecimal, and enums, which are numbers."""
    tree = json_format.MessageToDict(message, use_integers_for_enums=True)
    for of_resource in tree["resourceSpans"]:
        for span in of_resource["scopeSpans"][0].get("spans", ()):
            for ids in (span, *span.get("links", ())):
                for name in ids.keys() & {"traceId", "spanId", "parentSpanId"}:
                    ids[name] = base64.b64decode(ids[name]).hex()
    return json.dumps(tree).encode()


def _add_attributes(pairs: Any, attributes: Mapping[str, str | int | float | bool], longest: int = UNLIMITED) -> None:
    for key, value in attributes.items():
        into = pairs.add(key=key).value
        if isinstance(value, str):
            into.string_value = _text(value)[:longest]
        elif isinstance(value, bool):
            into.bool_value = value
        elif isinstance(value, int):
            into.int_value = value
        else:
            into.double_value = value


def _text(value: str) -> str:
    """A message takes no half of a character, which an error's text may have."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


class Attempt(NamedTuple):
    """The result of one attempt to send spans. ``rejected``: how many of them the collector has not taken; ALL without
    its word about each. ``why``: its words, or what has failed. ``again``: whether another attempt may help, after so
    many seconds at least."""

    rejected: int = 0
    why: str = ""
    again: bool = False
    wait: float = 0.0


def read_answer(body: bytes, protocol: str) -> Attempt:
    """Reads what the collector has not taken, though it has answered that all is well."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse()
    try:
        if protocol == JSON:
            json_format.Parse(body or b"{}", answer, ignore_unknown_fields=True)
        else:
            answer.ParseFromString(body)
    except (DecodeError, json_format.ParseError):
        return Attempt()  # another server's "well done"
    partial = answer.partial_success
    return Attempt(max(partial.rejected_spans, 0), partial.error_message[:500])
