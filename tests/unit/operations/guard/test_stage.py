"""The guard between a source and a manager, as its user meets it: what answers, and what is in memory."""

from __future__ import annotations

import pytest

from tests.support.lifecycle.guard_fixture import BAKE, Files, GuardFixture
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.operations.guard.trial import (
    BakeEnded,
    By,
    Judgement,
    Lifted,
    ModelState,
    Outcome,
    Running,
    Stage,
    TakenBack,
    TrialSettings,
    Verb,
    WayBackFailed,
    WouldTakeBack,
)
from tfs_lite.sources.version_scan import LatestPolicy, SpecificPolicy

BAD = Judgement(rule=2, text="10 of 10 requests failed, version 7 answered all")
LEANING = Judgement(leaning=True, against=3)


def served(*versions: int, settings: TrialSettings = BAKE, ram: int | None = None, latest: int = 1) -> GuardFixture:
    fixture = GuardFixture(settings, ram=ram)
    fixture.policies["m"] = LatestPolicy(latest)
    for version in versions:
        fixture.push("m", version)
    fixture.rest()
    return fixture


def on_trial(settings: TrialSettings = BAKE, ram: int | None = None) -> GuardFixture:
    """Version 8 on trial over version 7."""
    fixture = served(7, settings=settings, ram=ram)
    fixture.push("m", 8)
    fixture.rest()
    return fixture


def outcomes(fixture: GuardFixture) -> list[Outcome]:
    return [effect.outcome for effect in fixture.seen(BakeEnded) if isinstance(effect, BakeEnded)]


def test_the_first_versions_of_a_model_get_no_trial() -> None:
    fixture = served(6, 7, latest=2)
    assert fixture.server.ready("m") == [6, 7]
    assert not fixture.effects
    assert fixture.stage.tick() is False


def test_a_push_is_armed_with_its_list_and_begins_when_it_answers() -> None:
    fixture = served(7)
    fixture.push("m", 8)
    fixture.poll()
    assert [(trial.new, trial.old, trial.stage) for trial in fixture.trials["m"]] == [(8, 7, Stage.ARMED)]
    fixture.rest()
    assert [(trial.new, trial.old, trial.stage) for trial in fixture.trials["m"]] == [(8, 7, Stage.BAKING)]
    assert fixture.answers_with("m") == 8
    assert fixture.server.ready("m") == [7, 8]
    assert (fixture.lists["m"], fixture.passed["m"]) == ([8], [8, 7])
    view = fixture.stage.view("m")
    assert view is not None
    assert view.until is not None
    assert view.since is not None
    assert view.until - view.since == 620


def test_after_the_bake_one_version_is_in_memory() -> None:
    fixture = on_trial()
    fixture.rest(seconds=619)
    assert fixture.server.ready("m") == [7, 8]
    fixture.rest(seconds=1)
    assert fixture.server.ready("m") == [8]
    assert outcomes(fixture) == [Outcome.PASSED]
    assert not fixture.trials["m"]


def test_a_bad_version_is_taken_back_and_stays_so() -> None:
    fixture = on_trial()
    fixture.clock.advance(11)
    fixture.judge("m", 8, BAD)
    fixture.tick()
    assert fixture.answers_with("m") == 7
    fixture.rest()
    assert fixture.server.ready("m") == [7]
    why = "taken back after 11 s: 10 of 10 requests failed, version 7 answered all"
    assert {version: status.message for version, status in fixture.stage.rejected("m").items()} == {8: why}
    assert fixture.stage.rejected("m")[8].code is StatusCode.ABORTED
    fixture.rest(seconds=5000)
    assert fixture.server.ready("m") == [7]
    assert fixture.rejected["m"] == {8}


def test_other_files_of_a_version_that_was_taken_back_are_a_new_push() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, BAD)
    fixture.rest()
    fixture.judgements.clear()
    fixture.push("m", 8, Files("b"))
    fixture.rest()
    assert fixture.answers_with("m") == 8
    assert [trial.stage for trial in fixture.trials["m"]] == [Stage.BAKING]
    assert not fixture.rejected["m"]


def test_a_verdict_that_is_only_told_changes_nothing_and_is_told_once() -> None:
    fixture = on_trial(TrialSettings(600, tells_only=True))
    fixture.judge("m", 8, BAD)
    fixture.rest(seconds=5)
    assert fixture.answers_with("m") == 8
    assert len(fixture.seen(WouldTakeBack)) == 1
    fixture.rest(seconds=620)
    assert fixture.server.ready("m") == [8]


