"""The two policies, row by row. Versions are written ``+3 ready`` (aspired), ``!3 error`` (aspired, and given up by its
source) and ``-3 ready`` (not aspired)."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.support.lifecycle.strategies import snapshots
from tests.support.profiles import examples
from tfs_lite.core.servable import ServableId
from tfs_lite.managers.harness import FINAL, HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import POLICIES, Action, ActionKind

UNLOADING_STATES = ["unload-requested", "quiescing", "quiesced", "unloading"]


def stream(text: str) -> list[ServableStateSnapshot]:
    return [snapshot(*item.split()) for item in text.split(",") if item]


def snapshot(version: str, state: str) -> ServableStateSnapshot:
    id, given_up = ServableId("m", int(version[1:])), version[0] == "!"
    return ServableStateSnapshot(id, HarnessState(state), version[0] in "+!", given_up=given_up)


def text(action: Action | None) -> str:
    return "none" if action is None else f"{action.kind.value} {action.id.version}"


AVAILABILITY = [
    # nothing is wanted
    ("", "none"),
    ("-1 error,-2 disabled", "none"),
    ("-1 ready", "unload 1"),
    ("-3 ready,-1 ready,-2 ready", "unload 1"),
    # something wanted is ready
    ("+3 ready,-2 ready,-1 ready", "unload 1"),
    ("+3 ready,-1 ready,+4 new", "load 4"),
    ("+3 ready,-1 ready,+4 loading", "none"),
    ("+3 ready,-1 ready,-2 ready,+4 loading", "unload 1"),
    # the source does not know yet that 4 has failed, and knows it
    ("+3 ready,-1 ready,+4 error", "none"),
    ("+3 ready,-1 ready,!4 error", "unload 1"),
    ("+3 ready,-1 ready,!4 loading", "unload 1"),
    ("-1 ready,!4 error", "none"),
    ("+3 ready,+4 new,+5 new", "load 5"),
    ("+3 ready", "none"),
    ("+3 ready,+4 error", "none"),
    # nothing wanted is ready, no old version either
    ("+1 new,+3 new,+2 new", "load 3"),
    ("+1 loading", "none"),
    ("+1 error,+2 error", "none"),
    ("+1 error,+2 new", "load 2"),
    # nothing wanted is ready, one old version is
    ("-1 ready,+2 new,+3 new", "load 3"),
    ("-1 ready,+2 loading", "none"),
    ("-1 ready,+2 error", "none"),
    ("-0 ready,+1 error", "none"),
    # nothing wanted is ready, several old versions are
    ("-1 ready,-2 ready,+3 new", "unload 1"),
    ("-1 ready,-2 ready,+3 loading", "unload 1"),
    ("-1 ready,-2 ready,+3 error", "unload 1"),
    ("-0 ready,-1 ready,+7 error", "unload 0"),
    # rollback
    ("-2 ready,+1 new", "load 1"),
    ("-2 ready,+1 ready", "unload 2"),
    # versions on their way out, and loads that are no longer wanted, do not count
    *[(f"-1 {state},-2 ready,+3 error", "none") for state in UNLOADING_STATES],
    *[(f"-1 {state},+3 new", "load 3") for state in UNLOADING_STATES],
    ("-1 loading,+2 new", "load 2"),
]

RESOURCE = [
    ("", "none"),
    ("-3 ready,-1 ready,+4 new", "unload 3"),  # the first in the order given
    ("-1 ready", "unload 1"),
    ("+1 ready,+2 new,+3 new", "load 3"),
    ("+1 ready", "none"),
    ("-1 error,-2 disabled,+3 new", "load 3"),
    *[
        (f"-1 {state.value},+2 new", "none")
        for state in HarnessState
        if state not in FINAL and state is not HarnessState.READY
    ],
    ("+1 loading,+2 new", "load 2"),
    ("+1 error", "none"),
]


@pytest.mark.parametrize(
    ("policy", "versions", "action"),
    [*[("availability", *row) for row in AVAILABILITY], *[("resource", *row) for row in RESOURCE]],
)
def test_policy_chooses_the_action_of_each_row(policy: str, versions: str, action: str) -> None:
    assert text(POLICIES[policy].next_action(stream(versions))) == action


@examples(1000)
@given(versions=snapshots)
def test_availability_never_unloads_the_last_ready_version_while_another_is_wanted(
    versions: list[ServableStateSnapshot],
) -> None:
    action = POLICIES["availability"].next_action(versions)
    ready = [found for found in versions if found.state is HarnessState.READY]
    if action is not None and action.kind is ActionKind.UNLOAD and any(found.is_aspired for found in versions):
        assert len(ready) > 1


@examples(1000)
@given(versions=snapshots)
def test_resource_never_loads_beside_an_unwanted_version(versions: list[ServableStateSnapshot]) -> None:
    action = POLICIES["resource"].next_action(versions)
    if action is not None and action.kind is ActionKind.LOAD:
        assert all(found.is_aspired or found.state in FINAL for found in versions)
