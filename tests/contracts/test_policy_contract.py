"""What the manager relies on, for every version policy there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lifecycle.strategies import snapshots
from tfs_lite.core.servable import ServableId
from tfs_lite.managers.harness import HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import POLICIES, Action, ActionKind

every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def carried_out(versions: list[ServableStateSnapshot], action: Action) -> list[ServableStateSnapshot]:
    """The stream after the action went well: loaded versions are ready, unloaded ones gone."""
    loaded = ServableStateSnapshot(action.id, HarnessState.READY, True)
    others = [found for found in versions if found.id != action.id]
    return [*others, loaded] if action.kind is ActionKind.LOAD else others


@every_policy
@given(versions=snapshots)
def test_answer_depends_on_the_versions_alone(name: str, versions: list[ServableStateSnapshot]) -> None:
    policy = POLICIES[name]
    assert policy.next_action(versions) == policy.next_action(tuple(versions))


@every_policy
def test_empty_stream_needs_nothing(name: str) -> None:
    assert POLICIES[name].next_action([]) is None


@every_policy
@given(versions=snapshots)
def test_only_new_wanted_versions_are_loaded_and_ready_unwanted_ones_unloaded(
    name: str, versions: list[ServableStateSnapshot]
) -> None:
    action = POLICIES[name].next_action(versions)
    if action is not None:
        (target,) = [found for found in versions if found.id == action.id]
        expected = (HarnessState.NEW, True) if action.kind is ActionKind.LOAD else (HarnessState.READY, False)
        assert (target.state, target.is_aspired) == expected


@every_policy
@given(versions=snapshots)
def test_wanted_ready_version_is_never_unloaded(name: str, versions: list[ServableStateSnapshot]) -> None:
    action = POLICIES[name].next_action(versions)
    wanted = {found.id for found in versions if found.is_aspired}
    assert action is None or action.kind is ActionKind.LOAD or action.id not in wanted


@every_policy
@given(versions=snapshots)
def test_highest_new_version_is_loaded_first(name: str, versions: list[ServableStateSnapshot]) -> None:
    action = POLICIES[name].next_action(versions)
    if action is not None and action.kind is ActionKind.LOAD:
        new = [found.id for found in versions if found.is_aspired and found.state is HarnessState.NEW]
        assert action.id == max(new)


@every_policy
@given(aspired=st.sets(st.integers(0, 6)), ready=st.sets(st.integers(0, 6)))
def test_from_rest_every_wish_comes_true(name: str, aspired: set[int], ready: set[int]) -> None:
    versions = [
        ServableStateSnapshot(
            ServableId("m", version), HarnessState.READY if version in ready else HarnessState.NEW, version in aspired
        )
        for version in sorted(aspired | ready)
    ]
    for _ in range(2 * len(versions)):
        action = POLICIES[name].next_action(versions)
        if action is None:
            break
        versions = carried_out(versions, action)
    assert {found.id.version for found in versions} == aspired
    assert all(found.state is HarnessState.READY for found in versions)
