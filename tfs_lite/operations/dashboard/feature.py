"""The dashboard: a page of the server, and what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfs_lite.operations.admin.feature import Admin
from tfs_lite.operations.dashboard.app import Dashboard
from tfs_lite.server.feature import Doors, ServerFeature
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.router import Api

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore


class DashboardFeature(ServerFeature):
    """``dashboard`` shows what the admin API answers, and tells it how fast versions answer."""

    dashboard: Dashboard

    def __init__(self, core: ServerCore, admin: Admin) -> None:
        self._core = core
        self._admin = admin

    def attach(self, doors: Doors) -> None:
        self.dashboard = Dashboard(self._core, self._admin.control, doors)
        self._admin.pace_of = self.dashboard.pace_of

    def http(self, resources: HttpResources) -> Sequence[Api[Any]]:
        self.dashboard.start()
        return (self.dashboard,)

    def drained(self) -> None:
        self.dashboard.close_feed()

    def close_doors(self) -> None:
        self.dashboard.close()


def dashboard(core: ServerCore) -> DashboardFeature | None:
    """None without ``--dashboard``, HTTP or the admin API."""
    options, admin = core.options, core.find(Admin)
    shows = options.dashboard and options.rest_api_port is not None
    return DashboardFeature(core, admin) if shows and admin is not None else None
