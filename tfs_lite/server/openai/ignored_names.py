"""Names inside the objects of a request that are not known: ignored, counted by their object, and each logged once."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tfs_lite.metrics.series import CounterSeries, SeriesCollector, SeriesLock
from tfs_lite.protocols.openai.fields import NESTED

logger = logging.getLogger(__name__)

MAX_LOGGED = 64
"""Names that are logged; clients choose them."""


class IgnoredNames:
    """The counts of ignored names, on the event loop. ``collector`` is for the metrics page, and shows names that were
    never counted, too."""

    def __init__(self) -> None:
        self._guard = SeriesLock()
        self._counts = CounterSeries(
            self._guard,
            "tfs_lite_openai_ignored_names",
            "Names inside objects of requests that are not known and were ignored, by the object.",
            ("object",),
        )
        self._logged: set[str] = set()
        self.collector = SeriesCollector(self._guard, (self._counts,))
        with self._guard.lock:
            for kind in NESTED:
                self._counts.cell((kind,))

    def note(self, names: Iterable[str], method: str) -> None:
        """The names of one request, each behind its object and a dot, as in ``messages.id``."""
        for name in names:
            with self._guard.lock:
                self._counts.cell((name.partition(".")[0],))[0] += 1
            if name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                logger.info("%s: requests have the name %r, which is not known and is ignored", method, name)
