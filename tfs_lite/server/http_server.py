"""Serves an ASGI application with uvicorn, on a socket of ours and on the loop of the gRPC server."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.addresses import listen

MAX_CONCURRENCY = 1000
"""Connections and requests; one more is answered 503."""
_TICK = 0.01


class HttpServer:
    """``start`` -> ``stop``, both on the event loop."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=MAX_CONCURRENCY,
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