def test_votes_against_a_version_prolong_its_trial_to_a_bound() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, LEANING)
    fixture.rest(seconds=3599)
    assert fixture.server.ready("m") == [7, 8]
    fixture.rest(seconds=1)
    assert fixture.server.ready("m") == [8]


def test_a_trial_waits_for_requests_but_not_for_ever() -> None:
    fixture = on_trial(TrialSettings(600, bake_requests=100))
    fixture.rest(seconds=86_399)
    assert fixture.server.ready("m") == [7, 8]
    fixture.judge("m", 8, Judgement(answered=100))
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    fixture = on_trial(TrialSettings(600, bake_requests=100))
    fixture.rest(seconds=86_400)
    assert fixture.server.ready("m") == [8]


def test_a_load_that_fails_leaves_the_old_version_and_no_trial() -> None:
    fixture = served(7)
    fixture.push("m", 8, Files(loads=False))
    fixture.rest()
    assert fixture.answers_with("m") == 7
    assert outcomes(fixture) == [Outcome.LOAD_FAILED]
    assert not fixture.trials["m"]
    fixture.push("m", 8, Files("b"))
    fixture.poll()
    assert [trial.stage for trial in fixture.trials["m"]] == [Stage.ARMED]
    fixture.rest()
    assert [trial.stage for trial in fixture.trials["m"]] == [Stage.BAKING]


def test_a_third_push_makes_the_second_version_the_old_one() -> None:
    fixture = on_trial()
    fixture.push("m", 9)
    fixture.poll()
    assert fixture.passed["m"] == [9, 8, 7]
    fixture.rest()
    assert fixture.server.ready("m") == [8, 9]
    assert outcomes(fixture) == [Outcome.SUPERSEDED]
    fixture.judge("m", 9, BAD)
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    assert not fixture.trials["m"]


def test_a_third_push_goes_back_past_a_version_with_votes_against_it() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, Judgement(against=1))
    fixture.push("m", 9)
    fixture.rest()
    assert fixture.server.ready("m") == [7, 9]


@pytest.mark.parametrize("latest", [1, 2])
@pytest.mark.parametrize("doubts", [Judgement(failed=1, answered=400), Judgement(against=1, failed=9)])
def test_a_bad_version_after_a_failing_one_is_judged_against_the_last_good_one(latest: int, doubts: Judgement) -> None:
    """And the failing one is on trial again over that, where the policy gives it."""
    fixture = served(7, latest=latest)
    fixture.push("m", 8)
    fixture.rest()
    fixture.judge("m", 8, doubts)
    fixture.push("m", 9)
    fixture.rest()
    assert [(trial.new, trial.old) for trial in fixture.trials["m"]] == [(9, 7)]
    fixture.judge("m", 9, BAD)
    fixture.tick()
    assert 7 in fixture.server.ready("m")
    assert fixture.passed["m"][-1] == 7
    fixture.rest()
    assert [(trial.new, trial.old, trial.stage) for trial in fixture.trials["m"]] == [(8, 7, Stage.BAKING)]
    fixture.judge("m", 8, BAD)
    fixture.rest()
    assert fixture.server.ready("m") == [7]
    assert fixture.stage.rejected("m").keys() == {8, 9}


def test_a_failing_version_that_is_wanted_again_before_it_is_unloaded_is_on_trial() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, Judgement(failed=1))
    fixture.push("m", 9)
    fixture.poll()
    fixture.server.settle()
    fixture.tick()
    assert [(trial.new, trial.old) for trial in fixture.trials["m"]] == [(9, 7)]
    fixture.judge("m", 9, BAD)
    fixture.tick()
    assert fixture.server.ready("m") == [7, 8, 9]
    fixture.poll()
    assert [(trial.new, trial.old) for trial in fixture.trials["m"]] == [(8, 7)]
    fixture.rest()
    assert fixture.server.ready("m") == [7, 8]


def test_a_bad_version_after_a_failing_one_is_judged_against_the_last_good_one_over_a_restart() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, Judgement(failed=1))
    fixture.push("m", 9)
    fixture.rest()
    fixture = fixture.restart()
    fixture.rest()
    assert [(trial.new, trial.old) for trial in fixture.trials["m"]] == [(9, 7)]
    fixture.judge("m", 9, BAD)
    fixture.rest()
    assert [(trial.new, trial.old, trial.stage) for trial in fixture.trials["m"]] == [(8, 7, Stage.BAKING)]


