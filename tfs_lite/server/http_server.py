"""Serves an ASGI application with uvicorn, on a socket of ours and on the loop of the gRPC server.

Nobody can keep the probes from being answered by holding connections: one without the whole head of a request is closed
after a while, one whose client has stopped reading its answer is cut, and where there are too many, the one that has
waited longest makes room for a new one. How long a body and its answer may take is the application's affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

import h11
import orjson
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.addresses import listen
from tfs_lite.server.lingering import LingeringTransport

MAX_CONNECTIONS = 10_000
"""Or half of the files that the process may open. Each connection has one request inside at most."""
BACKLOG = 256
"""Also how many connections are accepted at once, before the bound is looked at."""
REQUEST_TIMEOUT = 10.0
"""Seconds for the head of a request, from the start of the connection or the end of the request before; also for the
rest of a body that nobody wanted, and for a client to read some more of its answer."""
READ_BYTES = 16 * 1024
"""Taken from a connection before others have their turn: a body in tiny chunks costs a microsecond or two a byte."""
_TICK = 0.01


class HttpServer:
    """``start`` -> ``stop``, both on the event loop."""

    def __init__(self, app: Any, request_timeout: float = REQUEST_TIMEOUT, max_connections: int | None = None) -> None:
        connections = max_connections or _connections_allowed()

        class BoundedConnection(Connection):
            timeout = request_timeout
            limit = connections

        config = uvicorn.Config(
            app,
            http=BoundedConnection,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            backlog=BACKLOG,
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """The port. FAILED_PRECONDITION, naming port and flag, if it cannot be had."""
        sock = listen(host, port, "--rest_api_port")
        bound: int = sock.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started:
            if self._task.done():
                raise ServingError(StatusCode.INTERNAL, "the HTTP server did not start") from self._task.exception()
            await asyncio.sleep(_TICK)
        return bound

    async def stop(self, grace: float) -> None:
        """Takes no more connections; returns when requests inside are answered, or dropped after ``grace`` seconds."""
        if self._task is None:
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait([self._task], timeout=grace)
        if not done:
            self._server.force_exit = True
            await asyncio.wait([self._task], timeout=1.0)


class Connection(H11Protocol):
    """uvicorn's, with a limit to its patience and to their number. Runs on the event loop."""

    timeout: float
    limit: int
    _lingering: LingeringTransport
    _overdue: asyncio.TimerHandle | None = None
    _unread = 0
    """Bytes of answers that the client had not read when somebody looked last."""
    _since = 0.0
    """When it began to wait for a request, or to work on one."""

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_sending(self) -> bool:
        """Whether the client has begun a body and not ended it."""
        return self.conn.their_state is h11.SEND_BODY

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limit:
            self._make_room()
        transport.max_size = READ_BYTES  # type: ignore[attr-defined] # of asyncio's own transports
        self._lingering = LingeringTransport(transport, self._is_sending, self.timeout)
        super().connection_made(self._lingering)  # type: ignore[arg-type]
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lingering.closed()
        self._unwatch()

    def data_received(self, data: bytes) -> None:
        if self._lingering.lingering:
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Also for a body that breaks off while its request is worked on, or after it was answered."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send_error(msg)
        self.transport.close()

    def _send_error(self, msg: str) -> None:
        body = orjson.dumps({"error": msg})
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        with contextlib.suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")

    def _watch(self) -> None:
        """Bytes that make no request do not prolong the wait for one."""
        unread = self.transport.get_write_buffer_size()
        if not unread and (self._busy or self.transport.is_closing()):
            self._unwatch()
        elif self._overdue is None:
            self._since, self._unread = self.loop.time(), unread
            self._overdue = self.loop.call_later(self.timeout, self._give_up)

    def _give_up(self) -> None:
        """Closes, but not on a client that goes on reading its answer."""
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        self._overdue = None
        if self._unread < before:
            self._overdue = self.loop.call_later(self.timeout, self._give_up)
        elif self._unread:
            self.transport.abort()
        elif not self._busy:
            self.transport.close()

    def _unwatch(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
            self._since = self.loop.time()

    def _make_room(self) -> None:
        """By whoever waits for a request, or, if nobody does, by the request that has been inside longest."""
        others = [other for other in self.connections if isinstance(other, Connection)]
        oldest = min(others, key=lambda other: (other._busy, other._since))
        oldest.connections.discard(oldest)
        oldest.transport.abort()


def _connections_allowed() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)
