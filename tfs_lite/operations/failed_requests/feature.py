"""Keeps the last requests that have failed, and warns of models that fail nearly all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfs_lite.metrics.ended_requests import EndedRequest
from tfs_lite.operations.failed_requests.ring import FailedRequests
from tfs_lite.operations.failed_requests.watch import FailureWatch
from tfs_lite.serving.feature import Feature

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore

SHOWN_REQUESTS = 10
"""Failed requests in an explanation."""


class Failures(Feature):
    """``ring`` has the requests."""

    def __init__(self, core: ServerCore) -> None:
        self.ring = FailedRequests(core.clock.time, core.states.is_configured)
        requests = core.metrics.requests
        self._watch = FailureWatch(core.clock, requests.totals, core.states.is_configured, self.ring)
        requests.on_failure(self._note)

    def _note(self, ended: EndedRequest) -> None:
        self.ring.note(ended)
        self._watch.noticed()

    def explains(self, name: str, version: int | None) -> Mapping[str, Sequence[Any]]:
        """Those of the model, whichever version was asked for."""
        return {"requests": [request.as_json for request in self.ring.of_model(name, SHOWN_REQUESTS)]}
