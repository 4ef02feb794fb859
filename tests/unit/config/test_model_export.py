"""A model's config as clients see it: what was written, what was inferred, and its JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from google.protobuf import json_format

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_export import config_message
from tfs_lite.config.model_json import settings_of_json
from tfs_lite.config.sequence import MAX_CANDIDATES
from tfs_lite.config.settings import Document, build
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2.message_json import message_json
from tfs_lite.schedulers.sequence.settings import sequence_settings_of

BATCH = SymbolicDim("batch", 8)
SIGNATURE = Signature(
    (TensorSpec("x", DataType.FLOAT, (BATCH, 3, SymbolicDim("n"))), TensorSpec("mask", DataType.BOOL, (BATCH,))),
    (TensorSpec("y", DataType.STRING, (BATCH, 2)), TensorSpec("sum", DataType.DOUBLE, (1,))),
    defaults={"mask": np.array(True)},
)
SEQUENCE = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [100, 100] reshape { shape: 10000 } }
output { name: "y" data_type: TYPE_FP32 dims: 10 label_filename: "labels.txt" }
parameters { key: "a" value { string_value: "1" } }
parameters { key: "b" value {} }
sequence_batching {
  direct { max_queue_delay_microseconds: 18446744073709551615 minimum_slot_utilization: 0.7 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 0.1] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  state {
    input_name: "i" output_name: "o" data_type: TYPE_INT64 dims: -1
    initial_state { name: "zeros" data_type: TYPE_INT64 dims: 1 zero_data: false }
  }
}
instance_group { count: 0 rate_limiter { resources { name: "r" global: true count: 3 } } }
instance_group { name: "other" kind: KIND_MODEL worker: "process" }
version_policy { specific { versions: [1, 9007199254740993] } }
model_warmup {
  batch_size: 2 inputs { key: "x" value { data_type: TYPE_FP32 dims: [100, 100] random_data: true } }
}
signatures { key: "score" value { method_name: "classify" } }
"""
ENSEMBLE = """
platform: "ensemble"
input { name: "in" data_type: TYPE_FP32 dims: 1 }
output { name: "out" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step {
  model_name: "m" input_map { key: "x" value: "in" } output_map { key: "y" value: "out" }
} }
"""
PRIORITIES = """
max_batch_size: 8
dynamic_batching {
  priority_levels: 18446744073709551615 default_priority_level: 1
  priority_queue_policy { key: 18446744073709551615 value { timeout_action: DELAY max_queue_size: 3 } }
}
input { name: "x" data_type: TYPE_FP32 dims: 1 allow_ragged_batch: true }
"""


def settings(**fields: Any) -> ModelSettings:
    return build(ModelSettings, Document(fields))


def tensors(message: Message) -> dict[str, tuple[str, list[int]]]:
    names = messages.TritonModelConfig.DESCRIPTOR.fields_by_name["input"].message_type.fields_by_name["data_type"]
    return {
        each.name: (names.enum_type.values_by_number[each.data_type].name, list(each.dims))
        for each in (*message.input, *message.output)
    }


def test_a_model_without_a_config_is_described_by_its_signature() -> None:
    message = config_message(ModelSettings(), "m", "pytorch_export", SIGNATURE)
    assert (message.name, message.platform, message.backend) == ("m", "pytorch_export", "pytorch")
    assert message.max_batch_size == 0
    assert tensors(message) == {
        "x": ("TYPE_FP32", [-1, 3, -1]),
        "mask": ("TYPE_BOOL", [-1]),
        "y": ("TYPE_STRING", [-1, 2]),
        "sum": ("TYPE_FP64", [1]),
    }
    assert [tensor.optional for tensor in message.input] == [False, True]
    assert message.version_policy.latest.num_versions == 1
    assert [(group.name, group.count, group.kind) for group in message.instance_group] == [("m", 1, 2)]


def test_with_a_batch_size_the_dims_are_those_of_a_row() -> None:
    message = config_message(settings(max_batch_size=8), "m", "python", SIGNATURE)
    assert tensors(message) == {
        "x": ("TYPE_FP32", [3, -1]),
        "mask": ("TYPE_BOOL", []),
        "y": ("TYPE_STRING", [2]),
        "sum": ("TYPE_FP64", [1]),
    }


