"""How a model stands, as JSON, and the counters: each request of a trial is counted once, however the trial ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.operations.guard.doors import guard_schemas, read_command
from tfs_lite.operations.guard.evidence import Failure, TrialCounts
from tfs_lite.operations.guard.metrics import OUTCOMES, GuardMetrics
from tfs_lite.operations.guard.report import Standing
from tfs_lite.operations.guard.stage import EndedTrial, GuardView
from tfs_lite.operations.guard.trial import (
    By,
    Command,
    Judgement,
    Outcome,
    Rejection,
    Running,
    Stage,
    TrialSettings,
    Verb,
)

ID = ServableId("m", 8)
BAKING = Running(8, 7, "files", Stage.BAKING, 0.0, TrialSettings(bake_seconds=600))
COUNTS = TrialCounts(
    requests=1204,
    failed=31,
    shielded=30,
    lost=1,
    faults=29,
    late=1,
    refused=1,
    run_seconds=1.173,
    old_run_seconds=0.06,
    failures=(Failure("r-1", "INTERNAL: it is broken"),),
)
VIEW = GuardView("m", BAKING, 1e9, 1e9 + 620, Judgement(against=3, votes_for=1, needed=21))
REJECTED = Rejection(9, "files", "rolled back to version 7 by ops", 1e9, By.OPERATOR, True)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"tfs_lite_{name}", {"model": "m", **labels})


def test_the_standing_is_what_the_schema_promises() -> None:
    ended = EndedTrial(8, Outcome.PASSED, "the bake is over", 1e9)
    view = replace(VIEW, rejected=(REJECTED,), ended=ended)
    found = json.loads(json.dumps(Standing(view, COUNTS, 8, 7, 2.0, "").as_json))
    schema = guard_schemas()["Rollout"]
    assert sorted(found) == sorted(schema["required"]) == sorted(schema["properties"])
    assert (found["state"], found["version"], found["over"]) == ("BAKING", 8, 7)
    assert (found["since"], found["until"]) == ("2001-09-09T01:46:40.000Z", "2001-09-09T01:57:00.000Z")
    assert found["votes"] == {"against": 3, "for": 1, "needed": 21}
    assert found["run_ms"] == {"new": 1.0, "old": 2.0}
    assert found["failures"] == [{"request_id": "r-1", "error": "INTERNAL: it is broken"}]
    assert found["rejected"][0]["by"] == "OPERATOR"
    assert found["rejected"][0]["rolled_back"] is True
    assert found["ended"]["outcome"] == "PASSED"
    assert (found["remembered"], found["forgets"]) == (True, "")


def test_without_a_trial_nothing_is_counted() -> None:
    found = Standing(GuardView("m")).as_json
    assert (found["state"], found["version"], found["requests"], found["rejected"]) == ("NONE", None, 0, [])
    assert (found["ended"], found["back_to"], found["remembered"]) == (None, None, False)
    assert found["forgets"] == "it has no --state_directory"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "field action: expected one of: accept, retry, undo, rollback, undo_rollback"),
        ({"action": "revert"}, "field action: expected one of"),
        ({"action": ["undo"]}, "field action: expected one of"),
        ({"action": "undo", "version": "8"}, "field version: expected a number"),
        ({"action": "undo", "version": True}, "field version: expected a number"),
        ({"action": "undo", "version": -1}, "field version: expected a number"),
        ({"action": "undo", "to": 7}, "field 'to' is not known; there are: action, version"),
        ({"action": "undo_rollback", "version": 7}, "names no version"),
    ],
)
def test_what_is_no_command_is_refused_with_the_field(asked: dict[str, object], message: str) -> None:
    with pytest.raises(ServingError, match=message) as error:
        read_command(asked, "ops")
    assert error.value.code is StatusCode.INVALID_ARGUMENT


def test_a_command_has_its_verb_its_version_and_who_said_it() -> None:
    assert read_command({"action": "rollback", "version": 7}, "ops") == Command(Verb.ROLLBACK, 7, "ops")
    assert read_command({"action": "undo"}, "") == Command(Verb.UNDO, None, "")


def test_every_model_has_its_series_with_0_until_it_is_gone() -> None:
    registry, names = CollectorRegistry(), ["m"]
    metrics = GuardMetrics(registry, lambda: names, lambda name: None, lambda name: None)
    assert {value(registry, "trial_requests_total", outcome=outcome) for outcome in OUTCOMES} == {0}
    for name in ("shielded_requests_total", "taken_back_total", "held_back_total", "on_trial", "version_rejected"):
        assert value(registry, name) == 0, name
    assert [value(registry, "trial_votes", side=side) for side in ("against", "for")] == [0, 0]
    metrics.taken_back("m")
    metrics.held_back("m")
    assert (value(registry, "taken_back_total"), value(registry, "held_back_total")) == (1, 1)
    names.clear()
    metrics.model_gone("m")
    assert value(registry, "taken_back_total") is None


def test_requests_of_trials_are_counted_once_each() -> None:
    registry = CollectorRegistry()
    metrics = GuardMetrics(registry, lambda: ["m"], lambda name: VIEW, lambda name: 8)
    metrics.on_counts(ID, replace(COUNTS, requests=100, failed=2, faults=2, shielded=2, late=0, refused=0))
    metrics.on_counts(ServableId("m", 9), TrialCounts())  # another one is armed meanwhile
    metrics.on_counts(ID, COUNTS)
    metrics.on_counts(ID, COUNTS, last=True)
    assert value(registry, "trial_requests_total", outcome="answered") == 1173
    assert value(registry, "trial_requests_total", outcome="fault") == 29
    assert value(registry, "shielded_requests_total") == 30
    metrics.on_counts(ID, TrialCounts(requests=1))  # the version is on trial again
    assert value(registry, "trial_requests_total", outcome="answered") == 1174
    assert (value(registry, "on_trial"), value(registry, "trial_votes", side="against")) == (1, 3)


@pytest.mark.parametrize(("latest", "rejected"), [(7, 1), (9, 0), (10, 0), (None, 1)])
def test_a_rejected_version_is_an_alarm_until_a_newer_one_answers(latest: int | None, rejected: int) -> None:
    registry = CollectorRegistry()
    view = replace(VIEW, trial=None, rejected=(REJECTED,))
    GuardMetrics(registry, lambda: ["m"], lambda name: view, lambda name: latest)
    assert value(registry, "version_rejected") == rejected
    assert value(registry, "on_trial") == 0
