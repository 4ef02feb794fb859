"""grpclib, a gRPC client in pure Python on the h2 library, for asyncio."""

import asyncio
import socket
import ssl
import subprocess
import sys

import pytest
from grpc_health.v1 import health_pb2
from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from tensorflow_serving.apis import predict_pb2
from tritonclient.grpc import service_pb2

from tests.conformance import transport_tools as tools

SERVING = health_pb2.HealthCheckResponse.SERVING
LARGE = 3_000_000
TIMEOUT = 60.0


class Client(Channel):
    """A channel, and the methods that the tests call."""

    def __init__(self, port, **settings):
        super().__init__("127.0.0.1", port, **settings)
        self.predict = UnaryUnaryMethod(self, tools.PREDICT, predict_pb2.PredictRequest, predict_pb2.PredictResponse)
        self.infer = UnaryUnaryMethod(self, tools.INFER, service_pb2.ModelInferRequest, service_pb2.ModelInferResponse)
        self.check = UnaryUnaryMethod(self, tools.CHECK, health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
        self.watch = UnaryStreamMethod(self, tools.WATCH, health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
        answer = service_pb2.ModelStreamInferResponse
        self.stream = StreamStreamMethod(self, tools.STREAM, service_pb2.ModelInferRequest, answer)

    async def __aexit__(self, *error):
        """Returns once the connection is gone; the library only begins to close it, and TLS takes leave for long."""
        gone, protocol = asyncio.Event(), self._protocol
        if protocol is not None:
            lost = protocol.connection_lost
            protocol.connection_lost = lambda cause: (lost(cause), gone.set())
            transport = protocol.processor.connection._transport
            await super().__aexit__(*error)
            transport.abort()
            await gone.wait()


@pytest.fixture
def talk(triton_server):
    """Runs a coroutine of a client of the server: ``talk(chat)`` with ``async def chat(client)``."""

    def run(chat, port=triton_server.grpc_port, **settings):
        async def whole():
            async with Client(port, **settings) as client:
                return await chat(client)

        return asyncio.run(whole())

    return run


async def add(client, first=(1.0, 2.0, 3.0, 4.0), **how):
    answer = await client.predict(tools.predict_sums(first), timeout=TIMEOUT, **how)
    return list(answer.outputs["sum"].float_val)


def test_predict(talk):
    assert talk(add) == tools.sums_of()


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("predict", tools.predict_unknown(), Status.NOT_FOUND),
        ("check", health_pb2.HealthCheckRequest(service=tools.EVERY_KIND), Status.NOT_FOUND),
        ("predict", predict_pb2.PredictRequest(), Status.INVALID_ARGUMENT),
        ("infer", service_pb2.ModelInferRequest(model_name="sums"), Status.INVALID_ARGUMENT),
    ],
    ids=["unknown model", "unknown service", "no name", "no inputs"],
)
def test_errors_have_code_and_words(talk, method, request_, code):
    async def ask(client):
        with pytest.raises(GRPCError) as caught:
            await getattr(client, method)(request_, timeout=TIMEOUT)
        return caught.value, await add(client)

    error, after = talk(ask)
    assert error.status is code
    assert after == tools.sums_of(), "the connection goes on"
    if code is Status.NOT_FOUND:
        for word in ("nö 100% моделей", "模型 🙂", "+%41 <&>;=,"):
            assert word in error.message


def test_unknown_methods_are_unimplemented(talk):
    async def ask(client):
        types = (predict_pb2.PredictRequest, predict_pb2.PredictResponse)
        nonsense = UnaryUnaryMethod(client, tools.PREDICT + "s", *types)
        with pytest.raises(GRPCError) as caught:
            await nonsense(tools.predict_sums(), timeout=TIMEOUT)
        return caught.value.status

    assert talk(ask) is Status.UNIMPLEMENTED


def test_metadata_of_every_kind_is_taken(talk):
    metadata = [
        ("x-plain", "some text, with = and ;"),
        ("x-twice", "first"),
        ("x-twice", "second"),
        ("x-bytes-bin", bytes(range(256))),
        *((f"x-many-{index}", "v" * index) for index in range(1, 51)),
    ]

    async def ask(client):
        return await add(client, metadata=metadata), await add(client, metadata=metadata)

    assert talk(ask) == (tools.sums_of(), tools.sums_of())


def test_metadata_reaches_the_method(talk):
    """Triton's streams end at the first failure if the client's metadata asks for it."""

    async def ask(client):
        async with client.stream.open(metadata={"triton_grpc_error": "true"}, timeout=TIMEOUT) as stream:
            await stream.send_message(service_pb2.ModelInferRequest(model_name="nobody"), end=True)
            with pytest.raises(GRPCError) as caught:
                await stream.recv_message()
        return caught.value.status

    assert talk(ask) is Status.NOT_FOUND


