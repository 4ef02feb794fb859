"""The series of the metrics page about sequences that hold on to their versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.serving.sequences.routes import SequenceRoutes


class SequenceCollector(Collector):
    """Reads the numbers once per page, on the thread that makes the page."""

    def __init__(self, routes: SequenceRoutes) -> None:
        self._routes = routes

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        live = GaugeMetricFamily(
            "tfs_lite_sequences", "Live sequences, by the version that they began on.", labels=("model", "version")
        )
        for servable_id, number in self._routes.live().items():
            live.add_metric((servable_id.name, str(servable_id.version)), number)
        yield live
        dropped = CounterMetricFamily(
            "tfs_lite_sequences_dropped", "Sequences whose version was unloaded before they ended.", labels=("model",)
        )
        for name, number in self._routes.dropped().items():
            dropped.add_metric((name,), number)
        yield dropped
        yield GaugeMetricFamily(
            "tfs_lite_sequences_remembered",
            "Dropped sequences whose next request will be told so.",
            self._routes.remembered,
        )
