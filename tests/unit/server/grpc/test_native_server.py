"""Our own gRPC server around its transport: addresses, arguments, metrics, and what it does not import.

The tests of both servers are in test_grpcio_server.py, test_bidirectional_calls.py and test_tls.py.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.support.errors import refusal
from tests.support.servers.grpc_fixture import GrpcFixture
from tests.support.servers.in_process import serving
from tests.support.servers.process import free_ports
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.server.grpc.native_server import NativeGrpcServer
from tfs_lite.server.runtime.sockets import UnixListener
from tfs_lite.server.server import Server
from tfs_lite.serving.options import GRPCIO, NATIVE
from tfs_lite.transport.table import CallContext, unary


async def echo(data: bytes, context: CallContext) -> bytes:
    if data == b"wrong":
        raise invalid_argument("no")
    return data


ECHO = "/test.Service/echo"


def served(loop_thread: Any, **address: Any) -> GrpcFixture:
    return GrpcFixture(loop_thread, NATIVE, [unary(ECHO, echo)], 1000, **address)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


NEEDS_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


@pytest.mark.parametrize("host", ["0.0.0.0", *(pytest.param(host, marks=NEEDS_IPV6) for host in ("::1", "::"))])
def test_any_address_of_this_machine_is_listened_on(loop_thread: Any, host: str) -> None:
    with served(loop_thread, host=host) as server:
        assert server.call(ECHO, b"x") == b"x"


def test_a_start_that_fails_gives_back_what_it_had(loop_thread: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (port,) = free_ports(1)
    with pytest.raises(ServingError, match="something that is no socket lies there"):
        served(loop_thread, port=port, path=str(tmp_path / "file"))
    with served(loop_thread, port=port) as server:
        assert server.call(ECHO, b"x") == b"x"


def test_a_server_that_never_started_can_be_stopped(loop_thread: Any) -> None:
    loop_thread.run(NativeGrpcServer([], 1000).stop(10.0))


def test_the_socket_file_of_a_successor_is_left_alone(loop_thread: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with served(loop_thread, path=str(path)) as server:
        path.unlink()
        with closing(UnixListener(str(path), "--grpc_socket_path").socket):
            server.stop()
            assert path.is_socket()


def test_a_relative_socket_path_is_removed_wherever_the_process_goes(
    loop_thread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with served(loop_thread, path="s"):
        assert (tmp_path / "s").is_socket()
        monkeypatch.chdir("/")
    assert os.listdir(tmp_path) == []


def test_calls_and_connections_are_counted(loop_thread: Any) -> None:
    with served(loop_thread) as server:
        for _ in range(3):
            server.call(ECHO, b"12345")
        for data, path in ((b"wrong", ECHO), (b"x", "/test.Service/nothing")):
            with pytest.raises(grpc.RpcError):
                server.call(path, data)
        numbers = server.server.numbers
        assert numbers is not None
        assert dict(numbers.calls) == {(ECHO, 0): 3, (ECHO, 3): 1, ("", 12): 1}
        assert (numbers.connections, numbers.connections_total) == (1, 1)
        assert numbers.messages_received == 4
        assert numbers.messages_sent == 3
    assert numbers.connections == 0


Publish = Callable[[str, int], Path]


@pytest.mark.parametrize(("fields", "shown"), [({}, True), ({"grpc_server": GRPCIO}, False)])
def test_the_page_has_the_numbers_of_this_process(
    tmp_path: Path, publish: Publish, fields: dict[str, Any], shown: bool
) -> None:
    publish("m", 1)
    options = {"grpc_server": NATIVE, "model_name": "m", "model_base_path": str(tmp_path / "m"), **fields}
    with serving(tmp_path, **options) as server:
        assert server.version() == 1
        page = httpx.get(f"{server.url}/metrics").text
    line = 'tfs_lite_grpc_calls_total{code="OK",method="tensorflow.serving.PredictionService/Predict"} 1.0\n'
    assert (line in page) is shown
    assert ("tfs_lite_grpc_connections " in page) is shown


def test_arguments_without_effect_are_logged_once_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arguments = "grpc.primary_user_agent=me,grpc.max_concurrent_streams=10,grpc.http2.bdp_probe=0"
    options = {"model_base_path": str(tmp_path), "grpc_channel_arguments": arguments}
    with serving(tmp_path, ready=False, grpc_server=NATIVE, **options):
        pass
    (record,) = (record for record in caplog.records if "without effect" in record.getMessage())
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "--grpc_channel_arguments: without effect on --grpc_server=native: "
        "grpc.primary_user_agent, grpc.http2.bdp_probe"
    )


def test_an_argument_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    arguments = "grpc.max_concurrent_streams=few"
    server = Server(model_base_path=str(tmp_path), grpc_server=NATIVE, grpc_channel_arguments=arguments)
    message = refusal(server.start)
    assert message.startswith("grpc.max_concurrent_streams of --grpc_channel_arguments is 'few', expected")


def test_the_native_server_does_not_import_the_library() -> None:
    program = (
        "import sys, tfs_lite.server.grpc.native_server, tfs_lite.server.runtime.tls; sys.exit('grpc' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
