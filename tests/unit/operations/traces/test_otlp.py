"""Spans as messages, and the way to a collector: a real one, over HTTP and gRPC."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme
from google.protobuf.any_pb2 import Any as AnyMessage

from tests.support.servers.collector import GrpcTraceCollector, TraceCollector
from tests.support.servers.process import wait_until
from tfs_lite.operations.traces import collector_client
from tfs_lite.operations.traces.collector_client import CollectorClient, check_certificates
from tfs_lite.operations.traces.environment import SpanLimits, read_environment
from tfs_lite.operations.traces.otlp import ALL, Attempt, SpanEncoder, message_of_an_export
from tfs_lite.operations.traces.spans import SERVER, Span, SpanId
from tfs_lite.serving.statistics.trace_config import read_trace_config

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


RETRY_INFO = (
    lambda detail: bytes([0x08, 8, 0x1A, len(detail)]) + detail  # a google.rpc.Status
)(
    AnyMessage(
        type_url="type.googleapis.com/google.rpc.RetryInfo", value=bytes.fromhex("0a0808011080cab5ee01")
    ).SerializeToString()
)
"""The status' details: the collector wants another attempt after 1.5 seconds."""


def client_of(collector: TraceCollector, **variables: str) -> CollectorClient:
    """As the environment says; names of variables are without what they all begin with."""
    named = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    scheme = "https" if isinstance(collector, GrpcTraceCollector) and "CERTIFICATE" in variables else "http"
    url = collector.url if "://" in collector.url else f"{scheme}://{collector.url}"
    config = read_trace_config(("mode=opentelemetry", "opentelemetry", f"url={url}"))
    return CollectorClient(read_environment(config, named).otlp)


def body(as_json: bool = False, **resource: str) -> bytes:
    return SpanEncoder(resource, as_json=as_json).encode(SPANS)


PROTOCOLS = ("grpc", "http/protobuf", "http/json")


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def collector(protocol: str) -> Iterator[TraceCollector]:
    with GrpcTraceCollector() if protocol == "grpc" else TraceCollector() as found:
        yield found


@pytest.mark.parametrize("compression", ["", "none", "gzip", "deflate"])
def test_a_collector_reads_what_was_said_of_a_span(collector: TraceCollector, protocol: str, compression: str) -> None:
    client = client_of(collector, PROTOCOL=protocol, COMPRESSION=compression, HEADERS="Api-Key=a%20b")
    assert client.send(body(protocol == "http/json", zone="b")) == Attempt()
    client.close()
    assert collector.heads[0]["api-key"] == "a b"
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
    collector: TraceCollector, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_client, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(collector_client, "LONGEST_PAUSE", 0.02)
    client = client_of(collector, PROTOCOL=protocol)

    def answers(status: int, code: grpc.StatusCode) -> None:
        collector.status = status
        if isinstance(collector, GrpcTraceCollector):
            collector.status, collector.code = 200 if code is grpc.StatusCode.OK else 500, code

    sent = body(protocol == "http/json")
    answers(400, grpc.StatusCode.INVALID_ARGUMENT)
    last = client.send(sent)
    assert last.rejected == ALL
    assert last.why == ("HTTP 400" if protocol != "grpc" else f"{collector.url}: INVALID_ARGUMENT: not now")
    assert collector.requests == 1
    answers(503, grpc.StatusCode.UNAVAILABLE)
    asked = threading.Thread(target=client.send, args=(sent,))
    asked.start()
    wait_until(lambda: collector.requests > 3, "it was asked again", 30)
    answers(200, grpc.StatusCode.OK)
    asked.join(60)
    client.close()
    assert len(collector.spans) == len(SPANS)


@pytest.mark.parametrize(("details", "again"), [(b"", False), (RETRY_INFO, True)])
def test_a_collector_without_room_is_asked_again_where_it_says_so(details: bytes, again: bool) -> None:
    with GrpcTraceCollector() as collector:
        collector.code, collector.details = grpc.StatusCode.RESOURCE_EXHAUSTED, details
        client = client_of(collector, PROTOCOL="grpc", TIMEOUT="500")
        last = client.send(body())
        client.close()
    assert (last.again, last.wait) == (again, 1.5 if again else 0.0)


