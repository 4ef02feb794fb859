"""One call on one stream: its request is assembled, its handler runs, and its status ends it.

    on_request -> begin -> receive* -> start: the handler's task, or its Reply -> answer | finish -> close
                                       ^ reset, expire or abort cancel it

A call has one status, set by the first of: the handler, the deadline, the client's reset, the end of the server. It
keeps its place on the connection until the handler has really ended. All on the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, TypeAlias, cast

from tfs_lite.transport.backlog import OVERLOADED, Backlog
from tfs_lite.transport.deadlines import Deadlines
from tfs_lite.transport.grpc.codes import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)
from tfs_lite.transport.grpc.compression import Inflater
from tfs_lite.transport.grpc.head import RequestHead
from tfs_lite.transport.grpc.messages import PREFIX, PREFIX_SIZE, Assembler, MessageFault
from tfs_lite.transport.grpc.response_headers import OK_TRAILERS, RESPONSE_HEADERS, trailers, trailers_only
from tfs_lite.transport.http2.connection import Http2Connection
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers
from tfs_lite.transport.peer import Peer
from tfs_lite.transport.rate_limited_log import RateLimitedLog
from tfs_lite.transport.table import EVERYTHING, CallContext, Method, Reply, UnaryHandler

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; try another one"
_OVERLOADED = trailers_only(UNAVAILABLE, OVERLOADED)


OnUnread: TypeAlias = Callable[[str, int, str, int, CallContext | None], None]
"""See :class:`Hooks`."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The callbacks by which the owner of a server decides about its calls. Called on the event loop."""

    acquire: Callable[[str], bool]
    """Called with the path of a call before its handler starts; an exception is the call's answer. Returns whether
    ``release`` has to be called at its end."""
    release: Callable[[], None]
    explain: Callable[[str, Exception], tuple[int, str]]
    """The gRPC status code and the client's text for an exception of ``acquire`` or of the handler of a path."""
    unread: OnUnread
    """Called with a path, a code, its text, and the number of calls that ended so before their handlers began: their
    client cancelled them, they were refused, or the rest of them was late or wrong. The last is the call, None for
    those that are refused by their heads because they would be late. Not called where ``admit`` of the method has
    refused, which knows that."""


class Common:
    """The state that all calls of one started server share.

    ``calls`` has every call until its handler has ended; ``on_idle`` is called when there is none left. While
    ``draining`` no more requests of streams are read. Handlers of refusable methods begin from the ``backlog``, others
    in the next turn of the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        numbers: Numbers,
        hooks: Hooks,
        on_idle: Callable[[], None],
        backlog: Backlog,
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.numbers = numbers
        self.hooks = hooks
        self.on_idle = on_idle
        self.backlog = backlog
        self.log = RateLimitedLog("gRPC", loop.time)
        self.deadlines = Deadlines[Call](loop, lambda call: call.expire())
        self.inflater = Inflater(loop, limits.max_receive_message, limits.receive_flag)
        self.calls: set[Call] = set()
        self.draining = False
        self._soon: list[Callable[[], None]] = []
        self._refused: Counter[str] = Counter()

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls back in the next turn of the loop, as ``call_soon`` does, but costs a turn one handle for all.
        ``callback`` must not raise."""
        if not self._soon:
            self.loop.call_soon(self._call_back)
        self._soon.append(callback)

    def _call_back(self) -> None:
        callbacks, self._soon = self._soon, []
        for callback in callbacks:
            callback()

    def refusal(self, head: RequestHead) -> bytes | None:
        """The answer to a call that is refused, which is counted, too; None for one that is taken."""
        left, method = head.timeout, head.method
        if left is None or method is None or not method.refusable or not self.backlog.is_too_long(left):
            return None
        if not self._refused:
            self.soon(self._count_refused)
        self._refused[method.path] += 1
        return _OVERLOADED

    def _count_refused(self) -> None:
        refused, self._refused = self._refused, Counter()
        for path, count in refused.items():
            self.numbers.calls[path, UNAVAILABLE] += count
            self.hooks.unread(path, UNAVAILABLE, OVERLOADED, count, None)


