"""The transition table, whole: every state against every step."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.harness import LEGAL_FROM, HarnessState, LoaderHarness
from tfs_lite.testing.lifecycle.loader import FakeLoader

S = HarnessState
ID = ServableId("m", 1)
BROKEN = Status(StatusCode.UNAVAILABLE, "broken")

LEGAL = {
    (S.NEW, S.LOAD_REQUESTED),
    (S.LOAD_REQUESTED, S.LOAD_APPROVED),
    (S.LOAD_APPROVED, S.LOADING),
    (S.LOADING, S.READY),
    (S.LOADING, S.UNLOADING),
    (S.READY, S.UNLOAD_REQUESTED),
    (S.UNLOAD_REQUESTED, S.QUIESCING),
    (S.QUIESCING, S.QUIESCED),
    (S.QUIESCED, S.UNLOADING),
    (S.UNLOADING, S.DISABLED),
}
REQUESTS = {S.LOAD_REQUESTED: "Duplicate load request", S.UNLOAD_REQUESTED: "Servable not loaded"}
TARGETS = [state for state in S if state is not S.ERROR]
ALL = [(before, to) for before in S for to in TARGETS]
LIVE = [state for state in S if state not in (S.DISABLED, S.ERROR)]


def harness_in(state: HarnessState) -> tuple[LoaderHarness, list[Status]]:
    failures: list[Status] = []
    harness = LoaderHarness(ID, FakeLoader(), on_error=lambda failed: failures.append(failed.status))
    harness.state = state
    return harness, failures


@pytest.mark.parametrize(("before", "to"), sorted(LEGAL, key=str))
def test_legal_step_is_taken(before: HarnessState, to: HarnessState) -> None:
    harness, failures = harness_in(before)
    harness.transition(to)
    assert (harness.state, failures) == (to, [])


@pytest.mark.parametrize(("before", "to"), [step for step in ALL if step not in LEGAL and step[1] in REQUESTS])
def test_request_at_the_wrong_time_is_refused_and_changes_nothing(before: HarnessState, to: HarnessState) -> None:
    harness, failures = harness_in(before)
    with pytest.raises(ServingError, match=REQUESTS[to]) as raised:
        harness.transition(to)
    assert raised.value.code is StatusCode.FAILED_PRECONDITION
    assert (harness.state, harness.status.ok, failures) == (before, True, [])


@pytest.mark.parametrize(
    ("before", "to"), [(b, t) for b, t in ALL if (b, t) not in LEGAL and t not in REQUESTS and b in LIVE]
)
def test_any_other_wrong_step_is_internal_and_ends_in_error(before: HarnessState, to: HarnessState) -> None:
    harness, failures = harness_in(before)
    with pytest.raises(ServingError) as raised:
        harness.transition(to)
    assert raised.value.code is StatusCode.INTERNAL
    assert harness.state is S.ERROR
    assert failures == [raised.value.status] == [harness.status]


@pytest.mark.parametrize("before", [S.DISABLED, S.ERROR])
@pytest.mark.parametrize("to", [state for state in TARGETS if state not in REQUESTS])
def test_final_states_are_left_by_no_step(before: HarnessState, to: HarnessState) -> None:
    harness, failures = harness_in(before)
    refusal(harness.transition, to, code=StatusCode.INTERNAL)
    assert (harness.state, failures) == (before, [])


@pytest.mark.parametrize("before", LIVE)
def test_error_is_entered_from_any_state_that_is_not_final(before: HarnessState) -> None:
    harness, failures = harness_in(before)
    harness.error(BROKEN)
    assert (harness.state, harness.status, failures) == (S.ERROR, BROKEN, [BROKEN])


@pytest.mark.parametrize("before", [S.DISABLED, S.ERROR])
def test_error_after_the_end_is_not_reported_again(before: HarnessState) -> None:
    harness, failures = harness_in(before)
    harness.error(BROKEN)
    assert (harness.state, failures) == (before, [])


def test_table_names_every_state_but_error() -> None:
    assert set(LEGAL_FROM) == set(TARGETS)
    assert {(before, to) for to, sources in LEGAL_FROM.items() for before in sources} == LEGAL


def test_happy_path_visits_every_state_in_order() -> None:
    harness, _ = harness_in(S.NEW)
    for state in TARGETS[1:]:
        harness.transition(state)
    assert harness.state is S.DISABLED


def test_snapshot_says_what_is_known() -> None:
    harness = LoaderHarness(ID, None, "r1")
    harness.is_aspired = False
    harness.error(BROKEN)
    found = harness.snapshot()
    assert (found.id, found.state, found.is_aspired) == (ID, S.ERROR, False)
    assert (found.revision, found.status, found.has_loader) == ("r1", BROKEN, False)
