"""gRPC services as plain tables: a path, a kind and a function from bytes to bytes.

A transport puts such a table on the wire; nothing in a table knows which one. Handlers raise ServingError, and the
transport turns that into a status.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


class CallKind(enum.Enum):
    """How many messages go each way."""

    UNARY = "one request, one answer"
    SERVER_STREAM = "one request, many answers"
    CLIENT_STREAM = "many requests, one answer"
    BIDI_STREAM = "many requests and many answers, in any order"


@dataclass(slots=True)
class CallContext:
    """What a handler may know about the call besides its bytes.

    ``deadline`` is in seconds of ``time.monotonic``; None: the client set none. ``metadata`` has the client's, names in
    lower case, of calls with many requests. When the client goes, the handler's task is cancelled. What the handler
    appends to ``trailers`` (lower-case name, printable ASCII text) goes out with the status of a call with one answer,
    for clients that know to look there.
    """

    deadline: float | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    trailers: list[tuple[str, str]] = field(default_factory=list)


UnaryHandler: TypeAlias = Callable[[bytes, CallContext], Awaitable[bytes]]
StreamHandler: TypeAlias = Callable[[bytes, CallContext], AsyncIterator[bytes]]
ClientStreamHandler: TypeAlias = Callable[[AsyncIterator[bytes], CallContext], Awaitable[bytes]]
BidiHandler: TypeAlias = Callable[[AsyncIterator[bytes], CallContext], AsyncIterator[bytes]]
"""The iterator of requests ends when the client has said its last word, or the server shuts down: the status is
UNAVAILABLE then, whatever the handler answers."""


@dataclass(frozen=True, slots=True)
class Method:
    """One row. ``path`` is ``/package.Service/Method``; ``kind`` says which type the handler has."""

    path: str
    kind: CallKind
    handler: UnaryHandler | StreamHandler | ClientStreamHandler | BidiHandler

    @property
    def service(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return self.path.split("/")[2]


def unary(path: str, handler: UnaryHandler) -> Method:
    return Method(path, CallKind.UNARY, handler)


def server_stream(path: str, handler: StreamHandler) -> Method:
    return Method(path, CallKind.SERVER_STREAM, handler)


def client_stream(path: str, handler: ClientStreamHandler) -> Method:
    return Method(path, CallKind.CLIENT_STREAM, handler)


def bidi_stream(path: str, handler: BidiHandler) -> Method:
    return Method(path, CallKind.BIDI_STREAM, handler)
