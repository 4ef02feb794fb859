"""What comes out of an ensemble of real batchers, in threads."""

from __future__ import annotations

import inspect
import threading

import numpy as np

from tests.support.schedulers.ensembles import (
    CHAIN,
    DIAMOND,
    Calculator,
    EnsembleFixture,
    adder,
    ask,
    diamond,
    pipeline,
    settings_of,
    signature,
    single,
    spec,
    step,
    tensor,
)
from tests.support.schedulers.requests import PATIENCE, Request
from tfs_lite.core.model import PredictCall, Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.ensemble.servable import MAX_PLANS


def test_tensors_go_from_step_to_step(fixture: EnsembleFixture) -> None:
    e = diamond(fixture)
    answer = ask(e, {"IN": [1, 2]})
    assert {name: value.tolist() for name, value in answer.outputs.items()} == {"LEFT": [12, 13], "RIGHT": [102, 103]}
    assert sorted(fixture.counted()) == ["first", "left", "right"]
    assert list(ask(e, {"IN": [1, 2]}, ("RIGHT", "LEFT")).outputs) == ["RIGHT", "LEFT"]


def test_step_that_is_not_needed_does_not_run_and_models_give_mapped_outputs_only(fixture: EnsembleFixture) -> None:
    left = Calculator(
        signature({"x": (2,)}, {"y": (2,), "z": (2,)}), lambda inputs: {"y": inputs["x"], "z": inputs["x"]}
    )
    e = diamond(fixture, left)
    assert list(ask(e, {"IN": [1, 2]}, ("LEFT",)).outputs) == ["LEFT"]
    assert sorted(fixture.counted()) == ["first", "left"]
    assert left.asked == [("y",)]


