"""The metric of denied callers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.server.access.access import Access
from tfs_lite.server.access.rules import CLOSABLE, DenialReason


class AccessCollector(Collector):
    """Reads the numbers once per page, on the page's thread. Numbers that are zero are written, too, so that an alert
    sees their first increase."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "tfs_lite_access_denied",
            "Requests that were denied, by what they needed and why.",
            labels=["scope", "reason"],
        )
        for scope in CLOSABLE:
            for reason in DenialReason:
                family.add_metric([scope.name.lower(), reason.value], self._access.denials[scope, reason])
        yield family
