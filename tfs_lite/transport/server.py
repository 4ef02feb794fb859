"""A gRPC server on listening sockets: it accepts connections, checks their timeouts, and stops without losing calls.

start -> accept -> (TLS) -> ServerProtocol -> calls
stop: no more connections -> GOAWAY to all -> calls are answered, or cancelled after the grace -> all is closed
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from tfs_lite.transport.grpc.call import Common, Hooks
from tfs_lite.transport.grpc.head import RequestHeadParser
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers
from tfs_lite.transport.protocol import ServerProtocol
from tfs_lite.transport.table import Method
from tfs_lite.transport.watch import LINGER, Watch, check_interval

__all__ = ["Hooks", "Server"]

logger = logging.getLogger(__name__)

BACKLOG = 1024
MAX_HANDSHAKES = 1024
"""In progress at a time; one more cancels the oldest."""
ACCEPT_AT_ONCE = 64
"""Connections accepted in one turn of the loop."""
ACCEPT_PAUSE = 1.0
"""Seconds until the next attempt after the system had no socket (too many open files)."""
EVICTION_INTERVAL = 1.0
"""Seconds between two searches for connections that can be evicted."""
MIN_IDLE = 1.0
"""Seconds without a call after which a connection that has had one can be evicted."""
DRAIN_INTERVAL = 0.1
"""Seconds between two checks of connections while the server stops."""
CANCEL_TIMEOUT = 5.0
"""Seconds that handlers have for ending after they were cancelled."""


class Server:
    """``start`` -> ``stop``, both on the event loop that runs the handlers. ``numbers`` may be read from any thread.

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
    ) -> None:
        self.numbers = Numbers()
        self.head_parser = RequestHeadParser(methods)
        self.common: Common
        self._limits = limits
        self._max_connections = connections_allowed(limits.max_connections)
        self._hooks = hooks
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._retries: dict[socket.socket, asyncio.Handle] = {}
        self._handshakes: dict[asyncio.Task[bool], socket.socket] = {}
        self._connections: set[ServerProtocol] = set()
        self._evictable: deque[tuple[ServerProtocol, float]] = deque()
        self._searched_at = 0.0
        self._watch: Watch
        self._changed = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._cancel_at = 0.0

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """``sockets`` are bound, of TCP or Unix. The server owns them from now on, and closes them."""
        loop = asyncio.get_running_loop()
        self.common = Common(loop, self._limits, self.numbers, self._hooks, self._changed.set)
        self._watch = Watch(loop, check_interval(self._limits), lambda: self._connections)
        self._watch.start()
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(BACKLOG)
            self._sockets.append(listening)
            self._listen(listening)

    async def stop(self, grace: float) -> None:
        """Accepts no more connections, asks clients for no more calls, and returns when all calls are answered, or
        cancelled after ``grace`` seconds, and nothing is left. May be called again with a shorter grace while it runs.
        """
        if not self._sockets:
            return
        loop = asyncio.get_running_loop()
        cancel_at = loop.time() + grace
        if self._stopping is None:
            self._cancel_at = cancel_at
            self._stopping = loop.create_task(self._stop())
        elif cancel_at < self._cancel_at:
            self._cancel_at = cancel_at
            self._changed.set()
        await asyncio.shield(self._stopping)

    # Connections come and go.

    def connected(self, protocol: ServerProtocol) -> bool:
        if self.common.draining:
            return False
        if len(self._connections) >= self._max_connections:
            evicted = self._find_evictable()
            if evicted is None:
                return False
            evicted.evict()
            self._connections.discard(evicted)
        elif self._evictable:
            self._evictable.clear()
        self._connections.add(protocol)
        return True

    def disconnected(self, protocol: ServerProtocol) -> None:
        self._connections.discard(protocol)
        if not self._connections:
            self._changed.set()

    def _find_evictable(self) -> ServerProtocol | None:
        """The connection without calls that has been silent for longest. Connections that never had a call come first,
        so that a crowd of silent ones does not evict a client that calls now and then. One search over all connections
        serves many evictions."""
        now = self.common.loop.time()
        if not self._evictable and now - self._searched_at >= EVICTION_INTERVAL:
            self._searched_at = now
            idle = [(protocol, since) for protocol in self._connections if (since := protocol.idle_since) is not None]
            found = [(protocol, since) for protocol, since in idle if not protocol.used or now - since >= MIN_IDLE]
            self._evictable.extend(sorted(found, key=lambda one: (one[0].used, one[1])))
        while self._evictable:
            protocol, since = self._evictable.popleft()
            if protocol.idle_since == since and protocol in self._connections:
                return protocol
        return None

    # Accepting connections.

    def _listen(self, listening: socket.socket) -> None:
        self._retries.pop(listening, None)
        self.common.loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = self.common.loop
        for _ in range(ACCEPT_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the client has gone already
            except OSError as error:
                self.common.log.warn("no_socket", f"no gRPC connection can be taken: {error.strerror}")
                loop.remove_reader(listening)
                self._retries[listening] = loop.call_later(ACCEPT_PAUSE, self._listen, listening)
                return
            accepted.setblocking(False)
            self.numbers.connections_total += 1
            if len(self._handshakes) >= MAX_HANDSHAKES:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._handshake(accepted))
            self._handshakes[task] = accepted
            task.add_done_callback(self._handshake_done)

    async def _handshake(self, accepted: socket.socket) -> bool:
        """Whether it has succeeded."""
        loop, peer = self.common.loop, _peer_of(accepted)
        try:
            if self._tls is None:
                await loop.connect_accepted_socket(self._protocol, accepted)
            else:
                await loop.connect_accepted_socket(
                    self._protocol,
                    accepted,
                    ssl=self._tls(),
                    ssl_handshake_timeout=self._limits.handshake_timeout,
                    ssl_shutdown_timeout=LINGER,
                )
        except OSError as error:  # ssl.SSLError is one, and a timeout
            self.common.log.connection_ended("handshake", peer, str(error) or type(error).__name__)
            return False
        except Exception:
            logger.exception("a connection could not be taken")
            return False
        return True

    def _handshake_done(self, task: asyncio.Task[bool]) -> None:
        accepted = self._handshakes.pop(task)
        if task.cancelled() or not task.result():
            self.numbers.closed["handshake"] += 1
            accepted.close()

    def _protocol(self) -> ServerProtocol:
        return ServerProtocol(self)

    # The end.

    async def _stop(self) -> None:
        await self._stop_accepting()
        common = self.common
        common.draining = True
        self._watch.shorten(DRAIN_INTERVAL)
        for call in list(common.calls):
            call.drain()
        for protocol in list(self._connections):
            protocol.drain("drained")
        await self._wait_until(self._is_empty, lambda: self._cancel_at)
        for protocol in list(self._connections):
            protocol.cancel()
        linger_end = common.loop.time() + LINGER
        await self._wait_until(lambda: not self._connections, lambda: linger_end)
        for protocol in list(self._connections):
            protocol.abort("drained")
        cancel_end = common.loop.time() + CANCEL_TIMEOUT
        if not await self._wait_until(self._is_empty, lambda: cancel_end):
            logger.error("%d handlers of gRPC calls go on after they were cancelled", len(common.calls))
        self._watch.stop()
        common.deadlines.close()
        common.inflater.close()

    async def _stop_accepting(self) -> None:
        for retry in self._retries.values():
            retry.cancel()
        for listening in self._sockets:
            self.common.loop.remove_reader(listening)
            listening.close()
        tasks = list(self._handshakes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_empty(self) -> bool:
        return not self._connections and not self.common.calls

    async def _wait_until(self, done: Callable[[], bool], end: Callable[[], float]) -> bool:
        """Whether it was done before the end, which may change during the wait."""
        while not done():
            left = end() - self.common.loop.time()
            if left <= 0:
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return True


def connections_allowed(most: int) -> int:
    """``most``, but no more than half of the files that the process may open: it needs the others for itself."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)


def _peer_of(accepted: socket.socket) -> object:
    """None if the client has gone already."""
    try:
        return accepted.getpeername()
    except OSError:
        return None
