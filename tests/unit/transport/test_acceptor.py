"""Connections are accepted, on both loops, and none is forgotten when accepting ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import trustme
import uvloop

from tfs_lite.core.callbacks import ignore
from tfs_lite.transport.acceptor import Acceptor
from tfs_lite.transport.room import ConnectionShare

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Peer(asyncio.Protocol):
    """One connection of the server. ``on_made`` is called as soon as it is there."""

    def __init__(self, on_made: Callable[[], None]) -> None:
        self.lost = asyncio.Event()
        self.received = asyncio.Event()
        self._on_made = on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._on_made()

    def data_received(self, data: bytes) -> None:
        self.received.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


class Accepting:
    """An acceptor that is stopped at the very moment at which a connection has its protocol."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self.peers: list[Peer] = []
        self.failures: list[tuple[object, str | None]] = []
        self.stopped: asyncio.Task[None]
        self.begun = asyncio.Event()
        self._made = asyncio.Event()
        self._acceptor = Acceptor(
            self._peer,
            tls=tls,
            handshake_timeout=20.0,
            shutdown_timeout=0.5,
            accepted=ignore,
            failed=lambda peer, why: self.failures.append((peer, why)),
            starved=ignore,
            share=ConnectionShare(),
        )
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._acceptor.start([self._socket])

    def _peer(self) -> Peer:
        self.peers.append(Peer(self.stop))
        self.begun.set()
        return self.peers[-1]

    def stop(self) -> None:
        self.stopped = asyncio.get_running_loop().create_task(self._acceptor.stop())
        self._made.set()

    async def wait_stopped(self) -> None:
        await self._made.wait()
        await self.stopped


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], work: Any) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(work, 30))


@pytest.mark.parametrize("new_loop", LOOPS)
def test_connection_that_comes_with_the_stop_lives_and_its_protocol_hears_of_its_end(new_loop: Any) -> None:
    async def work() -> None:
        accepting = Accepting()
        _, writer = await asyncio.open_connection("127.0.0.1", accepting.port)
        await accepting.wait_stopped()
        (peer,) = accepting.peers
        writer.write(b"x")
        await peer.received.wait()
        writer.close()
        await peer.lost.wait()
        assert accepting.failures == []

    run(new_loop, work())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_connection_with_tls_that_comes_with_the_stop_ends_and_its_protocol_hears_of_it(new_loop: Any) -> None:
    authority = trustme.CA()
    served, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(served)
    authority.configure_trust(trusted)

    async def work() -> None:
        accepting = Accepting(lambda: served)
        reader, writer = await asyncio.open_connection("localhost", accepting.port, ssl=trusted)
        await accepting.wait_stopped()
        assert await reader.read() == b""
        writer.close()
        (peer,) = accepting.peers
        await peer.lost.wait()

    run(new_loop, work())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_handshake_in_progress_ends_with_the_stop_and_is_nobodys_fault(new_loop: Any) -> None:
    async def work() -> None:
        accepting = Accepting(lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        reader, writer = await asyncio.open_connection("127.0.0.1", accepting.port)
        await accepting.begun.wait()
        accepting.stop()
        await accepting.stopped
        assert await reader.read() == b""
        writer.close()
        ((_, why),) = accepting.failures
        assert why is None

    run(new_loop, work())
