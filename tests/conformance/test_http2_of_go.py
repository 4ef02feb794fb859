"""buf curl, a gRPC client in Go: Go's HTTP/2, with schemas from our descriptors or from the server's reflection."""

import base64
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.transport_tools import CHECK, EVERY_KIND, INFER, PREDICT, STREAM, WATCH, sums_of

BUF = Path(sys.executable).with_name("buf")
NOT_FOUND, INVALID_ARGUMENT, DEADLINE_EXCEEDED = 5, 3, 4
LARGE = 1_000_000


def values_of(text):
    """JSON values one after the other."""
    decoder, found, rest = json.JSONDecoder(), [], text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    return found


@pytest.fixture
def buf(triton_server, descriptors, tmp_path):
    """``buf(path, *messages)``: what came, and the gRPC code of the end."""
    if not BUF.exists():
        pytest.skip("no buf beside this Python (pip: buf-bin)")

    def ask(path, *messages, address=f"http://{triton_server.target}", schema=("--schema", str(descriptors)), flags=()):
        sent = tmp_path / "sent.json"
        sent.write_text("\n".join(json.dumps(message) for message in messages))
        command = [BUF, "curl", "--protocol", "grpc", *schema, *flags, "-d", f"@{sent}", f"{address}{path}"]
        if address.startswith("http:"):
            command.insert(2, "--http2-prior-knowledge")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        return values_of(done.stdout), done.returncode >> 3, done.stderr

    return ask


def sums_request(first=(1, 2, 3, 4)):
    shape = {"dim": [{"size": 1}, {"size": 4}]}
    tensors = {"a": list(first), "b": [1] * 4}
    return {
        "model_spec": {"name": "sums", "version": 1},
        "inputs": {
            name: {"dtype": "DT_FLOAT", "tensor_shape": shape, "float_val": values} for name, values in tensors.items()
        },
    }


def raw_request(model, name, datatype, shape, content):
    return {
        "model_name": model,
        "inputs": [{"name": name, "datatype": datatype, "shape": shape}],
        "raw_input_contents": [base64.b64encode(content).decode()],
    }


@pytest.mark.parametrize("by_reflection", [False, True], ids=["our descriptors", "reflection"])
def test_predict(buf, by_reflection):
    how = {"schema": ("--reflect",)} if by_reflection else {}
    found, code, error = buf(PREDICT, sums_request(), **how)
    assert (code, error) == (0, "")
    assert found[0]["outputs"]["sum"]["floatVal"] == sums_of()


@pytest.mark.parametrize("version", ["grpc-v1", "grpc-v1alpha"])
def test_reflection_describes_every_service(buf, version):
    """Go's client follows every dependency of every file."""
    found, code, error = buf(CHECK, {}, schema=("--reflect", "--reflect-protocol", version))
    assert (found, code, error) == ([{"status": "SERVING"}], 0, "")


def test_reflection_lists_the_services(triton_server, tmp_path):
    if not BUF.exists():
        pytest.skip("no buf beside this Python (pip: buf-bin)")
    command = [BUF, "curl", "--protocol", "grpc", "--reflect", "--list-services", f"http://{triton_server.target}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert {path.split("/")[1] for path in (PREDICT, INFER, STREAM, CHECK, WATCH)} <= set(done.stdout.split())


def test_errors_have_code_and_words(buf):
    _, code, error = buf(PREDICT, {"model_spec": {"name": EVERY_KIND}})
    assert code == NOT_FOUND
    for word in ("nö 100% моделей", "模型 🙂", "+%41 <&>;=,"):
        assert word in json.loads(error)["message"]
    assert buf(PREDICT, {})[1] == INVALID_ARGUMENT


def test_metadata_reaches_the_method(buf):
    flags = ("-H", "triton_grpc_error: true", "-H", "x-bytes-bin: AAEC/w==", "-H", "x-empty:")
    assert buf(STREAM, {"model_name": "nobody"}, flags=flags)[1] == NOT_FOUND


def test_watch_ends_at_the_deadline(buf):
    found, code, _ = buf(WATCH, {}, flags=("--timeout", "1s"))
    assert (found, code) == ([{"status": "SERVING"}], DEADLINE_EXCEEDED)


def test_stream(buf):
    messages = [raw_request("repeat", "IN", "INT32", [3], struct.pack("<3i", n, n + 1, n + 2)) for n in range(50)]
    found, code, error = buf(STREAM, *messages)
    assert (code, error) == (0, "")
    contents = [base64.b64decode(answer["inferResponse"]["rawOutputContents"][0]) for answer in found]
    assert [struct.unpack("<i", content)[0] for content in contents] == [n + k for n in range(50) for k in range(3)]


def test_large_messages_both_ways(buf):
    content = bytes(range(256)) * (2 * LARGE // 256)
    found, code, error = buf(INFER, raw_request("plain", "x", "INT16", [1, len(content) // 2], content))
    assert (code, error) == (0, "")
    assert base64.b64decode(found[0]["rawOutputContents"][0]) == content


def test_tls(buf, tls_server, certificates):
    where = {"address": f"https://localhost:{tls_server.grpc_port}"}
    found, code, error = buf(CHECK, {}, flags=("--cacert", str(certificates.root_file)), **where)
    assert (found, code, error) == ([{"status": "SERVING"}], 0, "")
    assert buf(CHECK, {}, **where)[0] == [], "buf knows the authority without being error"