def test_what_is_not_declared_anywhere_is_shown_as_unknown() -> None:
    signature = Signature((TensorSpec("x"),), (TensorSpec("y", DataType.COMPLEX64, (2,)),))
    message = config_message(ModelSettings(), "m", "python", signature)
    assert tensors(message) == {"x": ("TYPE_INVALID", [-1]), "y": ("TYPE_INVALID", [2])}


def test_declared_tensors_stand_as_they_are_before_those_that_are_not() -> None:
    declared = {"name": "mask", "data_type": "TYPE_BOOL", "dims": [1], "reshape": {}}
    message = config_message(settings(max_batch_size=8, input=[declared]), "m", "python", SIGNATURE)
    assert [(tensor.name, list(tensor.dims)) for tensor in message.input] == [("mask", [1]), ("x", [3, -1])]
    assert message.input[0].HasField("reshape")


def test_tensors_that_only_the_scheduler_knows_are_not_among_the_inputs_and_outputs() -> None:
    found = parse_model_settings(SEQUENCE, "c.pbtxt")
    specs = [TensorSpec(name, DataType.FLOAT, (BATCH, 1)) for name in ("x", "START", "ID", "i", "extra", "y", "o")]
    message = config_message(found, "m", "python", Signature(tuple(specs[:5]), tuple(specs[5:])))
    assert [tensor.name for tensor in message.input] == ["x", "extra"]
    assert [tensor.name for tensor in message.output] == ["y"]
    assert [control.name for control in message.sequence_batching.control_input] == ["START", "ID"]


@pytest.mark.parametrize(("gpu", "kind"), [(False, "KIND_CPU"), (True, "KIND_GPU")])
def test_instances_are_named_and_placed(gpu: bool, kind: str) -> None:
    message = config_message(parse_model_settings(SEQUENCE, "c.pbtxt"), "m", "python", gpu=gpu)
    groups = message_json(message)["instance_group"]
    assert [(group["name"], group["count"], group["kind"]) for group in groups] == [
        ("m_0", 1, kind),
        ("other", 1, "KIND_MODEL"),
    ]
    assert groups[0]["rate_limiter"]["resources"] == [{"name": "r", "global": True, "count": 3}]
    assert "worker" not in groups[0]
    assert groups[1]["worker"] == "process"


@pytest.mark.parametrize(("gpu", "gpus"), [(False, []), (True, [0, 2])])
def test_gpus_are_told_where_there_are_some(gpu: bool, gpus: list[int]) -> None:
    settings = parse_model_settings("instance_group { gpus: [0, 2] count: 2 }", "c.pbtxt")
    (group,) = config_message(settings, "m", "pytorch_export", gpu=gpu).instance_group
    assert (list(group.gpus), group.count) == (gpus, 2)


@pytest.mark.parametrize(
    ("fields", "scheduler"),
    [
        ({"sequence_batching": {}}, {"direct": {"max_queue_delay_microseconds": 0, "minimum_slot_utilization": 0.0}}),
        (
            {"sequence_batching": {"oldest": {}}},
            {
                "oldest": {
                    "max_candidate_sequences": 8,
                    "preferred_batch_size": [8],
                    "max_queue_delay_microseconds": 0,
                    "preserve_ordering": False,
                }
            },
        ),
    ],
    ids=["direct", "oldest"],
)
def test_defaults_of_sequences_are_filled_in(fields: dict[str, Any], scheduler: dict[str, Any]) -> None:
    batching = message_json(config_message(settings(max_batch_size=8, **fields), "m", "python"))["sequence_batching"]
    assert batching["max_sequence_idle_microseconds"] == 1_000_000
    assert {name: batching[name] for name in ("direct", "oldest") if name in batching} == scheduler


def test_a_very_large_batch_is_more_candidates_than_there_may_be_and_its_config_can_be_loaded_again() -> None:
    settings = parse_model_settings("max_batch_size: 1048576 sequence_batching { oldest { } }", "c.pbtxt")
    assert sequence_settings_of(settings).slots_per_instance == MAX_CANDIDATES
    shown = message_json(config_message(settings, "m", "python"))
    again = settings_of_json(orjson.dumps(shown), "config")
    assert again.sequence_batching is not None
    assert again.sequence_batching.oldest is not None
    assert again.sequence_batching.oldest.max_candidate_sequences == MAX_CANDIDATES


