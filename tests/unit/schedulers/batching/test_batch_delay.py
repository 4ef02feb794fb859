"""When waiting for more calls pays, by numbers alone: no clock, no thread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.schedulers.batching.batch_delay import Expectation
from tfs_lite.schedulers.batching.forming import NO_PATIENCE, BatchDelay


def test_nothing_is_expected_before_the_first_run() -> None:
    assert Expectation().patience(0.0) is NO_PATIENCE


def test_without_strain_nobody_waits() -> None:
    expectation = Expectation()
    expectation.ended(10.0, 64, strained=True)
    expectation.ended(11.0, 64, strained=False)
    assert expectation.patience(11.0) is NO_PATIENCE


@pytest.mark.parametrize("inside", [0, 1])
def test_nobody_waits_for_a_single_row(inside: int) -> None:
    expectation = Expectation()
    expectation.ended(10.0, inside, strained=True)
    assert expectation.patience(10.0) is NO_PATIENCE


@pytest.mark.parametrize(
    ("youngest", "until"),
    [
        pytest.param(9.0, 10.25, id="queued before the run ended"),
        pytest.param(10.0, 10.25, id="queued as the run ended"),
        pytest.param(10.25, 10.5, id="the gap begins with every call"),
        pytest.param(10.875, 11.0, id="the whole wait is bounded"),
        pytest.param(20.0, 11.0, id="long after the bound"),
    ],
)
def test_as_many_rows_are_waited_for_as_were_inside(youngest: float, until: float) -> None:
    expectation = Expectation(longest=1.0, gap=0.25)
    expectation.ended(10.0, 64, strained=True)
    assert expectation.patience(youngest) == BatchDelay(64, until)


@given(st.floats(0, 1e6), st.integers(0, 10_000), st.booleans(), st.floats(0, 1e6))
def test_a_wait_is_always_bounded(ended: float, inside: int, strained: bool, youngest: float) -> None:
    expectation = Expectation()
    expectation.ended(ended, inside, strained)
    patience = expectation.patience(youngest)
    assert patience.until <= ended + 0.010
    assert patience.rows in (0, inside)
