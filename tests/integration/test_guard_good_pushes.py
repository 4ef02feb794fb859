"""A good version pushed under callers, and something that happens in the middle of its trial: nobody notices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.guard.good_pushes import Outcome, in_one_server, restarted


@pytest.mark.load
@pytest.mark.timeout(600)
def test_a_reload_a_deleted_old_version_and_a_third_push_in_a_trial_leave_one_version_and_no_error(
    tmp_path: Path,
) -> None:
    check_good(in_one_server(tmp_path))


@pytest.mark.load
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_trial_goes_on_after_a_restart_and_leaves_one_version_and_no_error(tmp_path: Path, how: str) -> None:
    check_good(restarted(tmp_path, how))


def check_good(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        assert [outcome.got[name] for name in ("errors", "wrong", "nonfinite")] == [0, 0, 0], outcome
        assert outcome.in_memory == [3 if outcome.event == "third_push" else 2], outcome
