"""Names inside the objects of a request that are not known: ignored, counted by their object, and each logged once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.protocols.openai.fields import NESTED

logger = logging.getLogger(__name__)

MAX_LOGGED = 64
"""Names that are logged; clients choose them."""


class IgnoredNames(Collector):
    """``note`` belongs to the event loop; the page's thread reads the counts."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged: set[str] = set()

    def note(self, names: Iterable[str], method: str) -> None:
        """The names of one request, each behind its object and a dot, as in ``messages.id``."""
        for name in names:
            self._counts[name.partition(".")[0]] += 1
            if name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                logger.info("%s: requests have the name %r, which is not known and is ignored", method, name)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "tfs_lite_openai_ignored_names",
            "Names inside objects of requests that are not known and were ignored, by the object.",
            labels=["object"],
        )
        for kind in NESTED:
            family.add_metric([kind], self._counts[kind])
        yield family
