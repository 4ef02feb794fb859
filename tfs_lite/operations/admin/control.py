"""The one contract behind HTTP, gRPC, the command line and the dashboard: it answers values, they translate.

Everything is read from what the server knows, under short locks, on the caller's thread, which is never that of the
event loop. But for ``read_again`` nothing here changes what is served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfs_lite.core.history import Cause, Origin, acting, time_text
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import failed_precondition, not_found
from tfs_lite.operations.admin.questions import what_if
from tfs_lite.operations.explain.explanation import Explanation, ModelVerdict, shortened
from tfs_lite.operations.explain.feature import Explain
from tfs_lite.operations.failed_requests.feature import Failures
from tfs_lite.operations.failed_requests.ring import FailedRequest, FailedRequests
from tfs_lite.server.feature import Doors
from tfs_lite.serving.server_core import ServerCore

MOST_FAILED = 100
"""Failed requests in an answer about an id, a model, or all of them."""


class AdminControl:
    """Any thread but the event loop's may call any method. Raises ServingError."""

    def __init__(self, core: ServerCore, doors: Doors, explain: Explain) -> None:
        self._core = core
        self._doors = doors
        self._explain = explain

    def explain(self, ref: ModelRef, *, paths: bool = False) -> Explanation:
        """See :meth:`Explain.explain`."""
        return self._explain.explain(ref, paths=paths)

    def failed_request(self, id: str) -> dict[str, Any]:
        """The failed requests with this request id or trace id. NOT_FOUND for one that was not kept, with the time that
        the ring reaches back to."""
        ring = self._ring
        found = ring.find(id)
        since = time_text(ring.reaches_back_to)
        if not found:
            left_out = f"; {ring.left_out} were left out, too many in one second" if ring.left_out else ""
            raise not_found(
                f"no failed request with the id {shortened(id)!r} was kept; the ring reaches back to {since}{left_out}"
            )
        return self._failed(found)

    def failed_requests(self, model: str = "", allows: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
        """The last failed requests of a model, or of all that ``allows`` does not leave out, the newest first."""
        ring = self._ring
        return self._failed(
            [request for request in ring.latest() if allows(request.model)] if not model else ring.of_model(model)
        )

    def _failed(self, found: Sequence[FailedRequest]) -> dict[str, Any]:
        ring = self._ring
        return {
            "requests": [request.as_json for request in found[:MOST_FAILED]],
            "reaches_back_to": time_text(ring.reaches_back_to),
            "left_out": ring.left_out,
        }

    @property
    def _ring(self) -> FailedRequests:
        failures = self._core.find(Failures)
        if failures is None:
            raise failed_precondition("this server keeps no failed requests")
        return failures.ring

    def what_if(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Tells what a config or a new version would change, without changing it; see :mod:`questions`. Reads the
        disk."""
        return what_if(self._core, asked).as_json()

    def read_again(self, by: str) -> dict[str, Any]:
        """Reads the config and the disk without waiting for the next poll, because ``by`` wishes so; the models that
        this changes are not waited for. FAILED_PRECONDITION where nothing is followed."""
        with acting(Origin(Cause.OPERATOR, by)):
            return {"read": self._doors.read_again()}

    def verdicts(self) -> list[ModelVerdict]:
        """See :meth:`Explain.verdicts`."""
        return self._explain.verdicts()
