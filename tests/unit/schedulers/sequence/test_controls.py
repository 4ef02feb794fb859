"""Control tensors: values, types and shapes, as the config says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.schedulers.sequence_models import SumModel, sum_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import ServingError
from tfs_lite.schedulers.sequence.controls import Controls

Make = Callable[..., Any]
ROWS = [SequenceFlags(5, start=True), None, SequenceFlags(6, end=True), SequenceFlags(7, start=True, end=True)]


def controls(control: dict[str, object], batch: int = 4, **rest: object) -> Controls:
    batching = {"control_input": [{"name": "CONTROL", "control": [control]}]}
    return Controls.of(ModelSettings.model_validate({"max_batch_size": batch, "sequence_batching": batching, **rest}))


def written(made: Controls, rows: list[SequenceFlags | None]) -> list[Any]:
    (shape, dtype) = made.shapes(len(rows))["CONTROL"]
    arrays = {"CONTROL": np.empty(shape, dtype)}
    made.write(arrays, rows)
    return list(arrays["CONTROL"].ravel().tolist())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("START", [20, 10, 10, 20]), ("END", [10, 10, 20, 20]), ("READY", [20, 10, 20, 20])],
    ids=["start", "end", "ready"],
)
def test_flags_have_the_values_that_the_config_gives_them(kind: str, expected: list[int]) -> None:
    made = controls({"kind": f"CONTROL_SEQUENCE_{kind}", "int32_false_true": [10, 20]})
    assert written(made, ROWS) == expected


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ({"int32_false_true": [1, 0]}, "int32", [0, 1]),
        ({"fp32_false_true": [-0.5, 2]}, "float32", [2, -0.5]),
        ({"bool_false_true": [False, True]}, "bool", [True, False]),
    ],
    ids=["int32", "fp32", "bool"],
)
def test_flags_have_the_type_of_their_values(values: dict[str, object], dtype: str, expected: list[object]) -> None:
    made = controls({"kind": "CONTROL_SEQUENCE_START", **values})
    assert made.shapes(2)["CONTROL"] == ((2, 1), dtype)
    assert written(made, ROWS[:2]) == expected


@pytest.mark.parametrize(
    ("data_type", "id", "expected"),
    [
        ("TYPE_UINT64", 2**64 - 2, 2**64 - 2),
        ("TYPE_INT64", 2**64 - 2, -2),
        ("TYPE_UINT32", 2**40 + 2**32 - 3, 2**32 - 3),
        ("TYPE_INT32", 2**40 + 2**32 - 3, -3),
        ("TYPE_STRING", "näme\0", "näme\0".encode()),
    ],
)
def test_id_has_the_type_that_the_config_says(data_type: str, id: int | str, expected: object) -> None:
    made = controls({"kind": "CONTROL_SEQUENCE_CORRID", "data_type": data_type})
    assert written(made, [SequenceFlags(id), None]) == [expected, b"" if isinstance(id, str) else 0]


START: dict[str, object] = {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}
FLAT = {"parameters": {"flatten_control_inputs": "true"}}


def test_shape_is_rows_by_one_or_flat_or_one_without_a_batch() -> None:
    assert controls(START).shapes(3)["CONTROL"][0] == (3, 1)
    assert controls(START, **FLAT).shapes(3)["CONTROL"][0] == (3,)
    assert controls(START, 0).shapes(1)["CONTROL"][0] == (1,)
    assert controls(START, 0, **FLAT).shapes(1)["CONTROL"][0] == (1,)


def test_parameter_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(ServingError, match="flatten_control_inputs must be true or false"):
        controls(START, parameters={"flatten_control_inputs": "perhaps"})


@pytest.mark.parametrize("how", [{}, {"oldest": {"max_candidate_sequences": 4}}], ids=["direct", "oldest"])
def test_model_can_have_flat_control_tensors(make: Make, how: dict[str, Any]) -> None:
    fixture = make(sum_settings(4, **FLAT, **how), SumModel)
    assert [fixture.ask(1, 1, start=True).sum, fixture.ask(1, 1).sum] == [1, 2]
    assert {name: array.shape for name, array in fixture.model.runs[1].items()} == {
        "INPUT": (1, 1),
        "START": (1,),
        "READY": (1,),
        "END": (1,),
        "CORRID": (1,),
    }
