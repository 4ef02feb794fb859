"""Failures as OpenAI's clients know them: a status, and an object with message, type, field and code.

A full queue is 429, and the answer says when to retry. A deadline that has passed is 504: the client set it, so the
answer says not to retry. Errors inside a stream are the same objects.
"""

from __future__ import annotations

import math
import re

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.protocols.codes import http_status
from tfs_lite.protocols.openai.answers import error_text
from tfs_lite.protocols.openai.embeddings import Embeddings
from tfs_lite.protocols.openai.fields import Chat, Completion, FieldError
from tfs_lite.server.http.message import Response
from tfs_lite.server.http.replies import JSON, RETRY_SECONDS, HttpError

MAX_RETRY_SECONDS = 60.0
"""Clients do not wait longer."""
_AGAIN = (429, 503)
"""Statuses of what may be tried again."""
_FIELDS = frozenset((*Completion.model_fields, *Chat.model_fields, *Embeddings.model_fields))
_FIRST_WORD = re.compile(r"[a-z_]+")
_CODES = {
    408: "request_timeout",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "service_unavailable",
    504: "deadline_exceeded",
}


class NoSuchModel(ServingError):
    """NOT_FOUND: the ``model`` of a request names nothing that can be asked here."""

    def __init__(self, message: str) -> None:
        super().__init__(StatusCode.NOT_FOUND, message)

    def __reduce__(self) -> tuple[type[NoSuchModel], tuple[str]]:  # type: ignore[override]
        return type(self), (self.status.message,)


def openai_status(error: ServingError) -> int:
    """The HTTP status."""
    if isinstance(error, HttpError):
        return error.http
    return 429 if error.status.reason is Reason.QUEUE_FULL else http_status(error.code)


def openai_error_text(error: ServingError) -> bytes:
    """The error as an object, for a body or an event."""
    status = openai_status(error)
    return error_text(str(error), _type_of(status), _param_of(error), _code_of(error, status))


def openai_error(error: ServingError) -> Response:
    """The whole answer."""
    status = openai_status(error)
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if status in _AGAIN:
        headers.setdefault("retry-after", RETRY_SECONDS)
    elif status == 504:
        headers["x-should-retry"] = "false"
    return Response(openai_error_text(error), status, JSON.media_type, headers)


def retry_after(error: ServingError, seconds: float) -> ServingError:
    """The same error; where it may be tried again, the answer says after how many seconds."""
    status = openai_status(error)
    if status not in _AGAIN:
        return error
    headers = {**(error.headers if isinstance(error, HttpError) else {})}
    headers["retry-after"] = str(math.ceil(min(max(seconds, 1.0), MAX_RETRY_SECONDS)))
    return HttpError(error.code, str(error), status, headers)


def _code_of(error: ServingError, status: int) -> str | None:
    if isinstance(error, NoSuchModel):
        return "model_not_found"
    if error.status.reason is Reason.CONTEXT_LENGTH:
        return "context_length_exceeded"
    return _CODES.get(status)


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _param_of(error: ServingError) -> str | None:
    """The field that it is about: messages about values begin with its name."""
    if isinstance(error, FieldError):
        return error.param
    if isinstance(error, NoSuchModel):
        return "model"
    word = _FIRST_WORD.match(str(error)) if error.code is StatusCode.INVALID_ARGUMENT else None
    return word.group() if word and word.group() in _FIELDS else None
