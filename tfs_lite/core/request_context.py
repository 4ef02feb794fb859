"""The context of a request: who asks, under which id, and as a part of which trace.

Every protocol can say so: ``x-request-id`` and W3C's ``traceparent`` and ``tracestate``, as headers of HTTP or metadata
of gRPC. Whatever a client sends here goes into logs and answers, so every character is checked, and a wrong value is
ignored.

Source: W3C Trace Context, level 1.
"""

from __future__ import annotations

import re
from random import getrandbits
from typing import NamedTuple, Protocol

REQUEST_ID = "x-request-id"
SERVER_TIMING = "server-timing"
WANTS_TIMING = "x-server-timing"
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MARKS = frozenset((REQUEST_ID, WANTS_TIMING, TRACEPARENT))
"""Headers that a request's head may have: an id, that times are wanted, whose span it belongs to."""
MAX_TRACESTATE = 512
"""Bytes of a ``tracestate``; a longer one is left out."""
SAMPLED = 1
"""The bit of a trace context's flags that says that its trace is recorded."""
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_STATE = re.compile(r"[ -~]*")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_PARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class TraceContext(NamedTuple):
    """The span of the caller: hexadecimal ids of 32 and 16 digits, W3C's flags, and the ``tracestate``."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the caller's trace is recorded."""
        return bool(self.flags & SAMPLED)


class RequestContext(NamedTuple):
    """The facts about a request other than its content. ``request_id``: the client's, or one that the server has made;
    ``peer``: the address that it came from, without the port, empty where that is not known."""

    request_id: str = ""
    trace: TraceContext | None = None
    peer: str = ""


class CarrierPeer(Protocol):
    """The other end of a connection. ``address``: without the port; empty if that is not known."""

    @property
    def address(self) -> str: ...


class Carrier(Protocol):
    """The object that has brought a request and takes its answer: a call of gRPC, or a request of HTTP. Used on the
    event loop."""

    @property
    def peer(self) -> CarrierPeer:
        """The other end of its connection."""

    @property
    def arrived(self) -> float:
        """The moment when the head had come, in seconds of ``time.monotonic``."""

    @property
    def names_requests(self) -> bool:
        """Whether every answer carries the request's id; else those to clients that have sent one, and failures."""

    @property
    def marked(self) -> bool:
        """Whether its head has any of :data:`MARKS`."""

    def header(self, name: str) -> str | None:
        """The value of the header with this name in lower case."""

    def mark(self, name: str, value: str) -> None:
        """Adds a header or trailer to the answer, in place of one with that name. Values are printable ASCII."""

    def mark_with_new_id(self) -> None:
        """Gives the answer a new id that the client has not asked for and that stands nowhere else."""


def parse_traceparent(text: str, state: str = "") -> TraceContext | None:
    """None for all but version 00, lower-case hexadecimal and ids that are not zero."""
    match = _PARENT.fullmatch(text)
    if match is None:
        return None
    trace_id, span_id, flags = match.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    kept = state if len(state) <= MAX_TRACESTATE and _STATE.fullmatch(state) else ""
    return TraceContext(trace_id, span_id, int(flags, 16), kept)


def checked_id(text: str | None) -> str | None:
    """The request id that a client has sent; None for text that is none."""
    return text if text and _ID.fullmatch(text) else None


def new_request_id() -> str:
    """16 hexadecimal digits."""
    return f"{getrandbits(64):016x}"


def read_context(carrier: Carrier | None, sent_id: str = "") -> RequestContext:
    """``sent_id``: what the request itself says that its id is, which counts where its head names none."""
    if carrier is None:
        return RequestContext(checked_id(sent_id) or new_request_id())
    if not carrier.marked:
        return RequestContext(checked_id(sent_id) or new_request_id(), None, carrier.peer.address)
    parent = carrier.header(TRACEPARENT)
    trace = None if parent is None else parse_traceparent(parent, carrier.header(TRACESTATE) or "")
    request_id = checked_id(carrier.header(REQUEST_ID)) or checked_id(sent_id) or new_request_id()
    return RequestContext(request_id, trace, carrier.peer.address)
