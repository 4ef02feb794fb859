"""Who is at the other end: of addresses, of UNIX sockets, and of a verified certificate."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from tfs_lite.transport.peer import UNIX, UNKNOWN, Peer, is_same_user, peer_at, peer_of


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("", False),
        ("localhost", False),
        ("127.0.0.1.example", False),
    ],
)
def test_address_is_of_loopback_or_not(address: str, loopback: bool) -> None:
    assert peer_at(address) == Peer(address, loopback=loopback)


def test_same_user_is_the_servers_or_root() -> None:
    assert is_same_user(os.geteuid())
    assert is_same_user(0)
    assert not is_same_user(os.geteuid() + 1)
    assert not is_same_user(None)


class Transport:
    """What asyncio tells of a connection."""

    def __init__(self, **extra: Any) -> None:
        self._extra = extra

    def get_extra_info(self, name: str) -> Any:
        return self._extra.get(name)


class Connected:
    family = socket.AF_UNIX

    def __init__(self, user: int | None) -> None:
        self._user = user

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        if self._user is None:
            raise OSError("not here")
        return b"".join(number.to_bytes(4, "little", signed=True) for number in (1, self._user, -1))


def found(**extra: Any) -> Peer:
    return peer_of(Transport(**extra))  # type: ignore[arg-type]


def test_peer_of_a_unix_socket_is_known_by_its_user() -> None:
    assert found(socket=Connected(os.geteuid()), peername="") == Peer(UNIX, same_user=True)
    assert found(socket=Connected(os.geteuid() + 7), peername="") == Peer(UNIX)
    assert found(socket=Connected(None), peername="") == Peer(UNIX)


def test_uris_and_dns_names_of_a_certificate_count() -> None:
    names = (("URI", "spiffe://a/b"), ("DNS", "a.example"), ("email", "a@b"), ("IP Address", "10.0.0.1"))
    peer = found(peername=("10.0.0.1", 5), peercert={"subjectAltName": names, "subject": ((("commonName", "cn"),),)})
    assert peer == Peer("10.0.0.1", names=frozenset({"spiffe://a/b", "a.example"}))
    assert found(socket=Connected(None), peercert={"subjectAltName": names}).names == peer.names
    assert found(peername=("10.0.0.1", 5), peercert={}).names == frozenset()


def test_peer_that_has_gone_is_unknown() -> None:
    assert found() == UNKNOWN
    assert not UNKNOWN.loopback


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_loops_tell_who_is_at_the_other_end_of_real_sockets(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    peers: list[Peer] = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            peers.append(peer_of(transport))
            transport.close()

    async def take(accepted: socket.socket) -> None:
        accepted.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(Protocol, accepted)

    made = loop()
    near, far = socket.socketpair()
    with near, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            for one in (far, accepted):
                made.run_until_complete(take(one))
    made.close()
    assert peers == [Peer(UNIX, same_user=True), Peer("127.0.0.1", loopback=True)]
