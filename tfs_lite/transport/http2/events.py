"""What a connection tells its owner, and what it has to know about the requests that the owner reads."""

from __future__ import annotations

from typing import Protocol, TypeVar

from tfs_lite.transport.http2.streams import Stream


class Opened(Protocol):
    """What the owner makes of the header fields of a request."""

    @property
    def fault(self) -> str | None:
        """Why the request is malformed; None: it is not."""

    @property
    def length(self) -> int:
        """What ``content-length`` says; -1: nothing."""


T = TypeVar("T", bound=Opened)
T_contra = TypeVar("T_contra", bound=Opened, contravariant=True)


class Events(Protocol[T_contra]):
    """The owner's side. Called from within the connection's methods; must not raise."""

    def on_request(self, stream: Stream, opening: T_contra, ended: bool) -> None: ...

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        """Trailers arrive as ``b""`` with ``ended``."""

    def on_reset(self, stream: Stream, code: int) -> None:
        """By the client, by a fault, or with the connection. Nothing more comes, nothing can be sent; the place is kept
        until ``release``."""

    def on_room(self, stream: Stream) -> None:
        """Everything that had to wait has left."""

    def on_ping(self) -> bool:
        """The client asks for an echo. False: it has done so too often."""

    def on_ping_ack(self, payload: bytes) -> None: ...
