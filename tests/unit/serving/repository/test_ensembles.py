"""Load and unload calls of ensembles: which models come and go with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tests.support.servers.repository_fixture import BROKEN, RepositoryFixture, serving_repository
from tfs_lite.core.status import StatusCode


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
def fixture(tmp_path: Path) -> Iterator[RepositoryFixture]:
    with serving_repository(tmp_path / "models") as found:
        for number, name in enumerate(("a", "b", "c"), 1):
            found.configure(name)
            found.write(name, 1, plus=number)
        yield found


def put(fixture: RepositoryFixture, name: str, *steps: str) -> None:
    fixture.configure(name, text=ensemble(*steps))
    (fixture.root / name / "1").mkdir(exist_ok=True)


def test_ensemble_brings_its_models_with_it(fixture: RepositoryFixture) -> None:
    put(fixture, "e", "a", "b")
    fixture.load("e")
    assert fixture.plus("e") == 3
    assert fixture.versions("a") == fixture.versions("b") == {1}
    assert fixture.versions("c") == set()


def test_ensemble_whose_model_fails_is_not_loaded(fixture: RepositoryFixture) -> None:
    fixture.write("b", 1, 0, BROKEN)
    put(fixture, "e", "a", "b")
    assert "load failed for model 'b': version 1 is at UNAVAILABLE state" in str(fixture.failure("e"))
    assert fixture.versions("e") == set()


def test_ensemble_of_a_model_that_is_not_there_is_not_loaded(fixture: RepositoryFixture) -> None:
    put(fixture, "e", "a", "missing")
    error = fixture.failure("e")
    reason = (
        "load failed for model 'e': step 1 (model missing) of the ensemble: "
        "failed to load 'missing', failed to poll from model repository"
    )
    assert (error.code, error.status.message) == (StatusCode.INTERNAL, reason)
    (entry,) = (entry for entry in fixture.index() if entry.name == "e")
    assert (entry.version, entry.state, entry.reason) == ("1", "UNAVAILABLE", reason)


def test_ensemble_is_shown_as_it_is_once_its_model_has_come(fixture: RepositoryFixture) -> None:
    put(fixture, "e", "late")
    fixture.failure("e")
    fixture.configure("late")
    fixture.write("late", 1, plus=4)
    fixture.load("e")
    states = {entry.name: (entry.state, entry.reason) for entry in fixture.index()}
    assert states["e"] == states["late"] == ("READY", "")


def test_ensemble_that_serves_stays_ready_when_it_cannot_be_loaded_anew(fixture: RepositoryFixture) -> None:
    put(fixture, "e", "a")
    fixture.load("e")
    put(fixture, "e", "a", "missing")
    fixture.failure("e")
    (entry,) = (entry for entry in fixture.index() if entry.name == "e")
    assert (entry.version, entry.state) == ("1", "READY")


def test_ensemble_that_was_unloaded_and_cannot_be_loaded_again_says_why(fixture: RepositoryFixture) -> None:
    put(fixture, "e", "a")
    fixture.load("e")
    fixture.control.unload("e")
    wait_until(lambda: not fixture.core.view.live_versions("e"), "e is unloaded", 30)
    put(fixture, "e", "a", "missing")
    reason = fixture.failure("e").status.message
    (entry,) = (entry for entry in fixture.index() if entry.name == "e")
    assert (entry.version, entry.state, entry.reason) == ("1", "UNAVAILABLE", reason)


def test_ensembles_in_a_circle_are_refused(fixture: RepositoryFixture) -> None:
    put(fixture, "e", "f")
    put(fixture, "f", "e")
    assert "circle" in refusal(fixture.load, "e")


def test_unload_leaves_the_models_of_an_ensemble_in_place(fixture: RepositoryFixture) -> None:
    put(fixture, "e", "a")
    fixture.load("e")
    fixture.control.unload("e")
    assert (fixture.versions("e"), fixture.versions("a")) == (set(), {1})


def test_unload_of_dependents_spares_those_that_others_use_or_that_were_asked_for(fixture: RepositoryFixture) -> None:
    put(fixture, "e", "a", "b", "c")
    put(fixture, "other", "b")
    fixture.load("a")
    fixture.load("other")
    fixture.load("e")
    fixture.load("e")
    fixture.control.unload("e", unload_dependents=True)
    assert fixture.versions("a") == fixture.versions("b") == {1}
    assert fixture.versions("c") == set()


def test_unload_of_dependents_reaches_nested_ensembles(fixture: RepositoryFixture) -> None:
    put(fixture, "inner", "a")
    put(fixture, "outer", "inner", "b")
    fixture.load("outer")
    fixture.control.unload("outer", unload_dependents=True)
    assert [fixture.versions(name) for name in ("outer", "inner", "a", "b")] == [set()] * 4
