"""State that the scheduler keeps for a model: from request to request, and never from one sequence to another."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.schedulers.sequence_models import SumByStateModel, sum_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.sequence.states import States

Make = Callable[..., Any]


def state(dims: int | tuple[int, ...] = 1, data_type: str = "TYPE_INT32", **initial: object) -> Mapping[str, object]:
    sizes = [dims] if isinstance(dims, int) else list(dims)
    fields: dict[str, object] = {
        "input_name": "SUM_IN",
        "output_name": "SUM_OUT",
        "data_type": data_type,
        "dims": sizes,
    }
    if initial:
        sizes = [1 if size == -1 else size for size in sizes]
        fields["initial_state"] = [{"name": "first", "data_type": data_type, "dims": sizes, **initial}]
    return fields


def settings(batch: int = 4, one: Mapping[str, object] | None = None, **how: Any) -> ModelSettings:
    return sum_settings(batch, states=(one or state(),), **how)


@pytest.fixture(params=[{}, {"oldest": {"max_candidate_sequences": 4}}], ids=["direct", "oldest"])
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


class GrowingModel(SumByStateModel):
    """Remembers every number of its sequence, and answers how many there are."""

    def results(self, inputs: dict[str, Any]) -> dict[str, Any]:
        history = np.concatenate([inputs["SUM_IN"], inputs["INPUT"]], axis=1)
        return {"OUTPUT": np.full_like(inputs["INPUT"], history.shape[1]), "SUM_OUT": history}


@pytest.mark.parametrize("batch", [4, 0], ids=["batched", "alone"])
def test_sums_of_sequences_do_not_mix(make: Make, how: dict[str, Any], batch: int) -> None:
    fixture = make(settings(batch, **how), SumByStateModel, instances=2)
    first = [fixture.ask(number, 1, start=number == 1, end=number == 4) for number in (1, 2, 3, 4)]
    second = [fixture.ask(number, 2, start=number == 10, end=number == 40) for number in (10, 20, 40)]
    assert [each.sum for each in first] == [1, 3, 6, 10]
    assert [each.sum for each in second] == [10, 30, 70]


def test_start_begins_with_the_initial_state_again(make: Make, how: dict[str, Any]) -> None:
    fixture = make(settings(**how), SumByStateModel)
    assert [fixture.ask(5, 1, start=True).sum, fixture.ask(5, 1).sum, fixture.ask(1, 1, start=True).sum] == [5, 10, 1]


def test_state_is_neither_an_input_nor_an_output_of_clients(make: Make, how: dict[str, Any]) -> None:
    fixture = make(settings(**how), SumByStateModel)
    signature = fixture.servable.signatures[DEFAULT_SIGNATURE]
    assert (signature.input_names, signature.output_names) == (("INPUT",), ("OUTPUT",))
    assert list(fixture.ask(1, 1, start=True).answer) == ["OUTPUT"]


def test_state_output_that_is_a_regular_one_too_is_answered(make: Make, how: dict[str, Any]) -> None:
    plain = settings(**how).model_dump(exclude_unset=True)
    plain["output"] = [*plain["output"], {"name": "SUM_OUT", "data_type": "TYPE_INT32", "dims": [1]}]
    fixture = make(ModelSettings.model_validate(plain), SumByStateModel)
    fixture.ask(1, 1, start=True).wait()
    answer = fixture.ask(2, 1).answer
    assert {name: array.tolist() for name, array in answer.items()} == {"OUTPUT": [[3]], "SUM_OUT": [[3]]}


def test_state_can_grow_from_request_to_request(make: Make, how: dict[str, Any]) -> None:
    fixture = make(settings(one=state(-1), **how), GrowingModel)
    for number in range(1, 5):
        assert fixture.ask(number, 1, start=number == 1).sum == number + 1
    assert fixture.model.runs[-1]["SUM_IN"].tolist() == [[0, 1, 2, 3]]


def test_sequences_whose_states_differ_in_size_run_apart(make: Make) -> None:
    fixture = make(settings(one=state(-1)), GrowingModel)
    fixture.ask(1, 1, start=True).wait()
    fixture.ask_held(1, 1)
    request = [fixture.ask(1, 1), fixture.ask(1, 2, start=True), fixture.ask(1, 3, start=True)]
    fixture.open()
    assert [each.sum for each in request] == [4, 2, 2]
    assert fixture.model.column("READY")[2:] == [[1, 0, 0], [0, 1, 1]]
    assert fixture.model.runs[2]["SUM_IN"].tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 0]]


def test_null_row_gets_a_state_that_is_not_kept(make: Make) -> None:
    fixture = make(settings(), SumByStateModel, lends=True)
    assert [fixture.ask(id, id, start=True).sum for id in (1, 2)] == [1, 2]
    assert fixture.ask(5, 2).sum == 7
    assert fixture.model.runs[-1]["SUM_IN"].tolist() == [[0], [2]]
    assert fixture.ask(5, 1).sum == 6


def test_state_stays_as_it_was_when_a_run_fails_and_when_it_is_not_written(make: Make, how: dict[str, Any]) -> None:
    class Forgetful(SumByStateModel):
        def run(self, signature: str, inputs: Any, outputs: tuple[str, ...]) -> Any:
            results = super().run(signature, inputs, outputs)
            if 7 in inputs["INPUT"]:
                del results["SUM_OUT"]
            return results

    fixture = make(settings(**how), Forgetful)
    fixture.model.breaks = {13}
    assert fixture.ask(1, 1, start=True).sum == 1
    assert fixture.ask(13, 1).code is StatusCode.INTERNAL
    assert fixture.ask(7, 1).sum == 8
    assert fixture.ask(1, 1).sum == 2


def test_value_that_is_no_such_state_fails_the_request(make: Make, how: dict[str, Any]) -> None:
    class Wrong(SumByStateModel):
        def results(self, inputs: dict[str, Any]) -> dict[str, Any]:
            results = super().results(inputs)
            wide = 9 in inputs["INPUT"]
            return {**results, "SUM_OUT": np.repeat(results["SUM_OUT"], 2, axis=-1) if wide else results["SUM_OUT"]}

    fixture = make(settings(**how), Wrong)
    fixture.ask(1, 1, start=True).wait()
    request = fixture.ask(9, 1)
    assert request.code is StatusCode.INTERNAL
    assert "wrote int32[2] to the state SUM_OUT, expected int32[1]" in request.message
    assert fixture.ask(1, 1).sum == 2


def test_states_are_kept_and_dropped_with_their_sequences(make: Make, how: dict[str, Any]) -> None:
    """By END, by cancelling, by idling."""
    fixture = make(settings(**how), SumByStateModel)
    fixture.ask(1, 1, start=True, end=True).wait()
    fixture.ask(1, 2, start=True).wait()
    fixture.wait_until(lambda: fixture.servable.kept_states == 1)
    fixture.shut()
    running, waiting = fixture.ask(1, 3, start=True), fixture.ask(1, 3)
    fixture.model.gate.wait_for()
    fixture.servable.cancel(waiting.call)
    fixture.open()
    running.wait()
    fixture.clock.advance(5)
    assert fixture.forgotten == [1, 3, 2]
    fixture.wait_until(lambda: fixture.servable.kept_states == 0)


# Initial states.


def test_initial_state_comes_from_a_file(make: Make, tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "hundred").write_bytes(np.array([100, 7], np.int32).tobytes())
    fixture = make(settings(one=state(data_file="hundred")), SumByStateModel, directory=tmp_path)
    assert [fixture.ask(1, 1, start=True).sum, fixture.ask(1, 2, start=True).sum, fixture.ask(1, 1).sum] == [
        101,
        101,
        102,
    ]


def test_initial_state_of_texts_has_each_after_its_length(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    texts = b"".join(struct.pack("<I", len(text)) + text for text in (b"one", b""))
    (tmp_path / "initial_state" / "texts").write_bytes(texts)
    states = States.of(settings(one=state(2, "TYPE_STRING", data_file="texts")), tmp_path)
    assert states.initial()["SUM_IN"].tolist() == [b"one", b""]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (state(), np.zeros(1, np.int32)),
        (state((-1, 3), "TYPE_FP32"), np.zeros((1, 3), np.float32)),
        (state((2, -1), "TYPE_STRING"), np.full((2, 1), b"", object)),
        (state((-1,), "TYPE_BOOL", zero_data=True), np.zeros(1, np.bool_)),
    ],
    ids=["number", "any-size", "texts", "zero-data"],
)
def test_without_a_file_the_initial_state_is_zeros(one: Mapping[str, object], expected: Any) -> None:
    initial = States.of(settings(one=one), None).initial()["SUM_IN"]
    assert (initial.dtype, initial.shape, initial.tolist()) == (expected.dtype, expected.shape, expected.tolist())
    assert not initial.flags.writeable


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("missing", None, "cannot be read from initial_state/missing"),
        ("short", b"\x01\x02", "it has 2 bytes, 4 are needed"),
    ],
    ids=["missing", "short"],
)
def test_file_that_is_no_initial_state_is_refused(tmp_path: Path, name: str, content: bytes | None, text: str) -> None:
    (tmp_path / "initial_state").mkdir()
    if content is not None:
        (tmp_path / "initial_state" / name).write_bytes(content)
    with pytest.raises(ServingError, match=text) as caught:
        States.of(settings(one=state(data_file=name)), tmp_path)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert str(tmp_path) not in str(caught.value)


def test_state_that_is_kept_here_outlives_the_worker(make: Make) -> None:
    fixture = make(sum_settings(2, states=(state(),)), SumByStateModel)
    assert fixture.ask(1, 1, start=True).sum == 1
    fixture.models[0].start_worker_again()
    assert fixture.ask(1, 1).sum == 2