def test_steps_that_are_ready_run_at_the_same_time(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    left, right = adder(10, gate=gate), adder(100, gate=gate)
    e = diamond(fixture, left, right)
    answer = ask(e, {"IN": [1, 2]})
    left.wait_entered()
    right.wait_entered()
    assert not answer.done
    gate.set()
    assert set(answer.outputs) == {"LEFT", "RIGHT"}


def test_tensors_are_handed_on_without_copies(fixture: EnsembleFixture) -> None:
    given, made = np.ones(2, np.float32), np.zeros(2, np.float32)
    first = Calculator(signature({"x": (2,)}, {"y": (2,)}), lambda inputs: {"y": made})
    last = adder(1)
    fixture.serve("a", first)
    fixture.serve("b", last)
    e = fixture.ensemble("e", CHAIN)
    assert ask(e, {"IN": given}).outputs["OUT"].tolist() == [1, 1]
    assert np.shares_memory(first.seen[0]["x"], given)
    assert np.shares_memory(last.seen[0]["x"], made)


def test_requests_of_an_ensemble_share_the_batches_of_its_models(fixture: EnsembleFixture) -> None:
    gate = threading.Event()
    model = adder(1, batch=8, gate=gate)
    fixture.serve("a", model, max_batch_size=8)
    e = fixture.ensemble("e", single("a", max_batch_size=8))
    first = ask(e, {"IN": [[0, 0]]})
    model.wait_entered()
    rest = [ask(e, {"IN": [[number, number]]}) for number in (1, 2, 3)]
    gate.set()
    assert [answer.outputs["OUT"].tolist() for answer in (first, *rest)] == [[[n + 1, n + 1]] for n in range(4)]
    assert [seen["x"].shape for seen in model.seen] == [(1, 2), (3, 2)]


def test_tensors_gain_and_lose_the_batch_between_an_ensemble_and_its_models(fixture: EnsembleFixture) -> None:
    batched = adder(1, batch=4)
    fixture.serve("b", batched, max_batch_size=4)
    assert ask(fixture.ensemble("f", single("b")), {"IN": [1, 2]}).outputs["OUT"].tolist() == [2, 3]
    assert batched.seen[0]["x"].shape == (1, 2)
    model = adder(1)
    fixture.serve("a", model)
    e = fixture.ensemble("e", single("a", max_batch_size=4))
    assert ask(e, {"IN": [[1, 2]]}).outputs["OUT"].tolist() == [[2, 3]]
    assert model.seen[0]["x"].shape == (2,)
    status = ask(e, {"IN": [[1, 2], [3, 4]]}).status
    assert status.code is StatusCode.INVALID_ARGUMENT
    assert status.message.startswith("in ensemble 'e', step 0 (model a): input x has rank 2, expected 1")


def with_default(w: list[int]) -> Calculator:
    """y = x + w."""
    specs = (spec("x", (2,)), spec("w", (2,)))
    found = Signature(specs, (spec("y", (2,)),), defaults={"w": np.array(w, np.float32)})
    return Calculator(found, lambda inputs: {"y": inputs["x"] + inputs["w"]})


def test_default_of_an_input_that_is_not_mapped_is_filled_in(fixture: EnsembleFixture) -> None:
    fixture.serve("a", with_default([5, 6]))
    e = fixture.ensemble("e", single("a"))
    assert ask(e, {"IN": [1, 2]}).outputs["OUT"].tolist() == [6, 8]


class Shortcut:
    """A servable that answers on the submitting thread, with what ``compute`` makes of the inputs. ``depths`` has the
    stack's at each call."""

    traits = Traits("numpy")

    def __init__(self, signature: Signature, compute: object) -> None:
        self.signatures = {DEFAULT_SIGNATURE: signature}
        self.compute = compute
        self.depths: list[int] = []

    def submit(self, call: PredictCall) -> None:
        self.depths.append(len(inspect.stack(0)))
        call.on_done(self.compute(call.inputs))

    def cancel(self, call: PredictCall) -> None:
        pass

    def close(self) -> None:
        pass


def test_stack_does_not_grow_with_steps_that_end_at_once(fixture: EnsembleFixture) -> None:
    count = 40
    servable = Shortcut(signature({"x": (2,)}, {"y": (2,)}), lambda inputs: {"y": inputs["x"] + 1})
    fixture.add(ServableId("a", 1), servable)
    steps = [step("a", {"x": f"t{number}"}, {"y": f"t{number + 1}"}) for number in range(count)]
    e = fixture.ensemble("e", settings_of([tensor("t0")], [tensor(f"t{count}")], steps))
    assert ask(e, {"t0": [0, 0]}).outputs[f"t{count}"].tolist() == [count, count]
    assert len(servable.depths) == count
    assert len(set(servable.depths)) == 1


def test_missing_output_of_a_step_is_left_out(fixture: EnsembleFixture) -> None:
    found = signature({"x": (2,)}, {"y": (2,), "z": (2,)})
    fixture.add(ServableId("a", 1), Shortcut(found, lambda inputs: {"y": inputs["x"]}))
    steps = [step("a", {"x": "IN"}, {"y": "Y", "z": "Z"})]
    e = fixture.ensemble("e", settings_of([tensor("IN")], [tensor("Y"), tensor("Z")], steps))
    assert set(ask(e, {"IN": [1, 2]}).outputs) == {"Y"}
    status = ask(e, {"IN": [1, 2]}, ("Z",)).status
    assert status.code is StatusCode.INVALID_ARGUMENT
    assert status.message.startswith("in ensemble 'e', unexpected deadlock")


def test_step_runs_without_a_missing_input_and_is_refused_if_it_needs_it(fixture: EnsembleFixture) -> None:
    first = signature({"x": (2,)}, {"y": (2,), "z": (2,)})
    fixture.add(ServableId("a", 1), Shortcut(first, lambda inputs: {"y": inputs["x"]}))
    fixture.serve("b", with_default([5, 5]))
    begin = step("a", {"x": "IN"}, {"y": "t", "z": "u"})
    e = fixture.ensemble("e", pipeline(begin, step("b", {"x": "t", "w": "u"}, {"y": "OUT"})))
    assert ask(e, {"IN": [1, 2]}).outputs["OUT"].tolist() == [6, 7]
    f = fixture.ensemble("f", pipeline(begin, step("b", {"x": "u", "w": "t"}, {"y": "OUT"})))
    status = ask(f, {"IN": [1, 2]}).status
    assert status.code is StatusCode.INVALID_ARGUMENT
    assert status.message.startswith("in ensemble 'f', step 1 (model b): Signature input alias: x not found")


def test_remembered_plans_are_bounded(fixture: EnsembleFixture) -> None:
    outputs = [tensor(f"o{number}") for number in range(7)]
    fixture.serve("a", adder(1))
    steps = [step("a", {"x": "IN"}, {"y": f"o{number}"}) for number in range(7)]
    e = fixture.ensemble("e", settings_of([tensor("IN")], outputs, steps))
    for choice in range(1, 2**7):
        wanted = tuple(f"o{number}" for number in range(7) if choice & 1 << number)
        assert tuple(ask(e, {"IN": [0, 0]}, wanted).outputs) == wanted
    assert len(e._plans) == MAX_PLANS


def test_many_requests_from_many_threads_are_each_answered_once(fixture: EnsembleFixture) -> None:
    fixture.serve("first", adder(1, batch=8), max_batch_size=8)
    fixture.serve("left", adder(10, batch=8), max_batch_size=8)
    fixture.serve("right", adder(100, batch=8), max_batch_size=8)
    e = fixture.ensemble("e", DIAMOND | {"max_batch_size": 8})
    answers: dict[int, Request] = {}
    cancelled = set(range(0, 200, 7))

    def client(numbers: range) -> None:
        for number in numbers:
            answers[number] = ask(e, {"IN": [[number, number]]})
            if number in cancelled:
                e.cancel(answers[number].call)

    threads = [threading.Thread(target=client, args=(range(start, 200, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for number, answer in answers.items():
        result = answer.answer
        if isinstance(result, Status):
            assert (number in cancelled, result.code) == (True, StatusCode.CANCELLED)
        else:
            assert (result["LEFT"][0, 0], result["RIGHT"][0, 0]) == (number + 11, number + 101)
    fixture.wait_for_no_handles()
    assert e.pending == 0
    assert all(len(answer.answers) == 1 for answer in answers.values())
