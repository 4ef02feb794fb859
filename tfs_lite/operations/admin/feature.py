"""The admin API: explanations, verdicts, events, failed requests, forecasts, and reading again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfs_lite.operations.admin.control import AdminControl
from tfs_lite.operations.admin.events import EventFeed
from tfs_lite.operations.admin.events_grpc import EventsMethod
from tfs_lite.operations.admin.events_http import EventsApi
from tfs_lite.operations.admin.grpc_service import AdminService
from tfs_lite.operations.admin.http_app import MAX_PENDING_FORECASTS, MAX_PENDING_QUESTIONS, AdminApi
from tfs_lite.operations.explain.feature import Explain
from tfs_lite.server.feature import Doors, ServerFeature
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.router import Api
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.transport.table import Method

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore


class Admin(ServerFeature):
    """``control`` answers."""

    control: AdminControl
    _feed: EventFeed

    def __init__(self, core: ServerCore, explain: Explain) -> None:
        self._core = core
        self._explain = explain

    def attach(self, doors: Doors) -> None:
        self._doors = doors
        self._questions = BackgroundRunner("admin", 1, MAX_PENDING_QUESTIONS)
        self._forecasts = BackgroundRunner("forecasts", 1, MAX_PENDING_FORECASTS)
        self.control = AdminControl(self._core, doors, self._explain)

    def grpc(self) -> Sequence[Method]:
        manages = self._doors.manages_call
        self._feed = EventFeed(self._core.history, self._doors.health, self._questions)
        self._core.changes.listen(self._feed.wake)
        services = (
            AdminService(self.control, self._questions, self._forecasts, manages),
            EventsMethod(self._feed, manages),
        )
        return [method for service in services for method in service.methods()]

    def http(self, resources: HttpResources) -> Sequence[Api[Any]]:
        manages = self._doors.manages
        return (
            EventsApi(self._feed, manages),
            AdminApi(self.control, self._questions, self._forecasts, resources.bodies, manages),
        )

    def close_doors(self) -> None:
        self._questions.close()
        self._forecasts.close()


def admin(core: ServerCore) -> Admin | None:
    """None where nothing explains."""
    explain = core.find(Explain)
    return Admin(core, explain) if explain is not None else None
