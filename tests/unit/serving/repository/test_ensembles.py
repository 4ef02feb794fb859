"""Load and unload calls of ensembles: which models come and go with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.servers.repository_fixture import BROKEN, RepositoryFixture, repository_house


def ensemble(*steps: str) -> str:
    """A config: each step's answer is the next one's question."""
    names = ["x", *(f"t{number}" for number in range(1, len(steps))), "y"]
    parts = "".join(
        f'step {{ model_name: "{step}" model_version: -1 input_map {{ key: "x" value: "{names[number]}" }} '
        f'output_map {{ key: "y" value: "{names[number + 1]}" }} }}'
        for number, step in enumerate(steps)
    )
    return (
        'platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } '
        f'output {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ensemble_scheduling {{ {parts} }}'
    )


@pytest.fixture
def house(tmp_path: Path) -> Iterator[RepositoryFixture]:
    with repository_house(tmp_path / "models") as found:
        for number, name in enumerate(("a", "b", "c"), 1):
            found.configure(name)
            found.write(name, 1, plus=number)
        yield found


def put(house: RepositoryFixture, name: str, *steps: str) -> None:
    house.configure(name, text=ensemble(*steps))
    (house.root / name / "1").mkdir(exist_ok=True)


def test_ensemble_brings_its_models_with_it(house: RepositoryFixture) -> None:
    put(house, "e", "a", "b")
    house.load("e")
    assert house.plus("e") == 3
    assert house.versions("a") == house.versions("b") == {1}
    assert house.versions("c") == set()


def test_ensemble_whose_model_fails_is_not_loaded(house: RepositoryFixture) -> None:
    house.write("b", 1, 0, BROKEN)
    put(house, "e", "a", "b")
    assert "load failed for model 'b': version 1 is at UNAVAILABLE state" in str(house.failure("e"))
    assert house.versions("e") == set()


def test_ensemble_of_a_model_that_is_not_there_is_not_loaded(house: RepositoryFixture) -> None:
    put(house, "e", "nobody")
    error = house.failure("e")
    assert (error.code, "'nobody', failed to poll" in str(error)) == (StatusCode.INTERNAL, True)


def test_ensembles_in_a_circle_are_refused(house: RepositoryFixture) -> None:
    put(house, "e", "f")
    put(house, "f", "e")
    with pytest.raises(ServingError, match="circle") as caught:
        house.load("e")
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_unload_leaves_the_models_of_an_ensemble_in_place(house: RepositoryFixture) -> None:
    put(house, "e", "a")
    house.load("e")
    house.control.unload("e")
    assert (house.versions("e"), house.versions("a")) == (set(), {1})


def test_unload_of_dependents_spares_those_that_others_use_or_that_were_asked_for(house: RepositoryFixture) -> None:
    put(house, "e", "a", "b", "c")
    put(house, "other", "b")
    house.load("a")
    house.load("other")
    house.load("e")
    house.load("e")
    house.control.unload("e", unload_dependents=True)
    assert house.versions("a") == house.versions("b") == {1}
    assert house.versions("c") == set()


def test_unload_of_dependents_reaches_nested_ensembles(house: RepositoryFixture) -> None:
    put(house, "inner", "a")
    put(house, "outer", "inner", "b")
    house.load("outer")
    house.control.unload("outer", unload_dependents=True)
    assert [house.versions(name) for name in ("outer", "inner", "a", "b")] == [set()] * 4
