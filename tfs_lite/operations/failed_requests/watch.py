"""Warns in the log of models that fail nearly all of their requests.

Nothing runs while no request fails. The first failure begins a period of :data:`PERIOD` seconds; when it is over, the
counts of its beginning and of its end are compared, and while some requests failed in it, another one begins.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tfs_lite.core.clock import Clock
from tfs_lite.metrics.requests import RequestTotals
from tfs_lite.operations.failed_requests.ring import FailedRequests

PERIOD = 10.0
"""Seconds of requests that are judged together."""
NEARLY_ALL, LEAST_FAILED = 0.9, 5
"""A model is warned of if at least this share of its requests failed in a period, and so many."""
SILENCE = 600.0
"""Seconds for which a model that was warned of is not warned of again."""
MOST_WARNINGS = 20
"""Models that are warned of after one period; of the others the log has their number."""
_NO_FAILURES = frozenset({"OK", "CANCELLED"})
"""Codes that do not count as failures: whoever cancels a request has not waited for its answer."""
logger = logging.getLogger(__name__)

Totals: TypeAlias = Mapping[tuple[str, str], RequestTotals]
"""Requests by model and version, as :meth:`RequestMetrics.totals` has them."""


@dataclass(frozen=True, slots=True)
class PeriodCounts:
    """The requests to a model in a period, and how many of them failed. Cancelled ones are not among them."""

    requests: int = 0
    failures: int = 0

    @property
    def share(self) -> float:
        return self.failures / self.requests if self.requests else 0.0


def tallies(before: Totals, after: Totals) -> dict[str, PeriodCounts]:
    """The requests to each model between two looks. Counts that were dropped in between begin anew. Pure."""
    found: dict[str, PeriodCounts] = {}
    for key, totals in after.items():
        old = before[key].codes if key in before else {}
        new = {code: max(count - old.get(code, 0.0), 0.0) for code, count in totals.codes.items()}
        failures = sum(count for code, count in new.items() if code not in _NO_FAILURES)
        known = found.get(key[0], PeriodCounts())
        requests = known.requests + round(failures + new.get("OK", 0.0))
        found[key[0]] = PeriodCounts(requests, known.failures + round(failures))
    return found


class FailureWatch:
    """``noticed`` is called on the event loop; the looks are on the clock's thread. A failure in the moment in which
    the last look ends may go unnoticed: the next one begins a new period."""

    def __init__(
        self, clock: Clock, totals: Callable[[], Totals], is_known: Callable[[str], bool], ring: FailedRequests
    ) -> None:
        """``is_known`` tells whether a model is served: clients choose the names of others."""
        self._clock = clock
        self._totals = totals
        self._is_known = is_known
        self._ring = ring
        self._looks = False  # set by ``noticed``, cleared by the last look
        self._before: Totals = {}  # this one and the next belong to the clock's thread
        self._warned: dict[str, float] = {}  # model -> when, in seconds of the clock

    def noticed(self) -> None:
        """A request has failed."""
        if not self._looks:
            self._looks = True
            self._clock.call_later(0.0, self._begin)

    def _begin(self) -> None:
        self._before = self._totals()
        self._clock.call_later(PERIOD, self._look)

    def _look(self) -> None:
        after = self._totals()
        found = {name: tally for name, tally in tallies(self._before, after).items() if tally.failures}
        self._before = after
        self._warn({name: tally for name, tally in found.items() if self._is_known(name)})
        if found:
            self._clock.call_later(PERIOD, self._look)
        else:
            self._before = {}
            self._looks = False

    def _warn(self, found: Mapping[str, PeriodCounts]) -> None:
        now = self._clock.monotonic()
        self._warned = {name: at for name, at in self._warned.items() if now - at < SILENCE}
        failing = [name for name, each in found.items() if each.failures >= LEAST_FAILED and each.share >= NEARLY_ALL]
        new = [name for name in failing if name not in self._warned]
        self._warned.update(dict.fromkeys(new, now))
        for name in new[:MOST_WARNINGS]:
            tally = found[name]
            logger.warning(
                "model %s: %d of %d requests failed in the last %d s (%.0f%%)%s; tfs-lite explain %s says more",
                name,
                tally.failures,
                tally.requests,
                PERIOD,
                100 * tally.share,
                self._most_frequent(name),
                name,
            )
        if len(new) > MOST_WARNINGS:
            more = len(new) - MOST_WARNINGS
            logger.warning("nearly all requests to %d more models failed in the last %d s", more, PERIOD)

    def _most_frequent(self, name: str) -> str:
        """The text of the failure that the model had most often in the period; empty if none was kept."""
        oldest = self._clock.time() - PERIOD
        kept = [each for each in self._ring.of_model(name) if each.time >= oldest]
        texts = Counter((each.version, each.code, each.stage, each.message) for each in kept)
        if not texts:
            return ""
        (version, code, stage, message), _ = texts.most_common(1)[0]
        of = "" if version is None else f" of version {version}"
        return f", most often{of} {code} in {stage}: {message}"
