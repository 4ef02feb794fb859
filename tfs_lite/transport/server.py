"""A gRPC server on listening sockets: it accepts connections, checks their timeouts, and stops without losing calls.

start -> accept -> (TLS) -> ServerProtocol -> calls
stop: no more connections -> GOAWAY to all -> calls are answered, or cancelled after the grace -> all is closed
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from tfs_lite.transport.acceptor import Acceptor
from tfs_lite.transport.backlog import Backlog
from tfs_lite.transport.condition import Condition
from tfs_lite.transport.grpc.call import Common, Hooks
from tfs_lite.transport.grpc.head import RequestHeadParser
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers
from tfs_lite.transport.protocol import ServerProtocol
from tfs_lite.transport.room import ConnectionRoom, ConnectionShare
from tfs_lite.transport.table import Method
from tfs_lite.transport.watch import LINGER, Watch, check_interval

__all__ = ["Hooks", "TransportServer"]

logger = logging.getLogger(__name__)

MIN_IDLE = 1.0
"""Seconds without a call after which a connection that has had one can be evicted."""
DRAIN_INTERVAL = 0.1
"""Seconds between two checks of connections while the server stops."""
CANCEL_TIMEOUT = 5.0
"""Seconds that handlers have for ending after they were cancelled."""


class TransportServer:
    """A gRPC server: ``start`` -> ``stop``, both on the event loop that runs the handlers. ``numbers`` may be read from
    any thread.

    ``tls`` returns the newest context, and is called for every connection; clients must then choose ``h2`` by ALPN.
    None means no TLS.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        limits: Limits,
        hooks: Hooks,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        backlog: Backlog | None = None,
        share: ConnectionShare | None = None,
    ) -> None:
        """``backlog`` is that of the loop, and ``share`` bounds the connections of the process; others may have the
        same ones. None: one of its own."""
        self.numbers = Numbers()
        self.head_parser = RequestHeadParser(methods)
        self.common: Common
        self._limits = limits
        self._hooks = hooks
        self._tls = tls
        self._backlog = backlog or Backlog()
        self._share = share or ConnectionShare()
        self._acceptor: Acceptor
        self._started = False
        self._connections: ConnectionRoom[ServerProtocol]
        self._watch: Watch
        self._changed = Condition()
        self._stopping: asyncio.Task[None] | None = None
        self._cancel_at = 0.0

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """``sockets`` are bound, of TCP or Unix. The server owns them from now on, and closes them."""
        loop = asyncio.get_running_loop()
        self.common = Common(loop, self._limits, self.numbers, self._hooks, self._changed.notify, self._backlog)
        self._connections = ConnectionRoom(self._limits.max_connections, _spare_rank, loop.time, self._share)
        self._watch = Watch(loop, check_interval(self._limits), lambda: self._connections)
        self._watch.start()
        self._acceptor = Acceptor(
            lambda: ServerProtocol(self),
            tls=self._tls,
            handshake_timeout=self._limits.handshake_timeout,
            shutdown_timeout=LINGER,
            accepted=self._on_accepted,
            failed=self._on_failed_handshake,
            starved=lambda why: self.common.log.warn("no_socket", f"no gRPC connection can be taken: {why}"),
            share=self._share,
        )
        self._acceptor.start(sockets)
        self._started = True

    async def stop(self, grace: float) -> None:
        """Accepts no more connections, asks clients for no more calls, and returns when all calls are answered, or
        cancelled after ``grace`` seconds, and nothing is left. May be called again with a shorter grace while it runs.
        """
        if not self._started:
            return
        loop = asyncio.get_running_loop()
        cancel_at = loop.time() + grace
        if self._stopping is None:
            self._cancel_at = cancel_at
            self._stopping = loop.create_task(self._stop())
        elif cancel_at < self._cancel_at:
            self._cancel_at = cancel_at
            self._changed.notify()
        await asyncio.shield(self._stopping)

    # Connections come and go.

    def connected(self, protocol: ServerProtocol) -> bool:
        return not self.common.draining and self._connections.add(protocol)

    def disconnected(self, protocol: ServerProtocol) -> None:
        self._connections.discard(protocol)
        if not self._connections:
            self._changed.notify()

    def _on_accepted(self) -> None:
        self.numbers.connections_total += 1

    def _on_failed_handshake(self, peer: object, why: str | None) -> None:
        self.numbers.closed["handshake"] += 1
        if why is not None:
            self.common.log.connection_ended("handshake", peer, why)

    # The end.

    async def _stop(self) -> None:
        await self._acceptor.stop()
        common = self.common
        common.draining = True
        self._watch.shorten(DRAIN_INTERVAL)
        for call in list(common.calls):
            call.drain()
        for protocol in list(self._connections):
            protocol.drain("drained")
        await self._changed.wait_for(self._is_empty, lambda: self._cancel_at)
        for protocol in list(self._connections):
            protocol.cancel()
        linger_end = common.loop.time() + LINGER
        await self._changed.wait_for(lambda: not self._connections, lambda: linger_end)
        for protocol in list(self._connections):
            protocol.abort("drained")
        cancel_end = common.loop.time() + CANCEL_TIMEOUT
        if not await self._changed.wait_for(self._is_empty, lambda: cancel_end):
            logger.error("%d handlers of gRPC calls go on after they were cancelled", len(common.calls))
        self._watch.stop()
        common.deadlines.close()
        common.inflater.close()

    def _is_empty(self) -> bool:
        return not self._connections and not self.common.calls


def _spare_rank(protocol: ServerProtocol, now: float) -> tuple[bool, float] | None:
    """Connections without calls, those first that have been silent for longest. Connections that never had a call come
    before the others, so that a crowd of silent ones does not evict a client that calls now and then."""
    since = protocol.idle_since
    if since is None or (protocol.used and now - since < MIN_IDLE):
        return None
    return protocol.used, since
