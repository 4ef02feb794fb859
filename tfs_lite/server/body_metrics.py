"""What the metrics page says about request bodies over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.server.http_body import BodyNumbers


class BodyCollector(Collector):
    """Reads the numbers once per page, on the thread that makes the page."""

    def __init__(self, numbers: Callable[[], BodyNumbers]) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._numbers()
        yield GaugeMetricFamily("tfs_lite_http_body_bytes", "Request bodies in memory.", now.held_bytes)
        yield GaugeMetricFamily("tfs_lite_http_body_room_bytes", "What they may take together.", now.room_bytes)
        refused = CounterMetricFamily("tfs_lite_http_bodies_refused", "Request bodies refused.", labels=("reason",))
        for reason, count in (("too_large", now.too_large), ("no_room", now.no_room), ("too_slow", now.too_slow)):
            refused.add_metric((reason,), count)
        yield refused
