"""The HTTP status of errors, and of requests before a cross-origin request."""

from __future__ import annotations

import pytest

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.server.http.replies import error_reply, preflight_status

STATUS = {Reason.INVALID_ITEM: 422, Reason.JOB_EXPIRED: 408}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_has_a_status(reason: Reason) -> None:
    reply = error_reply(ServingError(StatusCode.UNAVAILABLE, "not now", reason))
    assert reply.status_code == STATUS.get(reason, 503)
    assert ("retry-after" in reply.headers) is (reply.status_code == 503)


def test_preflight_needs_the_origin_of_a_web_page() -> None:
    good = ("http://a.example", "https://a.example:8080", "null, http://a.example")
    assert {origin: preflight_status(origin) for origin in good} == dict.fromkeys(good, 200)
    bad = ("file://x", "null", "", None)
    assert {origin: preflight_status(origin) for origin in bad} == dict.fromkeys(bad, 400)
