"""The dashboard: a page of the server, and what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfs_lite.operations.dashboard.app import Dashboard
from tfs_lite.operations.explain.feature import Explain
from tfs_lite.server.feature import Doors, ServerFeature
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.router import Api

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore


class DashboardFeature(ServerFeature):
    """``dashboard`` shows explanations, and tells how fast versions answer, which they are made from."""

    dashboard: Dashboard

    def __init__(self, core: ServerCore, explain: Explain) -> None:
        self._core = core
        self._explain = explain

    def attach(self, doors: Doors) -> None:
        self.dashboard = Dashboard(self._core, self._explain, doors)
        self._explain.pace_of = self.dashboard.pace_of

    def http(self, resources: HttpResources) -> Sequence[Api[Any]]:
        self.dashboard.start()
        return (self.dashboard,)

    def drained(self) -> None:
        self.dashboard.close_feed()

    def close_doors(self) -> None:
        self.dashboard.close()


def dashboard(core: ServerCore) -> DashboardFeature | None:
    """None without ``--dashboard``, HTTP or explanations."""
    options, explain = core.options, core.find(Explain)
    shows = options.dashboard and options.rest_api_port is not None
    return DashboardFeature(core, explain) if shows and explain is not None else None
