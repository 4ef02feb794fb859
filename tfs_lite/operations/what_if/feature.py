"""Answers what a config or a new version would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.threads import BoundedCalls
from tfs_lite.operations.guard.feature import Guard
from tfs_lite.operations.what_if.forecast import WhatIf
from tfs_lite.operations.what_if.preview import Inside, Preview
from tfs_lite.serving.feature import Feature

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore


class Forecasts(Feature):
    """Any thread but the event loop's may ask; each question reads the disk, one at a time. FAILED_PRECONDITION where
    the options say that nothing is followed."""

    def __init__(self, core: ServerCore) -> None:
        options = core.options
        self._core = core
        self._calls = BoundedCalls(max(options.reload_timeout_seconds, options.disk_timeout_seconds), 1)

    def config(self, config: ModelServerConfig) -> WhatIf:
        """Tells what a reload of this config would change; see :meth:`Preview.config`."""
        self._core.reloader.require_following()
        return self._calls.call("the forecast", lambda: self._preview().config(config))

    def published(self, name: str, version: int | None, directory: str) -> WhatIf:
        """Tells what would change if these files were published; see :meth:`Preview.published`."""
        self._core.reloader.require_following()
        return self._calls.call("the forecast", lambda: self._preview().published(name, version, directory))

    def _preview(self) -> Preview:
        core = self._core
        inside = Inside(core.metrics.requests.in_flight, core.sequences.routes.live)
        guard = core.find(Guard)
        guarded = guard.guarded if guard is not None else lambda name, versions: versions
        return Preview(core.options, core.reloader, core.sources, core.manager, core.resources.tracker, inside, guarded)
