from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.errors import refusal
from tfs_lite.core.status import StatusCode
from tfs_lite.server.runtime.sockets import claim, listen

FLAG = "--grpc_socket_path"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.bind(str(tmp_path / "s"))
        yield sock


def refused(path: str, code: StatusCode = StatusCode.FAILED_PRECONDITION) -> str:
    message = refusal(claim, path, FLAG, code=code)
    assert FLAG in message
    return message


@pytest.mark.parametrize(("name", "quoted"), [("s", "s"), ("a b%20", "a%20b%2520"), ("ä#?", "%C3%A4%23%3F")])
def test_a_free_path_becomes_an_address_and_stays_free(tmp_path: Path, name: str, quoted: str) -> None:
    assert claim(str(tmp_path / name), FLAG) == f"unix:{tmp_path}/{quoted}"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("bound", [True, False])
def test_a_socket_without_a_server_that_listens_is_removed(
    tmp_path: Path, listener: socket.socket, bound: bool
) -> None:
    if not bound:
        listener.close()
    claim(str(tmp_path / "s"), FLAG)
    assert os.listdir(tmp_path) == []


def test_a_socket_with_a_server_is_left_alone(tmp_path: Path, listener: socket.socket) -> None:
    listener.listen(1)
    message = refused(str(tmp_path / "s"))
    assert message == f"cannot listen on the UNIX socket {tmp_path}/s ({FLAG}): another server listens there"
    assert os.listdir(tmp_path) == ["s"]


def test_a_socket_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "s"))
        assert "another server" in refused(str(tmp_path / "s"))
    assert os.listdir(tmp_path) == ["s"]


def test_something_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path / "file", tmp_path / "link", tmp_path):
        assert "something that is no socket lies there" in refused(str(path))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "code", "why"),
    [
        ("nothing/s", StatusCode.FAILED_PRECONDITION, "No such file or directory"),
        ("file/s", StatusCode.FAILED_PRECONDITION, "Not a directory"),
        ("s" * 120, StatusCode.INVALID_ARGUMENT, "is too long for a UNIX socket"),
        ("a\0b", StatusCode.INVALID_ARGUMENT, "is no path"),
    ],
)
def test_a_path_that_cannot_be_had_says_why(tmp_path: Path, path: str, code: StatusCode, why: str) -> None:
    (tmp_path / "file").touch()
    assert why in refused(f"{tmp_path}/{path}", code)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in refused(str(tmp_path / "s"))


def test_accepted_connections_send_small_answers_at_once() -> None:
    async def main() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        sock = listen("127.0.0.1", 0, "--rest_api_port")
        async with await asyncio.start_server(accept, sock=sock):
            _, writer = await asyncio.open_connection(*sock.getsockname())
            nodelay = await found
            writer.close()
            await writer.wait_closed()
        return nodelay

    assert asyncio.run(main())
