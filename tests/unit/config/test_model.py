"""The settings of one model and the signature they declare."""

from typing import Any

import pytest

from tfs_lite.config.model import ModelSettings, signature_of
from tfs_lite.config.settings import Document, build
from tfs_lite.core.signature import DataType, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError


def settings(**fields: Any) -> ModelSettings:
    return build(ModelSettings, Document(fields))


def tensor(name: str = "x", data_type: str = "TYPE_FP32", dims: Any = (3,)) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims}


def test_a_batch_size_puts_a_symbolic_batch_dimension_first() -> None:
    signature = signature_of(settings(max_batch_size=8, input=[tensor("a"), tensor("b")], output=[tensor("y")]))
    batch = SymbolicDim("batch", 8)
    assert signature is not None
    assert signature.inputs == (
        TensorSpec("a", DataType.FLOAT, (batch, 3)),
        TensorSpec("b", DataType.FLOAT, (batch, 3)),
    )
    assert signature.outputs == (TensorSpec("y", DataType.FLOAT, (batch, 3)),)


def test_without_a_batch_size_the_dims_are_the_whole_shape() -> None:
    signature = signature_of(settings(input=[tensor(data_type="TYPE_STRING")]))
    assert signature is not None
    assert signature.inputs == (TensorSpec("x", DataType.STRING, (3,)),)


def test_every_size_that_a_request_chooses_is_a_symbol_of_its_own() -> None:
    signature = signature_of(settings(input=[tensor("a", dims=[-1, -1]), tensor("b", dims=[-1])]))
    assert signature is not None
    assert [spec.shape for spec in signature.inputs] == [
        (SymbolicDim("a_0"), SymbolicDim("a_1")),
        (SymbolicDim("b_0"),),
    ]


def test_settings_without_tensors_declare_no_signature() -> None:
    assert signature_of(settings(max_batch_size=8)) is None


@pytest.mark.parametrize(
    ("value", "text"), [("16", "16"), (16, "16"), (True, "true"), ({"string_value": "16"}, "16"), ({}, "")]
)
def test_parameters_are_texts_however_they_are_written(value: object, text: str) -> None:
    assert settings(parameters={"p": value}).parameters == {"p": text}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_batch_size": -1}, "max_batch_size: .* got -1"),
        ({"max_batch_size": 2**31}, "less than"),
        ({"input": [{"name": "x", "data_type": "TYPE_FP32"}]}, r"input\[0\]\.dims: is required"),
        ({"input": [tensor(dims=[0])]}, r"input\[0\]\.dims\[0\]: must be 1 or more, or -1 for any size; got 0"),
        ({"input": [tensor(dims=[-2])]}, "got -2"),
        ({"input": [tensor(name="")]}, r"input\[0\]\.name: .*at least 1 character"),
        ({"input": [tensor(), tensor()]}, r'input\[1\]\.name: "x" is listed twice'),
        ({"output": [tensor(data_type="TYPE_INVALID")]}, '"TYPE_INVALID" is no data type'),
        ({"output": [tensor(data_type="TYPE_FP31")]}, 'did you mean "TYPE_FP32"?'),
        ({"output": [tensor(data_type=11)]}, '"11" is no data type'),  # type: ignore[arg-type]
        ({"parameters": {"p": None}}, r"parameters\.p: .*valid string"),
        ({"parameters": {"p": {"int_value": 3}}}, r"parameters\.p: .*valid string"),
        ({"inputs": []}, 'unknown field; did you mean "input"?'),
    ],
)
def test_a_mistake_names_the_field_and_what_came(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ServingError, match=message):
        settings(**fields)


def test_empty_dims_are_one_value_for_each_row() -> None:
    fields = {"max_batch_size": 8, "input": [tensor(dims=[])]}
    signature = signature_of(build(ModelSettings, Document(fields)))
    assert signature is not None
    assert signature.inputs[0].shape == (SymbolicDim("batch", 8),)
