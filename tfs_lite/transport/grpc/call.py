"""One call on one stream: its request is put together, its handler runs as a task, its status ends it.

    on_request -> begin -> data* -> a task runs the handler -> answer | finish -> over
                                    ^ reset, expire or abort cancel it

The client gets one status, whoever has it first: the handler, the deadline, the client's own reset, the end of the
server. The place on the connection is kept until the handler has really ended. All on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Protocol

from tfs_lite.transport.grpc.answers import OK_TRAILERS, OPENING, trailers, trailers_only
from tfs_lite.transport.grpc.codes import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
)
from tfs_lite.transport.grpc.common import Common
from tfs_lite.transport.grpc.head import RequestHead
from tfs_lite.transport.grpc.messages import PREFIX, PREFIX_SIZE, Assembler, MessageFault
from tfs_lite.transport.http2.connection import Connection
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.table import CallContext, Method

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; try another one"


class CallOwner(Protocol):
    """The connection that calls live on."""

    @property
    def common(self) -> Common: ...

    @property
    def connection(self) -> Connection[RequestHead]: ...

    def broken(self, error: BaseException) -> None:
        """The transport has failed, not the client and not a handler."""

    def call_over(self) -> None: ...


class Call:
    """``begin`` -> ``data`` as it comes -> over. ``done``: the status is decided, and nothing more is sent.

    ``heard``: when something of the request came last, while it is not whole; 0: it is, or may take its time.
    """

    __slots__ = (
        "__weakref__",
        "_deadline",
        "_home",
        "_opened",
        "_running",
        "_task",
        "_unread",
        "common",
        "connection",
        "done",
        "heard",
        "opening",
        "path",
        "row",
        "stream",
    )

    def __init__(self, home: CallOwner, row: Method, stream: Stream, opening: RequestHead) -> None:
        self._home = home
        self.common = home.common
        self.connection = home.connection
        self.row = row
        self.path = row.path
        self.stream = stream
        self.opening = opening
        self.done = False
        self.heard = 0.0
        self._deadline: float | None = None
        self._opened = False
        self._running = False
        self._task: asyncio.Task[None] | None = None
        self._unread = 0

    def begin(self) -> None:
        """The request has begun."""
        common = self.common
        common.calls.add(self)
        timeout = self.opening.timeout
        if timeout is not None:
            self._deadline = time.monotonic() + timeout
            common.deadlines.add(self, common.loop.time() + timeout)

    def data(self, data: bytes, ended: bool) -> None:
        """A piece of the request; with ``ended`` the last one, maybe empty."""
        raise NotImplementedError

    def drain(self) -> None:
        """The server takes no more requests; a call with one request goes on."""

    def on_room(self) -> None:
        """Everything that waited has left."""

    # Ways to an end.

    def reset(self) -> None:
        """The client or the connection has gone."""
        if not self.done:
            self._settle(CANCELLED)
            self._cancel()

    def expire(self) -> None:
        self.abort(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def abort(self, code: int, text: str) -> None:
        """Ends the call with this status and cancels the handler. Nothing if it has a status already."""
        if not self.done:
            self.finish(code, text)
            self._cancel()

    def finish(self, code: int, text: str = "") -> None:
        """The status, after what was sent. Nothing if the call has one already."""
        if self.done:
            return
        self._settle(code)
        if not self.stream.dead:
            block = trailers(code, text) if self._opened else trailers_only(code, text)
            self.connection.headers(self.stream, block, True)

    def answer(self, message: bytes, context: CallContext) -> None:
        """The only message, and OK. ValueError for trailers that are no headers; MessageFault above the bound."""
        if self.done:
            return
        self.check(message)
        last = trailers(OK, "", context.trailers) if context.trailers else OK_TRAILERS
        self._settle(OK)
        self.common.numbers.messages_sent += 1
        self._opened = True
        try:
            self.connection.answer(self.stream, OPENING, message, last)
        except Exception as error:
            self._home.broken(error)

    def open(self) -> None:
        """What comes before the first message."""
        if not self._opened:
            self._opened = True
            self.connection.headers(self.stream, OPENING)

    # Inside.

    def start(self) -> None:
        """Runs the handler."""
        self.heard = 0.0
        self._task = self.common.loop.create_task(self._run())

    async def _run(self) -> None:
        self._running = True
        hooks, entered = self.common.hooks, False
        try:
            entered = hooks.enter(self.path)
            await self.perform(CallContext(self._deadline, self.opening.metadata))
        except Exception as error:
            self._explain(error)
        except asyncio.CancelledError:
            self.finish(CANCELLED, "the call was cancelled by the server")
        finally:
            self._leave(entered)

    async def perform(self, context: CallContext) -> None:
        """The handler, and its answers."""
        raise NotImplementedError

    def _leave(self, entered: bool) -> None:
        try:
            if entered:
                self.common.hooks.leave()
            self.over()
        except Exception as bug:
            self._home.broken(bug)

    def _explain(self, error: Exception) -> None:
        if self.done:
            return  # the client has its status; that of a handler that was cancelled is of no interest
        if isinstance(error, MessageFault):
            code, text = error.code, error.text
        else:
            try:
                code, text = self.common.hooks.explain(self.path, error)
            except Exception:
                logger.exception("%s failed, and nobody can say why", self.path)
                code, text = INTERNAL, "internal error"
        try:
            self.finish(code, text)
        except Exception as bug:
            self._home.broken(bug)

    def check(self, message: bytes) -> None:
        """Whether a handler's answer can be sent. Raises TypeError, MessageFault."""
        bound = self.common.limits.max_send_message
        if message.__class__ is not bytes:
            raise TypeError(f"{self.path} has answered with {type(message).__name__}, not bytes")
        if bound is not None and len(message) > bound:
            raise MessageFault(RESOURCE_EXHAUSTED, f"Sent message larger than max ({len(message)} vs. {bound} bytes)")

    def _settle(self, code: int) -> None:
        self.done = True
        self.common.numbers.calls[self.path, code] += 1
        if self._deadline is not None:
            self.common.deadlines.discard(self)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if not self._running:
            self.over()

    def over(self) -> None:
        """Nothing of the call runs any more. Once."""
        common = self.common
        common.calls.discard(self)
        common.numbers.unread -= self._unread
        self._unread = 0
        self.stream.call = None  # the two hold one another, which only the garbage collector would end
        self.connection.release(self.stream)
        self._home.call_over()
        if not common.calls:
            common.emptied()

    def hold(self, size: int) -> bool:
        """So many bytes more (or less) of the request are kept. False: the server keeps too many, and the call has
        ended."""
        self._unread += size
        numbers = self.common.numbers
        numbers.unread += size
        if size > 0 and numbers.unread > self.common.limits.max_unread:
            self.abort(RESOURCE_EXHAUSTED, "the server holds too much of requests that are not whole; try again later")
            return False
        return True


