"""``model_warmup`` of a model's config."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_warmup import MAX_WARMUP_ELEMENTS, ModelWarmup, ModelWarmupInput
from tfs_lite.config.settings import Document, build
from tfs_lite.config.signatures import MAX_WARMUP_REQUESTS
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.signature import DataType

PROTO_TEXT = """
model_warmup {
  name: "first" batch_size: 4 count: 2
  inputs { key: "a" value { data_type: TYPE_FP32 dims: [2, 3] zero_data: false } }
  inputs { key: "b" value { data_type: TYPE_INT8 random_data: true } }
}
model_warmup { inputs { key: "c" value { data_type: TYPE_STRING dims: 1 input_data_file: "texts" } } }
"""
YAML = """
model_warmup:
  - name: first
    batch_size: 4
    count: 2
    inputs:
      a: {data_type: TYPE_FP32, dims: [2, 3], zero_data: false}
      b: {data_type: TYPE_INT8, dims: [], random_data: true}
  - {count: 0, inputs: {c: {data_type: TYPE_STRING, dims: [1], input_data_file: texts}}}
"""
SEQUENCE = {
    "control_input": [{"name": "START", "control": [{"fp32_false_true": [0, 1]}]}],
    "state": [{"input_name": "i", "output_name": "o", "data_type": "TYPE_INT32", "dims": [-1]}],
}


def given(**fields: Any) -> dict[str, Any]:
    return {"data_type": "TYPE_FP32", "dims": [2], "zero_data": True} | fields


def sample(**fields: Any) -> dict[str, Any]:
    return {"batch_size": 1, "inputs": {"x": given()}} | fields


def settings(*samples: dict[str, Any], **fields: Any) -> ModelSettings:
    return build(ModelSettings, Document({"model_warmup": list(samples), **fields}))


@pytest.mark.parametrize(("text", "name"), [(PROTO_TEXT, "c.pbtxt"), (YAML, "c.yaml")], ids=["text", "yaml"])
def test_both_syntaxes_say_the_same(text: str, name: str) -> None:
    assert parse_model_settings(text, name).model_warmup == (
        ModelWarmup(
            name="first",
            batch_size=4,
            count=2,
            inputs={
                "a": ModelWarmupInput(data_type=DataType.FLOAT, dims=(2, 3), zero_data=False),
                "b": ModelWarmupInput(data_type=DataType.INT8, random_data=True),
            },
        ),
        ModelWarmup(
            count=1, inputs={"c": ModelWarmupInput(data_type=DataType.STRING, dims=(1,), input_data_file="texts")}
        ),
    )


def test_samples_may_have_what_the_scheduler_feeds() -> None:
    inputs = {"x": given(dims=[5]), "START": given(dims=[1]), "i": given(data_type="TYPE_INT32", dims=[7])}
    declared = [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]
    found = settings(sample(inputs=inputs), input=declared, sequence_batching=SEQUENCE).model_warmup
    assert set(found[0].inputs) == {"x", "START", "i"}


@pytest.mark.parametrize(
    ("samples", "fields", "message"),
    [
        ([sample(inputs={})], {}, "model_warmup[0].inputs: must not be empty"),
        ([{"batch_size": 1}], {}, "model_warmup[0].inputs: is required"),
        ([sample(batch_size=-1)], {}, "model_warmup[0].batch_size"),
        ([sample(count=-1)], {}, "model_warmup[0].count"),
        ([sample(count=MAX_WARMUP_REQUESTS), sample()], {}, "model_warmup[1]: more than 1000 samples in all"),
        ([sample(inputs={"x": given(dims=[-1])})], {}, "inputs.x.dims[0]: must be 1 or more; got -1"),
        ([sample(inputs={"x": given(random_data=True)})], {}, "inputs.x.random_data: expected exactly one of"),
        ([sample(inputs={"x": {"data_type": "TYPE_FP32"}})], {}, "inputs.x: expected exactly one of zero_data, random"),
        ([sample(inputs={"x": given(data_type="TYPE_INVALID")})], {}, 'inputs.x.data_type: "TYPE_INVALID" is no data'),
        ([sample(inputs={"x": given(input_data_file="../a")})], {}, "inputs.x.input_data_file: "),
        (
            [sample(batch_size=2, inputs={"x": given(dims=[MAX_WARMUP_ELEMENTS])})],
            {},
            "inputs.x.dims: more than 1073741824 elements in all rows",
        ),
        ([sample(), sample(batch_size=9)], {"max_batch_size": 8}, "model_warmup[1].batch_size: must be at most max_b"),
    ],
    ids=str,
)
def test_a_mistake_names_the_field(samples: list[dict[str, Any]], fields: dict[str, Any], message: str) -> None:
    assert message in refusal(settings, *samples, **fields)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"START_": given()}, 'inputs.START_: there is no such input; did you mean "START"?'),
        ({"x": given(data_type="TYPE_INT8")}, "inputs.x.data_type: expected float, got int8"),
        ({"x": given(dims=[3])}, "inputs.x.dims: expected [2], got [3]"),
        ({"x": given(dims=[2, 1])}, "inputs.x.dims: expected [2], got [2, 1]"),
        ({"START": given(dims=[2])}, "inputs.START.dims: expected [1], got [2]"),
    ],
    ids=str,
)
def test_a_sample_fits_the_declared_inputs(inputs: dict[str, Any], message: str) -> None:
    declared = [{"name": name, "data_type": "TYPE_FP32", "dims": [2]} for name in ("x", "y")]
    assert message in refusal(settings, sample(inputs=inputs), input=declared, sequence_batching=SEQUENCE)
