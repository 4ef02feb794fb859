"""Parses the header fields of a request into what a call needs: its method, time limit, metadata and encoding.

Clients send the same fields with every call, except for the remaining time. The result for all other fields is kept,
so a call mostly costs one lookup in a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tfs_lite.transport.grpc.codes import INTERNAL, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNKNOWN
from tfs_lite.transport.grpc.compression import ENCODINGS
from tfs_lite.transport.grpc.response_headers import plain, trailers_only
from tfs_lite.transport.http2.fields import check_field, check_request
from tfs_lite.transport.http2.hpack_reader import Fields
from tfs_lite.transport.remembered import Remembered
from tfs_lite.transport.table import MARKS, Method

MAX_REMEMBERED = 1024
"""The most header lists that are remembered; when there are more, all are dropped."""
MAX_REMEMBERED_SIZE = 1024
"""The largest header list that is remembered, in bytes as RFC 9113 counts them."""
MAX_QUOTED = 200
"""Characters of a client's text that an answer repeats."""

_TIMEOUT = b"grpc-timeout"
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
MAX_LENGTH_DIGITS = 18
_TIMEOUT_RULE = "1 to 8 digits and one of HMSmun"
_NO_METADATA: Mapping[str, str] = MappingProxyType({})
_ACCEPTED = (("grpc-accept-encoding", ",".join(ENCODINGS)),)


@dataclass(slots=True)
class RequestHead:
    """A request's parsed header fields. It is never changed: calls with the same fields share one.

    With ``fault`` the request is malformed, and its stream has to be reset with PROTOCOL_ERROR. With ``answer``, a
    header block, it has to be answered with that and END_STREAM, and counts as gRPC's ``status``. Else it is a call of
    ``method``.
    """

    method: Method | None = None
    """The method of the path; also set together with an answer if the path is known."""
    path: str = ""
    timeout: float | None = None
    """Seconds from now on, 0 or more; None means that the client set none."""
    metadata: Mapping[str, str] = field(default_factory=lambda: _NO_METADATA)
    """The fields that are not gRPC's own: names in lower case, values of one name joined with commas. Binary values
    (names that end in ``-bin``) are left out."""
    encoding: str = "identity"
    """The encoding of messages that are flagged as compressed."""
    answer: bytes | None = None
    status: int = 0
    text: str = ""
    """The words of that answer."""
    fault: str | None = None
    length: int = -1
    """The value of ``content-length``; -1 without one."""
    marked: bool = False
    """Whether the metadata has one of :data:`MARKS`."""


