"""The pure model of ``soak_world.py``: what it calls right and wrong."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from artefacts import EXPORTED, ONNX, PYTHON
from callers import Judge, Question
from effects import Disk
from plan import Abilities, Plan, Round
from soak_world import Soak, _Late, parsed
from world import (
    ALL,
    CONFIG_FILE,
    HOME,
    KINDS,
    NOTHING,
    REPOSITORY,
    Content,
    Model,
    Place,
    Policy,
    Quality,
    Step,
    course,
    phases,
    rights,
    settle,
    troubles,
)

GOOD, PARTIAL, BAD = Quality.GOOD, Quality.PARTIAL, Quality.BAD


LATEST = Policy()


def model(*qualities: Quality, policy: Policy = LATEST) -> Model:
    """Versions 1, 2, ... with the serials 10, 20, ..., of which the good ones that the policy wants are loaded."""
    versions = {number: Content(10 * number, quality) for number, quality in enumerate(qualities, 1)}
    found = Model("m", EXPORTED, {HOME: Place(versions)}, policy, file_policy=policy)
    return replace(found, loadings=settle(found, REPOSITORY))


def loading(versions: object) -> frozenset:
    return frozenset((version, 10 * version) for version in versions)


def after(start: Model, *steps: Step, mode: str = REPOSITORY, restart: bool = False) -> set[frozenset[int]]:
    """The versions of each loading that is right in the end, or when the server has started anew then."""
    end = course(start, steps, mode).end
    if restart:
        end = course(end, (), mode, mode).end
    return {frozenset(version for version, _ in one) for one in end.loadings}


def some(*versions: int) -> frozenset[int]:
    return frozenset(versions)


def test_a_policy_takes_its_versions():
    assert Policy().takes({1, 3, 2}) == {3}
    assert Policy(2).takes({1, 3, 2}) == {2, 3}
    assert ALL.takes({1, 3}) == {1, 3}
    assert Policy(versions=(1, 7)).takes({1, 3}) == {1}


def test_a_version_that_failed_takes_nobodys_place():
    assert after(model(GOOD, GOOD, BAD)) == {some(2)}
    assert after(model(GOOD, GOOD, BAD, policy=Policy(2))) == {some(1, 2)}
    assert after(model(GOOD, BAD), restart=True) == {some(1)}


def test_a_pushed_version_takes_the_place_of_the_one_before():
    pushed = course(model(GOOD), [Step("push", "m", 2, "cp", 20)], REPOSITORY)
    assert {frozenset(one) for one in pushed.end.loadings} == {loading([2])}
    assert NOTHING not in pushed.on_the_way


def test_what_answers_stays_while_the_only_wanted_version_is_not_there():
    ahead = Step("policy", "m", policy=Policy(versions=(2,)))
    assert after(model(GOOD, PARTIAL), ahead) == {some(1)}
    assert after(model(GOOD), ahead) == {some(1)}
    assert after(model(GOOD, PARTIAL), ahead, restart=True) == {some()}


def test_the_last_version_that_is_removed_takes_the_model_away():
    assert after(model(GOOD), Step("rm", "m", 1)) == {some()}
    assert after(model(GOOD, GOOD), Step("rm", "m", 2)) == {some(1)}


def test_the_same_number_again_is_gone_for_a_moment_only_if_it_was_the_only_one():
    again = Step("again", "m", 1, "rm_cp", 99)
    alone = course(model(GOOD), [again], REPOSITORY)
    assert alone.end.loadings == {frozenset({(1, 99)})}
    assert NOTHING in alone.on_the_way
    beside = course(model(GOOD, GOOD), [Step("again", "m", 2, "rm_cp", 99)], REPOSITORY)
    assert beside.end.loadings == {frozenset({(2, 99)})}
    assert NOTHING not in beside.on_the_way


def test_files_that_get_worse_leave_the_old_content_or_the_version_before():
    worse = course(model(GOOD, GOOD), [Step("again_bad", "m", 2, "inplace", 99)], REPOSITORY)
    assert worse.end.loadings >= {loading([2]), loading([1])}
    assert rights(worse.end).unversioned.serials == {10, 20}
    assert after(model(GOOD, GOOD), Step("again_bad", "m", 2, "inplace", 99), restart=True) == {some(1)}


def test_a_link_to_an_empty_directory_takes_nothing_away():
    assert after(model(GOOD), Step("link", "m", serial=5)) == {some(1)}


def test_another_base_path_with_the_same_number_is_other_content():
    moved = course(model(GOOD), [Step("move", "m", serial=5, files=((1, Content(77)),))], CONFIG_FILE)
    assert moved.end.loadings == {frozenset({(1, 77)})}
    assert NOTHING not in moved.on_the_way


@pytest.mark.parametrize("how", ["", "missing"])
def test_a_move_to_nowhere_takes_nothing_away_but_a_restart_does(how):
    step = Step("move", "m", how=how, serial=5)
    assert after(model(GOOD), step, mode=CONFIG_FILE) == {some(1)}
    assert after(model(GOOD), step, mode=CONFIG_FILE, restart=True) == {some()}


def test_removal_is_an_order():
    assert after(model(GOOD), Step("remove", "m")) == {some()}
    assert after(model(GOOD), Step("unlist", "m"), mode=CONFIG_FILE) == {some()}
    assert after(model(GOOD), Step("remove", "m"), mode=CONFIG_FILE) == {some(1)}  # its base path is missing


def test_a_restart_in_the_middle_of_a_step_may_find_its_beginning_or_its_end():
    ahead = Step("policy", "m", policy=Policy(versions=(2,)))
    way = course(model(GOOD), [ahead], REPOSITORY, REPOSITORY)
    assert way.end.loadings == {loading([1]), NOTHING}


def test_a_hanging_disk_changes_nothing_until_a_restart():
    hanging = replace(model(GOOD), hanging=True)
    assert after(hanging, Step("push", "m", 2, "cp", 20)) == {some(1)}
    assert after(hanging, restart=True) == {some()}
    assert after(hanging, Step("push", "m", 2, "cp", 20), Step("unhang", "m")) == {some(2)}


def test_what_must_answer_and_what_may():
    start = model(GOOD, GOOD, policy=Policy(2))
    way = course(start, [Step("push", "m", 3, "cp", 30)], REPOSITORY)
    moving = rights(way.end, way.on_the_way, start)
    assert moving.unversioned.must
    assert moving.unversioned.serials >= {20, 30}
    assert moving.versions[2].must
    assert not moving.versions[1].must
    assert not moving.versions[3].must
    assert moving.leaving == {10}
    resting = rights(way.end)
    assert resting.unversioned.serials == {30}
    assert set(resting.versions) == {2, 3}


def test_a_label_answers_on_both_sides_of_its_change():
    start = replace(model(GOOD, GOOD, policy=ALL), labels=(("stable", 1),))
    way = course(start, [Step("file_policy", "m", policy=ALL, labels=(("stable", 2),))], CONFIG_FILE)
    moving = rights(way.end, way.on_the_way, start)
    assert moving.labels["stable"].serials == {10, 20}
    assert not moving.labels["stable"].must
    assert rights(way.end).labels["stable"].must
    assert rights(way.end, mode=REPOSITORY).labels == {}


def test_what_stands_is_named():
    assert [(one.version, one.what) for one in troubles(model(GOOD, PARTIAL, BAD), REPOSITORY)] == [(3, BAD.value)]
    assert troubles(model(BAD, GOOD), REPOSITORY) == []
    assert [one.version for one in troubles(model(GOOD, policy=Policy(versions=(1, 4))), REPOSITORY)] == [4]
    assert len(troubles(replace(model(GOOD), hanging=True), REPOSITORY)) == 1


def test_the_judge_knows_wrong_answers_and_failures_that_are_faults():
    judge = Judge({10: ("m", 1), 20: ("m", 2), 90: ("other", 1)})
    judge.allow("m", rights(model(GOOD)), 0, moving=False)
    judge.answered(Question("m"), 10, 1, started=0.0)
    judge.failed(Question("m", version=3), "NOT_FOUND", started=0.0)
    assert judge.faults == []
    judge.answered(Question("m"), 20, 2, started=0.0)
    judge.answered(Question("m"), 90, 1, started=0.0)
    judge.answered(Question("m"), 10, 2, started=0.0)
    judge.failed(Question("m"), "NOT_FOUND", started=0.0)
    assert [(fault.kind, fault.texts.total()) for fault in judge.faults] == [("wrong", 3), ("failed", 1)]


def test_a_failure_while_the_server_is_down_is_none():
    judge = Judge({})
    judge.allow("m", rights(model(GOOD)), 0, moving=False)
    judge.server_goes()
    judge.failed(Question("m"), "connection refused", started=0.0)
    judge.server_is_back()
    assert judge.faults == []


def test_old_content_after_its_successor_is_wrong():
    judge = Judge({10: ("m", 1), 99: ("m", 1)})
    start = model(GOOD)
    way = course(start, [Step("again", "m", 1, "exchange", 99)], REPOSITORY)
    judge.allow("m", rights(way.end, way.on_the_way, start), 0, moving=True)
    question = Question("m", version=1)
    for serial in (10, 99):
        judge.answered(question, serial, 1, started=float("inf"))
    assert judge.faults == []
    judge.answered(question, 10, 1, started=float("inf"))
    assert [fault.kind for fault in judge.faults] == ["wrong"]


def test_a_plan_is_a_function_of_its_seed_and_knows_every_step():
    able = Abilities((EXPORTED, PYTHON, ONNX), hang=True, small_disks=True)

    def steps(seed: int) -> list[str]:
        return [str(one) for one in itertools.islice(Plan(seed, 20, able).rounds(), 60)]

    assert steps(3) == steps(3) != steps(4)
    kinds = {
        change.kind
        for seed in range(6)
        for one in itertools.islice(Plan(seed, 20, able).rounds(), 60)
        for step in one.steps
        for change in (step, *step.changes)
    }
    assert kinds == KINDS - {"restart"}


def test_steps_whose_predecessors_were_cut_away_change_what_they_can():
    able = Abilities((EXPORTED,), hang=True)
    plan = Plan(7, 6, able)
    for one in itertools.islice(plan.rounds(), 40):
        for step in one.steps:
            for change in step.changes or (step,):
                if change.model:
                    assert phases(change, plan.models[change.model])


def test_one_disk_hangs_at_a_time_in_every_plan_and_what_is_broken_for_a_while_is_mended_in_time():
    able = Abilities((EXPORTED, PYTHON), hang=True)
    for seed in range(6):
        broken: dict[str, tuple[str, int]] = {}
        for one in itertools.islice(Plan(seed, 20, able).rounds(), 80):
            for step in one.steps:
                if step.kind in ("hang", "break_config"):
                    broken[step.model] = step.kind, one.number
                elif step.kind in ("unhang", "mend_config"):
                    del broken[step.model]
            assert all(one.number - since <= 3 for _, since in broken.values())
            assert sum(kind == "hang" for kind, _ in broken.values()) <= 1


def test_a_broken_config_beside_versions_that_have_their_own_counts_for_the_policy_alone():
    own = replace(model(GOOD, GOOD, policy=Policy(2)), kind=PYTHON)
    broken = Step("break_config", "m", how="field")
    push = Step("push", "m", 3, "mv", 30)
    assert after(model(GOOD, GOOD, policy=Policy(2)), broken, push) == {some(1, 2)}
    assert after(own, broken, push) >= {some(2, 3)}
    assert after(own, broken, mode=CONFIG_FILE) == {some(1, 2)}
    end = course(own, [broken], REPOSITORY).end
    assert [trouble.what for trouble in troubles(end, REPOSITORY)] == ["its config is broken"]
    assert troubles(end, CONFIG_FILE) == []


def test_what_is_removed_version_by_version_may_leave_any_of_them_answering():
    start = model(GOOD, GOOD)
    assert after(start, Step("remove", "m", how="rm"), mode=CONFIG_FILE) == {some(1), some(2)}
    assert after(start, Step("remove", "m", how="mv"), mode=CONFIG_FILE) == {some(2)}


class PlainFiles:
    """Stands for the artefacts."""

    def files(self, kind: str, serial: int) -> dict[str, bytes]:
        return {"model.pt2": b"%d" % serial * 100}


def test_whoever_overwrites_published_files_takes_their_manifest_away(tmp_path: Path):
    disk = Disk(tmp_path, PlainFiles())  # type: ignore[arg-type]
    (tmp_path / "repository" / "m").mkdir()
    start = model(GOOD)
    for step in (Step("push", "m", 2, "publish", 20), Step("again", "m", 2, "cp_over", 30)):
        assert disk.do(step, start, random.Random(1)) == ""
    version = tmp_path / "repository" / "m" / "2"
    assert [path.name for path in version.iterdir()] == ["model.pt2"]
    assert (version / "model.pt2").read_bytes() == PlainFiles().files("", 30)["model.pt2"]


def test_what_is_left_out_of_a_round_leaves_no_disk_hanging_and_takes_no_config_away(tmp_path: Path):
    soak = Soak(parsed(["--models=5", "--no_hang"]), tmp_path)
    first, second, *_ = soak.models
    soak.models[first] = replace(soak.models[first], hanging=True)
    soak.late[first] = _Late(Round(0, (), REPOSITORY), 0.0)
    steps = [Step("unhang", first), Step("hang", second), Step("unhang", second), Step("mend_config", second)]
    left = soak._without_late(Round(1, tuple(steps), REPOSITORY))
    assert left.steps == (steps[0],)
