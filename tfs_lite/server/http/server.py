"""An HTTP/1.1 server on a socket of ours and on the loop of the gRPC server, with or without TLS.

    start -> serving -> leave (answers close their connections) -> drain -> stop

Held connections cannot keep the probes from being answered: a connection without a request is closed after a while, as
is one whose head does not become whole, whose client has stopped sending a body, or reading its answer. Bodies and
answers may take as long as something of them comes or goes; what bounds those is the number of connections, beyond
which the longest idle one is evicted, or the longest busy one. The handlers decide how long an answer is made.

A stop loses no request of a client that keeps its connection. From ``leave`` on every answer says that its connection
closes, so that clients and proxies go elsewhere, and a drain waits a moment for those that asked a short while ago.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.server.http.connection import CUTS, Http1Connection, Waits
from tfs_lite.server.http.known_heads import KnownHeads
from tfs_lite.server.http.message import Handler, Request, Response
from tfs_lite.server.http.response_head import DateLine
from tfs_lite.server.runtime.sockets import listen
from tfs_lite.transport.acceptor import Acceptor
from tfs_lite.transport.backlog import Backlog
from tfs_lite.transport.condition import Condition
from tfs_lite.transport.rate_limited_log import RateLimitedLog
from tfs_lite.transport.room import ConnectionRoom, ConnectionShare
from tfs_lite.transport.watch import Watch

PORT_FLAG = "--rest_api_port"
MAX_CONNECTIONS = 10_000
"""A connection has at most one request in flight."""
CHECKS, LONGEST_CHECK = 10, 1.0
"""Waits of all connections are checked this often within the shortest one, or each so many seconds if that is sooner:
cheaper than a timer for each."""
TLS_END = 0.5
"""Seconds that a client has for the end of TLS."""
RECENT = 2.0
"""Seconds within which a connection was used by a client that may well ask again."""
LAST_REQUEST = 1.0
"""Seconds that such a connection has for its last request when the server drains."""


def _take(request: Request) -> None:
    return None


class HttpServer:
    """``start`` -> ``leave``, which may be left out -> ``drain`` -> ``stop``, all on the event loop. ``tls`` gives the
    newest context for one connection; None means no TLS."""

    def __init__(
        self,
        handler: Handler,
        waits: Waits | None = None,
        max_connections: int = MAX_CONNECTIONS,
        tls: Callable[[], ssl.SSLContext] | None = None,
        backlog: Backlog | None = None,
        refusal: Callable[[Request], Response | None] = _take,
        share: ConnectionShare | None = None,
    ) -> None:
        """``waits`` None: the usual ones. ``backlog`` is that of the loop, and ``share`` bounds the connections of the
        process; others may have the same ones. None: one of its own. ``refusal`` is asked about every POST before it is
        put into the backlog: the answer to one that is refused, None for one that is taken."""
        self.handler = handler
        self.refusal = refusal
        self.backlog = backlog or Backlog()
        self.waits = waits = waits or Waits()
        self.kept = _kept_lines(waits.idle)
        self.date = DateLine()
        self.heads = KnownHeads()
        self.closes_connections = False
        """Whether every answer is the last on its connection."""
        self.drained = False
        """Whether connections that are made now are too late for predictions."""
        self._tls = tls
        self.cuts = Counter(dict.fromkeys(CUTS, 0))
        """Connections that the server has ended, by kind. Any thread may read."""
        self._log = RateLimitedLog("HTTP", time.monotonic)
        share = share or ConnectionShare()
        self.connections: ConnectionRoom[Http1Connection] = ConnectionRoom(
            max_connections, lambda one, _: one.rank, time.monotonic, share
        )
        self._acceptor = Acceptor(
            lambda: Http1Connection(self),
            tls=tls,
            handshake_timeout=waits.handshake,
            shutdown_timeout=TLS_END,
            accepted=lambda: None,
            failed=self._on_failed_handshake,
            starved=lambda why: self._log.warn("no_socket", f"no HTTP connection can be taken: {why}"),
            share=share,
        )
        self._watch: Watch
        self._ended = Condition()
        """Notified whenever a connection has ended."""

    async def start(self, host: str, port: int) -> int:
        """The port. FAILED_PRECONDITION, naming port and flag, if it cannot be had, or if TLS refuses its file."""
        if self._tls is not None:
            self._tls()
        sock = listen(host, port, PORT_FLAG)
        bound: int = sock.getsockname()[1]
        waits = self.waits
        every = min(min(waits.idle, waits.read, waits.write) / CHECKS, LONGEST_CHECK)
        self._watch = Watch(asyncio.get_running_loop(), every, lambda: self.connections)
        self._watch.start()
        self._acceptor.start([sock])
        return bound

    def leave(self) -> None:
        """Lets each answer say from now on that its connection closes. Connections are still accepted."""
        self.closes_connections = True

    async def drain(self, grace: float) -> None:
        """Returns when the clients that asked a short while ago have had the time for one more request, at the latest
        after ``grace`` seconds. Each answer is the last on its connection. Connections that are made afterwards are
        too late."""
        self.leave()
        now = time.monotonic()
        ends = now + min(grace, LAST_REQUEST)
        active = [one for one in self.connections if not one.busy and now - one.used_at < RECENT]
        await self._ended.wait_for(lambda: not any(one in self.connections for one in active), lambda: ends)
        self.drained = True

    async def stop(self, grace: float) -> None:
        """Accepts no more connections; returns when the requests in flight are answered, or dropped after ``grace``
        seconds."""
        if not self._acceptor.listening:
            return
        self.leave()
        await self._acceptor.stop()
        for connection in list(self.connections):
            connection.close_if_idle()
        ends = time.monotonic() + grace
        await self._ended.wait_for(lambda: not len(self.connections), lambda: ends)
        for connection in list(self.connections):
            connection.abort()
        await self._ended.wait_for(lambda: not len(self.connections))
        self._watch.stop()

    # From connections.

    def connected(self, connection: Http1Connection) -> bool:
        return self.connections.add(connection)

    def disconnected(self, connection: Http1Connection) -> None:
        self.connections.discard(connection)
        self._ended.notify()

    def on_cut(self, kind: str, peer: object, why: str = "") -> None:
        self.cuts[kind] += 1
        self._log.connection_ended(kind, peer, why)

    def _on_failed_handshake(self, peer: object, why: str | None) -> None:
        if why is None:
            self.cuts["handshake"] += 1
        else:
            self.on_cut("handshake", peer, why)


def _kept_lines(idle: float) -> bytes:
    """The header lines that tell clients how long a connection is kept; without them a client may send a request on a
    connection that is just being closed."""
    return b"connection: keep-alive\r\nkeep-alive: timeout=%d\r\n" % idle if idle >= 1 else b""


class ConnectionCollector(Collector):
    """Reads the numbers once per page, on the thread that makes the page."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "tfs_lite_http_connections", "HTTP connections that are open.", len(self._server.connections)
        )
        closed = CounterMetricFamily(
            "tfs_lite_http_connections_closed", "HTTP connections that the server ended, by why.", labels=["kind"]
        )
        for kind, count in self._server.cuts.items():
            closed.add_metric([kind], count)
        yield closed
