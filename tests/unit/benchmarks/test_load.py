"""Arrivals, how callers are spread, and how figures are put into tables."""

from __future__ import annotations

import random

import numpy as np
import pytest
from batching import table
from forms import RAW, V2, json_at
from load import bursty, mixed, poisson, steady
from sides import rows_a_run, split


def test_independent_arrivals_have_the_rate_asked_for() -> None:
    times = list(poisson(1000, 20, random.Random(1)))
    assert times == sorted(times)
    assert len(times) == pytest.approx(20_000, rel=0.03)
    gaps = np.diff(times)
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.05)


def test_bursts_keep_the_rate_and_leave_the_rest_of_each_period_empty() -> None:
    times = list(bursty(1000, 20, random.Random(1), period=0.2, on=0.25))
    assert times == sorted(times)
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert max(time % 0.2 for time in times) == pytest.approx(0.05, abs=1e-3)


def test_steady_arrivals_are_evenly_spaced() -> None:
    assert list(steady(10, 0.5)) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_mixed_picks_only_what_it_may() -> None:
    pick = mixed(range(32, 39), random.Random(1))
    assert {pick() for _ in range(30_000)} == set(range(32, 39))


@pytest.mark.parametrize("callers", [1, 2, 6, 7, 16, 64, 128])
def test_callers_are_spread_evenly_over_few_connections(callers: int) -> None:
    count, each = split(callers)
    assert count * each == callers
    assert count <= 8


def test_rows_a_run_is_unknown_without_runs() -> None:
    assert rows_a_run((10, 2), (42, 4)) == 16
    assert np.isnan(rows_a_run((10, 2), (10, 2)))


def test_tables_are_aligned() -> None:
    lines = table(("name", "n"), [("long name", "1"), ("x", "1,000")]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[3] == "| x         | 1,000 |"


def test_answers_are_read_in_every_form() -> None:
    rows = np.arange(8, dtype=np.float32)[None]
    assert (RAW.decode(RAW.encode("m", rows)) == rows).all()
    assert (json_at("/").decode(b'{"y":[[0,1,2,3,4,5,6,7]]}') == rows).all()
    assert (V2.decode(b"\x0a\x01m" + b"\x32\x20" + rows.tobytes()) == rows).all()
    contents = b"\x2a\x22" + b"\x32\x20" + rows.tobytes()
    tensor = b"\x0a\x01y\x18\x01" + contents
    assert (V2.decode(b"\x0a\x01m\x2a" + bytes([len(tensor)]) + tensor) == rows).all()
