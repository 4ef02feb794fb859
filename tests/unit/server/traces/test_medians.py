"""How long requests of a model usually take."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.server.traces.medians import LEAST, MAX_MODELS, Medians


@given(st.floats(1e-6, 100.0), st.integers(0, 2**32))
def test_the_median_is_right_to_a_quarter(typical: float, seed: int):
    medians, random = Medians(), Random(seed)
    values = [typical * random.uniform(0.5, 1.5) for _ in range(500)]
    for value in values:
        found = medians.add("m", value, 1.0)
    assert found == pytest.approx(sorted(values)[250], rel=0.35)


def test_there_is_none_while_too_few_have_ended():
    medians = Medians()
    assert {medians.add("m", 1.0, 1.0) for _ in range(LEAST)} == {None}
    assert medians.add("m", 1.0, 1.0) is not None


def test_what_is_older_than_a_minute_does_not_count():
    medians = Medians()
    for _ in range(100):
        medians.add("m", 1.0, 1.0)
    assert medians.add("m", 0.001, 100.0) is None
    for _ in range(100):
        found = medians.add("m", 0.001, 101.0)
    assert found == pytest.approx(0.001, rel=0.35)


def test_a_model_that_becomes_slower_is_slower_within_a_minute():
    medians = Medians()
    for number in range(6000):
        medians.add("m", 0.001, number / 100)
    for number in range(6000, 12100):
        found = medians.add("m", 0.1, number / 100)
    assert found == pytest.approx(0.1, rel=0.35)


def test_names_from_requests_are_bounded():
    medians = Medians()
    for number in range(3 * MAX_MODELS):
        medians.add(str(number), 0.0, 1.0)
    assert len(medians._models) <= MAX_MODELS
