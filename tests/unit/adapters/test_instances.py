"""Which instances a config asks for and where, and which are opened and closed when its groups change."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.adapters.instances import (
    Difference,
    check_gpus,
    copies_of,
    devices_of,
    differ_in_instances_only,
    difference,
    placements,
)
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource

ANY = InstanceGroup()
CPU = InstanceGroup(kind="KIND_CPU")
PROCESS = InstanceGroup(worker="process")


def settings(*groups: InstanceGroup, **fields: object) -> ModelSettings:
    return ModelSettings.model_validate({"instance_group": groups, **fields})


def test_places_are_those_of_every_instance_without_names() -> None:
    groups = (InstanceGroup(name="a", kind="KIND_CPU", count=2), InstanceGroup(name="b"))
    assert placements(settings(*groups), on_gpu=False) == [CPU, CPU, ANY]


def test_config_without_groups_has_one_instance() -> None:
    assert placements(settings(), on_gpu=False) == [ANY]


@pytest.mark.parametrize(
    ("have", "wanted", "expected"),
    [
        pytest.param([ANY], [ANY], Difference(), id="same"),
        pytest.param([CPU, ANY], [ANY, CPU], Difference(), id="other order"),
        pytest.param([ANY], [ANY, ANY, ANY], Difference(add=(ANY, ANY)), id="more"),
        pytest.param([ANY, ANY, ANY], [ANY], Difference(remove=frozenset({1, 2})), id="fewer"),
        pytest.param([ANY], [CPU], Difference(add=(CPU,), remove=frozenset({0})), id="another kind"),
        pytest.param([ANY, CPU], [ANY, PROCESS], Difference(add=(PROCESS,), remove=frozenset({1})), id="one of two"),
    ],
)
def test_difference_is_what_is_missing_and_what_is_too_many(
    have: list[InstanceGroup], wanted: list[InstanceGroup], expected: Difference
) -> None:
    assert difference(have, wanted) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param(settings(CPU, CPU), True, id="instances"),
        pytest.param(settings(version_policy={"all": {}}), True, id="versions"),
        pytest.param(settings(name="m"), True, id="name"),
        pytest.param(settings(max_batch_size=4), False, id="batch"),
        pytest.param(settings(CPU, dynamic_batching={}), False, id="instances and batching"),
    ],
)
def test_everything_but_instances_and_wanted_versions_matters(other: ModelSettings, expected: bool) -> None:
    assert differ_in_instances_only(settings(), other) is expected


BOTH = InstanceGroup(gpus=(0, 2), count=2)


def test_every_named_gpu_has_its_instances() -> None:
    first, second = InstanceGroup(gpus=(0,)), InstanceGroup(gpus=(2,))
    assert placements(settings(BOTH, ANY), on_gpu=True) == [first, first, second, second, ANY]
    assert placements(settings(BOTH, ANY), on_gpu=False) == [ANY, ANY, ANY]
    fewer = placements(settings(InstanceGroup(gpus=(2,), count=2)), on_gpu=True)
    assert difference([first, first, second, second], fewer) == Difference(remove=frozenset({0, 1}))


@pytest.mark.parametrize(
    ("group", "default", "expected"),
    [
        pytest.param(ANY, "cpu", ("cpu",), id="cpu"),
        pytest.param(ANY, "cuda:1", ("cuda:1",), id="the picked one"),
        pytest.param(CPU, "cuda:1", ("cpu",), id="cpu beside gpus"),
        pytest.param(BOTH, "cuda:1", ("cuda:0", "cuda:2"), id="named"),
        pytest.param(BOTH, "cpu", ("cpu",), id="named, and there are none"),
        pytest.param(InstanceGroup(kind="KIND_MODEL"), "cuda:1", ("cuda:1",), id="as the model likes"),
    ],
)
def test_a_group_is_where_it_says(group: InstanceGroup, default: str, expected: tuple[str, ...]) -> None:
    assert devices_of(group, default) == expected


def test_gpus_that_are_not_there_are_refused() -> None:
    said = refusal(devices_of, InstanceGroup(kind="KIND_GPU"), "cpu")
    assert said == "instance_group: KIND_GPU, but this server runs models on the CPU"
    check_gpus([ANY, BOTH], (0, 1, 2))
    check_gpus([ANY, BOTH], ())
    said = refusal(check_gpus, [ANY, BOTH], (0, 1))
    assert said == "instance_group[1].gpus: there is no GPU 2; this server has: 0, 1"


def gpu(number: int | None) -> Resource:
    return Resource(GPU, RAM, number)


MAIN_MEMORY = Resource(MAIN, RAM, 0)
COPIES = {
    "one": ((ANY,), "cpu", {MAIN_MEMORY: 1}),
    "threads share": ((InstanceGroup(count=3),), "cuda", {gpu(None): 1}),
    "processes do not": ((InstanceGroup(count=3, worker="process"),), "cpu", {MAIN_MEMORY: 3}),
    "on each": ((BOTH,), "cuda:0", {gpu(0): 1, gpu(2): 1}),
    "two groups on one": ((BOTH, ANY), "cuda:2", {gpu(0): 1, gpu(2): 1}),
    "a process beside": ((BOTH, PROCESS), "cuda:2", {gpu(0): 1, gpu(2): 2}),
    "both kinds": ((CPU, BOTH, ANY), "cuda", {MAIN_MEMORY: 1, gpu(0): 1, gpu(2): 1, gpu(None): 1}),
}


@pytest.mark.parametrize(("groups", "default", "expected"), COPIES.values(), ids=COPIES)
def test_copies_of_the_weights_are_counted_by_device(
    groups: tuple[InstanceGroup, ...], default: str, expected: dict[Resource, int]
) -> None:
    assert copies_of(groups, default, lambda group: group.worker != "process") == expected
