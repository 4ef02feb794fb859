"""Puts sources, adapters and a manager together, and takes them apart in the right order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ServableId, ServableRequest
from tfs_lite.core.source import AspiredVersionsCallback, SourceAdapter, connect
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager, AspiredVersionsManagerOptions
from tfs_lite.managers.manager import Manager


class ClosableSource(Protocol):
    """A source that can be ended."""

    def set_aspired_versions_callback(self, callback: AspiredVersionsCallback[Any]) -> None: ...

    def close(self) -> None: ...


class ManagerWrapper:
    """A manager together with what feeds it. ``close`` ends the dependencies, the last one registered first, and then
    the manager; the rest is passed on."""

    def __init__(self, manager: Manager, dependencies: list[Callable[[], None]]) -> None:
        self.manager = manager
        self._dependencies = dependencies

    def get_servable_handle(self, request: ServableRequest) -> ServableHandle:
        return self.manager.get_servable_handle(request)

    def list_available_servable_ids(self) -> list[ServableId]:
        return self.manager.list_available_servable_ids()

    def get_available_servable_handles(self) -> dict[ServableId, ServableHandle]:
        return self.manager.get_available_servable_handles()

    def close(self, drain_timeout: float = 0.0) -> None:
        while self._dependencies:
            self._dependencies.pop()()
        self.manager.close(drain_timeout)


class AspiredVersionsManagerBuilder:
    """Used by one thread: ``add_source`` or ``add_source_chain``, any number of them -> ``build``, once."""

    def __init__(self, options: AspiredVersionsManagerOptions) -> None:
        self._manager = AspiredVersionsManager(options)
        self._dependencies: list[Callable[[], None]] = []

    def add_source(self, source: ClosableSource) -> None:
        """Connects a source of loaders."""
        self.add_source_chain(source)

    def add_source_chain(self, source: ClosableSource, *adapters: SourceAdapter[Any, Any]) -> None:
        """Connects source -> adapter -> ... -> manager, the manager's end first so that nothing waits. At the end the
        source goes first, then the adapters from the source on."""
        target: SourceAdapter[Any, Any] | AspiredVersionsManager = self._manager
        for adapter in reversed(adapters):
            connect(adapter, target)
            self.own(adapter.detach)
            target = adapter
        self.own(source.close)
        connect(source, target)

    def own(self, close: Callable[[], None]) -> None:
        """Something to end before the manager, after what is registered later."""
        self._dependencies.append(close)

    def build(self) -> ManagerWrapper:
        """Starts the manager."""
        self._manager.start()
        return ManagerWrapper(self._manager, self._dependencies)
