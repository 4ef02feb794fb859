"""What servables and requests need in addition to the lifecycle: statistics of calls, traces, the response cache, and
the routes of sequences.

The core makes it before the first model, passes the manager's events on to it, and closes it before the manager,
because routes hold handles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from tfs_lite.core.clock import Clock
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import BatchReport, OnBatch, Servable, ServableCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import Tensor
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import ServingError, Status
from tfs_lite.metrics.batches import BatchMetrics
from tfs_lite.metrics.generation import GenerationMetrics
from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.serving.load_journal import LoadJournal
from tfs_lite.serving.model_states import ModelStates
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.response_cache_config import CacheCollector, cache_bytes
from tfs_lite.serving.sequences.metrics import SequenceCollector
from tfs_lite.serving.sequences.routes import SequenceRoutes
from tfs_lite.serving.servable_factory import ServableEnvironment
from tfs_lite.serving.statistics.statistics import InferenceStatistics
from tfs_lite.serving.statistics.trace_config import read_trace_config
from tfs_lite.serving.statistics.trace_settings import V2Settings


class RequestServices:
    """Any thread may call any method."""

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock,
        registry: CollectorRegistry,
        states: ModelStates,
        journal: LoadJournal,
        lookup: Callable[[ModelRef], ServableHandle],
    ) -> None:
        """``lookup``: the handle to a version, as :meth:`ServerCore.handle` gives it."""
        self._lookup = lookup
        self._journal = journal
        self.settings = V2Settings(states.is_configured, read_trace_config(options.trace_config, os.environ))
        size = cache_bytes(options.cache_config)
        self._cache = cache = ResponseCache(size) if size else None
        self.statistics = InferenceStatistics(cache_counts=cache.counts if cache is not None else dict)
        self.routes = SequenceRoutes(lookup, clock, options.sequence_drain_seconds)
        self.generation = GenerationMetrics(registry)
        registry.register(SequenceCollector(self.routes))
        if cache is not None:
            registry.register(CacheCollector(cache))

    def environment(self, metrics: BatchMetrics) -> ServableEnvironment:
        """For the servable factory. Runs are counted by ``metrics`` and in V2's statistics."""
        return ServableEnvironment(
            on_batch=self._both(metrics.on_batch),
            on_run=self._both(metrics.on_run),
            on_call=self.on_call,
            on_forgotten=self.routes.forgotten,
            resolve=lambda name, version: self._lookup(ModelRef(name, version)),
            resolve_sequence=lambda name, version, flags: self.routes.handle(ModelRef(name, version), flags),
            cache=self._cache,
            generation=self.generation,
        )

    def on_call(self, servable_id: ServableId, call: ServableCall, result: Mapping[str, Tensor] | Status) -> None:
        """A call has ended: a request, or a step of an ensemble."""
        self.statistics.on_call(servable_id, call, result)

    def on_event(self, event: ServableState) -> None:
        """Of the manager, on its publisher's thread, under the bus."""
        if event.state is ManagerState.AVAILABLE:
            self._open_statistics(event.id)
            self.generation.version_back(event.id)
        elif event.state is ManagerState.UNLOADING:
            self.routes.version_leaving(event.id)
        elif event.state is ManagerState.END:
            self.routes.version_gone(event.id)
            self.statistics.closed(event.id)
            self.generation.version_gone(event.id)

    def version_replaced(self, servable_id: ServableId, old: Callable[[], Any]) -> None:
        """Another load of the version has taken its place. ``old``: the servable that had it, if it still lives."""
        if self._cache is not None:
            self._cache.replaced(servable_id)
        self._open_statistics(servable_id)
        self.routes.version_replaced(servable_id, old)

    def model_gone(self, name: str) -> None:
        """The model is served no more."""
        self.generation.model_gone(name)
        self.routes.model_gone(name)

    def close(self) -> None:
        self.routes.close()
        self.settings.close()

    def _open_statistics(self, servable_id: ServableId) -> None:
        """Those of what serves now, from zero."""
        traits, seconds = self._traits(servable_id), self._load_seconds(servable_id)
        self.statistics.opened(servable_id, bool(traits.composing), seconds, has_rows=traits.max_batch_size > 0)

    def _load_seconds(self, servable_id: ServableId) -> float | None:
        attempt = self._journal.last(servable_id)
        return attempt.seconds if attempt is not None else None

    def _both(self, count: OnBatch) -> OnBatch:
        def on_batch(report: BatchReport) -> None:
            count(report)
            self.statistics.on_batch(report)

        return on_batch

    def _traits(self, servable_id: ServableId) -> Traits:
        """Those of a model that is nothing special if the version has gone already."""
        try:
            with self._lookup(ModelRef(servable_id.name, servable_id.version)) as handle:
                servable: Servable = handle.servable
                return servable.traits
        except ServingError:
            return Traits("")