class RequestHeadParser:
    """Parses header lists for one table of methods. One thread; nothing that a client sends raises."""

    def __init__(self, methods: Sequence[Method]) -> None:
        self._methods = {method.path: method for method in methods}
        self._known = Remembered[Fields, RequestHead](MAX_REMEMBERED)
        self._at = 0  # where the last time limit was
        text = "the header fields of the call are larger than this server takes"
        self._too_large = RequestHead(answer=trailers_only(RESOURCE_EXHAUSTED, text), status=RESOURCE_EXHAUSTED)

    def read(self, fields: Fields | None) -> RequestHead:
        """``fields`` in their order; None means that the list was too large."""
        if fields is None:
            return self._too_large
        at = self._at
        if at >= len(fields) or fields[at][0] != _TIMEOUT:
            at = _find_timeout(fields)
            if at < 0:
                return self._known.get(fields) or self._learn(fields)
            self._at = at
        rest = fields[:at] + fields[at + 1 :]
        known = self._known.get(rest) or self._learn(rest)
        if known.fault is not None:
            return known
        if at < len(rest) and rest[at][0].startswith(b":"):
            return RequestHead(fault="a pseudo-header comes after other fields")
        try:
            timeout = parse_timeout(fields[at][1])
        except ValueError as error:
            return _with_bad_timeout(known, fields[at][1], str(error))
        if known.answer is not None:
            return known
        return RequestHead(
            known.method, known.path, timeout, known.metadata, known.encoding, length=known.length, marked=known.marked
        )

    def _learn(self, fields: Fields) -> RequestHead:
        """Keeps only calls, so that other requests cannot push them out."""
        head = self._parse(fields)
        try:
            head.length = content_length(fields)
        except ValueError as error:
            head = RequestHead(fault=str(error))
        if head.fault is None and head.answer is None and _size(fields) <= MAX_REMEMBERED_SIZE:
            self._known.add(fields, head)
        return head

    def _parse(self, fields: Fields) -> RequestHead:
        fault = check_request(fields)
        if fault is not None:
            return RequestHead(fault=fault)
        values = dict(fields)
        path = values.get(b":path", b"").decode("latin-1")
        method = self._methods.get(path)
        if values[b":method"] != b"POST":
            return RequestHead(method, path, answer=plain(405, allow="POST"), status=UNKNOWN, text="not a POST")
        if not _is_grpc(values.get(b"content-type", b"")):
            return RequestHead(method, path, answer=plain(415), status=UNKNOWN, text="not a content type of gRPC")
        if method is None:
            text = f"Method not found! This server has no {path[:MAX_QUOTED]}"
            return RequestHead(None, path, answer=trailers_only(UNIMPLEMENTED, text), status=UNIMPLEMENTED)
        if _TIMEOUT in values:
            text = "grpc-timeout comes twice"
            return RequestHead(method, path, answer=trailers_only(INTERNAL, text), status=INTERNAL, text=text)
        encoding = _text(values.get(b"grpc-encoding", b"identity"))
        if encoding not in ENCODINGS:
            text = f"grpc-encoding is one of {', '.join(ENCODINGS)}, not {encoding[:MAX_QUOTED]!r}"
            answer = trailers_only(UNIMPLEMENTED, text, _ACCEPTED)
            return RequestHead(method, path, answer=answer, status=UNIMPLEMENTED, text=text)
        metadata = _metadata(fields)
        return RequestHead(
            method, path, None, MappingProxyType(metadata), encoding, marked=not MARKS.isdisjoint(metadata)
        )


def content_length(fields: Fields) -> int:
    """The value of content-length, -1 without one. ValueError if it is not one number."""
    found = {value for name, value in fields if name == b"content-length"}
    if not found:
        return -1
    text = found.pop()
    if found or not text.isdigit() or len(text) > MAX_LENGTH_DIGITS:
        raise ValueError("content-length is not one number")
    return int(text)


def parse_timeout(text: bytes) -> float:
    """The value of grpc-timeout in seconds. ValueError names the rule if it breaks it."""
    digits = text[:-1]
    seconds = _SECONDS.get(text[-1:])
    if seconds is None or len(digits) > 8 or not digits.isdigit():
        raise ValueError(f"grpc-timeout is {_TIMEOUT_RULE}, not {_text(text)[:MAX_QUOTED]!r}")
    return int(digits) * seconds


def _find_timeout(fields: Fields) -> int:
    for at, (name, _) in enumerate(fields):
        if name == _TIMEOUT:
            return at
    return -1


def _with_bad_timeout(head: RequestHead, value: bytes, why: str) -> RequestHead:
    """The result for a bad time limit: first a malformed field counts, then the answer to the other fields."""
    fault = check_field(_TIMEOUT, value)
    if fault is not None:
        return RequestHead(fault=fault)
    if head.answer is not None:
        return head
    return replace(head, answer=trailers_only(INTERNAL, why), status=INTERNAL, text=why)


def _is_grpc(content_type: bytes) -> bool:
    media = content_type.lower()
    return media == b"application/grpc" or media.startswith((b"application/grpc+", b"application/grpc;"))


def _metadata(fields: Fields) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in fields:
        if name in (b"te", b"content-type") or name.startswith((b":", b"grpc-")) or name.endswith(b"-bin"):
            continue
        key, text = name.decode("ascii"), _text(value.strip(b" \t"))
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _size(fields: Fields) -> int:
    return sum(len(name) + len(value) + 32 for name, value in fields)
