"""Tokens as they travel: ``Authorization: Bearer TOKEN``, in HTTP's headers and gRPC's metadata alike."""

from __future__ import annotations

from tfs_lite.core.status import invalid_argument

HEADER = "authorization"
_SCHEME = "Bearer "


def bearer(token: str) -> str:
    """The value of the header. INVALID_ARGUMENT for what is no word of printable ASCII; the message does not repeat
    it."""
    if not (token and token.isascii() and token.isprintable() and " " not in token):
        raise invalid_argument("a token is one word of printable ASCII characters")
    return _SCHEME + token


def token_of(value: str | None) -> str:
    """The token in the value of the header; empty without one."""
    if value is None or value[: len(_SCHEME)].lower() != _SCHEME.lower():
        return ""
    return value[len(_SCHEME) :].strip()
