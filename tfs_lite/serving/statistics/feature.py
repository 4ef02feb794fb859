"""V2's statistics of every version, and V2's trace and log settings."""

from __future__ import annotations

import os

from tfs_lite.core.model import Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import LifecycleEvent, LoadAttempted, Replaced, StateChanged
from tfs_lite.serving.parts import Parts
from tfs_lite.serving.statistics.statistics import InferenceStatistics
from tfs_lite.serving.statistics.trace_config import read_trace_config
from tfs_lite.serving.statistics.trace_settings import V2Settings


class Statistics(Feature):
    """``statistics`` counts from zero for each load of a version; ``settings`` are those of the whole server.

    The counts of a version begin when it is loaded, and not when its state says that it is available: requests come
    before that is told."""

    def __init__(self, core: Parts, cache: ResponseCache | None) -> None:
        self._core = core
        self.settings = V2Settings(core.states.is_configured, read_trace_config(core.options.trace_config, os.environ))
        self.statistics = InferenceStatistics(cache_counts=cache.counts if cache is not None else dict)
        self.on_run = self.statistics.on_batch
        self.on_call = self.statistics.on_call

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case LoadAttempted(attempt) if attempt.status.ok and self._is_loading(attempt.id):
                self._open(attempt.id, attempt.seconds)
            case StateChanged(timed) if timed.state.state is ManagerState.END:
                self.statistics.closed(timed.state.id)
            case Replaced(servable_id):
                last = self._core.journal.last(servable_id)
                self._open(servable_id, None if last is None else last.seconds)

    def stopping(self) -> None:
        self.settings.close()

    def _is_loading(self, servable_id: ServableId) -> bool:
        """Whether this is its first load, and not one that is to take the place of another."""
        timed = self._core.states.version_states(servable_id.name).get(servable_id.version)
        return timed is not None and timed.state.state is ManagerState.LOADING

    def _open(self, servable_id: ServableId, seconds: float | None) -> None:
        """Counts from zero what the latest load of the version does, unless it has gone already."""
        loader = self._core.journal.loader(servable_id)
        servable = None if loader is None else loader.servable
        if servable is not None:
            traits: Traits = servable.traits
            self.statistics.opened(servable_id, bool(traits.composing), seconds, has_rows=traits.max_batch_size > 0)
