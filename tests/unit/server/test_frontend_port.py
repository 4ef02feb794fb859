from __future__ import annotations

import socket
from contextlib import closing

import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.frontend_port import hold_port

HOST = "127.0.0.1"


def listener(port: int, *, shares: bool) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, port))
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


def test_several_listen_on_a_held_port_and_nobody_else_gets_it() -> None:
    with hold_port(HOST, 0, "--port") as held:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listener(port, shares=False)
        with pytest.raises(ServingError, match=rf"port {port} of {HOST} is already in use \(--port\)"):
            hold_port(HOST, port, "--port")
        with closing(listener(port, shares=True)), closing(listener(port, shares=True)):
            socket.create_connection((HOST, port)).close()


def test_a_held_port_takes_no_connections() -> None:
    with hold_port(HOST, 0, "--port") as held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(held.getsockname())


@pytest.mark.parametrize("shares", [False, True])
def test_a_port_that_a_stranger_listens_on_is_in_use_even_if_he_would_share_it(shares: bool) -> None:
    with closing(listener(0, shares=shares)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(ServingError, match="already in use") as caught:
            hold_port(HOST, port, "--port")
    assert caught.value.code is StatusCode.FAILED_PRECONDITION


def test_a_port_is_shared_with_strangers_on_request() -> None:
    with closing(listener(0, shares=True)) as stranger:
        port = stranger.getsockname()[1]
        with hold_port(HOST, port, "--port", with_strangers=True) as held:
            assert held.getsockname()[1] == port


def test_a_held_port_is_free_after_its_connections_were_closed() -> None:
    with hold_port(HOST, 0, "--port") as held:
        port = held.getsockname()[1]
        with closing(listener(port, shares=True)) as server:
            client = socket.create_connection((HOST, port))
            accepted, _ = server.accept()
            accepted.close()  # the server's side lingers now
            client.close()
    hold_port(HOST, port, "--port").close()


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ServingError, match=r"'192.0.2.1' is not an address of this machine \(--host\)"):
        hold_port("192.0.2.1", 0, "--port")
