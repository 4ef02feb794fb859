"""gRPC services as tables of methods: a path, a kind of call, and a function from bytes to bytes.

Both gRPC servers put such a table on the wire, and a table does not depend on which. Handlers raise ServingError, which
the server turns into a status.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypedDict, TypeVar, Unpack

from tfs_lite.transport.peer import UNKNOWN, Peer

MARKS = frozenset(("x-request-id", "x-server-timing", "traceparent"))
"""Names of metadata that say more of a request than the request itself."""

A = TypeVar("A")


class Scope(enum.Enum):
    """The permission that a route or a method asks of its caller."""

    OPEN = "probes and health: always allowed"
    PREDICT = "inference, and the metadata of a model"
    READ = "status, statistics, metrics, explanations without paths"
    MANAGE = "change what is served or how, and see paths"


@dataclass(frozen=True, slots=True)
class Grant:
    """The permission that a caller was found to have. ``name`` is the operator's, empty if it is not known; ``models``
    is a pattern of ``fnmatch``, and None means all, and the server as a whole."""

    name: str = ""
    models: str | None = None

    def allows(self, model: str) -> bool:
        """The empty name stands for all models."""
        return self.models is None or (model != "" and fnmatchcase(model, self.models))


EVERYTHING = Grant()


class CallKind(enum.Enum):
    """How many messages go each way."""

    UNARY = "one request, one answer"
    SERVER_STREAM = "one request, many answers"
    CLIENT_STREAM = "many requests, one answer"
    BIDI_STREAM = "many requests and many answers, in any order"


@dataclass(slots=True, eq=False)
class CallContext:
    """The facts about a call, besides its request, that a handler may learn.

    ``deadline`` is in seconds of ``time.monotonic``; None means that the client set none. ``metadata`` is the client's,
    names in lower case, without binary values; it may be decoded when it is first looked at, and calls with the same
    one may share it. ``peer`` is the other end of the connection; ``grant`` is what it was found to be allowed, where
    it was checked. When the client cancels or disconnects, the handler's task is cancelled. What the handler appends to
    ``trailers`` (lower-case name, printable ASCII text) is sent as trailing metadata. ``arrived`` is when the head of a
    call with one request had come, in seconds of ``time.monotonic``; 0: not known.
    """

    names_requests: ClassVar[bool] = False
    """Whether an answer of this kind carries the id of its request."""

    deadline: float | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    trailers: list[tuple[str, str]] = field(default_factory=list)
    peer: Peer = UNKNOWN
    arrived: float = 0.0
    grant: Grant = EVERYTHING

    @property
    def marked(self) -> bool:
        """Whether the client says more of its request than the request itself: an id, a trace, that it wants times."""
        return not MARKS.isdisjoint(self.metadata)

    def header(self, name: str) -> str | None:
        """The value of this name in the client's metadata."""
        return self.metadata.get(name)

    def mark_with_new_id(self) -> None:
        """Does nothing: a call that was not named needs no name in its trailers."""

    def mark(self, name: str, value: str) -> None:
        """Adds a trailer, in place of one with this name."""
        self.trailers[:] = [(other, text) for other, text in self.trailers if other != name]
        self.trailers.append((name, value))

    @property
    def caller(self) -> str:
        """The caller in words: the operator's name, else the address."""
        return self.grant.name or self.peer.address


class Reply(Generic[A]):
    """An answer that is on its way and needs no task: a handler may return one at once in place of a coroutine, that of
    a unary call or of an HTTP request. On the event loop."""

    __slots__ = ()

    def then(self, done: Callable[[A | Exception], None]) -> None:
        """``done`` is called once, with the answer or the failure, unless ``cancel`` comes before. Called once."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The client waits no more. Does nothing when the reply has ended."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, A]:
        return self._wait().__await__()

    async def _wait(self) -> A:
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self.then(partial(_settle, future))
        try:
            return await future
        finally:
            self.cancel()


def _settle(future: asyncio.Future[A], result: A | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


UnaryHandler: TypeAlias = Callable[[bytes, CallContext], Awaitable[bytes]]
"""Returns a coroutine, which runs as a task, or a :class:`Reply`."""
StreamHandler: TypeAlias = Callable[[bytes, CallContext], AsyncIterator[bytes]]
ClientStreamHandler: TypeAlias = Callable[[AsyncIterator[bytes], CallContext], Awaitable[bytes]]
BidiHandler: TypeAlias = Callable[[AsyncIterator[bytes], CallContext], AsyncIterator[bytes]]
"""The iterator of requests ends when the client half-closes the call, or when the server shuts down; then the status is
UNAVAILABLE, whatever the handler answers."""


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the table. ``path`` is ``/package.Service/Method``; ``kind`` says which type the handler has.
    ``refusable``: its calls wait for their turn, and one is refused when it comes if that would be too late for its
    deadline (:mod:`backlog`). Others are never refused, and wait for nothing.

    ``scope`` is what its callers must be allowed to do; whoever puts the table on the wire checks that. ``models``
    gives the names of the models that a request concerns, the empty name for all; None means that every call concerns
    all. ``reads`` tells of a request that it changes nothing, so that READ suffices; None means that there are none.
    """

    path: str
    kind: CallKind
    handler: UnaryHandler | StreamHandler | ClientStreamHandler | BidiHandler
    refusable: bool = False
    _: KW_ONLY
    scope: Scope = Scope.MANAGE
    """A row that says nothing is closed to others, not open."""
    models: Callable[[bytes], Iterable[str]] | None = None
    reads: Callable[[bytes], bool] | None = None
    admit: Callable[[CallContext], None] | None = None
    """Raises the error of a call whose request need not be received; not asked if that comes in one piece."""

    @property
    def service(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return self.path.split("/")[2]


class Rights(TypedDict, total=False):
    """The fields of a :class:`Method` that say who may call it."""

    scope: Scope
    models: Callable[[bytes], Iterable[str]] | None
    reads: Callable[[bytes], bool] | None


def unary(path: str, handler: UnaryHandler, refusable: bool = False, **rights: Unpack[Rights]) -> Method:
    return Method(path, CallKind.UNARY, handler, refusable, **rights)


def server_stream(path: str, handler: StreamHandler, **rights: Unpack[Rights]) -> Method:
    return Method(path, CallKind.SERVER_STREAM, handler, **rights)


def client_stream(path: str, handler: ClientStreamHandler, **rights: Unpack[Rights]) -> Method:
    return Method(path, CallKind.CLIENT_STREAM, handler, **rights)


def bidi_stream(path: str, handler: BidiHandler, **rights: Unpack[Rights]) -> Method:
    return Method(path, CallKind.BIDI_STREAM, handler, **rights)
