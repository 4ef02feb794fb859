"""Points from counters, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfs_lite.metrics.requests import LATENCY_BUCKETS
from tfs_lite.operations.dashboard.series import (
    COARSE_POINTS,
    FINE_POINTS,
    MAX_VERSIONS,
    TOTAL,
    Counts,
    DashboardSeries,
    Key,
    quantile,
)

START = 1_000_000.0
M1 = ("m", "1")


class Counting:
    """Counters and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = START
        self.counts: dict[Key, Counts] = {}
        self.series = DashboardSeries(lambda: dict(self.counts), lambda: self.now)
        self.series.sample()

    def tick(self, seconds: float = 2.0) -> None:
        self.now += seconds
        self.series.sample()

    def points(self, key: Key = M1, signal: str = "requests", coarse: bool = False) -> list[float | None]:
        _, _, found = self.series.history([key], coarse)
        return found[key][signal]


def asked(requests: float, failures: float = 0.0, **gauges: float) -> Counts:
    return Counts(requests=requests, failures=failures, gauges=gauges)


def test_rates_are_those_between_two_points() -> None:
    counting = Counting()
    for requests, failures in ((10, 0), (30, 4), (30, 4)):
        counting.counts[M1] = asked(requests, failures)
        counting.tick()
    assert counting.points()[-3:] == [5.0, 10.0, 0.0]
    assert counting.points(signal="errors")[-2:] == [2.0, 0.0]
    assert counting.series.latest.models["m"]["requests"] == 0.0
    assert counting.points(TOTAL)[-2] == 10.0


def test_times_before_the_first_point_and_ticks_that_were_missed_have_no_numbers() -> None:
    counting = Counting()
    counting.counts[M1] = asked(10)
    counting.tick()
    counting.counts[M1] = asked(20)
    counting.tick(6.0)
    *before, first, missed, also_missed, last = counting.points()
    assert set(before) == {None}
    assert (first, missed, also_missed) == (5.0, None, None)
    assert last is not None
    assert abs(last - 10 / 6) < 1e-6
    assert len(counting.points()) == FINE_POINTS


def test_minutes_have_means_of_rates_and_peaks_of_states() -> None:
    counting = Counting()
    for number in range(1, 91):
        counting.counts[M1] = asked(number * 2.0, waiting=7.0 if number == 50 else 1.0)
        counting.tick()
    assert len(counting.points(coarse=True)) == COARSE_POINTS
    assert counting.points(coarse=True)[-2:] == [1.0, 1.0]
    assert 7.0 in counting.points(signal="waiting", coarse=True)


def test_the_last_minute_is_the_mean_of_the_points_that_have_a_number() -> None:
    counting = Counting()
    assert counting.series.last_minute(M1, "queue") is None
    for waits, seconds in ((2, 2.0), (2, 2.0), (4, 8.0)):
        counting.counts[M1] = Counts(requests=waits, waits=waits, wait_seconds=seconds)
        counting.tick()
    assert counting.series.last_minute(M1, "queue") == 2.0
    for _ in range(30):
        counting.tick()
    assert counting.series.last_minute(M1, "queue") is None


def test_counters_that_begin_anew_make_no_negative_rates() -> None:
    counting = Counting()
    for requests in (100, 4):
        counting.counts[M1] = asked(requests)
        counting.tick()
    assert counting.points()[-1] == 2.0


def test_clock_that_is_set_back_begins_anew() -> None:
    counting = Counting()
    counting.counts[M1] = asked(10)
    counting.tick()
    counting.tick(-3600)
    counting.counts[M1] = asked(20)
    counting.tick()
    counting.tick()
    assert counting.points()[-2:] == [5.0, 0.0] or counting.points()[-1] == 0.0


def test_nobody_asked_means_no_points_and_the_least_used_versions_go() -> None:
    counting = Counting()
    for number in range(MAX_VERSIONS + 50):
        counting.counts["m", str(number)] = asked(0)
    counting.tick()
    assert counting.series.kept == []
    for number in range(MAX_VERSIONS + 50):
        counting.counts["m", str(number)] = asked(1)
        if number == 49:
            counting.tick()
    counting.tick()
    assert len(counting.series.kept) == MAX_VERSIONS
    assert {("m", str(number)) for number in range(50)}.isdisjoint(counting.series.kept)


def test_version_that_is_gone_keeps_its_points_for_four_hours() -> None:
    counting = Counting()
    counting.counts[M1] = asked(10)
    counting.tick()
    del counting.counts[M1]
    counting.tick(3600.0)
    assert M1 in counting.series.kept
    counting.tick(3.1 * 3600)
    assert M1 not in counting.series.kept


def test_what_belongs_to_no_version_that_was_asked_is_in_the_sum_alone() -> None:
    counting = Counting()
    counting.counts[TOTAL], counting.counts[M1] = asked(0, memory=5.0), asked(10, memory=2.0, cache=0.5)
    counting.tick()
    latest = counting.series.latest
    assert latest.total == {"requests": 5.0, "errors": 0.0, "faults": 0.0, "memory": 7.0}
    assert latest.models == {"m": {"requests": 5.0, "errors": 0.0, "faults": 0.0, "memory": 2.0}}
    assert set(latest.versions) == {M1}


def test_quantiles_are_spread_evenly_within_a_bucket() -> None:
    cell = [0.0] * (len(LATENCY_BUCKETS) + 2)
    cell[1] = 10  # between 0.5 and 1 ms
    assert abs(quantile(0.5, cell) - 0.00075) < 1e-9
    cell[-2] = 1000
    assert quantile(0.99, cell) == LATENCY_BUCKETS[-1]


def test_sparks_are_sums_over_the_versions_of_a_model() -> None:
    counting = Counting()
    for number in range(1, 11):
        counting.counts[M1], counting.counts["m", "2"] = asked(number * 4.0), asked(number * 2.0)
        counting.tick()
    assert counting.series.sparks(2, 5, 10) == {"m": [3.0, 3.0]}


@pytest.mark.parametrize("gauges", [{}, {"waiting": 2.0}, {"texts": 1.0, "cache": 0.5}])
def test_a_version_that_was_not_asked_in_between_has_the_same_numbers_by_the_short_way(gauges):
    counts = Counts(7.0, 1.0, [1.0] * (len(LATENCY_BUCKETS) + 2), 2.0, 0.5, 3.0, 4.0, 1.0, 3.0, 0.7, 9.0, gauges)
    assert counts.numbers_since(counts, 2.0) == counts.since(counts).numbers(2.0)
    more = replace(counts, requests=8.0)
    assert more.numbers_since(counts, 2.0) == more.since(counts).numbers(2.0)
    assert counts.numbers_since(None, 2.0) == counts.numbers(2.0)


def test_errors_that_are_their_callers_mistakes_are_no_faults() -> None:
    counting = Counting()
    for failures, faults in ((0, 0), (4, 0), (8, 2)):
        counting.counts[M1] = replace(asked(10 + failures, failures), faults=faults)
        counting.tick()
    assert counting.points(signal="errors")[-2:] == [2.0, 2.0]
    assert counting.points(signal="faults")[-2:] == [0.0, 1.0]
    assert counting.series.latest.models["m"]["faults"] == 1.0
    assert counting.series.latest.total["faults"] == 1.0
