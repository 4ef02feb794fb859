"""Bad versions pushed under callers of a server with ``--bake_seconds``: each is named, stopped, and felt by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guard.scenario import FEW, NEW, OLD, Pushes, check

LONGEST = 1500.0
"""Seconds until the last version is decided about: one that fails rarely is on trial for longer than its bake."""


@pytest.mark.load
def test_callers_do_not_notice_a_version_that_always_fails_nor_one_with_another_input(tmp_path: Path) -> None:
    with Pushes(tmp_path, "rest", kinds=FEW, callers=10, rate=40) as pushes:
        pushes.push_all()
        check(pushes.wait_decided(60), recorded=False)


@pytest.mark.load
@pytest.mark.timeout(LONGEST + 300)
@pytest.mark.parametrize("recorded", [False, True], ids=["no_records", "recorded"])
@pytest.mark.parametrize("way", ["grpc", "rest"])
def test_twelve_kinds_of_bad_push_are_named_and_stopped_and_callers_see_no_error(
    tmp_path: Path, way: str, recorded: bool
) -> None:
    with Pushes(tmp_path, way) as pushes:
        if recorded:
            pushes.record_answers()
        pushes.push_all()
        results = pushes.wait_decided(LONGEST)
        check(results, recorded)
        assert results[-1].states == {NEW: "AVAILABLE", OLD: "END"}
