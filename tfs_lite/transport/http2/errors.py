"""The error codes of HTTP/2 (RFC 9113, section 7), and faults of a client.

A stream fault ends its stream with RST_STREAM; a connection fault ends the whole connection with GOAWAY.
"""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFault(Exception):
    """The client broke a rule or a limit of the connection.

    ``why`` is one short ASCII sentence for GOAWAY and the log; ``kind`` a word for the metrics
    (``protocol``, ``rapid_reset``, ``ping_flood``, ...).
    """

    def __init__(self, code: ErrorCode, why: str, kind: str = "protocol") -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.kind = kind


class StreamFault(Exception):
    """The client broke a rule of one stream; the others go on."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
