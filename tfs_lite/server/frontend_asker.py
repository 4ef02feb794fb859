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

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_setup import kind_of
from tfs_lite.server.frontend_wire import Link, WireError
from tfs_lite.transport.table import CallContext, CallKind, Method, StreamHandler, UnaryHandler, bidi_stream


class _Unary:
    """Where the answer of a unary call goes."""

    __slots__ = ("context", "future")

    def __init__(self, context: CallContext, future: asyncio.Future[bytes]) -> None:
        self.context = context
        self.future = future

    def put(self, payload: bytes) -> None:
        if not self.future.done():
            self.future.set_result(payload)

    def fail(self, error: ServingError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Stream:
    """Where the items of a stream go; None is its end. Holds ``wire.WINDOW`` items and the end at most."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: asyncio.Queue[bytes | ServingError | None] = asyncio.Queue()

    def put(self, payload: bytes) -> None:
        self.items.put_nowait(payload)

    def end(self) -> None:
        self.items.put_nowait(None)

    def fail(self, error: ServingError) -> None:
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
        self._inside: dict[int, _Unary | _Stream | None] = {}
        """None: nobody waits any more, and the server has not ended the call yet."""
        self._last = 0

    def table(self, rows: Sequence[tuple[str, str]]) -> list[Method]:
        """A handler for every row. They raise what the server's handlers raise, and RESOURCE_EXHAUSTED when there are
        too many calls inside."""
        return [self._method(index, path, kind_of(kind)) for index, (path, kind) in enumerate(rows)]

    def _method(self, index: int, path: str, kind: CallKind) -> Method:
        if kind is CallKind.BIDI_STREAM:
            return bidi_stream(path, _refuse_stream)
        return Method(path, kind, self._unary(index) if kind is CallKind.UNARY else self._stream(index))

    def _unary(self, index: int) -> UnaryHandler:
        async def call(data: bytes, context: CallContext) -> bytes:
            future: asyncio.Future[bytes] = self._loop.create_future()
            number = await self._begin(index, data, context, _Unary(context, future))
            try:
                return await future
            finally:
                self._leave(number)

        return call

    def _stream(self, index: int) -> StreamHandler:
        async def call(data: bytes, context: CallContext) -> AsyncIterator[bytes]:
            stream = _Stream()
            number = await self._begin(index, data, context, stream)
            taken = 0
            try:
                while (item := await stream.items.get()) is not None:
                    if isinstance(item, ServingError):
                        raise item
                    yield item
                    taken += 1
                    if taken == wire.WINDOW // 2:
                        self.send(wire.CREDIT, number, value=taken)
                        taken = 0
            finally:
                self._leave(number)

        return call

    async def _begin(self, index: int, data: bytes, context: CallContext, asks: _Unary | _Stream) -> int:
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

    def _enter(self, asks: _Unary | _Stream) -> int:
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
            self._on_call_frame(kind, code, call, payload)
        elif kind == wire.SETUP and not self.setup.done():
            self.setup.set_result(payload)
        elif kind == wire.DRAIN:
            self._on_drain(value / 1e6)
        else:
            raise WireError(f"a frame of kind {kind}")

    def _on_call_frame(self, kind: int, code: int, call: int, payload: bytes) -> None:
        asks = self._inside[call]
        if kind in _ENDS:
            del self._inside[call]
        if asks is None:
            return
        if kind == wire.FAILURE:
            asks.fail(ServingError(StatusCode(code), payload.decode()))
        elif kind == wire.TRAILERS and isinstance(asks, _Unary):
            asks.context.trailers.extend((name, text) for name, text in json.loads(payload))
        elif kind == wire.END and isinstance(asks, _Stream):
            asks.end()
        elif kind == (wire.ANSWER if isinstance(asks, _Unary) else wire.ITEM):
            asks.put(payload)
        else:
            raise WireError(f"a frame of kind {kind} for call {call}, which is of the other sort")

    def on_lost(self) -> None:
        self._on_gone()


async def _refuse_stream(requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
    """Only one message of a call goes from a frontend to the server."""
    nothing: tuple[bytes, ...] = ()
    for message in nothing:
        yield message
    raise ServingError(
        StatusCode.UNIMPLEMENTED,
        "streams of requests are not served by gRPC frontends; start the server without --grpc_frontends for them",
    )


_ENDS = frozenset({wire.ANSWER, wire.END, wire.FAILURE})
_OF_A_CALL = _ENDS | {wire.ITEM, wire.TRAILERS}