def test_what_a_collector_rejects_is_told(collector: TraceCollector, protocol: str) -> None:
    collector.rejects, collector.words = 1, "no room for more"
    client = client_of(collector, PROTOCOL=protocol)
    assert client.send(body(protocol == "http/json")) == Attempt(1, "no room for more")
    collector.rejects = 0
    assert client.send(body(protocol == "http/json")) == Attempt(0, "no room for more")
    client.close()


def test_attempts_end_with_the_timeout_and_with_the_client() -> None:
    with TraceCollector() as collector:
        collector.status = 503
        assert client_of(collector, TIMEOUT="500").send(body()).why == "HTTP 503"
        client = client_of(collector)
        client.close()
        assert client.send(body()).why == "HTTP 503"


def test_an_attempt_over_grpc_that_waits_ends_with_the_client() -> None:
    with GrpcTraceCollector() as collector:
        collector.open.clear()
        client = client_of(collector, PROTOCOL="grpc")
        found: list[Attempt] = []
        asked = threading.Thread(target=lambda: found.append(client.send(body())))
        asked.start()
        wait_until(lambda: client._way._channel is not None, "it is asked", 30)  # type: ignore[attr-defined]
        client.close()
        asked.join(60)
        assert found[0].rejected == ALL


def test_a_redirect_is_no_export() -> None:
    with TraceCollector() as collector:
        collector.status = 302
        assert client_of(collector).send(body()).why == "HTTP 302"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_nobody_there_is_said_with_the_address(protocol: str) -> None:
    config = read_trace_config(("mode=opentelemetry", "opentelemetry", "url=http://127.0.0.1:9"))
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_TIMEOUT": "200"}
    client = CollectorClient(read_environment(config, variables).otlp)
    last = client.send(body())
    client.close()
    assert last.why.removeprefix("http://").startswith("127.0.0.1:9: ")


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_with_certificates_of_its_own_is_reached(tmp_path: Path, protocol: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    found: TraceCollector
    if protocol == "grpc":
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        found = GrpcTraceCollector(grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)]))
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        found = TraceCollector(context)
    with found:
        client = client_of(found, PROTOCOL=protocol, CERTIFICATE=str(tmp_path / "ca.pem"))
        assert client.send(body()) == Attempt()
        client.close()
        stranger = trustme.CA()
        stranger.cert_pem.write_to_path(str(tmp_path / "other.pem"))
        client = client_of(found, PROTOCOL=protocol, CERTIFICATE=str(tmp_path / "other.pem"), TIMEOUT="400")
        assert client.send(body()).rejected == ALL
        client.close()
        assert len(found.spans) == len(SPANS)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_certificate_that_is_not_there_loses_traces_until_it_is(tmp_path: Path, protocol: str) -> None:
    config = read_trace_config(("mode=opentelemetry", "opentelemetry", "url=https://127.0.0.1:9"))
    missing = str(tmp_path / "ca.pem")
    variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": missing, "OTEL_EXPORTER_OTLP_TIMEOUT": "200"}
    settings = read_environment(config, {**variables, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}).otlp
    assert missing in check_certificates(settings)
    assert missing in CollectorClient(settings).send(body()).why
    trustme.CA().cert_pem.write_to_path(missing)
    assert check_certificates(settings) == ""


def test_limits_of_spans_hold_and_what_they_leave_out_is_counted() -> None:
    message = message_of_an_export()()
    message.ParseFromString(SpanEncoder({}, SpanLimits(1, 0, 0, 0)).encode(SPANS))
    root, child = message.resource_spans[0].scope_spans[0].spans
    assert [(pair.key, pair.value.string_value) for pair in root.attributes] == [("text", "")]
    assert root.dropped_attributes_count == 3
    assert (child.dropped_events_count, child.dropped_links_count) == (1, 1)
    assert (len(child.events), len(child.links)) == (0, 0)
