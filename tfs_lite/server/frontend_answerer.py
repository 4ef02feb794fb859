"""The server's end of the wire to one gRPC frontend: runs the table's handlers for the calls that come in.

Every call is one task, the handler's own, and ends with exactly one frame. Nothing here trusts the other side: what is
no call is an error of that frontend, which is closed; the calls that were inside it are cancelled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from mmap import mmap
from typing import Any, cast

from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_requests import Requests, unpack_metadata
from tfs_lite.server.frontend_wire import Link, WireError
from tfs_lite.server.grpc_status import INTERNAL, MAX_DETAILS
from tfs_lite.transport.table import CallContext, CallKind, Method

logger = logging.getLogger(__name__)

_MANY_REQUESTS = frozenset({CallKind.CLIENT_STREAM, CallKind.BIDI_STREAM})
_ONE_ANSWER = frozenset({CallKind.UNARY, CallKind.CLIENT_STREAM})
CANCELLED = Status(StatusCode.CANCELLED, "the call was cancelled")


class Answerer(Link):
    """``ready`` is done when the frontend listens, with its port (None: no TCP), or failed with why it cannot;
    ``gone`` is done when the connection is. ``calls_inside``: handlers that run."""

    def __init__(self, memory: mmap, methods: Sequence[Method], max_payload: int = wire.MAX_PAYLOAD) -> None:
        super().__init__(memory, server_side=True, max_payload=max_payload)
        self.ready: asyncio.Future[int | None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._methods = methods
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._credits: dict[int, asyncio.Semaphore] = {}
        self._requests: dict[int, Requests] = {}

    @property
    def calls_inside(self) -> int:
        return len(self._tasks)

    # A frontend that does not take its answers gets no new calls in.

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._transport is not None:
            self._transport.resume_reading()

    # What the frontend says.

    def on_frame(self, kind: int, code: int, call: int, value: int, payload: bytes) -> None:
        if kind == wire.CALL:
            self._begin(code, call, value, payload)
        elif kind == wire.CANCEL:
            self._cancel(call)
        elif kind == wire.CREDIT:
            self._add_credit(call, value)
        elif kind in (wire.MESSAGE, wire.LAST):
            self._hear(call, payload if kind == wire.MESSAGE else None)
        elif kind == wire.READY and not self.ready.done():
            self.ready.set_result(None if value == wire.NO_PORT else value)
        elif kind == wire.FAILED and not self.ready.done():
            self.ready.set_exception(_error(code, payload))
        elif kind != wire.BYE:
            raise WireError(f"a frame of kind {kind}")

    def on_lost(self) -> None:
        for call in tuple(self._tasks):
            self._cancel(call)
        if not self.gone.done():
            self.gone.set_result(None)

    def _begin(self, row: int, call: int, value: int, payload: bytes) -> None:
        if row >= len(self._methods):
            raise WireError(f"a call of row {row}, of {len(self._methods)}")
        if call in self._tasks:
            raise WireError(f"a second call {call}")
        if len(self._tasks) >= wire.MAX_CALLS:
            raise WireError(f"more than {wire.MAX_CALLS} calls")
        method = self._methods[row]
        context = CallContext(None if value < 0 else time.monotonic() + value / 1e6)
        asked: bytes | Requests = payload
        if method.kind in _MANY_REQUESTS:
            context.metadata = unpack_metadata(payload)
            asked = self._requests[call] = Requests(lambda taken: self.send(wire.CREDIT, call, value=taken))
        run = self._one if method.kind in _ONE_ANSWER else self._many
        self._tasks[call] = self._loop.create_task(run(call, method, asked, context))

    def _cancel(self, call: int) -> None:
        """A call that is over already has its last frame on the way. One that never began to run ends here."""
        task = self._tasks.get(call)
        if task is not None:
            task.add_done_callback(lambda _: self._end(wire.FAILURE, call, CANCELLED))
            task.cancel()

    def _hear(self, call: int, message: bytes | None) -> None:
        """One of a call's many requests; None: there are no more. Those of a call that is over are dropped, for the
        frontend does not know yet."""
        requests = self._requests.get(call)
        if requests is None:
            if call in self._tasks:
                raise WireError(f"a message of call {call}, which has one request")
        elif message is None:
            requests.last()
        else:
            requests.put(message)

    def _add_credit(self, call: int, items: int) -> None:
        if not 0 < items <= wire.WINDOW:
            raise WireError(f"credit for {items} items")
        credit = self._credits.get(call)
        if credit is not None:
            for _ in range(items):
                credit.release()

    # The handlers' tasks.

    async def _one(self, call: int, method: Method, asked: bytes | Requests, context: CallContext) -> None:
        try:
            answer = await cast(Callable[[Any, CallContext], Awaitable[bytes]], method.handler)(asked, context)
            if context.trailers and call in self._tasks:
                self.send(wire.TRAILERS, call, json.dumps(context.trailers).encode())
        except asyncio.CancelledError:
            self._end(wire.FAILURE, call, CANCELLED)
            raise
        except Exception as error:
            self._end(wire.FAILURE, call, _status(method.path, error))
        else:
            if self._leave(call):
                self.send(wire.ANSWER, call, answer)

    async def _many(self, call: int, method: Method, asked: bytes | Requests, context: CallContext) -> None:
        credit = self._credits[call] = asyncio.Semaphore(wire.WINDOW)
        items = cast(Callable[[Any, CallContext], AsyncIterator[bytes]], method.handler)(asked, context)
        try:
            async for item in items:
                await credit.acquire()
                self.send(wire.ITEM, call, item)
            self._end(wire.END, call)
        except asyncio.CancelledError:
            self._end(wire.FAILURE, call, CANCELLED)
            raise
        except Exception as error:
            self._end(wire.FAILURE, call, _status(method.path, error))
        finally:
            self._credits.pop(call, None)
            await _close(items)

    def _end(self, kind: int, call: int, status: Status | None = None) -> None:
        """The last frame of a call, once."""
        if not self._leave(call):
            return
        if status is None:
            self.send(kind, call)
        else:
            message = status.message[: MAX_DETAILS + 1]  # the frontend cuts it, and says so
            self.send(kind, call, message.encode(errors="replace"), code=int(status.code))

    def _leave(self, call: int) -> bool:
        """Whether it was inside. Nothing but its last frame may be sent for it then."""
        requests = self._requests.pop(call, None)
        if requests is not None:
            requests.end()
        return self._tasks.pop(call, None) is not None


async def _close(items: Any) -> None:
    """Runs the rest of a generator that was not read to its end."""
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


def _status(path: str, error: Exception) -> Status:
    if isinstance(error, ServingError):
        return error.status
    logger.error("%s failed", path, exc_info=error)
    return INTERNAL


def _error(code: int, payload: bytes) -> ServingError:
    try:
        return ServingError(StatusCode(code), payload.decode())
    except ValueError:
        raise WireError(f"a start that failed with code {code}") from None
