"""Handlers of HTTP, asked without a connection."""

from __future__ import annotations

import asyncio

from tfs_lite.server.http.message import Answer, Handler, Reply, Request, Response, Stream


async def response_to(handler: Handler, request: Request) -> Response | Stream:
    """Waits for it as a connection does; when the caller is cancelled, the client has gone."""
    answer = handler(request)
    while isinstance(answer, Reply):
        ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer.then(ended.set_result)
        try:
            answer = await ended
        except asyncio.CancelledError:
            answer.cancel()
            raise
    return answer if isinstance(answer, Response) else await answer
