"""Answers over HTTP in JSON or msgpack, errors in the format of the answer, and TensorFlow Serving's CORS headers.

Every error is an object with the one key ``error``. Its status follows from the canonical code, unless HTTP has a more
exact one (:class:`HttpError`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.protocols.codes import http_status
from tfs_lite.protocols.json import msgpack as msgpack_body
from tfs_lite.protocols.json import text as json_text

RETRY_SECONDS = "1"
_HTTP_OF_REASON: Mapping[Reason | None, int] = {Reason.INVALID_ITEM: 422, Reason.JOB_EXPIRED: 408}


class HttpError(ServingError):
    """A failure with an HTTP status of its own, and the headers that go with it."""

    def __init__(
        self, code: StatusCode, message: str, http: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(code, message)
        self.http = http
        self.headers = dict(headers or {})


class ClientDisconnected(HttpError):
    """The client closed the connection before it had its answer: CANCELLED, an answer that is not sent."""

    def __init__(self) -> None:
        super().__init__(StatusCode.CANCELLED, "the client has gone", 499)


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """Translates between trees and bytes. ``loads`` raises INVALID_ARGUMENT. ``binary``: strings stay bytes."""

    media_type: str
    loads: Callable[[bytes], Any]
    dumps: Callable[[Any], bytes]
    binary: bool = False


JSON = BodyFormat("application/json", json_text.loads, json_text.dumps)
MSGPACK = BodyFormat("application/msgpack", msgpack_body.loads, msgpack_body.dumps, binary=True)
_MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


def body_format(headers: Mapping[str, str]) -> BodyFormat:
    """The format of a request's body: JSON unless its Content-Type is msgpack."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return MSGPACK if media_type in _MSGPACK_TYPES else JSON


def answer_format(headers: Mapping[str, str]) -> BodyFormat:
    """The format of the answer: the first that Accept names, else the format of the body."""
    for item in headers.get("accept", "").lower().split(","):
        media_type = item.partition(";")[0].strip()
        if media_type in _MSGPACK_TYPES:
            return MSGPACK
        if media_type == JSON.media_type:
            return JSON
    return body_format(headers)


def json_reply(tree: Any, status: int = 200) -> Response:
    """For small trees without arrays."""
    return Response(orjson.dumps(tree, option=orjson.OPT_INDENT_2), status, media_type=JSON.media_type)


def error_reply(error: ServingError, format: BodyFormat = JSON) -> Response:
    if isinstance(error, HttpError):
        status, headers = error.http, error.headers
    else:
        status, headers = _HTTP_OF_REASON.get(error.status.reason, http_status(error.code)), {}
    if status == 503:
        headers = {**headers, "Retry-After": RETRY_SECONDS}
    return Response(_error_body(str(error), format), status, headers, media_type=format.media_type)


def _error_body(message: str, format: BodyFormat) -> bytes:
    printable = message.encode("utf-8", "replace").decode()  # names from requests may hold anything
    tree = {"error": printable}
    return format.dumps(tree) if format.binary else orjson.dumps(tree)


CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}
"""Headers of every REST answer when cross-origin requests are allowed."""


def preflight_status(origin: str | None) -> int:
    """The HTTP status of an OPTIONS request; browsers go by the headers."""
    return 200 if origin and ("http://" in origin or "https://" in origin) else 400
