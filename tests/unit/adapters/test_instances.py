"""Which instances have to be opened and closed when the groups of a config change."""

from __future__ import annotations

import pytest

from tfs_lite.adapters.instances import Difference, differ_in_instances_only, difference, placements
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup

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
