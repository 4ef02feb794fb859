"""SETTINGS (RFC 9113, section 6.5): ours as a frame, the client's as checked values."""

from __future__ import annotations

from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.http2.framing import DEFAULT_MAX_FRAME, LARGEST_MAX_FRAME, MAX_WINDOW, SETTING, settings
from tfs_lite.transport.limits import Limits

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 0x1, 0x2, 0x3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 0x4, 0x5, 0x6


def our_settings(limits: Limits) -> bytes:
    """The frame that every connection begins with."""
    return settings(
        {
            MAX_CONCURRENT_STREAMS: limits.max_streams,
            INITIAL_WINDOW_SIZE: limits.stream_window,
            MAX_FRAME_SIZE: limits.max_frame,
            MAX_HEADER_LIST_SIZE: limits.max_header_list,
        }
    )


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """In order, unknown ones included. Raises ConnectionFault."""
    if len(payload) % SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a size that is no multiple of 6")
    found: list[tuple[int, int]] = list(SETTING.iter_unpack(payload))
    for key, value in found:
        if key == ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if key == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE beyond 2^31-1")
        if key == MAX_FRAME_SIZE and not DEFAULT_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of its range")
    return found
