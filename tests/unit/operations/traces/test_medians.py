"""How long requests of a model usually take."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.operations.traces.medians import EVERY, LEAST, MANY, RecentMedian


@given(st.floats(1e-6, 100.0), st.integers(0, 2**32))
def test_the_median_is_right_to_a_quarter(typical: float, seed: int):
    median, random = RecentMedian(1.0), Random(seed)
    values = [typical * random.uniform(0.5, 1.5) for _ in range(500)]
    for value in values:
        median.add(value, 1.0)
    assert median.at(1.0) == pytest.approx(sorted(values)[250], rel=0.35)


def test_there_is_none_while_too_few_have_ended():
    median = RecentMedian(1.0)
    for _ in range(LEAST):
        assert median.at(1.0) is None
        median.add(1.0, 1.0)
    assert median.at(1.0) is not None


def test_what_is_older_than_a_minute_does_not_count():
    median = RecentMedian(1.0)
    for _ in range(100):
        median.add(1.0, 1.0)
    assert median.at(100.0) is None
    for _ in range(100):
        median.add(0.001, 101.0)
    assert median.at(101.0) == pytest.approx(0.001, rel=0.35)


def test_a_model_that_becomes_slower_is_slower_within_a_minute():
    median = RecentMedian(0.0)
    for number in range(6000):
        median.add(0.001, number / 100)
    for number in range(6000, 12100):
        median.add(0.1, number / 100)
    assert median.at(121.0) == pytest.approx(0.1, rel=0.35)


def test_of_many_requests_some_are_enough():
    median = RecentMedian(0.0)
    assert median.every == 1
    for _ in range(MANY + 1):
        median.add(1.0, 0.0)
    assert median.every == EVERY
