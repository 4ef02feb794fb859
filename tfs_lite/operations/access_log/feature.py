"""``--access_log``: a line in the log for each request, or for each that has failed or was denied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfs_lite.operations.access_log.lines import AccessLog
from tfs_lite.server.feature import Doors, ServerFeature

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore


class AccessLogging(ServerFeature):
    def __init__(self, core: ServerCore) -> None:
        self._log = AccessLog(core.metrics.requests, core.options.access_log)

    def attach(self, doors: Doors) -> None:
        doors.access.on_denied(self._log.on_denied)
