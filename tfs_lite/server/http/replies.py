"""Answers over HTTP in JSON or msgpack, and errors in the format of the answer.

Every error is an object with the one key ``error``. Its status follows from the canonical code, unless HTTP has a more
exact one (:class:`HttpError`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.protocols.codes import http_status
from tfs_lite.protocols.json import msgpack as msgpack_body
from tfs_lite.protocols.json import text as json_text
from tfs_lite.server.http.message import Headers, Response

RETRY_SECONDS = "1"
CACHED_FORMATS, MAX_CACHED_LENGTH = 64, 128
"""Pairs of Content-Type and Accept that are cached, and the most bytes of such a pair."""
_HTTP_OF_REASON: Mapping[Reason | None, int] = {Reason.INVALID_ITEM: 422, Reason.JOB_EXPIRED: 408}

logger = logging.getLogger(__name__)


class HttpError(ServingError):
    """A failure with an HTTP status of its own, and the headers that go with it, names in lower case."""

    def __init__(
        self, code: StatusCode, message: str, http: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(code, message)
        self.http = http
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """Translates between trees and bytes. ``loads`` raises INVALID_ARGUMENT. ``binary``: strings stay bytes."""

    media_type: str
    loads: Callable[[bytes], Any]
    dumps: Callable[[Any], bytes]
    binary: bool = False


JSON = BodyFormat("application/json", json_text.loads, json_text.dumps)
MSGPACK = BodyFormat("application/msgpack", msgpack_body.loads, msgpack_body.dumps, binary=True)
_MSGPACK_TYPES = (b"application/msgpack", b"application/x-msgpack", b"application/vnd.msgpack")
_JSON_TYPE = JSON.media_type.encode()


def body_formats(headers: Headers) -> tuple[BodyFormat, BodyFormat]:
    """The format of the body, which is JSON unless Content-Type is msgpack, and that of the answer: the first that
    Accept names, else that of the body."""
    content_type, accept = headers.fields.get(b"content-type", b""), headers.fields.get(b"accept", b"")
    cached = len(content_type) + len(accept) <= MAX_CACHED_LENGTH
    return _cached_formats(content_type, accept) if cached else _read_formats(content_type, accept)


def _read_formats(content_type: bytes, accept: bytes) -> tuple[BodyFormat, BodyFormat]:
    sent = MSGPACK if _media_type(content_type) in _MSGPACK_TYPES else JSON
    for item in accept.split(b","):
        wanted = _media_type(item)
        if wanted in _MSGPACK_TYPES:
            return sent, MSGPACK
        if wanted == _JSON_TYPE:
            return sent, JSON
    return sent, sent


_cached_formats = lru_cache(CACHED_FORMATS)(_read_formats)


def _media_type(item: bytes) -> bytes:
    return item.partition(b";")[0].strip().lower()


def json_reply(tree: Any, status: int = 200) -> Response:
    """A JSON reply for small trees without arrays."""
    return Response(orjson.dumps(tree, option=orjson.OPT_INDENT_2), status, JSON.media_type)


def failure_of(error: Exception, what: str) -> ServingError:
    """The failure that the client is told when ``what`` has failed. An unexpected exception is logged and not shown."""
    if isinstance(error, ServingError):
        return error
    logger.error("%s failed", what, exc_info=error)
    return ServingError(StatusCode.INTERNAL, "internal error")


def error_reply(error: ServingError, format: BodyFormat = JSON) -> Response:
    if isinstance(error, HttpError):
        status, headers = error.http, error.headers
    else:
        status, headers = _HTTP_OF_REASON.get(error.status.reason, http_status(error.code)), {}
    if status == 503:
        headers = {**headers, "retry-after": RETRY_SECONDS}
    body = format.dumps(_error_tree(error)) if format.binary else error_text(error)
    return Response(body, status, format.media_type, headers)


def error_text(error: ServingError) -> bytes:
    return orjson.dumps(_error_tree(error))


def _error_tree(error: ServingError) -> dict[str, str]:
    return {"error": str(error).encode("utf-8", "replace").decode()}  # names from requests may hold anything


def preflight_status(origin: str) -> int:
    """The HTTP status of an OPTIONS request; browsers go by the headers."""
    return 200 if "http://" in origin or "https://" in origin else 400
