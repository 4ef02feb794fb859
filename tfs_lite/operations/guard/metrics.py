"""The series of the metrics page about trials. Every model of the config has them, with 0, from its first page on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.servable import ServableId
from tfs_lite.operations.guard.evidence import TrialCounts
from tfs_lite.operations.guard.stage import GuardView

NO_COUNTS = TrialCounts()
OUTCOMES: dict[str, Callable[[TrialCounts], int]] = {
    "answered": lambda counts: counts.answered,
    "fault": lambda counts: counts.faults,
    "refused": lambda counts: counts.refused,
    "nonfinite": lambda counts: counts.nonfinite,
    "late": lambda counts: counts.late,
    "load": lambda counts: counts.load,
}
"""How a request ended on a version on trial -> its number among the counts of one trial."""
SHIELDED, TAKEN_BACK, HELD_BACK = "shielded", "taken_back", "held_back"


class GuardMetrics(Collector):
    """Any thread may call any method."""

    def __init__(
        self,
        registry: CollectorRegistry,
        configured: Callable[[], Iterable[str]],
        view: Callable[[str], GuardView | None],
        latest: Callable[[str], int | None],
    ) -> None:
        """``configured``: the models of the config. ``view``: how a model stands. ``latest``: the version that answers
        requests without a version."""
        self._configured = configured
        self._view = view
        self._latest = latest
        self._lock = threading.Lock()  # guards the fields below; nothing is called under it
        self._totals: dict[str, Counter[str]] = {}
        self._seen: dict[ServableId, TrialCounts] = {}  # of the trials that go on, until now
        registry.register(self)

    def on_counts(self, id: ServableId, counts: TrialCounts, *, last: bool = False) -> None:
        """Takes the counts of a trial until now. After the ``last`` ones, those of the version begin with 0 again."""
        with self._lock:
            before = self._seen.pop(id, NO_COUNTS)
            if not last:
                self._seen[id] = counts
            totals = self._totals.setdefault(id.name, Counter())
            for outcome, of in OUTCOMES.items():
                totals[outcome] += of(counts) - of(before)
            totals[SHIELDED] += counts.shielded - before.shielded

    def taken_back(self, name: str) -> None:
        self._count(name, TAKEN_BACK)

    def held_back(self, name: str) -> None:
        self._count(name, HELD_BACK)

    def _count(self, name: str, what: str) -> None:
        with self._lock:
            self._totals.setdefault(name, Counter())[what] += 1

    def model_gone(self, name: str) -> None:
        with self._lock:
            self._totals.pop(name, None)
            for id in [id for id in self._seen if id.name == name]:
                del self._seen[id]

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            totals = {name: Counter(found) for name, found in self._totals.items()}
        names = dict.fromkeys((*self._configured(), *totals))
        requests = CounterMetricFamily(
            "tfs_lite_trial_requests",
            "Requests to versions on trial, by how they ended there, whoever answered them then.",
            labels=("model", "outcome"),
        )
        for name in names:
            for outcome in OUTCOMES:
                requests.add_metric((name, outcome), totals.get(name, Counter())[outcome])
        yield requests
        for what, series, text in (
            (
                SHIELDED,
                "tfs_lite_shielded_requests",
                "Requests that failed on a version on trial, and that the version before it has answered.",
            ),
            (TAKEN_BACK, "tfs_lite_taken_back", "Versions that were taken back because they failed in their trial."),
            (
                HELD_BACK,
                "tfs_lite_held_back",
                "Loads that ended because recorded answers or the signature of the version before do not fit.",
            ),
        ):
            counter = CounterMetricFamily(series, text, labels=("model",))
            for name in names:
                counter.add_metric((name,), totals.get(name, Counter())[what])
            yield counter
        yield from self._gauges(list(names))

    def _gauges(self, names: list[str]) -> Iterator[Metric]:
        on_trial = GaugeMetricFamily(
            "tfs_lite_on_trial", "Whether a version of the model is on trial.", labels=("model",)
        )
        votes = GaugeMetricFamily(
            "tfs_lite_trial_votes", "The votes of the trial, against its version and for it.", labels=("model", "side")
        )
        rejected = GaugeMetricFamily(
            "tfs_lite_version_rejected",
            "Whether a version that is newer than the one that answers was taken back or rolled back.",
            labels=("model",),
        )
        for name in names:
            view = self._view(name)
            trial = view is not None and view.trial is not None
            on_trial.add_metric((name,), int(trial))
            against, votes_for = (view.judgement.against, view.judgement.votes_for) if view is not None else (0, 0)
            votes.add_metric((name, "against"), against)
            votes.add_metric((name, "for"), votes_for)
            newest = max((each.version for each in view.rejected), default=-1) if view is not None else -1
            rejected.add_metric((name,), int(newest >= 0 and newest > (self._latest(name) or 0)))
        yield from (on_trial, votes, rejected)
