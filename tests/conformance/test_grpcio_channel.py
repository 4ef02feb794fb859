"""What channels of grpcio can do beyond plain calls: compression, metadata, limits, deadlines, ends of every kind."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import StatusCode as Code
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.conformance import transport_tools as tools

TIMEOUT = 60.0
LARGE = 1_000_000
UNLIMITED = ("grpc.max_receive_message_length", -1)
ALONE = ("grpc.use_local_subchannel_pool", 1)
"""A channel with a connection of its own."""
COMPRESSIONS = [grpc.Compression.NoCompression, grpc.Compression.Deflate, grpc.Compression.Gzip]


class Stubs:
    """All services on one channel, of threads or of asyncio."""

    def __init__(self, channel):
        self.channel = channel
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self.v2 = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)

    def add(self, first=(1.0, 2.0, 3.0, 4.0), **how):
        answer = self.prediction.Predict(tools.predict_sums(first), timeout=TIMEOUT, **how)
        return list(answer.outputs["sum"].float_val)

    def numbers(self, count=LARGE, **how):
        """Whether so many numbers come back unchanged."""
        sent = tools.infer_plain(count)
        return self.v2.ModelInfer(sent, timeout=TIMEOUT, **how).raw_output_contents == sent.raw_input_contents


@pytest.fixture
def connect():
    """``connect(target, *options, compression=, credentials=)``; all channels are closed at the end."""
    opened = []

    def make(target, *options, credentials=None, compression=None):
        how = {"options": [*options, UNLIMITED, ALONE], "compression": compression}
        channel = (
            grpc.secure_channel(target, credentials, **how) if credentials else grpc.insecure_channel(target, **how)
        )
        opened.append(channel)
        return Stubs(channel)

    yield make
    for channel in opened:
        channel.close()


@pytest.fixture
def stubs(connect, triton_server):
    return connect(triton_server.target)


@pytest.fixture
def talk(triton_server):
    """Runs a coroutine of stubs for asyncio: ``talk(chat)`` with ``async def chat(stubs)``."""

    def run(chat, **how):
        async def whole():
            async with grpc.aio.insecure_channel(triton_server.target, options=[UNLIMITED, ALONE], **how) as channel:
                return await chat(Stubs(channel))

        return asyncio.run(whole())

    return run


def ends_with(code, call, *given, **how):
    with pytest.raises(grpc.RpcError) as caught:
        call(*given, **how)
    assert caught.value.code() is code, caught.value
    return caught.value


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda value: value.name)
def test_compression_of_a_channel_and_of_a_call(connect, triton_server, compression, talk):
    assert connect(triton_server.target, compression=compression).numbers()
    mixed = connect(triton_server.target)
    assert [mixed.numbers(compression=other) for other in (compression, *COMPRESSIONS)] == [True] * 4
    assert mixed.add(compression=compression) == tools.sums_of()

    async def ask(stubs):
        sent = tools.infer_plain(LARGE)
        answer = await stubs.v2.ModelInfer(sent, timeout=TIMEOUT)
        return answer.raw_output_contents == sent.raw_input_contents

    assert talk(ask, compression=compression)


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda value: value.name)
def test_compression_of_streams(stubs, compression):
    requests = iter([tools.infer_repeat(*range(n, n + 10)) for n in range(20)])
    answers = list(stubs.v2.ModelStreamInfer(requests, timeout=TIMEOUT, compression=compression))
    assert tools.stream_values(answers) == [n + k for n in range(20) for k in range(10)]


def test_metadata_of_every_kind_is_taken(stubs):
    metadata = [
        ("x-plain", "text with , and = and spaces in it"),
        ("x-twice", "first"),
        ("x-twice", "second"),
        ("x-empty", ""),
        ("x-bytes-bin", bytes(range(256))),
        ("x-twice-bin", b""),
        ("x-twice-bin", b"\x00\xff"),
        ("x_a.b-c9", "~!@#$%^&*()"),
    ]
    for _ in range(3):
        answer, call = stubs.prediction.Predict.with_call(tools.predict_sums(), timeout=TIMEOUT, metadata=metadata)
        assert list(answer.outputs["sum"].float_val) == tools.sums_of()
        assert call.code() is Code.OK
        assert call.details() == ""


def test_spaces_around_metadata_harm_that_call_at_most(stubs):
    """HTTP/2 forbids them and gRPC allows to strip them: such a call is served or refused."""
    metadata = [("x-spaces", " both sides ")]
    call = stubs.prediction.Predict.future(tools.predict_sums(), timeout=TIMEOUT, metadata=metadata)
    assert call.code() in (Code.OK, Code.INTERNAL)
    assert stubs.add() == tools.sums_of()


@pytest.mark.parametrize("pairs", [[("x-huge", "v" * 40_000)], [(f"x-{n}", "v" * 60) for n in range(400)]], ids=len)
def test_large_metadata_is_refused_and_the_connection_stays(stubs, pairs):
    assert stubs.add() == tools.sums_of()
    states = SimpleQueue()
    stubs.channel.subscribe(states.put)
    assert states.get(timeout=TIMEOUT) is grpc.ChannelConnectivity.READY
    ends_with(Code.RESOURCE_EXHAUSTED, stubs.add, metadata=pairs)
    assert stubs.add(metadata=[("x-large", "v" * 4000)]) == tools.sums_of()
    assert states.empty(), "the connection went away"


@pytest.mark.parametrize("pairs", [[("x-huge", "v" * 400_000)], [(f"x-{n}", "v" * 100) for n in range(4000)]], ids=len)
def test_metadata_without_measure_costs_the_connection_at_most(stubs, pairs):
    refused = stubs.prediction.Predict.future(tools.predict_sums(), timeout=TIMEOUT, metadata=pairs)
    assert refused.code() in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE)
    assert stubs.add(wait_for_ready=True) == tools.sums_of()


def test_messages_above_the_limit_are_refused_with_both_sizes(connect, narrow_server):
    stubs = connect(narrow_server.target)
    large = tools.infer_plain(tools.LIMIT)
    error = ends_with(Code.RESOURCE_EXHAUSTED, stubs.v2.ModelInfer, large, timeout=TIMEOUT)
    for size in (large.ByteSize(), tools.LIMIT):
        assert str(size) in error.details()
    how = {"timeout": TIMEOUT, "compression": grpc.Compression.Gzip}
    packed = ends_with(Code.RESOURCE_EXHAUSTED, stubs.v2.ModelInfer, tools.infer_plain(4 * tools.LIMIT), **how)
    assert str(tools.LIMIT) in packed.details()
    stream = stubs.v2.ModelStreamInfer(iter([tools.infer_plain(4), large]), timeout=TIMEOUT)
    ends_with(Code.RESOURCE_EXHAUSTED, list, stream)
    assert stubs.numbers(tools.LIMIT // 2 - 1000)


def test_a_clients_own_limit_leaves_the_connection_as_it_is(connect, triton_server):
    stubs = connect(triton_server.target, ("grpc.max_receive_message_length", 10_000))
    ends_with(Code.RESOURCE_EXHAUSTED, stubs.numbers, 20_000)
    assert stubs.numbers(1000)


def test_deadlines(stubs, waiting, queued):
    first = stubs.v2.ModelInfer.future(tools.infer_gate(), timeout=TIMEOUT)
    waiting.wait_entered()
    for seconds in (0, -1, 0.0001, 0.2):
        ends_with(Code.DEADLINE_EXCEEDED, stubs.v2.ModelInfer, tools.infer_gate(), timeout=seconds)
        stream = stubs.health.Watch(health_pb2.HealthCheckRequest(), timeout=seconds)
        ends_with(Code.DEADLINE_EXCEEDED, list, stream)
    queued(0)
    waiting.open()
    assert first.result().model_name == "gate"
    for seconds in (None, 1e5, 1e8, 1e9):
        answer = stubs.prediction.Predict(tools.predict_sums(), timeout=seconds)
        assert list(answer.outputs["sum"].float_val) == tools.sums_of()


def test_watch_ends_at_its_deadline(stubs):
    states = stubs.health.Watch(health_pb2.HealthCheckRequest(), timeout=0.3)
    assert next(states).status == health_pb2.HealthCheckResponse.SERVING
    ends_with(Code.DEADLINE_EXCEEDED, next, states)


def test_unary_calls_are_cancelled_in_every_state(stubs, waiting, queued):
    at_the_gate = stubs.v2.ModelInfer.future(tools.infer_gate(), timeout=TIMEOUT)
    waiting.wait_entered()
    just_sent = stubs.v2.ModelInfer.future(tools.infer_gate(), timeout=TIMEOUT)
    assert just_sent.cancel()
    behind = [stubs.v2.ModelInfer.future(tools.infer_gate(), timeout=TIMEOUT) for _ in range(3)]
    queued(3)
    assert [call.cancel() for call in behind] == [True] * 3
    queued(0)
    assert at_the_gate.cancel()
    assert [call.code() for call in (at_the_gate, just_sent, *behind)] == [Code.CANCELLED] * 5
    waiting.open()
    done = stubs.prediction.Predict.future(tools.predict_sums(), timeout=TIMEOUT)
    assert done.result().outputs["sum"].float_val == tools.sums_of()
    assert (done.cancel(), done.code()) == (False, Code.OK)


def test_streams_are_cancelled_in_every_state(stubs, waiting, queued):
    def requests():
        yield from first
        yield blocked.get(timeout=TIMEOUT)

    blocked = SimpleQueue()
    for first in ([], [tools.infer_repeat(1, 2)], [tools.infer_gate()]):
        stream = stubs.v2.ModelStreamInfer(requests(), timeout=TIMEOUT)
        if first and first[0].model_name == "repeat":
            assert tools.stream_values([next(stream), next(stream)]) == [1, 2]
        if first and first[0].model_name == "gate":
            waiting.wait_entered()
        stream.cancel()
        blocked.put(tools.infer_repeat(3))
        ends_with(Code.CANCELLED, next, stream)
    queued(0)
    assert stubs.add() == tools.sums_of()


def test_half_closed_streams_are_answered_to_the_end(stubs):
    assert list(stubs.v2.ModelStreamInfer(iter([]), timeout=TIMEOUT)) == []
    silent = stubs.v2.ModelStreamInfer(iter([tools.infer_repeat(*range(500))]), timeout=TIMEOUT)
    assert tools.stream_values(list(silent)) == list(range(500))
    assert (silent.code(), silent.details()) == (Code.OK, "")


def test_streams_of_asyncio_write_and_read_in_turns(talk):
    async def ask(stubs):
        stream, answers = stubs.v2.ModelStreamInfer(timeout=TIMEOUT), []
        for index in range(20):
            await stream.write(tools.infer_repeat(index, -index))
            answers += [await stream.read(), await stream.read()]
        await stream.done_writing()
        end = await stream.read()
        return tools.stream_values(answers), end is grpc.aio.EOF, await stream.code()

    expected = [value for index in range(20) for value in (index, -index)]
    assert talk(ask) == (expected, True, Code.OK)


def test_status_details_of_every_kind(stubs):
    def details_of(name):
        request = tools.predict_unknown(name)
        return ends_with(Code.NOT_FOUND, stubs.prediction.Predict, request, timeout=TIMEOUT).details()

    names = ["%", "100%25", "a%0Ab", "line\nbreak\r\n", "\x00\x7f\t", "\U0010ffff é", " spaces ", '"\\']
    for name in (tools.EVERY_KIND, *names):
        details = details_of(name)
        shown = name if name.isprintable() and name.isascii() and not set(name) & set("'\"\\") else name[:1]
        assert shown in details or repr(name)[1:-1] in details, (name, details)
    assert "模模模" in details_of("模" * 20_000), "long texts are cut, not lost"
    ends_with(Code.INVALID_ARGUMENT, stubs.prediction.Predict, predict_pb2.PredictRequest(), timeout=TIMEOUT)


def test_200_streams_on_a_channel(stubs, talk):
    firsts = [(float(index), 0.0, 1.0, 2.0) for index in range(200)]
    calls = [stubs.prediction.Predict.future(tools.predict_sums(first), timeout=TIMEOUT) for first in firsts]
    assert [call.result().outputs["sum"].float_val for call in calls] == [tools.sums_of(first) for first in firsts]

    async def ask(stubs):
        answers = await asyncio.gather(
            *(stubs.prediction.Predict(tools.predict_sums(first), timeout=TIMEOUT) for first in firsts)
        )
        return [list(answer.outputs["sum"].float_val) for answer in answers]

    assert talk(ask) == [tools.sums_of(first) for first in firsts]


def test_200_open_streams_do_not_hold_up_calls(stubs):
    streams = [stubs.health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT) for _ in range(200)]
    assert [next(stream).status for stream in streams] == [health_pb2.HealthCheckResponse.SERVING] * 200
    assert stubs.add() == tools.sums_of()
    for stream in streams:
        stream.cancel()


def test_many_channels(connect, triton_server):
    channels = [connect(triton_server.target) for _ in range(50)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(Stubs.add, channels)) == [tools.sums_of()] * 50


@pytest.mark.parametrize("without_calls", [0, 1])
def test_keepalive_of_ten_seconds_does_no_harm(connect, triton_server, without_calls):
    options = [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", without_calls),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    stubs = connect(triton_server.target, *options)
    assert [stubs.add() for _ in range(5)] == [tools.sums_of()] * 5
    assert stubs.numbers()


@pytest.mark.parametrize("scheme", ["unix:", "unix://"])
def test_unix_socket(connect, narrow_server, socket_path, scheme):
    stubs = connect(f"{scheme}{socket_path}")
    assert stubs.add() == tools.sums_of()
    assert stubs.numbers(tools.LIMIT // 2 - 1000)
    ends_with(Code.RESOURCE_EXHAUSTED, stubs.v2.ModelInfer, tools.infer_plain(tools.LIMIT), timeout=TIMEOUT)


def test_tls(connect, tls_server, certificates):
    target = f"localhost:{tls_server.grpc_port}"
    stubs = connect(target, credentials=grpc.ssl_channel_credentials(certificates.root))
    assert (stubs.add(), stubs.numbers(1_000_000)) == (tools.sums_of(), True)
    stranger = connect(target, credentials=grpc.ssl_channel_credentials())
    ends_with(Code.UNAVAILABLE, stranger.add)
    ends_with(Code.UNAVAILABLE, connect(target).add)


def test_a_channel_waits_for_a_server_and_finds_it_again(connect, serve_triton, few_models):
    """``wait_for_ready`` before the server is there, and after it has come back on the same port."""
    server = serve_triton(few_models)
    stubs = connect(server.target, ("grpc.max_reconnect_backoff_ms", 300), ("grpc.initial_reconnect_backoff_ms", 100))
    live = service_pb2.ServerLiveRequest()
    ends_with(Code.UNAVAILABLE, stubs.v2.ServerLive, live, timeout=TIMEOUT)
    early = stubs.v2.ServerLive.future(live, timeout=TIMEOUT, wait_for_ready=True)
    with server:
        assert early.result().live
        assert stubs.add() == tools.sums_of()
        states = stubs.health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert next(states).status == health_pb2.HealthCheckResponse.SERVING
        server.terminate()
        assert [state.status for state in states] == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert server.wait() == 0
        late = stubs.v2.ServerLive.future(live, timeout=TIMEOUT, wait_for_ready=True)
        server.start()
        assert late.result().live


def test_reflection_describes_every_method(stubs):
    database = ProtoReflectionDescriptorDatabase(stubs.channel)
    pool = DescriptorPool(database)
    names = [name for name in database.get_services() if "reflection" not in name]
    found = {f"/{name}/{method.name}" for name in names for method in pool.FindServiceByName(name).methods}
    assert {"/tensorflow.serving.PredictionService/Predict", "/grpc.health.v1.Health/Watch"} <= found
    for path in found:
        call = stubs.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        asked = call.future(b"\xff" * 9, timeout=TIMEOUT)
        assert asked.code() in (Code.OK, Code.INVALID_ARGUMENT, Code.INTERNAL), path
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("nobody.Knows")


def test_health(stubs):
    def check(name):
        return stubs.health.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT).status

    assert [check(name) for name in ("", "sums", "inference.GRPCInferenceService")] == [1, 1, 1]
    ends_with(Code.NOT_FOUND, check, tools.EVERY_KIND)
    states = stubs.health.Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=TIMEOUT)
    assert next(states).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    states.cancel()
