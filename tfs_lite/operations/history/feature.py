"""Events of the lifecycle, who wanted each, and the byte account of loads and unloads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfs_lite import __version__
from tfs_lite.adapters.memory import MemoryReturn
from tfs_lite.core.history import Cause, Origin
from tfs_lite.core.loader import Loader
from tfs_lite.core.servable import ServableId
from tfs_lite.operations.history.file import EventFile
from tfs_lite.operations.history.memory import AccountedLoader, MemoryAccounts, VersionMemory
from tfs_lite.operations.history.metrics import EventMetrics, HistoryCollector
from tfs_lite.operations.history.recorder import Recorder
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import ConfigApplied, ConfigRefused, LifecycleEvent, ModelGone, SourceReported

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore


class LifecycleHistory(Feature):
    """Writes the core's ``history``, and keeps it in ``--state_directory`` if there is one."""

    def __init__(self, core: ServerCore) -> None:
        self._memory = MemoryReturn(core.clock)
        self._accounts = MemoryAccounts(
            lambda servable_id, leaked: self._recorder.on_leak(servable_id, leaked), memory=self._memory
        )
        self._history = history = core.history
        self._recorder = Recorder(history, self._accounts, core.states.is_configured, core.features.rejected)
        self._metrics = EventMetrics(core.registry)
        history.listen(self._metrics.on_event)
        self._file = self._open_file(core.options.state_directory)
        core.registry.register(
            HistoryCollector(self._accounts, self._dropped, lambda: core.states.configured, self._memory.collections)
        )

    def memory(self, name: str) -> tuple[VersionMemory, ...]:
        """The byte account of every version of the model that is in memory, and of the latest that were; the highest
        version first."""
        return self._accounts.of(name)

    def wrap(self, id: ServableId, loader: Loader) -> Loader:
        return AccountedLoader(id, loader, self._accounts)

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case SourceReported(report):
                self._recorder.on_source_report(report)
            case ConfigApplied(difference, summary, before, labels):
                self._recorder.config_applied(difference, summary, before, labels)
            case ConfigRefused(status, model):
                self._recorder.config_refused(status, model)
            case ModelGone(name):
                self._metrics.model_gone(name)
                self._accounts.model_gone(name)
            case _:
                self._recorder.on_event(event)

    def explains(self, name: str, version: int | None) -> Mapping[str, Sequence[Any]]:
        return {"memory": [found.as_json() for found in self.memory(name) if version in (None, found.version)]}

    def start(self) -> None:
        self._recorder.started({"version": __version__, "pid": os.getpid()})
        self._memory.start()

    def stopping(self) -> None:
        self._recorder.stopping(Origin(Cause.SHUTDOWN))
        self._memory.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open_file(self, directory: str) -> EventFile | None:
        """Restores what an earlier server has left there."""
        if not directory:
            return None
        file = EventFile(directory)
        self._history.restore(file.read())
        file.start()
        self._history.listen(file.write)
        return file

    def _dropped(self) -> dict[str, int]:
        file = {"file": self._file.dropped} if self._file is not None else {}
        return {"memory": self._history.dropped, **file}


def memory_of(core: ServerCore, name: str) -> tuple[VersionMemory, ...]:
    """See :meth:`LifecycleHistory.memory`; none without that feature."""
    found = core.find(LifecycleHistory)
    return found.memory(name) if found is not None else ()
