"""torch's own collections of programs, as served and as torch loads them: the same bits, or both refuse.

``python -m tests.support.exported.torch_collections --results FILE`` runs all of them, in some hours.
"""

from __future__ import annotations

import pytest

from tests.support.exported.torch_collections import FAULT, WAYS, collected, outcome_of

FEW = ("dynamic_shape_view", "dynamic_shape_if_guard", "dynamic_shape_slicing", "constrain_as_size_example")
"""Names of torch's examples of the exporter, which need no test modules."""


def exporters() -> list[object]:
    """The programs of torch's examples of the exporter."""
    found = []
    for program in collected(0):
        if not program.name.startswith("exporter"):
            break
        name = program.name.partition(" ")[2]
        found.append(pytest.param(program, id=name, marks=[] if name in FEW else [pytest.mark.load]))
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", exporters())
def test_an_example_of_the_exporter_is_served_as_torch_runs_it(program, way):
    found = outcome_of(program, way)
    assert found.get("differences", []) == []
    assert FAULT not in found.get("counts", {}), found
    if program.name.partition(" ")[2] in FEW:
        assert found["counts"]["programs: direct"] == 1


@pytest.mark.load
@pytest.mark.parametrize("kind", ["hop", "module", "op"])
def test_programs_of_torchs_test_modules_are_served_as_torch_runs_them(kind):
    """One of twelve; the command runs all."""
    pytest.importorskip("expecttest", reason="torch's test modules import it")
    differences, compared = [], 0
    for number, program in enumerate(collected(1)):
        if program.name.startswith(f"{kind} ") and not number % 12:
            found = outcome_of(program, "auto")
            differences += found.get("differences", [])
            compared += sum(found.get("counts", {}).values())
            assert FAULT not in found.get("counts", {}), found
    assert differences == []
    assert compared > 3
