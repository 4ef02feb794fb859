"""``--cache_config``: how large the response cache is."""

from __future__ import annotations

from tfs_lite.core.status import ServingError, invalid_argument

LOCAL = "local"
MAX_BYTES = 1 << 50


def cache_bytes(text: str) -> int:
    """The size of the cache by ``--cache_config``: ``local,size=N`` in bytes, or N alone; 0 for an empty text: no
    cache. INVALID_ARGUMENT."""
    if not text:
        return 0
    kind, found, rest = text.partition(",")
    if not found and kind.isascii() and kind.isdecimal():
        return _size(kind, text)
    if kind != LOCAL:
        raise _refusal(text, f'there is no cache "{kind:.64}"')
    settings = [setting.partition("=") for setting in rest.split(",")] if rest else []
    if [name for name, _, _ in settings] != ["size"]:
        raise _refusal(text, "its one setting is size")
    return _size(settings[0][2], text)


def _size(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdecimal()) or not 0 < int(digits) <= MAX_BYTES:
        raise _refusal(text, f"size has to be a number of bytes from 1 to {MAX_BYTES}")
    return int(digits)


def _refusal(text: str, reason: str) -> ServingError:
    return invalid_argument(f'cache_config is "{text:.128}", expected local,size=BYTES: {reason}')
