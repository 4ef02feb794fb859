"""The counters of the transport, for metrics and tests. Written on the event loop, read from any thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Numbers:
    """The counters of one server. Numbers are added one by one, so a reader may see one of two that belong together."""

    connections: int = 0
    """Connections that are open now."""
    connections_total: int = 0
    """Connections accepted so far, failed handshakes included."""
    closed: Counter[str] = field(default_factory=Counter)
    """Connections that ended, by kind: ``client``, ``drained``, ``idle``, ``age``, ``keepalive``, ``handshake``,
    ``no_http2``, ``slow_reader``, ``too_many``, ``too_many_pings``, ``header_bomb``, ``protocol``, ``internal``,
    ``lingering``, or a name of :data:`limits.FLOODS`."""
    streams: int = 0
    """Streams that are open now. A stream that was reset counts until its handler has ended."""
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Calls that ended, by path and gRPC status code. A path that is not in the table is ``""``."""
    refused: int = 0
    """Streams beyond ``max_streams``, sent REFUSED_STREAM."""
    resets_received: int = 0
    resets_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    messages_sent: int = 0
    unread: int = 0
    """Bytes of requests that no handler has taken yet."""
    unsent: int = 0
    """Bytes of answers that wait for a client's window or socket."""
