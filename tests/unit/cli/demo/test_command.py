"""The demo's parts: the model learns, and every broken promise is found. The whole runs as an integration test."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tfs_lite.cli.demo import model as demo_model
from tfs_lite.cli.demo.model import DigitClassifier, Digits
from tfs_lite.cli.demo.outcome import DemoOutcome
from tfs_lite.cli.demo.traffic import Tally, VersionTally
from tfs_lite.core.servable import VersionState, VersionStatus
from tfs_lite.core.status import OK, Status, StatusCode

TRUNCATED = Status(StatusCode.DATA_LOSS, "truncated")
VERSIONS = {
    1: VersionStatus(1, VersionState.END, OK),
    2: VersionStatus(2, VersionState.AVAILABLE, OK),
    3: VersionStatus(3, VersionState.END, TRUNCATED),
}
TALLY = Tally({1: VersionTally(10, 50, 2), 2: VersionTally(20, 155, 4)}, 0, "", 0.97)
GOOD = DemoOutcome(VERSIONS, TALLY, 0, 3.0)


def accuracy(model: DigitClassifier, digits: Digits) -> float:
    with torch.no_grad():
        said = model(torch.from_numpy(digits.images))["digit"]
    return float((said == torch.from_numpy(digits.labels)).float().mean())


def test_the_second_model_is_clearly_better_on_pictures_that_neither_has_seen() -> None:
    training, testing = demo_model.load_digits()
    poor = accuracy(demo_model.train_quickly(training), testing)
    good = accuracy(demo_model.train_well(training), testing)
    assert 0.3 < poor < 0.85
    assert good > 0.93


def test_pictures_to_train_and_to_test_with_are_different_ones() -> None:
    training, testing = demo_model.load_digits()
    assert len(training.labels) + len(testing.labels) == 1797
    assert {image.tobytes() for image in training.images}.isdisjoint(image.tobytes() for image in testing.images)


def test_a_run_that_kept_every_promise_has_no_problems() -> None:
    assert GOOD.problems() == []
    assert GOOD.as_json()["ok"] is True
    assert GOOD.as_json()["requests"] == 30


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (replace(GOOD, stuck="version 2 never came"), "version 2 never came"),
        (replace(GOOD, tally=replace(TALLY, failures=2, first_failure="lost")), "2 requests failed, the first: lost"),
        (replace(GOOD, server_exit_code=-9), "exit code -9"),
        (replace(GOOD, versions=VERSIONS | {1: replace(VERSIONS[2], version=1)}), "version 1 was not unloaded"),
        (replace(GOOD, versions=VERSIONS | {2: replace(VERSIONS[1], version=2)}), "version 2 is not available"),
        (
            replace(GOOD, versions=VERSIONS | {3: replace(VERSIONS[3], status=OK)}),
            "version 3 did not end with an error",
        ),
        (replace(GOOD, versions={}), "version 3 did not end with an error"),
        (replace(GOOD, tally=replace(TALLY, versions={1: VersionTally(1, 8, 1)})), "answered no request"),
        (replace(GOOD, tally=replace(TALLY, versions={**TALLY.versions, 1: VersionTally(10, 80, 2)})), "did not rise"),
        (
            replace(GOOD, tally=replace(TALLY, versions={**TALLY.versions, 3: VersionTally(1, 1, 0)})),
            "version 3 is broken and yet answered",
        ),
    ],
)
def test_every_broken_promise_is_found(outcome: DemoOutcome, problem: str) -> None:
    assert any(problem in found for found in outcome.problems())
    assert outcome.as_json()["ok"] is False
