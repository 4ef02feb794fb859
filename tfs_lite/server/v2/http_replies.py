"""Answers of the KServe V2 protocol over HTTP: statuses as its clients know them, errors as ``{"error": "..."}``."""

from __future__ import annotations

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.codes import http_status
from tfs_lite.protocols.v2.binary import LENGTH_HEADER
from tfs_lite.protocols.v2.json_answer import WrittenAnswer
from tfs_lite.server.http.message import Response
from tfs_lite.server.http.replies import JSON, RETRY_SECONDS, HttpError, error_text

BINARY_TYPE = "application/octet-stream"
_LENGTH = LENGTH_HEADER.lower()
_BAD_REQUEST = (StatusCode.CANCELLED, StatusCode.UNKNOWN, StatusCode.ALREADY_EXISTS)
"""V2 answers these with 400, other APIs with other statuses."""


def v2_status(error: ServingError) -> int:
    """The HTTP status of a failure."""
    if isinstance(error, HttpError):
        return error.http
    return 400 if error.code in _BAD_REQUEST else http_status(error.code)


def v2_error(error: ServingError) -> Response:
    status = v2_status(error)
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if status == 503:
        headers["retry-after"] = RETRY_SECONDS
    return Response(error_text(error), status, JSON.media_type, headers)


def v2_success(written: WrittenAnswer) -> Response:
    if written.json_length is None:
        return Response(written.body, media_type=JSON.media_type)
    return Response(written.body, media_type=BINARY_TYPE, headers={_LENGTH: str(written.json_length)})
