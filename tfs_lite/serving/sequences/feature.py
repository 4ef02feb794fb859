"""Live sequences stay on their version across swaps."""

from __future__ import annotations

from tfs_lite.core.state import ManagerState
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import LifecycleEvent, ModelGone, Replaced, StateChanged
from tfs_lite.serving.parts import Parts
from tfs_lite.serving.sequences.metrics import SequenceCollector
from tfs_lite.serving.sequences.routes import SequenceRoutes


class Sequences(Feature):
    """``routes`` says which version the requests of a live sequence go to. Routes hold handles, so that they end before
    versions are unloaded."""

    def __init__(self, core: Parts) -> None:
        self.routes = SequenceRoutes(core.handle, core.clock, core.options.sequence_drain_seconds)
        core.registry.register(SequenceCollector(self.routes))

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case StateChanged(timed) if timed.state.state is ManagerState.UNLOADING:
                self.routes.version_leaving(timed.state.id)
            case StateChanged(timed) if timed.state.state is ManagerState.END:
                self.routes.version_gone(timed.state.id)
            case Replaced(servable_id, old):
                self.routes.version_replaced(servable_id, old)
            case ModelGone(name):
                self.routes.model_gone(name)

    def stopping(self) -> None:
        self.routes.close()
