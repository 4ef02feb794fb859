"""A model's config in JSON, as a load request brings it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_json import MAX_JSON_BYTES, settings_of_json
from tfs_lite.config.model_server import VersionPolicy
from tfs_lite.config.scheduling import InstanceGroup, ResponseCacheSettings
from tfs_lite.config.tensors import ModelTensor
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode


def message_of(text: str | bytes) -> str:
    return refusal(settings_of_json, text, "config of m")


def test_fields_are_those_of_the_file() -> None:
    text = """{
      "name": "m", "maxBatchSize": 4.0, "platform": null,
      "input": [{"name": "x", "dataType": "type_fp32", "dims": ["-1", 3], "format": 0}],
      "instance_group": [{"kind": "kind_cpu", "count": "2"}, {"kind": 1, "gpus": [], "passive": false}],
      "version_policy": {"specific": {"versions": ["9007199254740993"]}},
      "parameters": {"a": {"string_value": "1"}, "b": {}},
      "responseCache": {"enable": true}
    }"""
    assert settings_of_json(text, "config of m") == ModelSettings(
        name="m",
        max_batch_size=4,
        input=(ModelTensor(name="x", data_type=DataType.FLOAT, dims=(-1, 3)),),
        instance_group=(InstanceGroup(kind="KIND_CPU", count=2), InstanceGroup(kind="KIND_GPU")),
        version_policy=VersionPolicy.model_validate({"specific": {"versions": [9007199254740993]}}),
        parameters={"a": "1", "b": ""},
        response_cache=ResponseCacheSettings(enable=True),
    )


def test_a_single_element_stands_for_a_list_of_one() -> None:
    single = """{
      "input": {"name": "x", "data_type": "TYPE_FP32", "dims": 3},
      "instance_group": {"count": 2, "kind": "KIND_CPU"},
      "version_policy": {"specific": {"versions": "7"}}
    }"""
    listed = """{
      "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
      "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
      "version_policy": {"specific": {"versions": [7]}}
    }"""
    assert settings_of_json(single, "config of m") == settings_of_json(listed, "config of m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "config of m: JSON Parse error"),
        ("{", "config of m: JSON Parse error"),
        ("[" * 200 + "]" * 200, "config of m: "),
        ("[]", "config of m: expected an object, got []"),
        ('{"max_batchsize": 1}', 'config of m: max_batchsize: unknown field; did you mean "max_batch_size"?'),
        ('{"input": [{"nam": "x"}]}', 'config of m: input[0].nam: unknown field; did you mean "name"?'),
        ('{"input": {"name": "x"}}', "config of m: input[0].data_type: is required"),
        ('{"input": "x"}', "config of m: input[0]: expected an object, got 'x'"),
        ('{"input": ["x"]}', "config of m: input[0]: expected an object, got 'x'"),
        ('{"parameters": []}', "config of m: parameters: expected an object, got []"),
        ('{"parameters": {"a": "1"}}', "config of m: parameters.a: expected an object, got '1'"),
        ('{"max_batch_size": 1, "maxBatchSize": 1}', "config of m: maxBatchSize: comes twice"),
        ('{"max_batch_size": -1}', "config of m: max_batch_size: Input should be greater than or equal to 0, got -1"),
        ('{"max_batch_size": 1.5}', "config of m: max_batch_size: Input should be a valid integer, got 1.5"),
        ('{"max_batch_size": "eight"}', "config of m: max_batch_size: Input should be a valid integer, got 'eight'"),
        ('{"max_batch_size": true}', "config of m: max_batch_size: Input should be a valid integer, got True"),
        ('{"max_batch_size": "99999999999999999999"}', "config of m: max_batch_size: Input should be less than"),
        ('{"max_batch_size": 1e300}', "config of m: max_batch_size: "),
        ('{"name": 3}', "config of m: name: Input should be a valid string, got 3"),
        ('{"instance_group": [{"kind": "kind_tpu"}]}', 'instance_group[0].kind: "kind_tpu" is no kind of instance'),
        ('{"instance_group": [{"kind": 9}]}', 'instance_group[0].kind: "9" is no kind of instance'),
        ('{"dynamic_batching": {}, "sequence_batching": {}}', "sequence_batching: a model has one scheduler"),
        ('{"input": [{"name": "x", "data_type": "TYPE_FP32"}]}', "config of m: input[0].dims: is required"),
        ("[" + "1," * 70000 + "1]", "config of m: expected an object, got "),
        ('{"input": [' + "1," * 70000 + "1]}", "config of m: input[0]: expected an object, got 1"),
    ],
    ids=range(25),
)
def test_a_mistake_names_the_field(text: str, message: str) -> None:
    assert message in message_of(text)


def test_a_text_that_is_too_large_is_refused_unread() -> None:
    assert message_of(b" " * (MAX_JSON_BYTES + 1)) == f"config of m: larger than {MAX_JSON_BYTES} bytes"


def test_half_a_character_is_refused() -> None:
    assert "config of m: JSON Parse error" in message_of('{"name": "\ud800"}')


FIELDS = st.sampled_from(sorted(ModelSettings.model_fields))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner),
    max_leaves=10,
)


@given(st.dictionaries(FIELDS, JSON, max_size=3))
def test_any_json_makes_settings_or_an_error_of_ours(tree: dict[str, object]) -> None:
    code = None
    try:
        settings_of_json(json.dumps(tree), "config of m")
    except ServingError as error:
        code = error.code
    assert code in (None, StatusCode.INVALID_ARGUMENT)
