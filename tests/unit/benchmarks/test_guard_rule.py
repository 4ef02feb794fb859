"""The simulation of trials: a few of each row, with the evidence of the server."""

from __future__ import annotations

import guard_rule
import pytest


def test_every_row_of_the_table_is_printed_and_no_version_that_is_as_good_is_taken_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guard_rule.main(["--quick"]) == 0
    table = capsys.readouterr().out
    for row in guard_rule.EXPECTED:
        assert f"| {row.name} |" in table
    assert "| raises, answers NaN, or refuses: always | 11 s | 11 s | 11 s | 0 |" in table
    assert table.count("| 0 of ") == 6


def test_a_trial_is_the_same_each_time_that_it_is_simulated() -> None:
    push = guard_rule.Push(new_runs=0.2)
    first, second = (guard_rule.run([push], 20.0, 600.0, 5) for _ in range(2))
    assert first == second
    assert all(result.seconds is not None and 150 <= result.seconds <= 400 for result in first)
