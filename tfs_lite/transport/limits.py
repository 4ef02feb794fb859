"""Every bound of the transport in one place: what one client can cost.

Sizes are in bytes, times in seconds. A budget is (so many at once, so many a second after that); who goes beyond one
is sent GOAWAY with ENHANCE_YOUR_CALM, and counted under the name in :data:`FLOODS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

KIB, MIB = 1024, 1024 * 1024

FLOODS = {
    "resets": "rapid_reset",
    "pings": "ping_flood",
    "settings": "settings_flood",
    "empties": "empty_frame_flood",
    "updates": "window_update_flood",
    "oddments": "odd_frame_flood",
    "faults": "stream_error_flood",
}
"""The budgets below, and the kind under which going beyond them is counted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults are those of the server; tests and flags change single ones."""

    # messages
    max_receive_message: int = 100 * MIB
    """One message, also after decompression. Larger: RESOURCE_EXHAUSTED."""
    max_send_message: int | None = None
    max_unread: int = 1024 * MIB
    """Of all half-received messages of the server together; at least one of the largest size fits."""

    # headers
    max_header_list: int = 16 * KIB
    """Of a header list, as RFC 9113 counts it (names + values + 32 each); advertised. Larger: RESOURCE_EXHAUSTED for
    the call; a block of 4 times that, or one that becomes 16 times that: ENHANCE_YOUR_CALM for the
    connection."""
    max_continuations: int = 16
    """CONTINUATION frames of one header block."""

    # streams
    max_streams: int = 1000
    """Of one connection, also counting those that were reset while their handler is still running."""
    stream_window: int = 256 * KIB
    """What a client may send on a stream before it is told that there is more room."""
    connection_window: int = 16 * MIB
    large_window: int = 4 * MIB
    """The window of a stream while a message larger than ``stream_window`` comes in."""
    max_frame: int = 16 * KIB
    """The largest frame that is taken."""

    # output
    max_control_queue: int = 64 * KIB
    """Answers to PING, SETTINGS and the like that a client does not read."""
    max_unsent: int = 1024 * MIB
    """Answers that wait on one connection for its client, besides the last one: beyond it the connection is cut."""
    write_high_water: int = 256 * KIB
    """Bytes in the socket's buffer beyond which streams wait."""

    # connections
    max_connections: int = 20_000
    handshake_timeout: float = 10.0
    """For TLS and HTTP/2's preface, and for the rest of a header block or frame that has begun, contents apart."""
    write_timeout: float = 60.0
    """For a client to read anything at all of what waits for it."""
    request_timeout: float = 120.0
    """For anything at all of a unary request that has begun and not ended, in pieces."""
    max_connection_idle: float = inf
    max_connection_age: float = inf
    max_connection_age_grace: float = inf
    keepalive_time: float = 7200.0
    """Without a word from the client the server sends a PING after so long ..."""
    keepalive_timeout: float = 20.0
    """... and closes the connection if it is not acknowledged."""
    min_ping_interval: float = 300.0
    """A client's PINGs that come sooner, with nothing sent to it in between, are strikes ..."""
    max_ping_strikes: int = 2
    """... and one beyond these is ``too_many_pings``. 0: any number."""
    ping_without_calls: bool = False
    """False: with no call inside, ``min_ping_interval`` is two hours."""

    # floods, by connection
    resets: tuple[float, float] = (1000, 200)
    """RST_STREAM from the client; every answered call earns one."""
    pings: tuple[float, float] = (200, 20)
    """PING and what acknowledges one; every HEADERS and DATA frame that is sent earns one: clients measure so."""
    settings: tuple[float, float] = (20, 1)
    """SETTINGS, acknowledgements included."""
    empties: tuple[float, float] = (200, 20)
    """DATA frames of next to nothing that do not end a stream, and empty CONTINUATION frames."""
    updates: tuple[float, float] = (10_000, 10_000)
    """WINDOW_UPDATE; every DATA frame that is sent earns two."""
    oddments: tuple[float, float] = (1000, 100)
    """PRIORITY, unknown frames, frames for streams that have ended."""
    faults: tuple[float, float] = (200, 50)
    """Streams that end by a fault or are refused."""
