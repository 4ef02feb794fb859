"""The steps of a trial, one row each, where the stage's own tests do not show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.operations.guard.trial import (
    MAX_REMEMBERED,
    OFF,
    BakeBegun,
    BakeEnded,
    Command,
    GoingBack,
    Judgement,
    ModelState,
    Outcome,
    Rejection,
    Running,
    Seen,
    Stage,
    TakenBack,
    TrialSettings,
    Verb,
    guarded,
    step,
)

BAKE = TrialSettings(600)
SETTINGS: Mapping[int, TrialSettings] = {8: BAKE, 9: BAKE}
FAILED = Status(StatusCode.INTERNAL, "it does not load")


def trial(new: int = 8, old: int = 7, stage: Stage = Stage.BAKING, since: float = 0.0) -> Running:
    return Running(new, old, "a", stage, since, BAKE)


def state(**fields: object) -> ModelState:
    return replace(ModelState(accepted={7: "a"}), **fields)  # type: ignore[arg-type]


def seen(*listed: int, available: tuple[int, ...] = (7,), on_disk: tuple[int, ...] = (), **fields: object) -> Seen:
    found = Seen(dict.fromkeys(listed, "a"), dict.fromkeys(on_disk, "a"), frozenset(available))
    return replace(found, **fields)  # type: ignore[arg-type]


def items(*versions: int, given_up: tuple[int, ...] = ()) -> list[ServableData[str]]:
    return [ServableData.ok(ServableId("m", v), f"/m/{v}", "a/c", v in given_up) for v in versions]


def versions(found: object) -> list[int]:
    return [item.id.version for item in found]  # type: ignore[attr-defined]


def test_a_push_is_armed_over_the_version_that_answers() -> None:
    after, effects = step(5.0, SETTINGS, state(), seen(8, on_disk=(7,)))
    assert after.armed == {8: trial(stage=Stage.ARMED, since=5.0)}
    assert effects == ()


@pytest.mark.parametrize(
    "before",
    [state(accepted={7: "a", 8: "a"}), state(rejected={8: Rejection(8, "a", "bad", 0.0)}), state(running=trial())],
    ids=["accepted", "rejected", "on trial"],
)
def test_what_is_known_is_no_push(before: ModelState) -> None:
    after, effects = step(5.0, SETTINGS, before, seen(8, available=(7, 8), on_disk=(7,)))
    assert not after.armed
    assert effects == ()


def test_without_a_bake_a_push_is_taken_as_it_is() -> None:
    after, _ = step(0.0, {8: OFF}, state(), seen(8))
    assert after == state(accepted={7: "a", 8: "a"})


def test_of_two_pushes_at_once_both_are_armed() -> None:
    before, now = state(), seen(9, 8, on_disk=(7,))
    for _ in range(2):
        before, _ = step(0.0, SETTINGS, before, now)
    assert before.armed.keys() == {8, 9}
    assert {armed.old for armed in before.armed.values()} == {7}


def test_a_version_that_its_manager_has_loaded_anew_unseen_is_on_trial_all_the_same() -> None:
    now = seen(8, available=(7, 8), on_disk=(7,))
    armed, _ = step(0.0, SETTINGS, state(), now)
    after, effects = step(0.0, SETTINGS, armed, now)
    assert after.running == trial()
    assert effects == (BakeBegun(trial()),)


def test_a_trial_from_before_a_restart_waits_for_its_old_version() -> None:
    before = state(accepted={}, armed={8: replace(trial(stage=Stage.ARMED), settings=OFF)})
    now = seen(8, available=(8,), on_disk=(7,))
    waits, _ = step(0.0, SETTINGS, before, now)
    assert waits.armed == {8: trial(stage=Stage.ARMED)}
    assert step(0.0, SETTINGS, waits, now) == (waits, ())
    begun, _ = step(0.0, SETTINGS, waits, replace(now, available=frozenset({7, 8})))
    assert begun.running == trial()


def test_a_trial_from_before_a_restart_ends_if_its_old_version_cannot_be_loaded() -> None:
    before = state(accepted={}, armed={8: trial(stage=Stage.ARMED)})
    after, effects = step(0.0, SETTINGS, before, seen(8, available=(8,), on_disk=(7,), failed={7: FAILED}))
    assert not after.armed
    assert [effect.outcome for effect in effects if isinstance(effect, BakeEnded)] == [Outcome.OLD_GONE]


def test_a_lower_push_beside_a_trial_waits_for_its_turn() -> None:
    before = state(running=trial(9), armed={8: trial(stage=Stage.ARMED)})
    now = seen(9, 8, available=(7, 8, 9), on_disk=(7,))
    assert step(0.0, SETTINGS, before, now) == (before, ())
    taken, _ = step(0.0, SETTINGS, before, replace(now, judgement=Judgement(rule=1)))
    after, effects = step(0.0, SETTINGS, taken, now)
    assert after.running == trial(8)
    assert effects == (BakeBegun(trial(8)),)


def test_a_version_that_a_failing_push_has_put_out_of_the_list_stays_on_trial() -> None:
    before = state(running=trial())
    now = seen(9, available=(7, 8), on_disk=(7, 8), failed={9: FAILED})
    assert step(0.0, SETTINGS, before, now) == (before, ())
    after, effects = step(0.0, SETTINGS, before, seen(7, available=(7, 8), on_disk=(8,)))
    assert after.running is None
    assert [effect.outcome for effect in effects if isinstance(effect, BakeEnded)] == [Outcome.GONE]


def test_the_verdict_comes_before_memory_and_the_end_of_the_bake() -> None:
    now = seen(8, available=(7, 8), on_disk=(7,), memory_needed=True, judgement=Judgement(rule=2, text="it fails"))
    after, effects = step(1000.0, SETTINGS, state(running=trial()), now)
    assert after.rejected.keys() == {8}
    (taken,) = effects
    assert isinstance(taken, TakenBack)
    assert (taken.rejection.why, taken.to) == ("taken back after 1000 s: it fails", 7)


def test_an_empty_list_ends_everything_but_rejections_and_what_is_on_trial_when_the_model_comes_back() -> None:
    rejected = {9: Rejection(9, "a", "bad", 0.0)}
    back = GoingBack(6, frozenset({7, 8}), "rolled back", True)
    after, effects = step(0.0, {}, state(running=trial(), rejected=rejected, going_back=back), seen())
    assert after == ModelState(armed={8: Running(8, 7, "a")}, rejected=rejected)
    assert len(effects) == 2
    assert step(0.0, {}, after, seen()) == (after, ())


def test_no_more_versions_are_rejected_than_are_remembered() -> None:
    many = tuple(range(1, MAX_REMEMBERED + 3))
    with pytest.raises(ServingError, match="more than 64 versions are above version 1"):
        step(0.0, {}, state(), seen(*many, available=many), Command(Verb.ROLLBACK, 1))


def test_a_model_with_many_versions_comes_to_rest() -> None:
    many = tuple(range(1, 3 * MAX_REMEMBERED))
    before = ModelState()
    for _ in range(10 * MAX_REMEMBERED):
        after, _ = step(0.0, {}, before, seen(*many, available=()))
        if after == before:
            break
        before = after
    assert after == before
    assert after.accepted.keys() == set(many)


# Lists.


def on_disk(*found: int) -> dict[int, ServableData[str]]:
    return {item.id.version: item for item in items(*found)}


def test_a_list_passes_unchanged_where_there_is_nothing_to_guard() -> None:
    given = items(8, 7, given_up=(8,))
    assert guarded(given, ModelState(), on_disk(6)) == given
    assert guarded([], state(running=trial()), on_disk(7)) == []


def test_a_list_has_both_versions_of_each_trial() -> None:
    before = state(running=trial(), armed={9: trial(9, 8, Stage.ARMED)})
    assert versions(guarded(items(9), before, on_disk(8, 7, 6))) == [9, 8, 7]


def test_a_list_without_its_rejected_versions_has_the_next_lower_one() -> None:
    rejected = {version: Rejection(version, "a", "bad", 0.0) for version in (8, 6)}
    assert versions(guarded(items(8), state(rejected=rejected), on_disk(9, 7, 6, 5))) == [7]
    assert versions(guarded(items(8, 7, given_up=(8,)), state(rejected=rejected), on_disk(5))) == [7]
    assert versions(guarded(items(8), state(rejected=rejected), on_disk(6))) == [8]


def test_another_load_has_another_revision() -> None:
    (item,) = guarded(items(8), state(retries={8: 2}), {})
    assert item.revision == "a/c~2"