def test_a_third_push_that_cannot_be_loaded_leaves_the_trial_alone() -> None:
    fixture = on_trial()
    fixture.push("m", 9, Files(loads=False))
    fixture.rest()
    assert fixture.server.ready("m") == [7, 8]
    assert [(trial.new, trial.stage) for trial in fixture.trials["m"]] == [(8, Stage.BAKING)]


@pytest.mark.parametrize("gone", [7, 8])
def test_a_trial_ends_when_one_of_its_versions_is_deleted(gone: int) -> None:
    fixture = on_trial()
    fixture.delete("m", gone)
    fixture.rest()
    assert fixture.server.ready("m") == [15 - gone]
    assert outcomes(fixture) == [Outcome.OLD_GONE if gone == 7 else Outcome.GONE]
    assert not fixture.stage.rejected("m")


def test_a_disk_that_cannot_be_read_ends_no_trial() -> None:
    fixture = on_trial()
    fixture.unreadable.add("m")
    fixture.rest(seconds=100)
    assert fixture.server.ready("m") == [7, 8]


def test_a_model_that_leaves_the_config_goes_at_once_and_its_rejections_stay() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, BAD)
    fixture.rest()
    policy = fixture.policies.pop("m")
    fixture.rest()
    assert fixture.server.ready("m") == []
    fixture.policies["m"] = policy
    fixture.rest()
    assert fixture.server.ready("m") == [7]


def test_a_rejection_is_lifted_when_nothing_else_can_answer() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, BAD)
    fixture.rest()
    fixture.delete("m", 7)
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    assert fixture.seen(Lifted) == [Lifted(8, "nothing else can answer", forced=True)]
    assert not fixture.trials["m"]


def test_a_rejection_is_lifted_when_what_should_answer_cannot_be_loaded() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, BAD)
    fixture.rest()
    fixture.push("m", 7, Files("b", loads=False))
    fixture = fixture.restart()
    fixture.rest()
    assert fixture.server.ready("m") == [8]


def test_a_lower_version_that_is_wanted_gets_no_trial() -> None:
    fixture = served(8)
    fixture.push("m", 7)
    fixture.policies["m"] = SpecificPolicy((7,))
    fixture.rest()
    assert fixture.server.ready("m") == [7]
    assert not fixture.effects
    fixture.policies["m"] = LatestPolicy()
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    assert not fixture.effects


def test_a_load_without_memory_gets_that_of_the_old_version() -> None:
    fixture = on_trial(ram=2)
    fixture.push("other", 1)
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    assert fixture.server.ready("other") == [1]
    assert outcomes(fixture) == [Outcome.MEMORY]


def test_a_version_with_votes_against_it_keeps_the_memory_of_the_old_one() -> None:
    fixture = on_trial(ram=2)
    fixture.judge("m", 8, LEANING)
    fixture.push("other", 1)
    fixture.rest()
    assert fixture.server.ready("m") == [7, 8]


def test_a_load_that_never_fits_ends_no_more_trials_than_a_few() -> None:
    fixture = GuardFixture(ram=100)
    for name in "abcdefgh":
        fixture.push(name, 1)
    fixture.rest()
    for name in "abcdefgh":
        fixture.push(name, 2)
    fixture.rest()
    fixture.push("z", 1, Files(size=1000))
    fixture.rest()
    assert len(fixture.seen(BakeEnded)) <= 4


def test_a_third_push_without_memory_ends_the_trial_and_is_loaded() -> None:
    fixture = on_trial(ram=2)
    fixture.push("m", 9)
    fixture.rest()
    assert fixture.answers_with("m") == 9
    assert fixture.server.ready("m") == [8, 9]


# What operators say.


def test_accept_ends_a_trial() -> None:
    fixture = on_trial()
    fixture.command("m", Verb.ACCEPT)
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    assert outcomes(fixture) == [Outcome.ACCEPTED]


def test_undo_takes_a_version_on_trial_back() -> None:
    fixture = on_trial()
    fixture.command("m", Verb.UNDO)
    assert fixture.answers_with("m") == 7
    fixture.rest()
    assert fixture.server.ready("m") == [7]
    (taken,) = fixture.seen(TakenBack)
    assert isinstance(taken, TakenBack)
    assert (taken.rejection.by, taken.to, taken.who) == (By.OPERATOR, 7, "ann")


