"""A gRPC server on listening sockets: takes connections, looks at them now and then, and stops without losing calls.

start -> accept -> (TLS) -> ServerProtocol -> calls
stop: no more connections -> GOAWAY everywhere -> calls inside are answered, or cut off after the grace -> nothing
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

from tfs_lite.transport.grpc.common import Common, Hooks
from tfs_lite.transport.grpc.head import RequestHeadParser
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers
from tfs_lite.transport.protocol import ServerProtocol
from tfs_lite.transport.table import Method
from tfs_lite.transport.watch import LINGER, Watch, tick_of

__all__ = ["Hooks", "Server"]

logger = logging.getLogger(__name__)

BACKLOG = 1024
MAX_HANDSHAKES = 1024
"""In progress at a time; one more costs the oldest its chance."""
ACCEPT_AT_ONCE = 64
"""Connections taken before others have their turn."""
ACCEPT_PAUSE = 1.0
"""Seconds after the system had no socket for us (too many open files)."""
CHOOSE_EVERY = 1.0
"""Seconds between two searches for connections that can be spared."""
REST = 1.0
"""Seconds without a call after which a connection that has had one can be spared."""
DRAIN_TICK = 0.1
"""Seconds between two looks while the server stops."""
CANCEL_PATIENCE = 5.0
"""Seconds that handlers have for ending after they were cancelled."""


class Server:
    """``start`` -> ``stop``, both on the event loop that runs the handlers. ``numbers`` may be read from any thread.

    ``tls`` gives the newest context, and is called for every connection; None: no TLS. Clients must choose ``h2`` by
    ALPN then.
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
        self.heads = RequestHeadParser(methods)
        self.common: Common
        self._limits = limits
        self._max_connections = connections_allowed(limits.max_connections)
        self._hooks = hooks
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._retries: dict[socket.socket, asyncio.Handle] = {}
        self._handshakes: dict[asyncio.Task[bool], socket.socket] = {}
        self._connections: set[ServerProtocol] = set()
        self._spare: deque[tuple[ServerProtocol, float]] = deque()
        self._chosen = 0.0
        self._watch: Watch
        self._changed = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._cut_at = 0.0

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Bound sockets, of TCP or Unix. They are the server's from now on; so is closing them."""
        loop = asyncio.get_running_loop()
        self.common = Common(loop, self._limits, self.numbers, self._hooks, self._changed.set)
        self._watch = Watch(loop, tick_of(self._limits), lambda: self._connections)
        self._watch.start()
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(BACKLOG)
            self._sockets.append(listening)
            self._listen(listening)

    async def stop(self, grace: float) -> None:
        """Takes no more connections and asks clients for no more calls; returns when those inside are answered, or
        cancelled after ``grace`` seconds, and nothing is left. May be called again with a shorter grace while it runs.
        """
        if not self._sockets:
            return
        loop = asyncio.get_running_loop()
        cut_at = loop.time() + grace
        if self._stopping is None:
            self._cut_at = cut_at
            self._stopping = loop.create_task(self._stop())
        elif cut_at < self._cut_at:
            self._cut_at = cut_at
            self._changed.set()
        await asyncio.shield(self._stopping)

    # Connections come and go.

    def arrived(self, protocol: ServerProtocol) -> bool:
        if self.common.draining:
            return False
        if len(self._connections) >= self._max_connections:
            spare = self._choose()
            if spare is None:
                return False
            spare.evict()
            self._connections.discard(spare)
        elif self._spare:
            self._spare.clear()
        self._connections.add(protocol)
        return True

    def left(self, protocol: ServerProtocol) -> None:
        self._connections.discard(protocol)
        if not self._connections:
            self._changed.set()

    def _choose(self) -> ServerProtocol | None:
        """The connection without a call from which nothing has come for longest, one that never had a call before all
        others: who asks now and then is not put out by a crowd that says nothing. The search over all of them is made
        at most once in a while, for many."""
        now = self.common.loop.time()
        if not self._spare and now - self._chosen >= CHOOSE_EVERY:
            self._chosen = now
            idle = [(protocol, since) for protocol in self._connections if (since := protocol.idle_since) is not None]
            resting = [one for one in idle if not one[0].used or now - one[1] >= REST]
            self._spare.extend(sorted(resting, key=lambda one: (one[0].used, one[1])))
        while self._spare:
            protocol, since = self._spare.popleft()
            if protocol.idle_since == since and protocol in self._connections:
                return protocol
        return None

    # Taking connections.

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
                continue  # it has gone before it was taken
            except OSError as error:
                self.common.complaints.say("no_socket", f"no gRPC connection can be taken: {error.strerror}")
                loop.remove_reader(listening)
                self._retries[listening] = loop.call_later(ACCEPT_PAUSE, self._listen, listening)
                return
            accepted.setblocking(False)
            self.numbers.connections_total += 1
            if len(self._handshakes) >= MAX_HANDSHAKES:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._welcome(accepted))
            self._handshakes[task] = accepted
            task.add_done_callback(self._welcomed)

    async def _welcome(self, accepted: socket.socket) -> bool:
        """Whether it is a connection now."""
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
            self.common.complaints.about("handshake", peer, str(error) or type(error).__name__)
            return False
        except Exception:
            logger.exception("a connection could not be taken")
            return False
        return True

    def _welcomed(self, task: asyncio.Task[bool]) -> None:
        accepted = self._handshakes.pop(task)
        if task.cancelled() or not task.result():
            self.numbers.closed["handshake"] += 1
            accepted.close()

    def _protocol(self) -> ServerProtocol:
        return ServerProtocol(self)

    # The end.

    async def _stop(self) -> None:
        await self._close_doors()
        common = self.common
        common.draining = True
        self._watch.hasten(DRAIN_TICK)
        for call in list(common.calls):
            call.drain()
        for protocol in list(self._connections):
            protocol.drain("drained")
        await self._until(self._is_empty, lambda: self._cut_at)
        for protocol in list(self._connections):
            protocol.cut()
        await self._end_of(lambda: not self._connections, LINGER)
        for protocol in list(self._connections):
            protocol.abort("drained")
        if not await self._end_of(lambda: not self._connections and not common.calls, CANCEL_PATIENCE):
            logger.error("%d handlers of gRPC calls go on after they were cancelled", len(common.calls))
        self._watch.stop()
        common.deadlines.close()
        common.inflater.close()

    async def _close_doors(self) -> None:
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

    async def _end_of(self, over: Callable[[], bool], patience: float) -> bool:
        ends = self.common.loop.time() + patience
        return await self._until(over, lambda: ends)

    async def _until(self, over: Callable[[], bool], ends: Callable[[], float]) -> bool:
        """Whether it was over before the time, which may be moved while this waits."""
        while not over():
            left = ends() - self.common.loop.time()
            if left <= 0:
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return True


def connections_allowed(most: int) -> int:
    """``most``, or half of the files that the process may open; the other half is for everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)


def _peer_of(accepted: socket.socket) -> object:
    """None if it has gone already."""
    try:
        return accepted.getpeername()
    except OSError:
        return None
