"""How many prompt rows go beside decoding texts, in steps whose times are known."""

from __future__ import annotations

import pytest

from tfs_lite.schedulers.generation.prefill_budget import FIRST_ROWS, LEAST_ROWS, PrefillBudget


def seconds(decoding: int, rows: int, per_row: float = 0.0001) -> float:
    return 0.02 + 0.001 * decoding + per_row * rows


def learnt(budget: PrefillBudget, per_row: float = 0.0001, steps: int = 30) -> int:
    """The rows after a long prompt was read beside 8 decoding texts."""
    for _ in range(5):
        budget.record(8, 0, seconds(8, 0))
    for _ in range(steps):
        rows = budget.rows or 256
        budget.record(8, rows, seconds(8, rows, per_row))
    found = budget.rows
    assert found is not None
    return found


def test_nothing_is_known_before_the_first_steps() -> None:
    budget = PrefillBudget(2.0)
    assert budget.rows is None
    budget.record(0, 256, 0.5)
    assert budget.rows is None, "a step without decoding texts delays no text"
    budget.record(8, 0, 0.02)
    assert budget.rows == FIRST_ROWS


@pytest.mark.parametrize("slowdown", [1.5, 2.0, 4.0])
def test_a_step_with_prompt_rows_takes_as_many_times_as_long_as_it_may(slowdown: float) -> None:
    rows = learnt(PrefillBudget(slowdown))
    assert seconds(8, rows) / seconds(8, 0) == pytest.approx(slowdown, rel=0.02)


def test_prompts_go_on_however_slow_their_rows_are() -> None:
    assert learnt(PrefillBudget(2.0), per_row=0.01) == LEAST_ROWS


def test_rows_that_cost_nothing_are_many() -> None:
    assert learnt(PrefillBudget(2.0), per_row=0.0) > 1000


def test_pace_follows_a_machine_that_becomes_slower() -> None:
    budget = PrefillBudget(2.0)
    before = learnt(budget)
    after = learnt(budget, per_row=0.0003)
    assert after == pytest.approx(before / 3, rel=0.1)


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    budget = PrefillBudget(2.0)
    budget.record(8, 0, 0.0)
    budget.record(8, 64, 0.0)
    assert budget.rows is None
