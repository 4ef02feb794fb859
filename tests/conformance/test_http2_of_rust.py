"""connectrpc's gRPC client on reqwest, hyper and h2: the HTTP/2 of Rust's gRPC clients."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from connectrpc.client import ConnectClientSync, ResponseMetadata
from connectrpc.code import Code
from connectrpc.compat import google_protobuf_binary_codec
from connectrpc.compression.gzip import GzipCompression
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.protocol import ProtocolType
from grpc_health.v1 import health_pb2
from pyqwest import HTTPVersion, SyncClient, SyncHTTPTransport
from tensorflow_serving.apis import predict_pb2
from tritonclient.grpc import service_pb2

from tests.conformance import transport_tools as tools

LARGE = 3_000_000
TIMEOUT_MS = 60_000


def method(path, sent, answer, kind=StreamType.UNARY):
    _, service, name = path.split("/")
    names = {"name": name, "service_name": service, "input": sent, "output": answer}
    return MethodInfo(**names, idempotency_level=IdempotencyLevel.UNKNOWN, stream_type=kind)


PREDICT_METHOD = method(tools.PREDICT, predict_pb2.PredictRequest, predict_pb2.PredictResponse)
INFER_METHOD = method(tools.INFER, service_pb2.ModelInferRequest, service_pb2.ModelInferResponse)
HEALTH = (health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
WATCH_METHOD = method(tools.WATCH, *HEALTH, StreamType.SERVER_STREAM)
STREAMED = (service_pb2.ModelInferRequest, service_pb2.ModelStreamInferResponse)
STREAM_METHOD = method(tools.STREAM, *STREAMED, StreamType.BIDI_STREAM)


class Client:
    """One connection pool, which opens one connection for all calls that HTTP/2 can carry side by side."""

    def __init__(self, address, http, compression=None):
        how = {"codec": google_protobuf_binary_codec(), "protocol": ProtocolType.GRPC}
        self._client = ConnectClientSync(address, **how, send_compression=compression, http_client=http)

    def call(self, which, request, timeout_ms=TIMEOUT_MS, **how):
        return self._client.execute_unary(request=request, method=which, timeout_ms=timeout_ms, **how)

    def add(self, first=(1.0, 2.0, 3.0, 4.0), **how):
        return list(self.call(PREDICT_METHOD, tools.predict_sums(first), **how).outputs["sum"].float_val)

    def watch(self):
        how = {"method": WATCH_METHOD, "timeout_ms": TIMEOUT_MS}
        return self._client.execute_server_stream(request=health_pb2.HealthCheckRequest(), **how)

    def stream(self, requests, **how):
        how |= {"method": STREAM_METHOD, "timeout_ms": TIMEOUT_MS}
        return self._client.execute_bidi_stream(request=iter(requests), **how)


@contextmanager
def connected(address, compression=None, **settings):
    with SyncHTTPTransport(http_version=HTTPVersion.HTTP2, **settings) as transport:
        yield Client(address, SyncClient(transport), compression)


@pytest.fixture
def client(triton_server):
    with connected(f"http://{triton_server.target}") as found:
        yield found


def refused(code, call, *given, **how):
    with pytest.raises(ConnectError) as caught:
        call(*given, **how)
    assert caught.value.code is code, caught.value
    return caught.value.message


def test_predict(client):
    with ResponseMetadata() as seen:
        assert client.add() == tools.sums_of()
    assert seen.headers["content-type"].startswith("application/grpc")


def test_errors_have_code_and_words(client):
    text = refused(Code.NOT_FOUND, client.call, PREDICT_METHOD, tools.predict_unknown())
    for word in ("nö 100% моделей", "模型 🙂", "+%41 <&>;=,"):
        assert word in text
    refused(Code.INVALID_ARGUMENT, client.call, PREDICT_METHOD, predict_pb2.PredictRequest())
    nonsense = method(tools.PREDICT + "s", predict_pb2.PredictRequest, predict_pb2.PredictResponse)
    refused(Code.UNIMPLEMENTED, client.call, nonsense, tools.predict_sums())
    assert client.add() == tools.sums_of()


def test_metadata_of_every_kind_is_taken(client):
    headers = {"x-plain": "with = and ;", "x-empty": "", "x-bytes-bin": "AAEC/w"}
    assert client.add(headers=headers | {f"x-{n}": "v" * n for n in range(50)}) == tools.sums_of()


def test_a_deadline_ends_a_call_that_waits(client, waiting, queued):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.call, INFER_METHOD, tools.infer_gate())
        waiting.wait_entered()
        refused(Code.DEADLINE_EXCEEDED, client.call, INFER_METHOD, tools.infer_gate(), timeout_ms=300)
        queued(0)
        waiting.open()
        assert first.result().model_name == "gate"


def test_watch_sends_the_state_at_once_and_may_be_closed(client):
    states = client.watch()
    assert next(states).status == health_pb2.HealthCheckResponse.SERVING
    states.close()
    assert client.add() == tools.sums_of()


def test_stream_answers_while_the_client_still_sends(client):
    turns = SimpleQueue()
    answers = []

    def requests():
        for index in range(20):
            yield tools.infer_repeat(index, -index)
            turns.get(timeout=60)

    for answer in client.stream(requests()):
        answers.append(answer)
        if len(answers) % 2 == 0:
            turns.put(None)
    assert tools.stream_values(answers) == [value for index in range(20) for value in (index, -index)]


def test_metadata_reaches_the_method(client):
    request = service_pb2.ModelInferRequest(model_name="nobody")
    assert [answer.error_message != "" for answer in client.stream([request])] == [True]
    refused(Code.NOT_FOUND, list, client.stream([request], headers={"triton_grpc_error": "true"}))


@pytest.mark.parametrize("compression", [None, GzipCompression()], ids=["identity", "gzip"])
def test_large_messages_both_ways(triton_server, compression):
    sent = tools.infer_plain(LARGE)
    with connected(f"http://{triton_server.target}", compression) as client:
        answer = client.call(INFER_METHOD, sent)
        assert answer.raw_output_contents[0] == sent.raw_input_contents[0]
        assert client.add() == tools.sums_of()


def test_many_calls_at_once(client):
    firsts = [(float(index), 0.0, 1.0, 2.0) for index in range(200)]
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(client.add, firsts)) == [tools.sums_of(first) for first in firsts]


def test_tls(tls_server, certificates):
    address = f"https://localhost:{tls_server.grpc_port}"
    with connected(address, tls_ca_cert=certificates.root) as client:
        assert client.add() == tools.sums_of()
    with connected(address, tls_include_system_certs=True) as stranger:
        refused(Code.UNAVAILABLE, stranger.add)
