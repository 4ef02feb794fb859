"""When waiting for more calls pays, by numbers alone: no clock, no thread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.schedulers.batching.batch_delay import NO_DELAY, AdaptiveDelay, BatchDelay


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([], id="before the first run"),
        pytest.param([(64, True), (64, False)], id="no longer saturated"),
        pytest.param([(0, True)], id="no row"),
        pytest.param([(1, True)], id="a single row"),
    ],
)
def test_calls_do_not_wait_where_it_does_not_pay(runs: list[tuple[int, bool]]) -> None:
    delay = AdaptiveDelay()
    for inside, saturated in runs:
        delay.ended(10.0, inside, saturated)
    assert delay.current(10.0) is NO_DELAY


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
    delay = AdaptiveDelay(longest=1.0, gap=0.25)
    delay.ended(10.0, 64, saturated=True)
    assert delay.current(youngest) == BatchDelay(64, until)


@given(st.floats(0, 1e6), st.integers(0, 10_000), st.booleans(), st.floats(0, 1e6))
def test_a_wait_is_always_bounded(ended: float, inside: int, saturated: bool, youngest: float) -> None:
    delay = AdaptiveDelay()
    delay.ended(ended, inside, saturated)
    current = delay.current(youngest)
    assert current.until <= ended + 0.010
    assert current.rows in (0, inside)