class CallOwner(Protocol):
    """The services that a call needs of its connection."""

    @property
    def common(self) -> Common: ...

    @property
    def connection(self) -> Http2Connection[RequestHead]: ...

    @property
    def peer(self) -> Peer: ...

    def fail(self, error: BaseException) -> None:
        """Reports an error of the transport itself, not of the client or a handler."""

    def call_closed(self) -> None: ...


class Call(CallContext):
    """``begin`` -> ``receive`` as data arrives -> ``close``. ``done``: the status is set, and nothing more is sent. Its
    handler knows it as a CallContext.

    ``waiting_since``: when data of an unfinished request last arrived; 0 if it is whole or has no time limit.
    """

    __slots__ = (
        "__weakref__",
        "_acquired",
        "_handler",
        "_headers_sent",
        "_owner",
        "_unread",
        "arrived",
        "common",
        "connection",
        "done",
        "head",
        "marked",
        "method",
        "path",
        "stream",
        "waiting_since",
    )

    marked: bool

    def __init__(self, owner: CallOwner, method: Method, stream: Stream, head: RequestHead) -> None:
        self._owner = owner
        self.common = owner.common
        self.connection = owner.connection
        self.method = method
        self.path = method.path
        self.stream = stream
        self.head = head
        self.done = False
        self.waiting_since = 0.0
        self.deadline = None
        self.metadata = head.metadata
        self.trailers = []
        self.arrived = 0.0
        self.marked = head.marked
        self.peer = owner.peer
        self.grant = EVERYTHING
        self._acquired = False
        self._handler: asyncio.Future[bytes | None] | Reply[bytes] | None = None
        self._headers_sent = False
        self._unread = 0

    def begin(self) -> None:
        common = self.common
        common.calls.add(self)
        timeout = self.head.timeout
        if timeout is not None:
            self.deadline = common.loop.time() + timeout
            common.deadlines.add(self, self.deadline)

    def receive(self, data: bytes, ended: bool) -> None:
        """Takes a piece of the request; with ``ended`` the last one, which may be empty."""
        raise NotImplementedError

    def drain(self) -> None:
        """Reads no more requests; a call with one request goes on."""

    def on_writable(self) -> None:
        """Called when everything that waited on the stream has been sent."""

    # How it ends.

    def reset(self) -> None:
        """Cancels the handler: the client has reset the stream, or the connection has ended."""
        if not self.done:
            self._set_status(CANCELLED)
            self._cancel(CANCELLED, "the client has cancelled the call")

    def expire(self) -> None:
        self.abort(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def abort(self, code: int, text: str) -> None:
        """Ends the call with this status and cancels the handler, unless it has a status already."""
        if not self.done:
            self.finish(code, text)
            self._cancel(code, text)

    def finish(self, code: int, text: str = "") -> None:
        """Sends the status after what was sent before, unless the call has one already. Trailers that are no headers
        are left out: the status is worth more."""
        if self.done:
            return
        self._set_status(code)
        if not self.stream.dead:
            block_of = trailers if self._headers_sent else trailers_only
            try:
                block = block_of(code, text, self.trailers)
            except ValueError:
                block = block_of(code, text)
            self.connection.headers(self.stream, block, True)

    def answer(self, message: bytes) -> None:
        """Sends the only message, and OK. ValueError: the trailers are not valid headers; MessageFault: the message is
        larger than ``max_send_message``."""
        if self.done:
            return
        self.check(message)
        last = trailers(OK, "", self.trailers) if self.trailers else OK_TRAILERS
        self._set_status(OK)
        self.common.numbers.messages_sent += 1
        self._headers_sent = True
        try:
            self.connection.answer(self.stream, RESPONSE_HEADERS, message, last)
        except Exception as error:
            self._owner.fail(error)

    def send_headers(self) -> None:
        """Sends the response headers if they were not sent yet."""
        if not self._headers_sent:
            self._headers_sent = True
            self.connection.headers(self.stream, RESPONSE_HEADERS)

    # Inside.

    def begin_handler(self) -> None:
        self.waiting_since = 0.0
        begin_soon = self.common.backlog.put if self.method.refusable else self.common.soon
        begin_soon(self.start)

    def start(self) -> None:
        """Starts the handler, unless the call has ended meanwhile."""
        if self.done:
            return
        try:
            self._acquired = self.common.hooks.acquire(self.path)
        except Exception as error:
            self.abort(*self._explain(error))
            return
        try:
            begun = self.call_handler()
            if isinstance(begun, Reply):
                self._handler = begun
                begun.then(self._ended)
            else:
                self._handler = task = asyncio.ensure_future(begun, loop=self.common.loop)
                task.add_done_callback(self._task_ended)
        except Exception as error:
            self._fail_with(error)
            self._release()

    def call_handler(self) -> Awaitable[bytes | None]:
        """Calls the handler. Its answer is still to be sent; None means that its answers have been sent."""
        raise NotImplementedError

    def _task_ended(self, task: asyncio.Future[bytes | None]) -> None:
        if task.cancelled():
            self.finish(CANCELLED, "the call was cancelled by the server")
            self._release()
        else:
            self._ended(task.exception() or task.result())

    def _ended(self, result: Any) -> None:
        """The handler has ended with an answer, or with an exception."""
        if isinstance(result, Exception):
            self._fail_with(result)
        else:
            try:
                self.answer(result)
            except Exception as error:
                self._fail_with(error)
        self._release()

    def _release(self) -> None:
        try:
            if self._acquired:
                self.common.hooks.release()
            self.close()
        except Exception as bug:
            self._owner.fail(bug)

    def _fail_with(self, error: Exception) -> None:
        if self.done:
            return  # the client has a status already
        try:
            self.finish(*self._explain(error))
        except Exception as bug:
            self._owner.fail(bug)

    def _explain(self, error: Exception) -> tuple[int, str]:
        if isinstance(error, MessageFault):
            return error.code, error.text
        try:
            return self.common.hooks.explain(self.path, error)
        except Exception:
            logger.exception("%s failed, and nobody can say why", self.path)
            return INTERNAL, "internal error"

    def check(self, message: bytes) -> None:
        """Raises TypeError or MessageFault for an answer of a handler that cannot be sent."""
        bound = self.common.limits.max_send_message
        if message.__class__ is not bytes:
            raise TypeError(f"{self.path} has answered with {type(message).__name__}, not bytes")
        if bound is not None and len(message) > bound:
            raise MessageFault(RESOURCE_EXHAUSTED, f"Sent message larger than max ({len(message)} vs. {bound} bytes)")

    def _set_status(self, code: int) -> None:
        self.done = True
        self.common.numbers.calls[self.path, code] += 1
        if self.deadline is not None:
            self.common.deadlines.discard(self)

    def _has_begun(self) -> bool:
        """Whether any of the handler has run; a task that was made may not have."""
        handler = self._handler
        if isinstance(handler, asyncio.Task):
            coroutine = cast("Coroutine[Any, Any, Any]", handler.get_coro())
            return inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED
        return handler is not None

    def _cancel(self, code: int, text: str) -> None:
        """The call has ended with this status, whatever its handler does."""
        if not self._has_begun():
            self.common.hooks.unread(self.path, code, text, 1, self)
        handler = self._handler
        if handler is None:
            self.close()
            return
        handler.cancel()
        if isinstance(handler, Reply):
            self._release()

    def close(self) -> None:
        """Gives back all that the call holds; nothing of it runs any more. Called once."""
        common = self.common
        common.calls.discard(self)
        common.numbers.unread -= self._unread
        self._unread = 0
        self.stream.call = self._handler = None  # breaks reference cycles, which would wait for the garbage collector
        self.connection.release(self.stream)
        self._owner.call_closed()
        if not common.calls:
            common.on_idle()

    def count_unread(self, size: int) -> bool:
        """Counts bytes of the request that are kept, or no longer if negative. False: the server keeps too many, and
        the call has ended."""
        self._unread += size
        numbers = self.common.numbers
        numbers.unread += size
        if size > 0 and numbers.unread > self.common.limits.max_unread:
            self.abort(RESOURCE_EXHAUSTED, "the server holds too much of requests that are not whole; try again later")
            return False
        return True


class OneRequestCall(Call):
    """A call whose client sends one message. The handler starts when the message is whole and the client has
    half-closed the call."""

    __slots__ = ("_assembler", "_message", "compressed")

    def __init__(self, owner: CallOwner, method: Method, stream: Stream, head: RequestHead) -> None:
        super().__init__(owner, method, stream, head)
        self._assembler: Assembler | None = None
        self._message: bytes | None = None
        self.compressed = False
        self.arrived = monotonic()
        self.waiting_since = self.connection.last_received

    def receive(self, data: bytes, ended: bool) -> None:
        if self.done:
            return  # its status may still wait to be sent
        if ended and self._assembler is None and len(data) >= PREFIX_SIZE:
            flag, size = PREFIX.unpack_from(data)
            if not flag and size == len(data) - PREFIX_SIZE and size <= self.common.limits.max_receive_message:
                self._message = data[PREFIX_SIZE:]  # the usual case: all in one frame
                self.begin_handler()
                return
        self._collect(data, ended)

    def take_message(self) -> bytes:
        """The message; the call keeps no reference to it."""
        message, self._message = self._message or b"", None
        if self._unread:
            self.count_unread(-self._unread)
        self.common.numbers.messages_received += 1
        return message

    async def inflate(self) -> None:
        """Inflates a ``compressed`` message before it is taken. Raises MessageFault."""
        try:
            self._message = await self.common.inflater.inflate(self._message or b"", self.head.encoding)
        except MessageFault as fault:
            if not self.done:
                self.common.hooks.unread(self.path, fault.code, fault.text, 1, self)
            raise

    def _has_begun(self) -> bool:
        return self._message is None and super()._has_begun()  # else it may still be inflated

    def _collect(self, data: bytes, ended: bool) -> None:
        assembler = self._assembler
        if assembler is None:
            if not self._is_admitted():
                return
            assembler = self._assembler = Assembler(
                self.common.limits.max_receive_message, self.common.limits.receive_flag
            )
        self.waiting_since = self.connection.last_received
        if not self.count_unread(len(data)):
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
            self.begin_handler()
        else:
            self.connection.credit(self.stream, len(data))
            widen_window(self, assembler)

    def _is_admitted(self) -> bool:
        """Whether the call is admitted; otherwise it has ended, and nothing of its request is kept."""
        try:
            if self.method.admit is not None:
                self.method.admit(self)
        except Exception as error:
            self.finish(*self._explain(error))
            self.close()
        return not self.done


class UnaryCall(OneRequestCall):
    __slots__ = ()

    def call_handler(self) -> Awaitable[bytes | None]:
        if self.compressed:
            return self._inflate_first()
        return cast("UnaryHandler", self.method.handler)(self.take_message(), self)

    async def _inflate_first(self) -> bytes:
        await self.inflate()
        return await cast("UnaryHandler", self.method.handler)(self.take_message(), self)


def widen_window(call: Call, assembler: Assembler) -> None:
    """Widens the stream's window for the rest of a message that is larger than it."""
    limits = call.common.limits
    if assembler.missing > limits.stream_window:
        call.connection.widen(call.stream, min(assembler.missing, limits.large_window))