def test_a_deadline_ends_a_call_that_waits(talk, waiting, queued):
    async def ask(client):
        first = asyncio.create_task(client.infer(tools.infer_gate(), timeout=TIMEOUT))
        await asyncio.to_thread(waiting.wait_entered)
        with pytest.raises((asyncio.TimeoutError, GRPCError)) as caught:
            await client.infer(tools.infer_gate(), timeout=0.3)
        await asyncio.to_thread(queued, 0)
        waiting.open()
        return caught.value, await first

    error, answer = talk(ask)
    assert not isinstance(error, GRPCError) or error.status is Status.DEADLINE_EXCEEDED
    assert answer.model_name == "gate"


def test_a_cancelled_call_leaves_the_queue(talk, waiting, queued):
    async def ask(client):
        first = asyncio.create_task(client.infer(tools.infer_gate(), timeout=TIMEOUT))
        await asyncio.to_thread(waiting.wait_entered)
        async with client.infer.open(timeout=TIMEOUT) as stream:
            await stream.send_message(tools.infer_gate(), end=True)
            await asyncio.to_thread(queued, 1)
            await stream.cancel()
        await asyncio.to_thread(queued, 0)
        assert await add(client) == tools.sums_of()
        waiting.open()
        return await first

    assert talk(ask).model_name == "gate"


def test_watch_sends_the_state_at_once_and_may_be_cancelled(talk):
    async def ask(client):
        async with client.watch.open(timeout=TIMEOUT) as stream:
            await stream.send_message(health_pb2.HealthCheckRequest(), end=True)
            answer = await stream.recv_message()
            await stream.cancel()
        return answer.status, await add(client)

    assert talk(ask) == (SERVING, tools.sums_of())


def test_stream_answers_while_the_client_still_sends(talk):
    async def ask(client):
        answers = []
        async with client.stream.open(timeout=TIMEOUT) as stream:
            for round_ in range(20):
                await stream.send_message(tools.infer_repeat(round_, -round_))
                answers += [await stream.recv_message() for _ in range(2)]
            await stream.end()
            assert await stream.recv_message() is None
        return tools.stream_values(answers)

    assert talk(ask) == [value for index in range(20) for value in (index, -index)]


def test_stream_goes_on_after_the_client_has_half_closed(talk):
    async def ask(client):
        async with client.stream.open(timeout=TIMEOUT) as stream:
            await stream.send_message(tools.infer_repeat(*range(100)), end=True)
            return tools.stream_values([answer async for answer in stream])

    assert talk(ask) == list(range(100))


@pytest.mark.parametrize("window", [65_535, 4 << 20], ids=["small window", "large window"])
def test_large_messages_both_ways(talk, window):
    sent = tools.infer_plain(LARGE)

    async def ask(client):
        answers = await asyncio.gather(*(client.infer(sent, timeout=TIMEOUT) for _ in range(3)), add(client))
        return [answer.raw_output_contents[0] for answer in answers[:3]], answers[3]

    config = Configuration(http2_connection_window_size=window, http2_stream_window_size=window)
    bodies, small = talk(ask, config=config)
    assert bodies == [sent.raw_input_contents[0]] * 3
    assert small == tools.sums_of()


def test_many_streams_at_once(talk):
    async def ask(client):
        firsts = [(float(index), 0.0, 1.0, 2.0) for index in range(200)]
        return firsts, await asyncio.gather(*(add(client, first) for first in firsts))

    firsts, answers = talk(ask)
    assert answers == [tools.sums_of(first) for first in firsts]


def test_tls(talk, tls_server, certificates):
    """A client that does not know the authority goes away; one that does is served."""
    knows, stranger = ssl.create_default_context(cadata=certificates.root.decode()), ssl.create_default_context()
    for context in (knows, stranger):
        context.set_alpn_protocols(["h2"])

    async def ask(client):
        with socket.create_connection(("127.0.0.1", tls_server.grpc_port)) as raw, pytest.raises(ssl.SSLError):
            stranger.wrap_socket(raw, server_hostname="localhost")
        return await add(client), (await client.infer(tools.infer_plain(LARGE), timeout=TIMEOUT)).model_name

    assert talk(ask, port=tls_server.grpc_port, ssl=knows) == (tools.sums_of(), "plain")


def test_a_client_that_vanishes_leaves_the_queue(triton_server, waiting, queued):
    """A process that is killed in the middle of a call closes nothing."""
    program = (
        "import sys, grpc\n"
        "from tritonclient.grpc import service_pb2_grpc, service_pb2\n"
        "request = service_pb2.ModelInferRequest.FromString(sys.stdin.buffer.read())\n"
        "with grpc.insecure_channel(sys.argv[1]) as channel:\n"
        "    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)\n"
        "    calls = [stub.ModelInfer.future(request, timeout=60) for _ in range(3)]\n"
        "    [call.result() for call in calls]\n"
    )
    command = [sys.executable, "-c", program, triton_server.target]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        child.stdin.write(tools.infer_gate().SerializeToString())
        child.stdin.close()
        queued(2)
        child.kill()
    queued(0)
    waiting.open()
