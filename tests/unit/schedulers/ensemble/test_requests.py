"""What a request brings along, and which versions of the models answer it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from tests.support.schedulers.ensembles import CHAIN, EnsembleFixture, adder, ask, diamond, single
from tests.support.schedulers.requests import PATIENCE
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode


def test_metadata_reaches_every_step(fixture: EnsembleFixture) -> None:
    e = diamond(fixture)
    flags, deadline = SequenceFlags(7, start=True), time.monotonic() + PATIENCE
    answer = ask(e, {"IN": [1, 2]}, deadline=deadline, priority=3, timeout=PATIENCE, sequence=flags)
    assert answer.outputs
    told = [(call.sequence, call.priority, call.timeout, call.deadline) for _, call, _ in fixture.calls]
    assert told == 3 * [(flags, 3, PATIENCE, deadline)]


def test_times_are_the_sums_of_the_steps(fixture: EnsembleFixture) -> None:
    e = diamond(fixture)
    answer = ask(e, {"IN": [1, 2]})
    assert answer.outputs
    inner = [step_call for _, step_call, _ in fixture.calls]
    assert len(inner) == 3
    assert answer.call.admitted
    assert all(step_call.admitted for step_call in inner)
    assert answer.call.arrived > 0
    assert all(step_call.arrived >= answer.call.arrived for step_call in inner)
    assert answer.call.run_seconds == pytest.approx(sum(step_call.run_seconds for step_call in inner))
    assert answer.call.queue_seconds == pytest.approx(sum(step_call.queue_seconds for step_call in inner))
    assert answer.call.run_seconds > 0


def test_request_keeps_the_versions_that_it_began_with(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    first = adder(1, gate=gate)
    fixture.serve("a", first)
    fixture.serve("b", adder(10))
    e = fixture.ensemble("e", CHAIN)
    old = ask(e, {"IN": [0, 0]})
    first.wait_entered()
    fixture.serve("b", adder(20), version=2)
    gate.set()
    assert old.outputs["OUT"].tolist() == [11, 11]
    assert ask(e, {"IN": [0, 0]}).outputs["OUT"].tolist() == [21, 21]
    assert [servable_id for servable_id, _, _ in fixture.calls if servable_id.name == "b"] == [
        ServableId("b", 1),
        ServableId("b", 2),
    ]


def test_step_with_a_version_stays_with_it(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    fixture.serve("a", adder(2), version=2)
    e = fixture.ensemble("e", single("a", version=1))
    assert ask(e, {"IN": [0, 0]}).outputs["OUT"].tolist() == [1, 1]


def test_version_in_use_is_not_unloaded_and_is_let_go_after_the_answer(fixture: EnsembleFixture) -> None:
    gate, drained = threading.Event(), threading.Event()
    model = adder(1, gate=gate)
    fixture.serve("a", model)
    e = fixture.ensemble("e", single("a"))
    answer = ask(e, {"IN": [0, 0]})
    model.wait_entered()
    fixture.map.withdraw(ServableId("a", 1), drained.set)
    assert not drained.is_set()
    gate.set()
    assert answer.outputs
    assert drained.is_set()


def test_only_models_of_needed_steps_are_taken(fixture: EnsembleFixture) -> None:
    e = diamond(fixture)
    fixture.map.withdraw(ServableId("right", 1), lambda: None)
    assert set(ask(e, {"IN": [0, 0]}, ("LEFT",)).outputs) == {"LEFT"}
    answer = ask(e, {"IN": [0, 0]})
    assert answer.status == Status(
        StatusCode.UNAVAILABLE, "in ensemble 'e', step 2 (model right): model right is not available"
    )
    assert not answer.call.admitted
    assert e.missing() == (("right", None),)
    assert e.pending == 0


def test_model_that_has_changed_its_inputs_fails_the_request(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    e = fixture.ensemble("e", single("a"))
    fixture.serve("a", adder(1, dims=(3,)), version=2)
    status = ask(e, {"IN": [0, 0]}).status
    assert status.code is StatusCode.INVALID_ARGUMENT
    assert "input x has size 2 in dimension 0, expected 3" in status.message


def test_requests_of_a_sequence_may_be_sent_to_the_version_it_began_on(fixture: EnsembleFixture) -> None:
    fixture.serve("a", adder(1))
    asked = []

    def stay(name: str, version: int | None, flags: SequenceFlags) -> ServableHandle:
        asked.append((name, version, flags.id))
        return fixture.resolve(name, 1)

    e = fixture.ensemble("e", single("a"), resolve_sequence=stay)
    fixture.serve("a", adder(2), version=2)
    assert ask(e, {"IN": [0, 0]}, sequence=SequenceFlags("s")).outputs["OUT"].tolist() == [1, 1]
    assert ask(e, {"IN": [0, 0]}).outputs["OUT"].tolist() == [2, 2]
    assert asked == [("a", None, "s")]


def test_sequence_that_has_lost_its_version_is_told_so(fixture: EnsembleFixture) -> None:
    def lost(name: str, version: int | None, flags: SequenceFlags) -> ServableHandle:
        raise ServingError(StatusCode.UNAVAILABLE, "the version is gone")

    fixture.serve("a", adder(1))
    e = fixture.ensemble("e", single("a"), resolve_sequence=lost)
    status = ask(e, {"IN": [0, 0]}, sequence=SequenceFlags(5)).status
    assert status == Status(StatusCode.UNAVAILABLE, "in ensemble 'e', step 0 (model a): the version is gone")


def test_labels_are_those_of_the_models_that_give_the_outputs(fixture: EnsembleFixture) -> None:
    e = diamond(fixture)
    assert dict(e.traits.labels) == {}
    left = fixture.servables[1]
    left.traits = replace(left.traits, labels={"y": ["cat", "dog"], "z": ["other"]})
    assert dict(e.traits.labels) == {"LEFT": ["cat", "dog"]}
    fixture.map.withdraw(ServableId("left", 1), lambda: None)
    assert dict(e.traits.labels) == {}