class OneRequestCall(Call):
    """A call whose client sends one message. The handler starts when it and the client's last word are there."""

    __slots__ = ("_assembler", "_message", "compressed")

    def __init__(self, home: CallOwner, row: Method, stream: Stream, opening: RequestHead) -> None:
        super().__init__(home, row, stream, opening)
        self._assembler: Assembler | None = None
        self._message: bytes | None = None
        self.compressed = False
        self.heard = self.connection.last_received

    def data(self, data: bytes, ended: bool) -> None:
        if self.done:
            return  # its status may still wait to be sent
        if ended and self._assembler is None and len(data) >= PREFIX_SIZE:
            flag, size = PREFIX.unpack_from(data)
            if not flag and size == len(data) - PREFIX_SIZE and size <= self.common.limits.max_receive_message:
                self._message = data[PREFIX_SIZE:]  # as it mostly is: all in one frame
                self.start()
                return
        self._collect(data, ended)

    def take(self) -> bytes:
        """The message; it is not kept here."""
        message, self._message = self._message or b"", None
        if self._unread:
            self.hold(-self._unread)
        self.common.numbers.messages_received += 1
        return message

    async def inflate(self) -> None:
        """Before it is taken, if it is ``compressed``. Raises MessageFault."""
        self._message = await self.common.inflater.inflate(self._message or b"", self.opening.encoding)

    def _collect(self, data: bytes, ended: bool) -> None:
        assembler = self._assembler
        if assembler is None:
            assembler = self._assembler = Assembler(self.common.limits.max_receive_message)
        self.heard = self.connection.last_received
        if not self.hold(len(data)):
            return
        try:
            for compressed, message in assembler.feed(data):
                if self._message is not None:
                    raise MessageFault(UNIMPLEMENTED, f"{self.path} takes one message, and more came")
                self._message, self.compressed = message, compressed
            if ended:
                assembler.finish()
                if self._message is None:
                    raise MessageFault(UNIMPLEMENTED, f"{self.path} takes one message, and none came")
        except MessageFault as fault:
            self.abort(fault.code, fault.text)
            return
        if ended:
            self._assembler = None
            self.start()
        else:
            self.connection.credit(self.stream, len(data))
            make_room(self, assembler)


class UnaryCall(OneRequestCall):
    __slots__ = ()

    async def perform(self, context: CallContext) -> None:
        handler: Any = self.row.handler
        if self.compressed:
            await self.inflate()
        self.answer(await handler(self.take(), context), context)


def make_room(call: Call, assembler: Assembler) -> None:
    """A message larger than the stream's window need not come in small steps."""
    limits = call.common.limits
    if assembler.missing > limits.stream_window:
        call.connection.widen(call.stream, min(assembler.missing, limits.large_window))
