"""V2's statistics of every version, and V2's trace and log settings."""

from __future__ import annotations

import os

from tfs_lite.core.model import Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import ServingError
from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import LifecycleEvent, Replaced, StateChanged
from tfs_lite.serving.parts import Parts
from tfs_lite.serving.statistics.statistics import InferenceStatistics
from tfs_lite.serving.statistics.trace_config import read_trace_config
from tfs_lite.serving.statistics.trace_settings import V2Settings


class Statistics(Feature):
    """``statistics`` counts from zero for each load of a version; ``settings`` are those of the whole server."""

    def __init__(self, core: Parts, cache: ResponseCache | None) -> None:
        self._core = core
        self.settings = V2Settings(core.states.is_configured, read_trace_config(core.options.trace_config, os.environ))
        self.statistics = InferenceStatistics(cache_counts=cache.counts if cache is not None else dict)
        self.on_run = self.statistics.on_batch
        self.on_call = self.statistics.on_call

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case StateChanged(timed) if timed.state.state is ManagerState.AVAILABLE:
                self._open(timed.state.id)
            case StateChanged(timed) if timed.state.state is ManagerState.END:
                self.statistics.closed(timed.state.id)
            case Replaced(servable_id):
                self._open(servable_id)

    def stopping(self) -> None:
        self.settings.close()

    def _open(self, servable_id: ServableId) -> None:
        """Those of what serves now, from zero."""
        traits, attempt = self._traits(servable_id), self._core.journal.last(servable_id)
        seconds = attempt.seconds if attempt is not None else None
        self.statistics.opened(servable_id, bool(traits.composing), seconds, has_rows=traits.max_batch_size > 0)

    def _traits(self, servable_id: ServableId) -> Traits:
        """Those of a model that is nothing special if the version has gone already."""
        try:
            with self._core.handle(ModelRef(servable_id.name, servable_id.version)) as handle:
                traits: Traits = handle.servable.traits
                return traits
        except ServingError:
            return Traits("")
