"""What the metrics page says about the processes that speak gRPC for the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.server.frontend_pool import FrontendPool


class FrontendCollector(Collector):
    """Reads the numbers once per page, on the thread that makes the page."""

    def __init__(self, pool: FrontendPool) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        pool = self._pool
        yield GaugeMetricFamily("tfs_lite_grpc_frontends", "Frontends that listen.", pool.frontends)
        yield GaugeMetricFamily("tfs_lite_grpc_frontend_calls", "Calls inside all frontends.", pool.calls_inside)
        yield CounterMetricFamily("tfs_lite_grpc_frontend_restarts", "Frontends started again.", pool.restarts)
