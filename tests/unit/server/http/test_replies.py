"""Errors over HTTP: their status, whatever their reason."""

from __future__ import annotations

import pytest

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.server.http.replies import error_reply

OF_THE_CODE = 503
STATUS = {Reason.INVALID_ITEM: 422, Reason.JOB_EXPIRED: 408}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_has_a_status(reason: Reason) -> None:
    reply = error_reply(ServingError(StatusCode.UNAVAILABLE, "not now", reason))
    assert reply.status_code == STATUS.get(reason, OF_THE_CODE)
    assert ("retry-after" in reply.headers) is (reply.status_code == 503)
