"""Bad versions pushed under callers of a server with ``--bake_seconds``: each is named, stopped, and felt by nobody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.guard.pushes import KINDS
from tests.support.guard.scenario import NEW, OLD, Pushes, Result, table

FEW = [kind for kind in KINDS if kind.fault in ("raises", "nan", "renamed")]
LONGEST = 1500.0
"""Seconds until the last version is decided about: one that fails rarely is on trial for longer than its bake."""


def check(results: Sequence[Result], recorded: bool) -> None:
    print(table(results))
    for result in results:
        check_one(result, result.kind.recorded if recorded else (result.kind.cause,))


def check_one(result: Result, causes: Sequence[str]) -> None:
    kind, got, cause = result.kind, result.got, result.cause
    assert cause in causes, table([result])
    if cause or kind.fault == "slow":
        assert kind.names in result.text
    if cause:
        assert result.states == {NEW: "END", OLD: "AVAILABLE"}
    if cause == "HELD_BACK":
        assert got["new"] == 0
    if kind.fault != "hangs" or cause == "HELD_BACK":
        assert got["errors"] == 0, table([result])
    assert got["nonfinite"] == 0
    if kind.fault != "shuffled" or cause == "HELD_BACK":
        assert got["wrong"] == 0


@pytest.mark.slow
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
