"""Inputs and outputs of a model's config: what Triton lets a file say about them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Document, build
from tfs_lite.config.tensors import ModelTensor, Reshape
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.signature import DataType

PROTO_TEXT = """
input {
  name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, 4, -1] reshape { shape: [12, -1] }
  allow_ragged_batch: true optional: true is_non_linear_format_io: true is_shape_tensor: false
}
output { name: "y" data_type: TYPE_STRING dims: 1 reshape {} label_filename: "labels.txt" }
"""
YAML = """
input:
  - name: x
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [3, 4, -1]
    reshape: {shape: [12, -1]}
    allow_ragged_batch: true
    optional: true
    is_non_linear_format_io: true
    is_shape_tensor: false
output: [{name: y, data_type: TYPE_STRING, dims: [1], reshape: {}, label_filename: labels.txt}]
"""


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "data_type": "TYPE_FP32", "dims": [2, 3], **fields}


@pytest.mark.parametrize(("text", "name"), [(PROTO_TEXT, "c.pbtxt"), (YAML, "c.yaml")], ids=["text", "yaml"])
def test_both_syntaxes_say_the_same(text: str, name: str) -> None:
    settings = parse_model_settings(text, name)
    assert settings.input == (
        ModelTensor(
            name="x",
            data_type=DataType.FLOAT,
            format="FORMAT_NCHW",
            dims=(3, 4, -1),
            reshape=Reshape(shape=(12, -1)),
            allow_ragged_batch=True,
            optional=True,
            is_non_linear_format_io=True,
        ),
    )
    assert settings.output == (
        ModelTensor(name="y", data_type=DataType.STRING, dims=(1,), reshape=Reshape(), label_filename="labels.txt"),
    )


@pytest.mark.parametrize(
    ("dims", "shape"),
    [([6], [2, 3]), ([1, 1], []), ([-1, 4], [-1, 2, 2]), ([4, -1, 2, 3], [2, 2, -1, 6]), ([-1, -1], [-1, 1, -1])],
    ids=str,
)
def test_a_reshape_keeps_the_elements(dims: list[int], shape: list[int]) -> None:
    fields = {"input": [tensor(dims=dims, reshape={"shape": shape})]}
    (found,) = build(ModelSettings, Document(fields)).input
    assert found.reshape == Reshape(shape=tuple(shape))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": [tensor(reshape={"shape": [5]})]}, r"input[0].reshape.shape: [5] has not as many elements as dims"),
        ({"input": [tensor(reshape={"shape": [-1]})]}, "reshape.shape: [-1] has not as many elements"),
        ({"input": [tensor(dims=[-1, 4], reshape={"shape": [4, -1]})]}, "reshape.shape: [4, -1] has not as many"),
        ({"input": [tensor(dims=[-1, -1], reshape={"shape": [-1]})]}, "reshape.shape: [-1] has not as many"),
        ({"output": [tensor(reshape={"shape": [0]})]}, "output[0].reshape.shape[0]: must be 1 or more"),
        ({"output": [tensor(reshape={})]}, "output[0].reshape.shape: [] has not as many elements"),
        ({"input": [tensor(dims=[2**63])]}, "input[0].dims[0]: must be at most 9223372036854775807; got 9.22e+18"),
        ({"input": [tensor(is_shape_tensor=True)]}, "input[0].is_shape_tensor: shape tensors are not supported"),
        ({"input": [tensor(format="FORMAT_NHWC")]}, "input[0].format: FORMAT_NHWC needs 3 dims; got 2"),
        ({"input": [tensor(format="FORMAT_NHC")]}, 'input[0].format: "FORMAT_NHC" is no format; did you mean "F'),
        ({"input": [tensor(label_filename="l")]}, "input[0].label_filename: is for outputs only"),
        ({"output": [tensor(label_filename="/l")]}, "output[0].label_filename: "),
        ({"output": [tensor(optional=True)]}, "output[0].optional: is for inputs only"),
        ({"output": [tensor(allow_ragged_batch=True)]}, "output[0].allow_ragged_batch: is for inputs only"),
        ({"output": [tensor(), tensor()]}, 'output[1].name: "x" is listed twice'),
    ],
    ids=str,
)
def test_a_mistake_names_the_field(fields: dict[str, Any], message: str) -> None:
    assert message in refusal(build, ModelSettings, Document(fields))
