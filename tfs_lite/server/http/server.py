"""Serves an ASGI application with uvicorn, on a socket of ours and on the loop of the gRPC server.

Held connections cannot keep the probes from being answered: a connection without the whole head of a request is closed
after a while, one whose client has stopped reading its answer is aborted, and beyond the bound on connections the
longest idle one is evicted. The application decides how long a body and its answer may take.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvicorn

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.connection import Connection
from tfs_lite.server.runtime.sockets import listen
from tfs_lite.transport.server import connections_allowed

MAX_CONNECTIONS = 10_000
"""Or half of the files that the process may open. A connection has at most one request in flight."""
BACKLOG = 256
"""Also the connections that are accepted at once, before the bound is checked."""
REQUEST_TIMEOUT = 10.0
"""Seconds for the head of a request, from the start of the connection or the end of the request before; also for the
rest of a refused body, and for a client to read more of its answer."""
CHECKS = 10
"""Timeouts of all connections are checked this often in that time, which is cheaper than a timer for each."""
_POLL_SECONDS = 0.01


class HttpServer:
    """``start`` -> ``stop``, both on the event loop. An application that is a ``WholeApp`` too is asked as such."""

    def __init__(self, app: Any, request_timeout: float = REQUEST_TIMEOUT, max_connections: int | None = None) -> None:
        connections = max_connections or connections_allowed(MAX_CONNECTIONS)

        class BoundedConnection(Connection):
            timeout = request_timeout
            limit = connections
            short_path_app = app if hasattr(app, "answer_buffered") else None

        config = uvicorn.Config(
            app,
            http=BoundedConnection,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            backlog=BACKLOG,
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None
        self._interval = request_timeout / CHECKS
        self._next_check: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """The port. FAILED_PRECONDITION, naming port and flag, if it cannot be had."""
        sock = listen(host, port, "--rest_api_port")
        bound: int = sock.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started:
            if self._task.done():
                raise ServingError(StatusCode.INTERNAL, "the HTTP server did not start") from self._task.exception()
            await asyncio.sleep(_POLL_SECONDS)
        self._check_timeouts()
        return bound

    async def stop(self, grace: float) -> None:
        """Accepts no more connections; returns when the requests in flight are answered, or dropped after ``grace``
        seconds."""
        if self._task is None:
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait([self._task], timeout=grace)
        if not done:
            self._server.force_exit = True
            await asyncio.wait([self._task], timeout=1.0)
        if self._next_check is not None:
            self._next_check.cancel()

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, Connection):
                connection.check_timeouts(now)
        self._next_check = asyncio.get_running_loop().call_later(self._interval, self._check_timeouts)
