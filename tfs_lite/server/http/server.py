"""Serves an ASGI application with uvicorn, on a socket of ours and on the loop of the gRPC server.

Nobody can keep the probes from being answered by holding connections: one without the whole head of a request is closed
after a while, one whose client has stopped reading its answer is cut, and where there are too many, the one that has
waited longest makes room for a new one. How long a body and its answer may take is the application's affair.
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
"""Or half of the files that the process may open. Each connection has one request inside at most."""
BACKLOG = 256
"""Also how many connections are accepted at once, before the bound is looked at."""
REQUEST_TIMEOUT = 10.0
"""Seconds for the head of a request, from the start of the connection or the end of the request before; also for the
rest of a body that nobody wanted, and for a client to read some more of its answer."""
LOOKS = 10
"""So often in that time the server looks at its connections, all at once: cheaper than a timer for each."""
_TICK = 0.01


class HttpServer:
    """``start`` -> ``stop``, both on the event loop. An application that is a ``WholeApp`` too is asked as such."""

    def __init__(self, app: Any, request_timeout: float = REQUEST_TIMEOUT, max_connections: int | None = None) -> None:
        connections = max_connections or connections_allowed(MAX_CONNECTIONS)

        class BoundedConnection(Connection):
            timeout = request_timeout
            limit = connections
            whole_app = app if hasattr(app, "answer_whole") else None

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
        self._pause = request_timeout / LOOKS
        self._next_look: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """The port. FAILED_PRECONDITION, naming port and flag, if it cannot be had."""
        sock = listen(host, port, "--rest_api_port")
        bound: int = sock.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started:
            if self._task.done():
                raise ServingError(StatusCode.INTERNAL, "the HTTP server did not start") from self._task.exception()
            await asyncio.sleep(_TICK)
        self._look()
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
        if self._next_look is not None:
            self._next_look.cancel()

    def _look(self) -> None:
        now = time.monotonic()
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, Connection):
                connection.look(now)
        self._next_look = asyncio.get_running_loop().call_later(self._pause, self._look)
