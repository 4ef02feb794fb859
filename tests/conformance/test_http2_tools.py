"""curl and h2load: gRPC by hand on nghttp2, and what is no gRPC at all.

Servers may answer what is no gRPC in ways of their own: with a status of HTTP, of gRPC, or by resetting the stream.
They never serve it as a call that it is not, and the next call is served.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass

import pytest
from tensorflow_serving.apis import predict_pb2
from tritonclient.grpc import service_pb2

from tests.conformance import transport_tools as tools

GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")
HTTP2 = "--http2-prior-knowledge"
STREAM_RESET = 92
"""curl's exit code when the server reset the stream."""
LARGE = 3_000_000


def tool(name, feature, *probe):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} in PATH")
    shown = subprocess.run([found, *probe], capture_output=True, text=True, timeout=30).stdout
    if feature not in shown:
        pytest.skip(f"this {name} has no {feature}")
    return found


@dataclass(frozen=True)
class Response:
    """``headers``: header lines and trailers together. ``status`` is HTTP's, 0 without one."""

    exit_code: int
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> bytes:
        flag, size = struct.unpack(">BI", self.body[:5])
        assert (flag, size) == (0, len(self.body) - 5)
        return self.body[5:]


@pytest.fixture(scope="session")
def curl_program():
    return tool("curl", "HTTP2", "--version")


@pytest.fixture
def curl(curl_program, triton_server, tmp_path):
    """``curl(path, body, *flags)``: a request to the gRPC port; None: no body."""

    def ask(path, body, *flags, port=triton_server.grpc_port, scheme="http", http=HTTP2):
        headers, answer, sent = (tmp_path / name for name in ("headers", "answer", "sent"))
        for stale in (headers, answer):
            stale.unlink(missing_ok=True)
        command = [curl_program, "-sS", http, "--max-time", "60", "-D", headers, "-o", answer, *flags]
        if body is not None:
            sent.write_bytes(body)
            command += ["--data-binary", f"@{sent}"]
        command += ["--ipv4", f"{scheme}://localhost:{port}{path}"]
        done = subprocess.run(command, capture_output=True, timeout=90)
        lines = headers.read_text().splitlines() if headers.exists() else []
        status = int(lines[0].split()[1]) if lines else 0
        pairs = [line.split(":", 1) for line in lines if ":" in line]
        content = answer.read_bytes() if answer.exists() else b""
        return Response(done.returncode, status, {name.lower(): value.strip() for name, value in pairs}, content)

    return ask


def assert_serves(curl):
    reply = curl(tools.CHECK, tools.framed(b""), *GRPC)
    assert (reply.exit_code, reply.status, reply.headers["grpc-status"]) == (0, 200, "0")


def test_a_call_by_hand(curl):
    reply = curl(tools.PREDICT, tools.framed(tools.predict_sums().SerializeToString()), *GRPC)
    assert (reply.exit_code, reply.status) == (0, 200)
    assert reply.headers["content-type"].startswith("application/grpc")
    assert reply.headers["grpc-status"] == "0"
    answer = predict_pb2.PredictResponse.FromString(reply.message)
    assert list(answer.outputs["sum"].float_val) == tools.sums_of()


def test_errors_are_trailers_with_percent_encoded_text(curl):
    reply = curl(tools.PREDICT, tools.framed(tools.predict_unknown("nö 100% 模").SerializeToString()), *GRPC)
    assert (reply.exit_code, reply.status, reply.body) == (0, 200, b"")
    assert reply.headers["grpc-status"] == "5"
    assert "n%C3%B6 100%25 %E6%A8%A1" in reply.headers["grpc-message"]


@pytest.mark.parametrize("subtype", ["+proto", "; charset=utf-8"])
def test_subtypes_of_the_content_type_are_taken(curl, subtype):
    flags = ("-H", f"content-type: application/grpc{subtype}", "-H", "te: trailers")
    assert curl(tools.CHECK, tools.framed(b""), *flags).headers["grpc-status"] == "0"


def test_the_server_keeps_the_deadline_itself(curl):
    """curl knows nothing of deadlines; it is the server who ends the stream in time."""
    reply = curl(tools.WATCH, tools.framed(b""), *GRPC, "-H", "grpc-timeout: 200m")
    assert reply.exit_code == STREAM_RESET or reply.headers["grpc-status"] == "4"
    assert_serves(curl)


def test_unknown_paths_are_unimplemented(curl):
    """The server may stop an upload that it does not want, and curl may see that first."""
    for path in ("/nonsense", "/tensorflow.serving.PredictionService/predict", "/", "/" + "x" * 4000):
        reply = curl(path, tools.framed(b""), *GRPC)
        found = (reply.status, reply.headers.get("grpc-status"))
        assert found == (200, "12") or reply.exit_code == STREAM_RESET, (path[:50], reply)
    assert_serves(curl)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(curl, method):
    reply = curl(tools.CHECK, None, "-X", method, *GRPC)
    assert reply.exit_code == STREAM_RESET or reply.status == 405 or reply.headers["grpc-status"] != "0"
    assert_serves(curl)


def test_other_content_types_are_refused_or_taken_as_grpc(curl):
    reply = curl(tools.CHECK, tools.framed(b""), "-H", "content-type: text/plain", "-H", "te: trailers")
    assert reply.exit_code == STREAM_RESET or reply.status == 415 or reply.headers["grpc-status"] == "0"
    assert_serves(curl)


