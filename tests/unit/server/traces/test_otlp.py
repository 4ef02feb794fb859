"""Spans as messages, and the way to a collector: a real one, over HTTP."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tfs_lite.core.status import StatusCode
from tfs_lite.server.traces import otlp
from tfs_lite.server.traces.otlp import SpanEncoder, collector_client, resource_of
from tfs_lite.server.traces.spans import SERVER, Span, SpanId
from tfs_lite.serving.statistics.trace_config import read_trace_config
from tfs_lite.testing.errors import refusal
from tfs_lite.testing.servers.collector import TraceCollector
from tfs_lite.testing.servers.process import wait_until

pytest.importorskip("opentelemetry.proto", reason="the extra `otel` is not installed")

ROOT, CHILD = SpanId(1, 2), SpanId(1, 3)
SPANS = (
    Span(
        "Predict m",
        ROOT,
        SpanId(1, 9),
        1.0,
        2.0,
        SERVER,
        {"text": "ä\ud800", "whole": -5, "half": 0.5, "yes": True},
        error="INTERNAL: \udcff broken",
        state="a=1",
    ),
    Span("compute", CHILD, ROOT, 1.25, 1.5, events=[("COMPUTE_START", 1.25)], links=[SpanId(7, 8)]),
)


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    with TraceCollector() as found:
        yield found


def config(url: str = "") -> Any:
    return read_trace_config(("mode=opentelemetry", *(("opentelemetry", f"url={url}") if url else ())))


def body(**resource: str) -> bytes:
    return SpanEncoder(resource).encode(SPANS)


@pytest.mark.parametrize("compression", ["", "none", "gzip", "deflate"])
def test_a_collector_reads_what_was_said_of_a_span(collector: TraceCollector, compression: str):
    client = collector_client(config(collector.url), {"OTEL_EXPORTER_OTLP_COMPRESSION": compression})
    assert client.send(body(zone="b")) == ""
    root, child = collector.spans
    assert (root.name, root.kind, root.failed, root.state) == ("Predict m", 2, True, "a=1")
    assert (root.trace_id, root.span_id, root.parent_id) == (f"{1:032x}", f"{2:016x}", f"{9:016x}")
    assert root.attributes == {"text": "ä?", "whole": -5, "half": 0.5, "yes": True}
    assert root.resource == {"zone": "b"}
    assert root.end - root.start == 1_000_000_000
    assert (child.parent_id, child.kind, child.failed) == (f"{2:016x}", 1, False)
    assert child.events == (("COMPUTE_START", root.start + 250_000_000),)
    assert child.links == ((f"{7:032x}", f"{8:016x}"),)


def test_a_collector_that_is_busy_is_asked_again_and_one_that_refuses_is_not(
    collector: TraceCollector, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(otlp, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(otlp, "LONGEST_PAUSE", 0.02)
    client = collector_client(config(collector.url), {})
    collector.status = 400
    assert client.send(body()) == "HTTP 400"
    assert collector.requests == 1
    collector.status = 503
    asked = threading.Thread(target=client.send, args=(body(),))
    asked.start()
    wait_until(lambda: collector.requests > 3, "it was asked again", 30)
    collector.status = 200
    asked.join(60)
    assert len(collector.spans) == len(SPANS)


def test_attempts_end_with_the_timeout_and_with_the_client(collector: TraceCollector):
    collector.status = 503
    client = collector_client(config(collector.url), {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"})
    assert client.send(body()) == "HTTP 503"
    client = collector_client(config(collector.url), {})
    client.close()
    assert client.send(body()) == "HTTP 503"


def test_nobody_there_is_said_with_the_address():
    client = collector_client(config("http://127.0.0.1:9/v1/traces"), {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"})
    assert client.send(body()).startswith("http://127.0.0.1:9/v1/traces: ")


def test_a_collector_with_certificates_of_its_own_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with TraceCollector(context) as found:
        variables = {"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": str(tmp_path / "ca.pem")}
        assert collector_client(config(found.url), variables).send(body()) == ""
        stranger = collector_client(config(found.url), {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"})
        assert "certificate verify failed" in stranger.send(body())
        assert len(found.spans) == len(SPANS)


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "http://localhost:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://a:1/b/"}, "https://a:1/b/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/d"}, "http://c/d"),
    ],
)
def test_the_environment_says_where_the_collector_is(variables: dict[str, str], url: str):
    assert collector_client(config(), variables)._url == url
    assert collector_client(config("http://flag/x"), variables)._url == "http://flag/x"


def test_headers_of_the_environment_are_sent():
    variables = {"OTEL_EXPORTER_OTLP_HEADERS": "Api-Key=a%20b, other = c"}
    headers = collector_client(config(), variables)._headers
    assert (headers["api-key"], headers["other"]) == ("a b", "c")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ENDPOINT", "collector:4318", "expected http://HOST:PORT"),
        ("TRACES_TIMEOUT", "soon", "expected seconds"),
        ("TIMEOUT", "-1", "expected seconds"),
        ("COMPRESSION", "zip", "expected none, gzip or deflate"),
        ("HEADERS", "secret", "expected NAME=VALUE"),
        ("CERTIFICATE", "/not/there.pem", "certificates for the collector of traces (/not/there.pem)"),
    ],
)
def test_variables_that_cannot_be_used_are_refused_by_name(name: str, value: str, words: str):
    variables = {f"OTEL_EXPORTER_OTLP_{name}": value}
    message = refusal(collector_client, config(), variables, code=StatusCode.FAILED_PRECONDITION)
    assert words in message
    assert name == "CERTIFICATE" or message.startswith(f"OTEL_EXPORTER_OTLP_{name}")


def test_the_resource_is_named_by_the_flag_before_the_environment():
    named = read_trace_config(("mode=opentelemetry", "opentelemetry", "resource=zone=b"))
    assert resource_of(named, {}) == {"service.name": "tfs_lite", "zone": "b"}
    variables = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=c,zone=d%2C,more=1"}
    assert resource_of(named, variables) == {"service.name": "c", "zone": "b", "more": "1"}
    assert resource_of(named, {**variables, "OTEL_SERVICE_NAME": "e"})["service.name"] == "e"
