"""Rows of requests and null rows, of any type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from tests.support.schedulers.sequence_models import SumModel
from tfs_lite.config.model import ModelSettings, signature_of
from tfs_lite.core.model import PredictCall, SequenceFlags
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Status
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.schedulers.sequence.controls import Controls
from tfs_lite.schedulers.sequence.rows import Row, RowPlan
from tfs_lite.schedulers.sequence.states import States

SETTINGS = ModelSettings.model_validate(
    {
        "max_batch_size": 4,
        "input": [
            {"name": "text", "data_type": "TYPE_STRING", "dims": [2]},
            {"name": "half", "data_type": "TYPE_BF16", "dims": [-1]},
        ],
        "output": [{"name": "y", "data_type": "TYPE_STRING", "dims": [2]}],
        "sequence_batching": {
            "control_input": [
                {"name": "id", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}]}
            ],
            "state": [{"input_name": "in", "output_name": "out", "data_type": "TYPE_BOOL", "dims": [-1]}],
        },
    }
)
MODEL = SumModel(SETTINGS, lends=True)
SIGNATURE = signature_of(SETTINGS)
assert SIGNATURE is not None
PLAN = RowPlan.of(DEFAULT_SIGNATURE, "m", SIGNATURE, SETTINGS, Controls.of(SETTINGS), States.of(SETTINGS, None))


def row(text: list[bytes], half: list[float], id: str, state: list[bool], outputs: tuple[str, ...] = ()) -> Row:

    inputs = {"text": np.array([text], object), "half": np.array([half], bfloat16)}
    call = PredictCall(DEFAULT_SIGNATURE, inputs, outputs, None, lambda result: None)
    return Row(call, SequenceFlags(id), {"in": np.array(state)})


FIRST = row([b"a", b"b\0"], [1.5], "one", [True])
SECOND = row([b"c", b""], [2.0], "two", [False], ("y",))


def call_for(*outputs: str) -> PredictCall:
    return PredictCall("", {}, outputs, None, lambda answer: None)


def test_rows_are_stacked_and_null_rows_are_zeros_and_empty_texts() -> None:
    arrays = PLAN.assemble(MODEL, [None, FIRST, SECOND])
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "text": [[b"", b""], [b"a", b"b\0"], [b"c", b""]],
        "half": [[0], [1.5], [2.0]],
        "in": [[False], [True], [False]],
        "id": [[b""], [b"one"], [b"two"]],
    }


def test_request_alone_goes_in_as_it_came() -> None:
    arrays = PLAN.own_inputs(FIRST)
    assert arrays["text"] is FIRST.inputs["text"]
    assert (arrays["in"].tolist(), arrays["id"].tolist()) == ([[True]], [[b"one"]])


def test_requests_of_other_shapes_or_inputs_have_another_key() -> None:
    keys = [PLAN.shape_key(each.inputs) for each in (FIRST, SECOND, row([b"", b""], [1, 2], "x", [True]))]
    assert keys[0] == keys[1] != keys[2]
    assert PLAN.shape_key({"text": FIRST.inputs["text"]}) != keys[0]


def test_model_is_asked_for_what_calls_want_and_for_states() -> None:
    assert PLAN.outputs([FIRST.call]) == ("y", "out")
    assert PLAN.outputs([SECOND.call, SECOND.call]) == ("y", "out")


def test_answer_has_its_row_without_the_state_which_is_kept() -> None:
    out = np.array([[True, False], [False, True]])
    results: dict[str, Any] = {"y": np.array([[b"a", b"b"], [b"c", b"d"]], object), "out": out}
    answer, state = PLAN.outcome(results, 1, call_for(), FIRST.state)
    assert not isinstance(answer, Status)
    assert {name: np.asarray(array).tolist() for name, array in answer.items()} == {"y": [[b"c", b"d"]]}
    out.fill(True)
    assert state["in"].tolist() == [False, True]


def test_output_that_is_missing_is_an_error_and_the_state_stays() -> None:
    answer, state = PLAN.outcome({"out": np.array([[True]])}, 0, call_for("y"), FIRST.state)
    assert isinstance(answer, Status)
    assert "did not return output y" in answer.message
    assert state is FIRST.state


def test_conditions_on_sizes_are_about_all_inputs_and_for_the_model_to_check() -> None:
    conditions = read_conditions([("START", 0), (SIGNATURE.inputs[0].name, 0)], ["n0 >= 5", "n0 == n1"])
    signature = replace(SIGNATURE, conditions=conditions)
    plan = RowPlan.of(DEFAULT_SIGNATURE, "m", signature, SETTINGS, Controls.of(SETTINGS), States.of(SETTINGS, None))
    assert plan.visible.conditions is None