def test_a_step_of_an_ensemble_without_a_version_means_the_latest() -> None:
    found = message_json(config_message(parse_model_settings(ENSEMBLE, "c.pbtxt"), "e", "ensemble"))
    assert found["ensemble_scheduling"]["step"][0]["model_version"] == -1
    assert found["backend"] == ""
    assert found["instance_group"] == []
    assert "optimization" not in found


def test_the_json_has_every_scalar_and_exact_numbers() -> None:
    found = message_json(config_message(parse_model_settings(PRIORITIES, "c.pbtxt"), "m", "python"))
    assert found["max_batch_size"] == 8
    assert found["dynamic_batching"] == {
        "preferred_batch_size": [8],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 2**64 - 1,
        "default_priority_level": 1,
        "priority_queue_policy": {
            str(2**64 - 1): {
                "timeout_action": "DELAY",
                "default_timeout_microseconds": 0,
                "allow_timeout_override": False,
                "max_queue_size": 3,
            }
        },
    }
    assert found["input"][0] == {
        "name": "x",
        "data_type": "TYPE_FP32",
        "format": "FORMAT_NONE",
        "dims": [1],
        "is_shape_tensor": False,
        "allow_ragged_batch": True,
        "optional": False,
        "is_non_linear_format_io": False,
    }
    assert found["metric_tags"] == {}
    assert found["model_warmup"] == []
    assert found["model_transaction_policy"] == {"decoupled": False}
    assert "signatures" not in found


@pytest.mark.parametrize("text", [SEQUENCE, ENSEMBLE, PRIORITIES, ""], ids=["sequence", "ensemble", "dynamic", "empty"])
def test_the_json_is_that_of_the_message_and_can_be_loaded_again(text: str) -> None:
    found = parse_model_settings(text, "c.pbtxt")
    signature = SIGNATURE if found.ensemble_scheduling is None else None
    message = config_message(found, "m", found.platform or "python", signature)
    body = orjson.dumps(message_json(message))
    assert json_format.Parse(body, messages.TritonModelConfig()) == message
    again = config_message(settings_of_json(body, "override"), "m", message.platform, signature)
    assert again == message
    assert messages.TritonModelConfig.FromString(message.SerializeToString()) == message


def test_the_largest_values_of_every_kind_fit_the_message() -> None:
    found = settings(
        max_batch_size=2**31 - 1,
        input=[{"name": "x", "data_type": "TYPE_FP32", "dims": [2**63 - 1], "reshape": {"shape": [2**63 - 1]}}],
        instance_group=[
            {
                "rate_limiter": {"priority": 2**32 - 1, "resources": [{"count": 2**32 - 1}]},
                "secondary_devices": [{"device_id": -(2**63)}],
            }
        ],
        sequence_batching={
            "max_sequence_idle_microseconds": 2**64 - 1,
            "direct": {"max_queue_delay_microseconds": 2**64 - 1, "minimum_slot_utilization": 1},
            "control_input": [{"name": "s", "control": [{"fp32_false_true": [-(2.0**127), 2**100]}]}],
        },
        optimization={"graph": {"level": -(2**31)}, "gather_kernel_buffer_threshold": 2**32 - 1},
        model_metrics={"metric_control": [{"histogram_options": {"buckets": [1e308, -1]}}]},
        version_policy={"specific": {"versions": [2**63 - 1]}},
    )
    message = config_message(found, "m", "python")
    again = settings_of_json(orjson.dumps(message_json(message)), "override")
    assert config_message(again, "m", "python") == message


def test_more_versions_than_the_message_can_count_are_as_many_as_it_can() -> None:
    found = settings(version_policy={"latest": {"num_versions": 2**40}})
    assert config_message(found, "m", "python").version_policy.latest.num_versions == 2**32 - 1
    for wish in ({}, {"latest": {}}, {"latest": {"num_versions": 0}}):
        assert config_message(settings(version_policy=wish), "m", "p").version_policy.latest.num_versions == 1
