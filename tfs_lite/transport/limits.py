"""Every bound of the transport in one place: what one client can cost.

Sizes are in bytes, times in seconds. A rate limit is (so many at once, so many a second after that); a client that
exceeds one is sent GOAWAY with ENHANCE_YOUR_CALM, and counted under the name in :data:`FLOODS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

KIB, MIB = 1024, 1024 * 1024

FLOODS = {
    "resets": "rapid_reset",
    "pings": "ping_flood",
    "settings": "settings_flood",
    "empty_frames": "empty_frame_flood",
    "window_updates": "window_update_flood",
    "unexpected_frames": "odd_frame_flood",
    "stream_errors": "stream_error_flood",
}
"""The rate limits below, and the kind under which a client that exceeds one is counted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults are the server's; tests and channel arguments change single ones."""

    # messages
    max_receive_message: int = 100 * MIB
    """The largest message in bytes, also after decompression. A larger one is answered with RESOURCE_EXHAUSTED."""
    receive_flag: str = ""
    """The name of that bound for the client's text, such as a flag; empty: it is not named."""
    max_send_message: int | None = None
    max_unread: int = 1024 * MIB
    """All half-received messages of the server together; at least one of the largest size fits."""

    # headers
    max_header_list: int = 16 * KIB
    """A header list, metadata included, as RFC 9113 counts it (names + values + 32 each); advertised.
    ``http2/hpack_reader`` counts it, ``grpc/head`` answers a larger one with RESOURCE_EXHAUSTED; a block of 4 times the
    size, or of 16 times when decoded, ends the connection with ENHANCE_YOUR_CALM."""
    max_continuations: int = 16
    """CONTINUATION frames of one header block."""

    # streams
    max_streams: int = 1000
    """The most open streams on one connection. A stream that was reset counts until its handler has ended."""
    stream_window: int = 256 * KIB
    """Bytes that a client may send on a stream before the server widens the window."""
    connection_window: int = 16 * MIB
    large_window: int = 4 * MIB
    """The window of a stream while it receives a message larger than ``stream_window``."""
    max_frame: int = 64 * KIB
    """The largest frame that is accepted. Every frame of a message costs its share of the transport's time."""

    # output
    max_control_queue: int = 64 * KIB
    """Answers to PING, SETTINGS and the like that a client does not read."""
    max_unsent: int = 1024 * MIB
    """Answers that wait on one connection for its client, the last one not counted; beyond it the connection ends."""
    write_high_water: int = 256 * KIB
    """Bytes in the socket's buffer beyond which streams wait."""

    # connections
    max_connections: int = 20_000
    handshake_timeout: float = 10.0
    """Seconds for TLS and HTTP/2's preface, and for the rest of a header block or frame that has begun; not for
    DATA."""
    write_timeout: float = 60.0
    """A connection ends when its client reads nothing of what waits for it for so long."""
    request_timeout: float = 120.0
    """A unary call ends when no byte of its unfinished request arrives for so long."""
    max_connection_idle: float = inf
    max_connection_age: float = inf
    max_connection_age_grace: float = inf
    keepalive_time: float = 7200.0
    """Seconds without a byte from the client after which the server sends a PING ..."""
    keepalive_timeout: float = 20.0
    """... and closes the connection if it is not acknowledged."""
    min_ping_interval: float = 300.0
    """A client's PINGs that arrive sooner, with nothing sent to it in between, are strikes ..."""
    max_ping_strikes: int = 2
    """... and one more than this is ``too_many_pings``. 0 allows any number."""
    ping_without_calls: bool = False
    """Whether ``min_ping_interval`` also holds on a connection without calls, instead of two hours."""

    # rates, for each connection
    resets: tuple[float, float] = (1000, 200)
    """Limit on RST_STREAM from the client; every answered call allows one more."""
    pings: tuple[float, float] = (200, 20)
    """PING and acknowledgements of PING; every HEADERS and DATA frame that is sent allows one more, since clients
    measure the round trip with it."""
    settings: tuple[float, float] = (20, 1)
    """SETTINGS, acknowledgements included."""
    empty_frames: tuple[float, float] = (200, 20)
    """DATA frames without contents that do not end a stream, and empty CONTINUATION frames."""
    window_updates: tuple[float, float] = (10_000, 10_000)
    """Limit on WINDOW_UPDATE; every HEADERS and DATA frame that is sent allows two more."""
    unexpected_frames: tuple[float, float] = (1000, 100)
    """PRIORITY, GOAWAY, unknown frames, frames for streams that have ended."""
    stream_errors: tuple[float, float] = (200, 50)
    """Streams that are refused, or end because the client broke a rule."""
