"""A manager of objects that exist already: for tests, scripts, and models built in memory.

builder = StaticManagerBuilder()
builder.add_servable(ServableId("half_plus_two", 1), model)
manager = builder.build()
"""

from __future__ import annotations

from typing import Any

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.loader import SimpleLoader
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.state import ServableState
from tfs_lite.core.status import OK, ServingError, Status, failed_precondition, invalid_argument
from tfs_lite.managers.basic_manager import BasicManager, BasicManagerOptions
from tfs_lite.managers.manager import Manager


class _StaticManager(BasicManager):
    """Ends its clock with itself."""

    def __init__(self, event_bus: EventBus[ServableState] | None) -> None:
        self._clock = SystemClock()
        super().__init__(
            BasicManagerOptions(
                clock=self._clock,
                load_executor=PoolExecutor("static-load", 0),
                unload_executor=PoolExecutor("static-unload", 0),
                event_bus=event_bus,
                max_num_load_retries=0,
            )
        )

    def close(self, drain_timeout: float = 0.0) -> None:
        super().close(drain_timeout)
        self._clock.close()


class StaticManagerBuilder:
    """Used by one thread: ``add_servable``* -> ``build``."""

    def __init__(self, event_bus: EventBus[ServableState] | None = None) -> None:
        self._manager: _StaticManager | None = _StaticManager(event_bus)

    def add_servable(self, servable_id: ServableId, servable: Any) -> None:
        """Serves the object from now on. INVALID_ARGUMENT for None; FAILED_PRECONDITION if the id is taken, or after
        ``build``."""
        if self._manager is None:
            raise failed_precondition(f"the manager is built; {servable_id} comes too late")
        if servable is None:
            raise invalid_argument(f"no servable was given for {servable_id}")
        self._manager.manage_servable(ServableData.ok(servable_id, SimpleLoader(lambda _: servable)))
        outcome: list[Status] = []
        self._manager.load_servable(servable_id, outcome.append)
        self._manager.run_pending()
        if outcome != [OK]:
            raise ServingError(outcome[0].code, outcome[0].message)

    def build(self) -> Manager | None:
        """The manager, which never changes again; None when called a second time."""
        manager, self._manager = self._manager, None
        return manager
