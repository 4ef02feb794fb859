"""Handlers of HTTP, asked without a connection."""

from __future__ import annotations

import asyncio
from typing import cast

from tfs_lite.server.http.message import Answer, Handler, Request, Response, StreamResponse
from tfs_lite.transport.table import Reply


async def response_to(handler: Handler, request: Request) -> Response | StreamResponse:
    """Waits for it as a connection does; when the caller is cancelled, the client has gone."""
    answer = handler(request)
    while isinstance(answer, Reply):
        reply, ended = answer, asyncio.get_running_loop().create_future()
        reply.then(ended.set_result)
        try:
            answer = cast(Answer, await ended)
        except asyncio.CancelledError:
            reply.cancel()
            raise
    return answer if isinstance(answer, Response) else await answer
