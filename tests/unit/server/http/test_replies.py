"""The HTTP status of errors, and of requests before a cross-origin request; formats of bodies and answers."""

from __future__ import annotations

from typing import Any

import pytest

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.server.http.message import Headers
from tfs_lite.server.http.replies import JSON, MSGPACK, body_formats, error_reply, preflight_status

STATUS = {Reason.INVALID_ITEM: 422, Reason.JOB_EXPIRED: 408}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_has_a_status(reason: Reason) -> None:
    reply = error_reply(ServingError(StatusCode.UNAVAILABLE, "not now", reason))
    assert reply.status == STATUS.get(reason, 503)
    assert ("retry-after" in reply.headers) is (reply.status == 503)


def test_preflight_needs_the_origin_of_a_web_page() -> None:
    good = ("http://a.example", "https://a.example:8080", "null, http://a.example")
    assert {origin: preflight_status(origin) for origin in good} == dict.fromkeys(good, 200)
    bad = ("file://x", "null", "")
    assert {origin: preflight_status(origin) for origin in bad} == dict.fromkeys(bad, 400)


@pytest.mark.parametrize(
    ("content_type", "accept", "formats"),
    [
        (None, None, (JSON, JSON)),
        (b"text/plain", b"text/html, */*", (JSON, JSON)),
        (b"Application/MsgPack; v=1", None, (MSGPACK, MSGPACK)),
        (b"application/x-msgpack", b"*/*, application/JSON;q=0.1", (MSGPACK, JSON)),
        (b"application/json", b"application/vnd.msgpack, application/json", (JSON, MSGPACK)),
        (b"application/json", b"x/y, " * 100 + b"application/msgpack", (JSON, MSGPACK)),
    ],
)
def test_answer_has_the_first_format_that_is_accepted_by_name(
    content_type: bytes | None, accept: bytes | None, formats: tuple[Any, Any]
) -> None:
    sent = ((b"content-type", content_type), (b"accept", accept))
    assert body_formats(Headers([(name, value) for name, value in sent if value is not None])) == formats
