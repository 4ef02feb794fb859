"""What clients see of a pool of real frontends is what they see of a single process; and how it starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import trustme
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.door import HEALTH
from tfs_lite.server.frontend_pool import FrontendPool
from tfs_lite.server.grpc_choice import GrpcTransport, make_grpc_server
from tfs_lite.testing.frontend_house import LIMIT, PROCESSES, Served, Service, call, connections, serving
from tfs_lite.testing.grpc_choice import chosen
from tfs_lite.testing.process import wait_until


@pytest.fixture
def served(loop_thread: Any) -> Iterator[Served]:
    with serving(loop_thread) as served:
        yield served


@pytest.fixture
def channel(served: Served) -> grpc.Channel:
    return served.channel()


def refusal(channel: grpc.Channel, method: str, data: bytes = b"x", timeout: float = 30.0) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, method, data, timeout)
    return caught.value.code(), caught.value.details()


# What clients see is what they see of a single process.


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 5_000_000])
def test_bytes_of_any_size_go_in_and_come_out(channel: grpc.Channel, size: int) -> None:
    data = os.urandom(size)
    assert call(channel, "echo", data) == data


def test_many_large_messages_at_once(served: Served) -> None:
    words = [os.urandom(3_000_000) for _ in range(24)]
    channels = served.channel_to_each()
    futures = [
        channels[index % len(channels)].unary_unary("/test.Service/echo").future(word, timeout=60)
        for index, word in enumerate(words)
    ]
    assert [future.result() for future in futures] == words


def test_trailers_come_out(channel: grpc.Channel) -> None:
    _, finished = channel.unary_unary("/test.Service/echo").with_call(b"12345", timeout=30)
    assert ("size", "5") in finished.trailing_metadata()


def test_deadline_of_the_client_reaches_the_handler(served: Served, channel: grpc.Channel) -> None:
    call(channel, "echo", timeout=None)
    call(channel, "echo", timeout=50.0)
    none, some = served.service.contexts
    assert none.deadline is None
    assert some.deadline is not None
    assert 20 < some.deadline - time.monotonic() < 60


def test_a_deadline_that_passes_cancels_the_handler(served: Served, channel: grpc.Channel) -> None:
    assert refusal(channel, "wait", timeout=0.2)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert served.service.cancelled.acquire(timeout=20)
    wait_until(lambda: served.pool.calls_inside == 0, "nothing is inside")


def test_handler_is_cancelled_when_the_client_goes(served: Served, channel: grpc.Channel) -> None:
    future = channel.unary_unary("/test.Service/wait").future(b"x")
    assert served.service.entered.acquire(timeout=20)
    assert served.pool.calls_inside == 1
    future.cancel()
    assert served.service.cancelled.acquire(timeout=20)


def test_errors_are_told_as_by_a_single_process(served: Served, channel: grpc.Channel) -> None:
    async def start() -> tuple[GrpcTransport, int | None]:
        server = make_grpc_server(chosen(), Service().methods(), LIMIT)
        return server, await server.start("127.0.0.1", 0, "")

    server, port = served.loop.run(start())
    single = served.channel(f"127.0.0.1:{port}")
    texts = ["wrong", "sö nicht\n%", "a" * 1024, "a" * 1025, "ä" * 3000, "\U0001f600" * 5000]
    asked = [*(("refuse", text.encode()) for text in texts), ("crash", b""), ("nothing", b"")]
    asked.append(("echo", bytes(LIMIT + 1)))
    for method, data in asked:
        assert refusal(channel, method, data) == refusal(single, method, data)
    assert refusal(channel, "refuse", b"wrong") == (grpc.StatusCode.INVALID_ARGUMENT, "wrong")
    served.loop.run(server.stop(0))


def test_stream_sends_its_items_and_then_its_error(channel: grpc.Channel) -> None:
    stream = channel.unary_stream("/test.Service/count")(b"", timeout=30)
    assert [next(stream) for _ in range(1000)] == [b"%d" % number for number in range(1000)]
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "no more"


def test_a_watcher_gets_its_items_as_they_come(served: Served, channel: grpc.Channel) -> None:
    watch = channel.unary_stream(f"{HEALTH}Watch")(b"", timeout=30)
    assert next(watch) == b"first"
    served.open_gate()
    assert list(watch) == [b"last"]


def test_reflection_describes_the_services(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "test.Service" in database.get_services()
    service = DescriptorPool(database).FindServiceByName("tensorflow.serving.PredictionService")
    assert service.FindMethodByName("Predict").input_type.full_name == "tensorflow.serving.PredictRequest"


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_takes_no_place(loop_thread: Any, version: str) -> None:
    with serving(loop_thread, max_concurrent_calls=1) as served:
        channel = served.channel()
        waiting = channel.unary_unary("/test.Service/wait").future(b"w")
        assert served.service.entered.acquire(timeout=20)
        listing = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        (answer,) = listing(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=20)
        assert "test.Service" in {service.name for service in answer.list_services_response.service}
        assert refusal(channel, "echo")[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        served.open_gate()
        assert waiting.result(timeout=20) == b"w"


def test_calls_beyond_the_limit_are_refused_whichever_frontend_they_come_to(loop_thread: Any) -> None:
    with serving(loop_thread, max_concurrent_calls=2) as served:
        channels = served.channel_to_each()
        waiting = [channel.unary_unary("/test.Service/wait").future(b"w") for channel in channels[:2]]
        waiting += [channels[0].unary_unary("/test.Service/wait").future(b"w") for _ in range(2 - len(waiting))]
        for _ in waiting:
            assert served.service.entered.acquire(timeout=20)
        for channel in channels:
            code, details = refusal(channel, "echo")
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "2 calls inside, the most it takes at a time (--grpc_max_threads)" in details
            assert channel.unary_unary(f"{HEALTH}Check")(b"ok", timeout=20) == b"ok"
        served.open_gate()
        assert [future.result(timeout=20) for future in waiting] == [b"w", b"w"]
        assert call(channels[0], "echo") == b"x"


def test_arguments_win_over_our_own_but_the_port_is_shared(loop_thread: Any) -> None:
    arguments = [("grpc.max_receive_message_length", 10), ("grpc.so_reuseport", 0)]
    with serving(loop_thread, arguments=arguments) as served:
        for channel in served.channel_to_each():
            assert refusal(channel, "echo", b"x" * 11)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert call(channel, "echo", b"x" * 10) == b"x" * 10


def test_tls_is_made_in_every_frontend(loop_thread: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("localhost")
    config = tmp_path / "tls.pbtxt"
    key, certificate = pair.private_key_pem.bytes().decode(), pair.cert_chain_pems[0].bytes().decode()
    config.write_text(f"server_key: {json.dumps(key)}\nserver_cert: {json.dumps(certificate)}\n")
    trusting = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with serving(loop_thread, ssl_config_file=str(config)) as served, ExitStack() as stack:
        while not all(connections(pid, served.port) for pid in served.pool.process_ids):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.secure_channel(f"localhost:{served.port}", trusting, options=options)
            assert call(stack.enter_context(channel), "echo") == b"x"
        assert refusal(served.channel(), "echo")[0] is grpc.StatusCode.UNAVAILABLE


def test_the_first_frontend_has_the_unix_socket_and_it_is_gone_afterwards(loop_thread: Any, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(loop_thread, socket_path=str(path)) as served:
        assert call(served.channel(f"unix:{path}"), "echo") == b"x"
        assert call(served.channel(), "echo") == b"x"
    assert not path.exists()


def test_without_a_port_one_frontend_serves_the_socket(loop_thread: Any, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(loop_thread, socket_path=str(path), port=None) as served:
        assert served.port is None
        assert served.pool.frontends == 1
        assert call(served.channel(f"unix:{path}"), "echo") == b"x"


# Starting.


def test_every_frontend_listens_when_start_returns_and_none_has_torch(served: Served) -> None:
    assert served.pool.frontends == PROCESSES
    listeners = [
        one
        for pid in served.pool.process_ids
        for one in psutil.Process(pid).net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == served.port
    ]
    assert len(listeners) >= PROCESSES
    for pid in served.pool.process_ids:
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_a_frontend_imports_no_torch_and_no_model_code() -> None:
    heavy = ("torch", "tfs_lite.adapters", "tfs_lite.managers", "tfs_lite.schedulers", "tfs_lite.workers")
    modules = "tfs_lite.server.frontend_process, tfs_lite.server.tls"
    program = f"import sys, {modules}; sys.exit(str([name for name in {heavy!r} if name in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == "[]"


def start_error(loop_thread: Any, port: int | None = 0, socket_path: str = "", **settings: Any) -> ServingError:
    """Why a pool does not start; nothing of it may be left."""
    children = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ServingError) as caught, serving(loop_thread, port=port, socket_path=socket_path, **settings):
        pass
    assert {child.pid for child in psutil.Process().children()} <= children
    return caught.value


@pytest.mark.parametrize("shares", [False, True])
def test_a_port_in_use_by_a_stranger_is_an_error_that_names_it(loop_thread: Any, shares: bool) -> None:
    with socket.socket() as stranger:
        if shares:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        error = start_error(loop_thread, port)
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert f"port {port} of 127.0.0.1 is already in use (--port)" in str(error)


def test_two_pools_do_not_share_a_port(loop_thread: Any, served: Served) -> None:
    assert "already in use" in str(start_error(loop_thread, served.port))


def test_what_hinders_a_frontend_is_told_in_its_own_words(loop_thread: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    error = start_error(loop_thread, socket_path=str(path))
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert "something that is no socket lies there" in str(error)
    error = start_error(loop_thread, ssl_config_file=str(tmp_path / "nowhere"))
    assert error.code is StatusCode.NOT_FOUND
    assert "nowhere" in str(error)


def test_a_tls_file_that_can_be_read_only_once_is_refused(loop_thread: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    error = start_error(loop_thread, ssl_config_file=str(tmp_path / "pipe"))
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert "is no regular file" in str(error)


def test_a_frontend_that_sends_garbage_is_ended_and_told_of(
    loop_thread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport socket, sys, time\n"
        "sock = socket.socket(fileno=int(sys.argv[4]))\nsock.sendall(bytes(1000))\ntime.sleep(1000)\n"
    )
    program.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        error = start_error(loop_thread)
    assert "gRPC frontend 0 ended before it listened: it sent a frame of kind 0" in str(error)


def test_a_frontend_that_cannot_be_run_at_all_is_an_error(loop_thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python")
        error = start_error(loop_thread)
    assert error.code is StatusCode.UNAVAILABLE
    assert "gRPC frontend 0 cannot be started: No such file or directory" in str(error)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/true")
        error = start_error(loop_thread)
    assert "gRPC frontend 0 ended before it listened" in str(error)


def test_a_pool_that_never_started_can_be_stopped(loop_thread: Any) -> None:
    async def test() -> None:
        await FrontendPool(Service().methods(), LIMIT).stop(10)

    loop_thread.run(test())