def test_undo_stops_a_push_that_is_being_loaded() -> None:
    fixture = served(6, 7)
    fixture.push("m", 8)
    fixture.poll()
    fixture.command("m", Verb.UNDO)
    fixture.rest()
    assert fixture.server.ready("m") == [7]
    assert fixture.stage.rejected("m").keys() == {8}


@pytest.mark.parametrize("version", [None, 7, 8])
def test_undo_without_a_trial_is_refused(version: int | None) -> None:
    fixture = served(7, 8)
    with pytest.raises(
        ServingError, match="model m has no trial; tfs-lite rollback m goes back to an older version"
    ) as raised:
        fixture.command("m", Verb.UNDO, version)
    assert raised.value.code is StatusCode.FAILED_PRECONDITION
    fixture.rest()
    assert fixture.server.ready("m") == [8]


def test_undo_of_a_version_that_is_not_the_one_on_trial_is_refused() -> None:
    fixture = on_trial()
    with pytest.raises(ServingError, match="model m: version 7 is not on trial"):
        fixture.command("m", Verb.UNDO, 7)
    assert fixture.answers_with("m") == 8


def test_a_rollback_is_refused_where_there_is_nothing_lower() -> None:
    fixture = served(8)
    with pytest.raises(ServingError, match="model m: there is no version below 8 to go back to") as raised:
        fixture.command("m", Verb.ROLLBACK)
    assert raised.value.code is StatusCode.FAILED_PRECONDITION
    assert fixture.answers_with("m") == 8


@pytest.mark.parametrize("verb", [Verb.ACCEPT, Verb.RETRY, Verb.UNDO_ROLLBACK])
def test_an_order_without_anything_to_do_is_refused(verb: Verb) -> None:
    with pytest.raises(ServingError) as raised:
        served(8).command("m", verb)
    assert raised.value.code is StatusCode.FAILED_PRECONDITION


def test_an_order_for_an_unknown_model_is_refused() -> None:
    with pytest.raises(ServingError) as raised:
        served(8).command("n", Verb.UNDO)
    assert raised.value.code is StatusCode.NOT_FOUND


def test_retry_of_a_version_that_was_taken_back_is_another_push() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, BAD)
    fixture.rest()
    fixture.judgements.clear()
    fixture.command("m", Verb.RETRY)
    fixture.rest()
    assert fixture.answers_with("m") == 8
    assert [trial.stage for trial in fixture.trials["m"]] == [Stage.BAKING]


def test_accept_of_a_version_that_was_taken_back_gives_it_no_trial_and_no_gate() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, BAD)
    fixture.rest()
    fixture.command("m", Verb.ACCEPT, 8)
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    assert fixture.stage.accepts(ServableId("m", 8))
    assert fixture.stage.saved() == {"m": ModelState(accepted={8: "a"}, ungated=frozenset({8}))}


def test_retry_loads_a_version_again_whose_load_has_failed() -> None:
    fixture = served(7)
    fixture.push("m", 8, Files(loads=False))
    fixture.rest()
    fixture.disk["m"][8] = Files(loads=True)  # whatever was missing is there; its files are the same
    fixture.rest()
    assert fixture.answers_with("m") == 7
    fixture.command("m", Verb.RETRY)
    fixture.rest()
    assert fixture.answers_with("m") == 8
    assert [trial.stage for trial in fixture.trials["m"]] == [Stage.BAKING]


# The way back.


@pytest.mark.parametrize("bake", [0.0, 600.0])
def test_a_rollback_makes_an_older_version_answer_and_is_undone_by_the_next_push(bake: float) -> None:
    fixture = served(5, 6, 7, 8, settings=TrialSettings(bake))
    fixture.command("m", Verb.ROLLBACK, 6)
    assert fixture.answers_with("m") == 8
    view = fixture.stage.view("m")
    assert view is not None
    assert view.going_back == 6
    fixture.rest()
    assert fixture.server.ready("m") == [6]
    fixture.push("m", 9)
    fixture.rest(seconds=700)
    assert fixture.server.ready("m") == [9]


def test_a_rollback_is_undone_by_an_order() -> None:
    fixture = served(6, 7, 8, settings=TrialSettings())
    fixture.command("m", Verb.ROLLBACK)
    fixture.rest()
    assert fixture.server.ready("m") == [7]
    fixture.command("m", Verb.UNDO_ROLLBACK)
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    assert not fixture.stage.rejected("m")


