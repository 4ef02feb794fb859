"""Keeps the last requests that have failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfs_lite.operations.failed_requests.ring import FailedRequests
from tfs_lite.serving.feature import Feature

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore


class Failures(Feature):
    """``ring`` has the requests."""

    def __init__(self, core: ServerCore) -> None:
        self.ring = FailedRequests(core.clock.time, core.states.is_configured)
        core.metrics.requests.on_failure(self.ring.note)
