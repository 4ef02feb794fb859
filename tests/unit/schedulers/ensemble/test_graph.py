"""Which steps run, and when: tables, and any graph in any order of endings."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schedulers.ensembles import DIAMOND, settings_of, step, tensor
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.ensemble.graph import EnsemblePlan, Progress, plan_for
from tfs_lite.schedulers.ensemble.types import EnsembleGraph, graph_of

CHAIN = settings_of(
    [tensor("IN")],
    [tensor("A"), tensor("C")],
    [step("c", {"x": "B"}, {"y": "C"}), step("b", {"x": "A"}, {"y": "B"}), step("a", {"x": "IN"}, {"y": "A"})],
)
"""Written backwards."""


def graph_for(settings: dict) -> EnsembleGraph:
    return graph_of("e", ModelSettings.model_validate(settings))


def plan(settings: dict, *wanted: str) -> EnsemblePlan:
    return plan_for(graph_for(settings), wanted)


@pytest.mark.parametrize(
    ("settings", "wanted", "models"),
    [
        pytest.param(DIAMOND, (), ["first", "left", "right"], id="all outputs"),
        pytest.param(DIAMOND, ("RIGHT", "LEFT"), ["first", "left", "right"], id="both outputs"),
        pytest.param(DIAMOND, ("RIGHT",), ["first", "right"], id="one branch"),
        pytest.param(CHAIN, ("A",), ["a"], id="the first of a chain"),
        pytest.param(CHAIN, ("C",), ["c", "b", "a"], id="the end of a chain"),
    ],
)
def test_only_steps_of_wanted_outputs_are_needed(settings: dict, wanted: tuple[str, ...], models: list[str]) -> None:
    assert [step.model for step in plan(settings, *wanted).steps] == models


def test_a_model_is_asked_only_for_outputs_that_are_used() -> None:
    steps = [step("a", {"x": "IN"}, {"y": "between", "z": "EXTRA"}), step("b", {"x": "between"}, {"y": "OUT"})]
    settings = settings_of([tensor("IN")], [tensor("OUT"), tensor("EXTRA")], steps)
    assert plan(settings).asked == {0: ("y", "z"), 1: ("y",)}
    assert plan(settings, "OUT").asked == {0: ("y",), 1: ("y",)}
    assert plan(settings, "EXTRA").asked == {0: ("z",)}


def test_steps_run_as_soon_as_their_tensors_are_there() -> None:
    progress = Progress(plan(DIAMOND))
    assert progress.begin() == [0]
    assert progress.done(0) == [1, 2]
    assert progress.in_flight == {1, 2}
    assert progress.done(2) == []
    assert not progress.complete
    assert progress.done(1) == []
    assert progress.complete
    assert not progress.stuck


def test_nothing_is_given_out_once_the_rest_is_not_wanted() -> None:
    progress = Progress(plan(DIAMOND))
    progress.begin()
    progress.end()
    assert progress.done(0) == []
    assert not progress.complete


def test_steps_that_can_never_run_are_noticed() -> None:
    progress = Progress(EnsemblePlan(("OUT",), plan(DIAMOND).steps[:1], {0: ("y",)}, {0: frozenset({0})}, {0: (0,)}))
    assert progress.begin() == []
    assert progress.stuck


def test_settings_of_no_ensemble_are_refused() -> None:
    with pytest.raises(ServingError, match="needs ensemble_scheduling") as caught:
        graph_of("e", ModelSettings())
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


@st.composite
def pipelines(draw: st.DrawFn) -> dict:
    """Any sound graph: each step uses tensors of earlier ones, and what is not used is an output."""
    count = draw(st.integers(1, 8))
    steps, tensors = [], ["IN"]
    for index in range(count):
        used = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True))
        if index == 0:
            used = ["IN"]
        made = [f"t{index}_{number}" for number in range(draw(st.integers(1, 2)))]
        inputs = {f"x{number}": name for number, name in enumerate(used)}
        steps.append(step(f"m{index}", inputs, {f"y{number}": name for number, name in enumerate(made)}))
        tensors.extend(made)
    read = {name for each in steps for name in each["input_map"].values()}
    outputs = [name for name in tensors[1:] if name not in read or draw(st.booleans())]
    order = draw(st.permutations(steps))
    return settings_of([tensor("IN")], [tensor(name) for name in outputs], order)


def needed_by_closure(graph: EnsembleGraph, wanted: tuple[str, ...]) -> set[int]:
    """The steps that are needed, worked out in another way: step by step backwards until nothing changes."""
    tensors, steps = set(wanted), set[int]()
    while True:
        before = len(tensors), len(steps)
        for each in graph.steps:
            if tensors & set(each.outputs.values()):
                steps.add(each.index)
                tensors |= set(each.inputs.values())
        if (len(tensors), len(steps)) == before:
            return steps


@given(pipelines(), st.randoms(use_true_random=False), st.data())
def test_every_needed_step_runs_once_and_in_order(settings: dict, chance: random.Random, data: st.DataObject) -> None:
    graph = graph_for(settings)
    names = [each["name"] for each in settings["output"]]
    wanted = tuple(data.draw(st.lists(st.sampled_from(names), unique=True)))
    made_plan = plan_for(graph, wanted)
    assert {each.index for each in made_plan.steps} == needed_by_closure(graph, wanted or tuple(names))
    progress, there, ran = Progress(made_plan), {"IN"}, []
    flying = progress.begin()
    while flying:
        assert progress.in_flight == set(flying)
        assert not progress.complete
        assert not progress.stuck
        for index in flying:
            assert set(graph.steps[index].inputs.values()) <= there
        index = flying.pop(chance.randrange(len(flying)))
        ran.append(index)
        there.update(graph.steps[index].outputs.values())
        flying.extend(progress.done(index))
    assert progress.complete
    assert sorted(ran) == [each.index for each in made_plan.steps]
    assert there.issuperset(made_plan.outputs)


@given(pipelines(), st.randoms(use_true_random=False))
def test_after_a_failure_only_what_is_in_flight_ends(settings: dict, chance: random.Random) -> None:
    made_plan = plan_for(graph_for(settings), ())
    progress = Progress(made_plan)
    flying = progress.begin()
    for _ in range(chance.randrange(len(made_plan.steps))):
        flying.extend(progress.done(flying.pop(chance.randrange(len(flying)))))
    progress.failed(flying.pop())
    while flying:
        assert progress.in_flight == set(flying)
        assert progress.done(flying.pop()) == []
    assert not progress.complete
    assert not progress.stuck
