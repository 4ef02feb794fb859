"""``--grpc_channel_arguments``: gRPC's own settings, parsed for gRPC's library and translated for our transport.

Times are whole milliseconds and sizes bytes; -1 and the largest int mean "no bound" where gRPC has one. gRPC logs and
ignores values that it cannot use; our transport refuses them, so that a bound that was set is a bound that holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.transport.limits import KIB, MIB, Limits

SHARE_PORT = "grpc.so_reuseport"
RECEIVE_LIMIT = "grpc.max_receive_message_length"
SEND_LIMIT = "grpc.max_send_message_length"

_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT32 = range(-(2**31), 2**31)


def parse_grpc_arguments(text: str) -> tuple[tuple[str, int | str], ...]:
    """Parses ``name=value,name=value`` to options of gRPC, in order. A whole number of 32 bits becomes an int, every
    other value stays text. INVALID_ARGUMENT names the item that is wrong."""
    arguments: dict[str, int | str] = {}
    for item in text.split(",") if text else ():
        name, value = _split(item.strip())
        if name in arguments:
            raise _wrong(item, f"{name} is given twice")
        arguments[name] = _typed(value)
    return tuple(arguments.items())


def _split(item: str) -> tuple[str, str]:
    if not item.isprintable():
        raise _wrong(item, "it has characters that cannot be printed")
    name, equals, value = item.partition("=")
    if not equals:
        raise _wrong(item, "expected name=value")
    if "=" in value:
        raise _wrong(item, 'a value cannot hold a second "="')
    if not name.strip():
        raise _wrong(item, "the name is missing")
    return name.strip(), value.strip()


def _typed(value: str) -> int | str:
    if _INTEGER.fullmatch(value) and len(value) <= len(str(_INT32.start)) and int(value) in _INT32:
        return int(value)
    return value


def _wrong(item: str, why: str) -> ServingError:
    return invalid_argument(f"{item!r:.80} of --grpc_channel_arguments: {why}")


Arguments = Sequence[tuple[str, int | str]]

LARGEST = 2**31 - 1
"""The largest number. As a time it means "never", like -1."""
LARGEST_MESSAGE = 2**32 - 1
"""The length of a message has four bytes."""
LONGEST_HANDSHAKE = 3_600_000
SOFT, HARD = "grpc.max_metadata_size", "grpc.absolute_max_metadata_size"
HARD_TO_SOFT = 1.25
"""gRPC refuses some calls above the soft size and all above the hard one, whose default is this much larger. Our
transport uses the hard one."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """``read`` translates an int from ``least`` to ``most`` to the value of a field of Limits. ``unbounded`` is the
    value for -1; None: -1 is refused."""

    field: str
    least: int
    most: int = LARGEST
    read: Callable[[int], Any] = int
    unbounded: float | None = None


def _seconds(milliseconds: int) -> float:
    return inf if milliseconds == LARGEST else milliseconds / 1e3


def _time(field: str, least: int = 1) -> _Rule:
    return _Rule(field, least, read=_seconds, unbounded=inf)


_RULES: dict[str, _Rule] = {
    RECEIVE_LIMIT: _Rule("max_receive_message", 0, unbounded=LARGEST_MESSAGE),
    SEND_LIMIT: _Rule("max_send_message", 0, unbounded=inf),
    SOFT: _Rule("max_header_list", KIB, MIB, lambda size: max(int(size * HARD_TO_SOFT), Limits().max_header_list)),
    HARD: _Rule("max_header_list", KIB, MIB),
    "grpc.max_concurrent_streams": _Rule("max_streams", 1, unbounded=LARGEST),
    "grpc.http2.max_frame_size": _Rule("max_frame", 16 * KIB, 16 * MIB - 1),
    "grpc.http2.lookahead_bytes": _Rule("stream_window", 64 * KIB - 1, 64 * MIB),
    "grpc.server_handshake_timeout_ms": _Rule("handshake_timeout", 1, LONGEST_HANDSHAKE, _seconds),
    "grpc.max_connection_idle_ms": _time("max_connection_idle"),
    "grpc.max_connection_age_ms": _time("max_connection_age"),
    "grpc.max_connection_age_grace_ms": _time("max_connection_age_grace", 0),
    "grpc.keepalive_time_ms": _time("keepalive_time"),
    "grpc.keepalive_timeout_ms": _time("keepalive_timeout"),
    "grpc.keepalive_permit_without_calls": _Rule("ping_without_calls", 0, 1, bool),
    "grpc.http2.min_recv_ping_interval_without_data_ms": _Rule("min_ping_interval", 0, read=_seconds),
    "grpc.http2.min_ping_interval_without_data_ms": _Rule("min_ping_interval", 0, read=_seconds),
    "grpc.http2.max_ping_strikes": _Rule("max_ping_strikes", 0),
}
"""The rules of the arguments; of two arguments for the same field, the later one in this table wins."""


def read_limits(arguments: Arguments, max_message_bytes: int) -> Limits:
    """The bounds of a server that receives messages up to ``max_message_bytes`` (-1: no bound) and sends any.
    INVALID_ARGUMENT names the argument whose value has the wrong type or range."""
    given: Mapping[str, int | str] = dict(arguments)
    shares_port(arguments)
    largest = LARGEST_MESSAGE if max_message_bytes < 0 else min(max_message_bytes, LARGEST_MESSAGE)
    flag = f"{RECEIVE_LIMIT} of --grpc_channel_arguments" if RECEIVE_LIMIT in given else "--max_message_bytes"
    fields: dict[str, Any] = {"max_receive_message": largest, "receive_flag": flag}
    fields |= {rule.field: _value(name, given[name], rule) for name, rule in _RULES.items() if name in given}
    if fields.get("max_send_message") == inf:
        fields["max_send_message"] = None
    window = fields.get("stream_window", 0)
    usual = Limits()
    return Limits(
        max_unread=max(usual.max_unread, fields["max_receive_message"]),
        large_window=max(usual.large_window, window),
        connection_window=max(usual.connection_window, window),
        **fields,
    )


def shares_port(arguments: Arguments) -> bool:
    """Whether other sockets may listen on the port; the default is no."""
    value = dict(arguments).get(SHARE_PORT, 0)
    return bool(_value(SHARE_PORT, value, _Rule("", 0, 1)))


def without_effect(arguments: Arguments) -> tuple[str, ...]:
    """The names of arguments that our transport has no use for."""
    return tuple(name for name, _ in arguments if name not in _RULES and name != SHARE_PORT)


def _value(name: str, value: int | str, rule: _Rule) -> Any:
    if isinstance(value, int):
        if value == -1 and rule.unbounded is not None:
            return rule.unbounded
        if rule.least <= value <= rule.most:
            return rule.read(value)
    bound = "" if rule.unbounded is None else ", or -1 for no bound"
    raise invalid_argument(
        f"{name} of --grpc_channel_arguments is {value!r:.80}, "
        f"expected a whole number from {rule.least} to {rule.most}{bound}"
    )
