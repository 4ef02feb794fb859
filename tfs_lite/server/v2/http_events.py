"""Sends the answers of one request to the client as events, as fast as it reads them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from starlette.responses import Response

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.events import EVENT_TYPE, event
from tfs_lite.server.v2.http_replies import error_text, v2_status

logger = logging.getLogger(__name__)


class EventStream(Response):
    """Sends ``first``, and then what ``next_text`` gives, until it gives None. ``inside`` is closed when everything is
    sent or the client has gone. A failure becomes the last event."""

    media_type = EVENT_TYPE

    def __init__(
        self, first: bytes | None, next_text: Callable[[], Awaitable[bytes | None]], inside: ExitStack
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._next_text = next_text
        self._inside = inside
        self._begun = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with self._inside:
                text = self._first
                while text is not None:
                    await self._send(send, text)
                    text = await self._next_text()
        except ServingError as error:
            await self._send(send, error_text(error))
        except Exception:
            logger.exception("%s failed", scope["path"])
            await self._send(send, error_text(ServingError(StatusCode.INTERNAL, "internal error")))
        await self._send(send, b"", more=False)

    async def _send(self, send: Any, text: bytes, more: bool = True) -> None:
        """Waits while the client has not read what came before."""
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": event(text) if text else b"", "more_body": more})


def failed_stream(error: ServingError) -> Response:
    """A stream whose only event is that the model failed."""
    return Response(event(error_text(error)), v2_status(error), media_type=EVENT_TYPE)
