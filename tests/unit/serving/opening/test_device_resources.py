"""Which failures of a load another attempt at the same files may mend."""

from __future__ import annotations

import pytest

from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.serving.opening.device_resources import may_be_retried


@pytest.mark.parametrize("reason", [Reason.FILES_REFUSED, Reason.NO_PLATFORM])
def test_files_that_stay_as_they_are_are_not_tried_again(reason: Reason) -> None:
    assert not may_be_retried(Status(StatusCode.FAILED_PRECONDITION, "a.mar is nothing of ours", reason))


def test_other_failures_are_tried_again() -> None:
    assert may_be_retried(Status(StatusCode.UNAVAILABLE, "the disk is busy"))
    assert may_be_retried(Status(StatusCode.FAILED_PRECONDITION, "no room"))
