"""Checks the header fields of requests and their trailers by the rules of RFC 9113, sections 8.2 and 8.3.

The stream of a malformed request is reset. The texts name the broken rule, for tests. One rule is not applied: RFC 9113
forbids blanks at the ends of a value, but gRPC's clients may send them in metadata (gRPC over HTTP/2, "ASCII-Value").
"""

from __future__ import annotations

import re

from tfs_lite.transport.http2.hpack_reader import Fields

_is_name = re.compile(rb"[!-9;-@\[-~]+").fullmatch
_is_value = re.compile(rb"[^\0\r\n]*").fullmatch
_is_pseudo_value = re.compile(rb"(?:[^\0\r\n\t ](?:[^\0\r\n]*[^\0\r\n\t ])?)?").fullmatch
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTIONS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PORTS = {b"http": b":80", b"https": b":443"}


def check_request(fields: Fields) -> str | None:
    """Why a request is malformed; None if it is not."""
    pseudo: dict[bytes, bytes] = {}
    regular = False
    for name, value in fields:
        if not name.startswith(b":"):
            regular = True
            fault = check_field(name, value)
        elif regular:
            fault = "a pseudo-header comes after other fields"
        else:
            fault = _check_pseudo(name, value, pseudo)
            pseudo[name] = value
        if fault is not None:
            return fault
    return _check_target(pseudo) or _check_host(fields, pseudo)


def check_trailers(fields: Fields) -> str | None:
    """Why the fields after a request's messages are malformed; None if they are not."""
    for name, value in fields:
        if name.startswith(b":"):
            return "a pseudo-header in trailers"
        if (fault := check_field(name, value)) is not None:
            return fault
    return None


def check_field(name: bytes, value: bytes) -> str | None:
    """Why a field that is no pseudo-header is malformed; None if it is not."""
    if not _is_name(name):
        return "a field's name is empty, has upper case or illegal characters"
    if not _is_value(value):
        return "a field's value has NUL, CR or LF"
    if name in _OF_CONNECTIONS:
        return "a field that is about a connection of HTTP/1"
    if name == b"te" and value.lower() != b"trailers":
        return "te is not trailers"
    return None


def _check_pseudo(name: bytes, value: bytes, seen: dict[bytes, bytes]) -> str | None:
    if name not in _PSEUDO:
        return "a pseudo-header that requests do not have"
    if name in seen:
        return "a pseudo-header comes twice"
    if not _is_pseudo_value(value):
        return "a pseudo-header has NUL, CR or LF, or blanks at an end"
    return None


def _check_target(pseudo: dict[bytes, bytes]) -> str | None:
    method = pseudo.get(b":method")
    if not method:
        return ":method is missing or empty"
    if method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo or not pseudo.get(b":authority"):
            return "CONNECT has :authority, no :scheme and no :path"
        return None
    if not pseudo.get(b":scheme"):
        return ":scheme is missing or empty"
    if not pseudo.get(b":path"):
        return ":path is missing or empty"
    return None


def _check_host(fields: Fields, pseudo: dict[bytes, bytes]) -> str | None:
    authority = pseudo.get(b":authority")
    if authority is not None and b"@" in authority:
        return ":authority names a user"
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) > 1:
        return "host comes twice"
    if hosts and authority is not None:
        port = _PORTS.get(pseudo.get(b":scheme", b""), b"")
        if hosts[0].lower().removesuffix(port) != authority.lower().removesuffix(port):
            return "host and :authority differ"
    return None
