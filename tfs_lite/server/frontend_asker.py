"""The frontend's end of the wire: a table whose handlers ask the server.

To the transport it is a table like any other. A handler sends the bytes of its call and waits for what comes back; when
its task is cancelled, because the client is gone or late, the server is told. The place of a call is taken until the
server has ended it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from mmap import mmap
from typing import Any

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_requests import Window, pack_metadata
from tfs_lite.server.frontend_setup import kind_of
from tfs_lite.server.frontend_wire import Link, WireError
from tfs_lite.transport.table import CallContext, CallKind, ClientStreamHandler, Method, UnaryHandler


class _One:
    """Where the answer of a call with one answer goes. ``window``: of a call with many requests."""

    __slots__ = ("context", "future", "window")

    def __init__(self, context: CallContext, future: asyncio.Future[bytes], window: Window | None) -> None:
        self.context = context
        self.future = future
        self.window = window

    def put(self, payload: bytes) -> None:
        if not self.future.done():
            self.future.set_result(payload)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Many:
    """Where the items of a stream go; None is its end. Holds ``wire.WINDOW`` items and the ends at most. ``window``:
    of a call with many requests."""

    __slots__ = ("items", "window")

    def __init__(self, window: Window | None) -> None:
        self.items: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.window = window

    def put(self, payload: bytes) -> None:
        self.items.put_nowait(payload)

    def end(self) -> None:
        self.items.put_nowait(None)

    def fail(self, error: Exception) -> None:
        self.items.put_nowait(error)


class Asker(Link):
    """On the frontend's loop. ``setup`` is done when the server has said what to serve; ``on_drain`` gets the grace in
    seconds, and may be called again with a shorter one; ``on_gone`` is called when the server is."""

    def __init__(
        self,
        memory: mmap,
        on_drain: Callable[[float], None],
        on_gone: Callable[[], None],
        max_calls: int = wire.MAX_CALLS,
    ) -> None:
        super().__init__(memory, server_side=False)
        self.setup: asyncio.Future[bytes] = self._loop.create_future()
        self._on_drain = on_drain
        self._on_gone = on_gone
        self._max_calls = max_calls
        self._inside: dict[int, _One | _Many | None] = {}
        """None: nobody waits any more, and the server has not ended the call yet."""
        self._last = 0

    def table(self, rows: Sequence[tuple[str, str]]) -> list[Method]:
        """A handler for every row. They raise what the server's handlers raise, and RESOURCE_EXHAUSTED when there are
        too many calls inside."""
        return [self._method(index, path, kind_of(kind)) for index, (path, kind) in enumerate(rows)]

    def _method(self, index: int, path: str, kind: CallKind) -> Method:
        if kind is CallKind.UNARY:
            return Method(path, kind, self._unary(index))
        if kind is CallKind.CLIENT_STREAM:
            return Method(path, kind, self._client_stream(index))
        return Method(path, kind, self._stream(index, kind is CallKind.BIDI_STREAM))

    def _unary(self, index: int) -> UnaryHandler:
        async def call(data: bytes, context: CallContext) -> bytes:
            future: asyncio.Future[bytes] = self._loop.create_future()
            number = await self._begin(index, data, context, _One(context, future, None))
            try:
                return await future
            finally:
                self._leave(number)

        return call

    def _client_stream(self, index: int) -> ClientStreamHandler:
        async def call(requests: AsyncIterator[bytes], context: CallContext) -> bytes:
            future: asyncio.Future[bytes] = self._loop.create_future()
            asks = _One(context, future, Window())
            number = await self._begin(index, pack_metadata(context.metadata), context, asks)
            sending = self._loop.create_task(self._send_messages(number, asks, requests))
            try:
                return await future
            finally:
                self._leave(number)
                await _stop(sending)

        return call

    def _stream(self, index: int, many_requests: bool) -> Callable[[Any, CallContext], AsyncIterator[bytes]]:
        async def call(asked: Any, context: CallContext) -> AsyncIterator[bytes]:
            stream = _Many(Window() if many_requests else None)
            data = pack_metadata(context.metadata) if many_requests else asked
            number = await self._begin(index, data, context, stream)
            sending = self._loop.create_task(self._send_messages(number, stream, asked)) if many_requests else None
            taken = 0
            try:
                while (item := await stream.items.get()) is not None:
                    if isinstance(item, Exception):
                        raise item
                    yield item
                    taken += 1
                    if taken == wire.WINDOW // 2:
                        self.send(wire.CREDIT, number, value=taken)
                        taken = 0
            finally:
                self._leave(number)
                if sending is not None:
                    await _stop(sending)

        return call

    async def _begin(self, index: int, data: bytes, context: CallContext, asks: _One | _Many) -> int:
        number = self._enter(asks)
        if not self.clear.is_set():
            try:
                await self.clear.wait()
            except BaseException:
                del self._inside[number]
                raise
        value = wire.NO_DEADLINE
        if context.deadline is not None:
            value = max(int((context.deadline - time.monotonic()) * 1e6), 0)
        self.send(wire.CALL, number, data, code=index, value=value)
        return number

    async def _send_messages(self, number: int, asks: _One | _Many, messages: AsyncIterator[bytes]) -> None:
        """The client's messages, each when there is room for it, and the last word. What goes wrong with them fails
        the call."""
        window = asks.window
        assert window is not None
        try:
            async for message in messages:
                await self.clear.wait()
                if self._inside.get(number) is not asks:
                    return
                self.send(wire.MESSAGE, number, message)
                window.sent(len(message))
                await window.open.wait()
            if self._inside.get(number) is asks:
                self.send(wire.LAST, number)
        except Exception as error:
            asks.fail(error)

    def _enter(self, asks: _One | _Many) -> int:
        """Takes a place. The number is not in use: those that are, are fewer than there are numbers."""
        if len(self._inside) >= self._max_calls:
            raise ServingError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"this gRPC frontend has {len(self._inside)} calls inside, the most it takes at a time",
            )
        while True:
            self._last = (self._last + 1) % 2**32
            if self._last not in self._inside:
                self._inside[self._last] = asks
                return self._last

    def _leave(self, number: int) -> None:
        """Nobody waits for the call any more; if the server has not ended it, it is told."""
        if number in self._inside:
            self._inside[number] = None
            self.send(wire.CANCEL, number)

    # What the server says.

    def on_frame(self, kind: int, code: int, call: int, value: int, payload: bytes) -> None:
        if kind in _OF_A_CALL:
            if call not in self._inside:
                raise WireError(f"a frame of kind {kind} for call {call}, which is not inside")
            self._on_call_frame(kind, code, call, value, payload)
        elif kind == wire.SETUP and not self.setup.done():
            self.setup.set_result(payload)
        elif kind == wire.DRAIN:
            self._on_drain(value / 1e6)
        else:
            raise WireError(f"a frame of kind {kind}")

    def _on_call_frame(self, kind: int, code: int, call: int, value: int, payload: bytes) -> None:
        asks = self._inside[call]
        if kind in _ENDS:
            del self._inside[call]
        if asks is None:
            return
        if kind == wire.FAILURE:
            asks.fail(ServingError(StatusCode(code), payload.decode()))
        elif kind == wire.CREDIT and asks.window is not None:
            asks.window.credit(value)
        elif kind == wire.TRAILERS and isinstance(asks, _One):
            asks.context.trailers.extend((name, text) for name, text in json.loads(payload))
        elif kind == wire.END and isinstance(asks, _Many):
            asks.end()
        elif kind == (wire.ANSWER if isinstance(asks, _One) else wire.ITEM):
            asks.put(payload)
        else:
            raise WireError(f"a frame of kind {kind} for call {call}, which is of the other sort")

    def on_lost(self) -> None:
        self._on_gone()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


_ENDS = frozenset({wire.ANSWER, wire.END, wire.FAILURE})
_OF_A_CALL = _ENDS | {wire.ITEM, wire.TRAILERS, wire.CREDIT}
