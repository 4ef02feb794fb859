"""``--grpc_channel_arguments``: settings of gRPC's own, passed through."""

from __future__ import annotations

import re

from tfs_lite.core.status import ServingError, invalid_argument

SHARE_PORT = "grpc.so_reuseport"
RECEIVE_LIMIT = "grpc.max_receive_message_length"
SEND_LIMIT = "grpc.max_send_message_length"

_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT32 = range(-(2**31), 2**31)


def parse_grpc_arguments(text: str) -> tuple[tuple[str, int | str], ...]:
    """``name=value,name=value`` as options of gRPC, in order; empty text: none.

    A value that is a whole number of 32 bits becomes an int, every other one stays text. INVALID_ARGUMENT names the
    item that is wrong.
    """
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
