"""The series of the metrics page about events and about the memory that versions take and leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.adapters.spare import SPARE
from tfs_lite.core.history import Event, EventKind
from tfs_lite.operations.history.memory import MemoryAccounts, VersionMemory
from tfs_lite.serving.metrics import remove_series

ALARMING = (EventKind.LOAD_ATTEMPT_FAILED, EventKind.WORKER_LOST, EventKind.LEAK)
"""A model has these from its first event on: an alert on an increase needs the zero before it."""


class EventMetrics:
    """Counts events, on the threads that append them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "tfs_lite_events",
            "Events of the history; those of the server itself have no model.",
            ("model", "kind"),
            registry=registry,
        )
        self._known: set[str] = set()

    def on_event(self, event: Event) -> None:
        if event.model not in self._known:
            self._known.add(event.model)
            for kind in ALARMING if event.model else (EventKind.CONFIG_REFUSED, EventKind.ACCESS_DENIED):
                self._events.labels(event.model, kind.value)
        self._events.labels(event.model, event.kind.value).inc()

    def model_gone(self, name: str) -> None:
        """Its series go."""
        self._known.discard(name)
        for kind in EventKind:
            remove_series(self._events, name, kind.value)


class HistoryCollector(Collector):
    """Reads the accounts once per page, on the thread that makes the page."""

    def __init__(
        self,
        accounts: MemoryAccounts,
        dropped: Callable[[], Mapping[str, int]],
        configured: Callable[[], Iterable[str]],
        collections: Callable[[], tuple[int, float]] = lambda: (0, 0.0),
    ) -> None:
        """``dropped``: how many events were let go of, by what is full. ``configured``: the models of the config; the
        leaks of each begin with 0. ``collections``: how many there were after unloads, and their seconds."""
        self._collections = collections
        self._accounts = accounts
        self._dropped = dropped
        self._configured = configured

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        resident = self._accounts.resident()
        memory = GaugeMetricFamily(
            "tfs_lite_version_memory_bytes",
            "Memory of a version: reserved before its load, measured in tensors, taken by the load, resident in its "
            "own processes.",
            labels=("model", "version", "device", "kind"),
        )
        for model, account in resident:
            for device, kind, quantity in _figures(account):
                memory.add_metric((model, str(account.version), device, kind), quantity)
        yield memory
        held = GaugeMetricFamily(
            "tfs_lite_memory_measured_bytes",
            "Memory that a version held when its load had ended: weights, graphs, staging, workspace, or that of its "
            "own processes.",
            labels=("model", "version", "device", "kind"),
        )
        for model, account in resident:
            for device, kinds in account.held.items():
                for kind, quantity in kinds.items():
                    held.add_metric((model, str(account.version), device, kind), quantity)
        yield held
        leaked = CounterMetricFamily(
            "tfs_lite_memory_leaked_bytes", "Memory that loads took and unloads did not give back.", labels=("model",)
        )
        for model, quantity in (dict.fromkeys(self._configured(), 0) | self._accounts.leaked()).items():
            leaked.add_metric((model,), quantity)
        yield leaked
        dropped = CounterMetricFamily(
            "tfs_lite_events_dropped", "Events that the history let go of or did not write.", labels=("from",)
        )
        for what, count in self._dropped().items():
            dropped.add_metric((what,), count)
        yield dropped
        count, seconds = self._collections()
        yield CounterMetricFamily(
            "tfs_lite_memory_collections", "Garbage collections after unloads and failed loads.", value=count
        )
        yield CounterMetricFamily(
            "tfs_lite_memory_collection_seconds", "What they took; requests wait meanwhile.", value=seconds
        )
        yield GaugeMetricFamily(
            "tfs_lite_memory_spare_bytes",
            "Memory of dropped weights that is kept for the next ones; the system may take it.",
            value=SPARE.nbytes,
        )


def _figures(account: VersionMemory) -> Iterator[tuple[str, str, int]]:
    """Device, kind and bytes; growth that is negative, because others shrank meanwhile, is none."""
    for device in account.devices:
        for kind, known in (("reserved", account.reserved), ("measured", account.measured)):
            if device in known:
                yield device, kind, known[device]
        taken = account.taken(device)
        if taken is not None:
            yield device, "taken", max(0, taken)
    if account.workers:
        yield "main", "workers", sum(account.workers)