BAD_BODIES = {
    "nothing": b"",
    "half a prefix": b"\x00\x00",
    "half a message": tools.framed(b"x" * 100)[:50],
    "a prefix of more than may be": b"\x00\xff\xff\xff\xff",
    "compressed without an encoding": b"\x01" + tools.framed(b"xyz")[1:],
    "two messages": tools.framed(b"") * 2,
    "no protobuf": tools.framed(b"\xff" * 20),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies_are_refused(curl, name):
    """At once, or at the deadline: what ended too early may be waited for. A second message may be ignored."""
    reply = curl(tools.CHECK, BAD_BODIES[name], *GRPC, "-H", "grpc-timeout: 300m")
    served = reply.exit_code == 0 and reply.headers.get("grpc-status") == "0"
    assert not served or name == "two messages"
    assert_serves(curl)


def test_large_uploads_and_answers(curl):
    sent = tools.infer_plain(LARGE)
    reply = curl(tools.INFER, tools.framed(sent.SerializeToString()), *GRPC)
    assert (reply.exit_code, reply.headers["grpc-status"]) == (0, "0")
    answer = service_pb2.ModelInferResponse.FromString(reply.message)
    assert answer.raw_output_contents[0] == sent.raw_input_contents[0]


def test_uploads_above_the_limit_are_refused(curl, narrow_server):
    body = tools.framed(tools.infer_plain(LARGE).SerializeToString())
    reply = curl(tools.INFER, body, *GRPC, port=narrow_server.grpc_port)
    assert reply.exit_code == STREAM_RESET or reply.headers["grpc-status"] == "8"
    body = tools.framed(tools.infer_plain(4).SerializeToString())
    small = curl(tools.INFER, body, *GRPC, port=narrow_server.grpc_port)
    assert small.headers["grpc-status"] == "0"


@pytest.mark.parametrize("path", ["/", tools.CHECK])
def test_http1_is_refused_at_once(curl, path):
    """Without HTTP/2 there is no gRPC: the connection ends, with or without an HTTP/1.1 response before."""
    reply = curl(path, tools.framed(b""), *GRPC, http="--http1.1")
    assert reply.exit_code not in (0, 28) or reply.status >= 400
    assert_serves(curl)


def test_tls(curl, tls_server, certificates):
    where = {"port": tls_server.grpc_port, "scheme": "https", "http": "--http2"}
    root = ("--cacert", str(certificates.root_file))
    reply = curl(tools.CHECK, tools.framed(b""), *GRPC, *root, **where)
    assert (reply.exit_code, reply.status, reply.headers["grpc-status"]) == (0, 200, "0")
    assert curl(tools.CHECK, tools.framed(b""), *GRPC, **where).exit_code == 60, "curl knows the authority"
    plain = curl(tools.CHECK, tools.framed(b""), *GRPC, port=tls_server.grpc_port)
    assert (plain.exit_code != 0, plain.status) == (True, 0), "a client without TLS was served"


@pytest.fixture(scope="session")
def h2load_program():
    return tool("h2load", "window-bits", "--help")


@pytest.fixture
def h2load(h2load_program, triton_server, tmp_path):
    """``h2load(path, message, count, *flags)``: every one of ``count`` calls is answered with 200."""

    def load(path, message, count, *flags, target=f"http://{triton_server.target}"):
        sent = tmp_path / "sent"
        sent.write_bytes(tools.framed(message))
        command = [h2load_program, "-n", str(count), "-d", str(sent), *GRPC, *flags, f"{target}{path}"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        expected = f"{count} done, {count} succeeded, 0 failed, 0 errored, 0 timeout"
        assert expected in shown, shown
        assert f"status codes: {count} 2xx" in shown, shown

    return load


@pytest.mark.parametrize(("clients", "streams"), [(1, 1), (1, 100), (10, 10), (50, 2)])
def test_h2load_with_many_streams_and_connections(h2load, clients, streams):
    h2load(tools.CHECK, b"", 1000, "-c", str(clients), "-m", str(streams))


def test_h2load_with_predictions(h2load):
    h2load(tools.PREDICT, tools.predict_sums().SerializeToString(), 400, "-c", "4", "-m", "16")


@pytest.mark.parametrize("bits", ["8", "16", "30"])
def test_h2load_with_windows_of_any_size(h2load, bits):
    """Answers of 20 kB through windows of 255 bytes and more: of the stream, of the connection, of both."""
    message = tools.infer_plain(10_000).SerializeToString()
    for flags in (("-w", bits), ("-w", bits, "-W", bits)):
        h2load(tools.INFER, message, 60, "-c", "2", "-m", "8", *flags)


def test_h2load_with_small_tables_of_headers(h2load):
    h2load(tools.CHECK, b"", 200, "-m", "10", "--header-table-size=0", "--encoder-header-table-size=0")
    h2load(tools.CHECK, b"", 200, "-m", "10", "--header-table-size=64K", "--encoder-header-table-size=64K")


def test_h2load_over_tls(h2load, tls_server):
    h2load(tools.CHECK, b"", 400, "-c", "4", "-m", "16", target=f"https://localhost:{tls_server.grpc_port}")