def test_the_undoing_of_a_rollback_keeps_what_the_guard_has_taken_back() -> None:
    fixture = on_trial()
    fixture.push("m", 6)
    fixture.judge("m", 8, BAD)
    fixture.rest()
    fixture.command("m", Verb.ROLLBACK)
    fixture.rest()
    assert fixture.server.ready("m") == [6]
    fixture.command("m", Verb.UNDO_ROLLBACK)
    fixture.rest()
    assert fixture.server.ready("m") == [7]


def test_a_rollback_from_a_newest_version_that_has_failed_keeps_the_one_that_answers() -> None:
    fixture = served(6, 7, latest=2, settings=TrialSettings())
    fixture.push("m", 8, Files(loads=False))
    fixture.rest()
    fixture.command("m", Verb.ROLLBACK)
    fixture.rest()
    assert fixture.answers_with("m") == 7
    assert fixture.stage.rejected("m").keys() == {8}


@pytest.mark.parametrize("bake", [0.0, 600.0])
@pytest.mark.parametrize("load_begins", [True, False])
def test_a_rollback_while_a_newer_version_is_loaded_goes_below_the_one_that_answers(
    bake: float, load_begins: bool
) -> None:
    fixture = served(6, 7, settings=TrialSettings(bake))
    fixture.push("m", 8)
    fixture.poll()
    if load_begins:
        fixture.server.tick()
        fixture.server.loads.start()
    fixture.command("m", Verb.ROLLBACK)
    fixture.rest()
    while fixture.server.loads.running:
        fixture.server.loads.finish()
    fixture.rest()
    assert fixture.server.ready("m") == [6]
    assert fixture.stage.rejected("m").keys() == {7, 8}


def test_a_rollback_with_the_policy_specific() -> None:
    fixture = served(6, 7, 8, settings=TrialSettings())
    fixture.policies["m"] = SpecificPolicy((8,))
    fixture.rest()
    fixture.command("m", Verb.ROLLBACK, 7)
    fixture.rest()
    assert fixture.server.ready("m") == [7]


def test_a_rollback_survives_a_restart() -> None:
    fixture = served(6, 7, 8, settings=TrialSettings())
    fixture.command("m", Verb.ROLLBACK, 7)
    fixture.rest()
    fixture = fixture.restart()
    fixture.rest()
    assert fixture.server.ready("m") == [7]
    assert fixture.rejected["m"] == {8}


def test_a_rollback_to_a_version_that_cannot_be_loaded_changes_nothing() -> None:
    fixture = served(7, 8, settings=TrialSettings())
    fixture.push("m", 7, Files(loads=False))
    fixture.command("m", Verb.ROLLBACK, 7)
    fixture.rest()
    assert fixture.server.ready("m") == [8]
    assert not fixture.stage.rejected("m")
    assert len(fixture.seen(WayBackFailed)) == 1


def test_a_rollback_to_a_version_that_is_not_there_is_refused() -> None:
    fixture = served(7, 8)
    with pytest.raises(ServingError, match="version 5 is not on disk, or not complete; complete are 7, 8") as raised:
        fixture.command("m", Verb.ROLLBACK, 5)
    assert raised.value.code is StatusCode.NOT_FOUND


# Over a restart.


def test_a_trial_begins_anew_after_a_restart() -> None:
    fixture = on_trial()
    assert fixture.stage.saved() == {"m": ModelState(armed={8: Running(8, 7, "a")})}
    fixture = fixture.restart()
    fixture.rest()
    assert fixture.server.ready("m") == [7, 8]
    assert [(trial.old, trial.settings) for trial in fixture.trials["m"]] == [(7, BAKE)]


def test_a_trial_of_other_files_is_forgotten_at_a_restart() -> None:
    fixture = on_trial()
    fixture.push("m", 8, Files("b"))
    fixture = fixture.restart()
    fixture.rest()
    assert fixture.server.ready("m") == [8]


def test_a_version_that_was_taken_back_stays_so_over_a_restart_and_may_be_tried_again() -> None:
    fixture = on_trial()
    fixture.judge("m", 8, BAD)
    fixture.rest()
    fixture = fixture.restart()
    fixture.rest()
    assert fixture.server.ready("m") == [7]
    fixture.command("m", Verb.RETRY)
    fixture.rest()
    assert [(trial.new, trial.stage) for trial in fixture.trials["m"]] == [(8, Stage.BAKING)]
