"""``sequence_batching`` of a model's config, in both syntaxes, and what it adds to the model's signature."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.model import ModelSettings, control_names, hidden_outputs, signature_of, state_names
from tfs_lite.config.sequence import (
    Control,
    ControlInput,
    InitialState,
    SequenceBatching,
    SequenceState,
    StrategyDirect,
    StrategyOldest,
)
from tfs_lite.config.settings import Document, build
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.signature import DataType, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError

PROTO_TEXT = """
max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
  control_input { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [10, -20] } ] }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [true, false] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  oldest { max_candidate_sequences: 8 preferred_batch_size: [2, 4] max_queue_delay_microseconds: 100 }
  state {
    input_name: "memory" output_name: "memory_out" data_type: TYPE_INT32 dims: [-1, 3]
    initial_state { name: "zeros" data_type: TYPE_INT32 dims: [1, 3] zero_data: false }
  }
  state { input_name: "s" output_name: "y" data_type: TYPE_FP32 dims: 2 }
}
output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
YAML = """
max_batch_size: 4
sequence_batching:
  max_sequence_idle_microseconds: 5000000
  control_input:
    - {name: START, control: [{fp32_false_true: [0, 1.0]}]}
    - {name: READY, control: [{kind: CONTROL_SEQUENCE_READY, int32_false_true: [10, -20]}]}
    - {name: END, control: [{kind: CONTROL_SEQUENCE_END, bool_false_true: [true, false]}]}
    - {name: CORRID, control: [{kind: CONTROL_SEQUENCE_CORRID, data_type: TYPE_UINT64, int32_false_true: []}]}
  oldest: {max_candidate_sequences: 8, preferred_batch_size: [2, 4], max_queue_delay_microseconds: 100}
  state:
    - input_name: memory
      output_name: memory_out
      data_type: TYPE_INT32
      dims: [-1, 3]
      initial_state: [{name: zeros, data_type: TYPE_INT32, dims: [1, 3], zero_data: false}]
    - {input_name: s, output_name: y, data_type: TYPE_FP32, dims: [2]}
output: [{name: y, data_type: TYPE_FP32, dims: [2]}]
"""
SYNTAXES = pytest.mark.parametrize(("text", "name"), [(PROTO_TEXT, "c.pbtxt"), (YAML, "c.yaml")], ids=["text", "yaml"])
INPUT = {"name": "x", "data_type": "TYPE_FP32", "dims": [3]}


def flag(name: str = "START", kind: str = "START", **fields: Any) -> dict[str, Any]:
    return {"name": name, "control": [{"kind": f"CONTROL_SEQUENCE_{kind}", **(fields or {"fp32_false_true": [0, 1]})}]}


def state(**fields: Any) -> dict[str, Any]:
    return {"input_name": "i", "output_name": "o", "data_type": "TYPE_FP32", "dims": [-1, 2], **fields}


def initial(**fields: Any) -> dict[str, Any]:
    start = {"name": "n", "data_type": "TYPE_FP32", "dims": [1, 2], "zero_data": True, **fields}
    return state(initial_state=[{key: value for key, value in start.items() if value is not None}])


def settings(sequence: dict[str, Any], **fields: Any) -> ModelSettings:
    return build(ModelSettings, Document({"sequence_batching": sequence, **fields}))


def message_of(sequence: dict[str, Any], **fields: Any) -> str:
    return refusal(settings, sequence, **fields)


@SYNTAXES
def test_both_syntaxes_say_the_same(text: str, name: str) -> None:
    assert parse_model_settings(text, name).sequence_batching == SequenceBatching(
        max_sequence_idle_microseconds=5_000_000,
        control_input=(
            ControlInput(name="START", control=(Control(fp32_false_true=(0.0, 1.0)),)),
            ControlInput(name="READY", control=(Control(kind="CONTROL_SEQUENCE_READY", int32_false_true=(10, -20)),)),
            ControlInput(name="END", control=(Control(kind="CONTROL_SEQUENCE_END", bool_false_true=(True, False)),)),
            ControlInput(name="CORRID", control=(Control(kind="CONTROL_SEQUENCE_CORRID", data_type=DataType.UINT64),)),
        ),
        oldest=StrategyOldest(max_candidate_sequences=8, preferred_batch_size=(2, 4), max_queue_delay_microseconds=100),
        state=(
            SequenceState(
                input_name="memory",
                output_name="memory_out",
                data_type=DataType.INT32,
                dims=(-1, 3),
                initial_state=(InitialState(name="zeros", data_type=DataType.INT32, dims=(1, 3), zero_data=False),),
            ),
            SequenceState(input_name="s", output_name="y", data_type=DataType.FLOAT, dims=(2,)),
        ),
    )


@pytest.mark.parametrize(("text", "name"), [("sequence_batching {}", "c.pbtxt"), ("sequence_batching: {}", "c.yaml")])
def test_an_empty_block_switches_sequences_on_with_the_defaults(text: str, name: str) -> None:
    found = parse_model_settings(text, name).sequence_batching
    assert found == SequenceBatching()
    assert found.max_sequence_idle_microseconds == 1_000_000


def test_an_idle_limit_of_zero_counts_as_a_second() -> None:
    found = settings({"max_sequence_idle_microseconds": 0, "direct": {"minimum_slot_utilization": 1}})
    assert found.sequence_batching == SequenceBatching(direct=StrategyDirect(minimum_slot_utilization=1))


@SYNTAXES
def test_a_flag_has_the_type_of_its_values(text: str, name: str) -> None:
    found = parse_model_settings(text, name).sequence_batching
    assert found is not None
    assert [each.only.dtype for each in found.control_input] == [
        DataType.FLOAT,
        DataType.INT32,
        DataType.BOOL,
        DataType.UINT64,
    ]
    assert [each.only.false_true for each in found.control_input[:3]] == [(0.0, 1.0), (10, -20), (True, False)]


@SYNTAXES
def test_the_model_has_the_tensors_that_the_scheduler_feeds(text: str, name: str) -> None:
    found = parse_model_settings(text, name)
    both = build(ModelSettings, Document({**found.model_dump(exclude_unset=True), "input": [INPUT]}))
    signature = signature_of(both)
    batch = SymbolicDim("batch", 4)
    assert signature is not None
    assert signature.inputs == (
        TensorSpec("x", DataType.FLOAT, (batch, 3)),
        TensorSpec("START", DataType.FLOAT, (batch, 1)),
        TensorSpec("READY", DataType.INT32, (batch, 1)),
        TensorSpec("END", DataType.BOOL, (batch, 1)),
        TensorSpec("CORRID", DataType.UINT64, (batch, 1)),
        TensorSpec("memory", DataType.INT32, (batch, SymbolicDim("memory_0"), 3)),
        TensorSpec("s", DataType.FLOAT, (batch, 2)),
    )
    assert signature.outputs == (
        TensorSpec("y", DataType.FLOAT, (batch, 2)),
        TensorSpec("memory_out", DataType.INT32, (batch, SymbolicDim("memory_out_0"), 3)),
    )
    assert control_names(both) == ("START", "READY", "END", "CORRID")
    assert state_names(both) == (("memory", "s"), ("memory_out", "y"))
    assert hidden_outputs(both) == ("memory_out",)


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({}, (1,)),
        ({"max_batch_size": 2}, (SymbolicDim("batch", 2), 1)),
        ({"max_batch_size": 2, "parameters": {"flatten_control_inputs": True}}, (SymbolicDim("batch", 2),)),
        ({"parameters": {"flatten_control_inputs": True}}, (1,)),
    ],
    ids=["no batch", "batch", "flat batch", "nothing to flatten"],
)
def test_a_control_is_one_value_for_each_row(fields: dict[str, Any], shape: object) -> None:
    signature = signature_of(settings({"control_input": [flag()]}, input=[INPUT], **fields))
    assert signature is not None
    assert signature.inputs[1].shape == shape


def test_undeclared_inputs_stay_undeclared() -> None:
    output = {"name": "y", "data_type": "TYPE_FP32", "dims": [1]}
    signature = signature_of(settings({"control_input": [flag()], "state": [state()]}, output=[output]))
    assert signature is not None
    assert signature.inputs == ()
    assert signature.output_names == ("y", "o")


def test_a_model_without_sequences_has_no_names_of_its_own() -> None:
    assert control_names(ModelSettings()) == ()
    assert state_names(ModelSettings()) == ((), ())
    assert hidden_outputs(ModelSettings()) == ()


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ({"direct": {}, "oldest": {}}, "sequence_batching.oldest: direct and oldest exclude each other"),
        ({"iterative_sequence": True}, "sequence_batching.iterative_sequence: is not supported yet"),
        ({"direct": {"minimum_slot_utilization": 1.5}}, "minimum_slot_utilization"),
        ({"direct": {"minimum_slot_utilization": -0.1}}, "minimum_slot_utilization"),
        ({"direct": {"minimum_slot_utilization": float("nan")}}, "minimum_slot_utilization"),
        ({"oldest": {"preferred_batch_size": [0]}}, "oldest.preferred_batch_size[0]: Input should be greater"),
        ({"oldest": {"max_candidate_sequences": -1}}, "oldest.max_candidate_sequences: Input should be greater"),
        ({"oldest": {"max_candidate_sequences": 2**31 - 1}}, "max_candidate_sequences: Input should be less"),
        ({"control_input": [flag(int32_false_true=[0, 1], fp32_false_true=[0, 1])]}, "exactly one of"),
        ({"control_input": [flag(int32_false_true=[])]}, "exactly one of"),
        ({"control_input": [flag(int32_false_true=[1])]}, "expected two values, false and true; got 1"),
        ({"control_input": [flag(int32_false_true=[1, 2, 3])]}, "expected two values, false and true; got 3"),
        ({"control_input": [flag(int32_false_true=[0, 2**31])]}, "int32_false_true[1]"),
        ({"control_input": [flag(int32_false_true=[0, True])]}, "int32_false_true[1]"),
        ({"control_input": [flag(fp32_false_true=[0, float("inf")])]}, "fp32_false_true[1]"),
        ({"control_input": [flag(fp32_false_true=[0, float("nan")])]}, "fp32_false_true[1]"),
        ({"control_input": [flag(fp32_false_true=[0, 1e39])]}, "fp32_false_true[1]"),
        ({"control_input": [flag(bool_false_true=[0, 1])]}, "bool_false_true[0]"),
        ({"control_input": [flag(fp32_false_true=[0, 1], data_type="TYPE_FP32")]}, "control[0].data_type: is for"),
        ({"control_input": [flag(kind="CORRID", data_type="TYPE_FP32")]}, "control[0].data_type: CONTROL_SEQUENCE_COR"),
        ({"control_input": [flag(kind="CORRID", data_type="TYPE_INVALID")]}, "control[0].data_type: CONTROL_SEQUENCE"),
        (
            {"control_input": [flag(kind="CORRID", data_type="TYPE_UINT64", int32_false_true=[0, 1])]},
            "control[0].int32_false_true: CONTROL_SEQUENCE_CORRID takes a data_type and no values",
        ),
        ({"control_input": [flag(kind="STOP")]}, '"CONTROL_SEQUENCE_STOP" is no kind of control; did you mean'),
        ({"control_input": [{"name": "a", "control": []}]}, "control_input[0].control: a tensor holds one control"),
        ({"control_input": [{"name": "a", "control": flag()["control"] * 2}]}, "control_input[0].control[1]: a tensor"),
        ({"control_input": [flag(), flag("b")]}, "control_input[1].control[0].kind: a second tensor for CONTROL_SEQUE"),
        ({"control_input": [flag(), flag(kind="END")]}, 'control_input[1].name: "START" is named twice'),
        ({"control_input": [flag("i")], "state": [state()]}, 'state[0].input_name: "i" is named twice'),
        ({"state": [state(), state(input_name="j")]}, 'state[1].output_name: "o" is named twice'),
        ({"state": [state(data_type="TYPE_INVALID")]}, 'state[0].data_type: "TYPE_INVALID" is no data type'),
        ({"state": [state(dims=[0])]}, "state[0].dims[0]: must be 1 or more"),
        ({"state": [initial(zero_data=None)]}, "initial_state[0]: expected exactly one of zero_data, data_file; got 0"),
        ({"state": [initial(data_file="f")]}, "initial_state[0].data_file: expected exactly one of"),
        ({"state": [initial(zero_data=None, data_file="../f")]}, "leads out of the model's directory"),
        ({"state": [initial(name=None)]}, "initial_state[0].name: is required"),
        ({"state": [initial(data_type="TYPE_INT8")]}, "initial_state[0].data_type: must be the data_type of the state"),
        ({"state": [initial(dims=[2])]}, "initial_state[0].dims: expected 2 sizes, got 1"),
        ({"state": [initial(dims=[-1, 2])]}, "initial_state[0].dims[0]: expected a size, got -1"),
        ({"state": [initial(dims=[5, 3])]}, "initial_state[0].dims[1]: expected 2, got 3"),
        ({"state": [state(initial_state=initial()["initial_state"] * 2)]}, "initial_state[1]: there can be one"),
    ],
    ids=str,
)
def test_a_mistake_names_the_field(sequence: dict[str, Any], message: str) -> None:
    assert message in message_of(sequence)


@pytest.mark.parametrize(
    ("sequence", "fields", "message"),
    [
        ({}, {"dynamic_batching": {}}, "sequence_batching: a model has one scheduler"),
        ({}, {"response_cache": {"enable": True}}, "response_cache.enable: is not possible with sequence_batching"),
        (
            {"oldest": {"preferred_batch_size": [4, 9]}},
            {"max_batch_size": 8},
            "sequence_batching.oldest.preferred_batch_size[1]: must be at most max_batch_size, 8; got 9",
        ),
        ({"control_input": [flag("x")]}, {"input": [INPUT]}, 'control_input[0].name: "x" is an input too'),
        ({"state": [state(input_name="x")]}, {"input": [INPUT]}, 'state[0].input_name: "x" is an input too'),
        (
            {"state": [state(output_name="x")]},
            {"output": [INPUT]},
            'state[0].output_name: "x" is an output too, of another data_type or dims',
        ),
    ],
    ids=str,
)
def test_a_mistake_beside_the_block_names_the_field(
    sequence: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    assert message in message_of(sequence, **fields)


def test_two_strategies_in_text_format_are_a_mistake_with_its_place() -> None:
    with pytest.raises(ServingError, match=r"^c:2:\d+: .*oldest"):
        parse_model_settings("sequence_batching { direct {}\n oldest {} }", "c")


def test_a_mistake_in_a_control_names_its_line() -> None:
    text = 'sequence_batching {\n control_input { name: "s"\n control {\n int32_false_true: [1] } } }'
    assert refusal(parse_model_settings, text, "c").startswith(
        "c:4:2: sequence_batching.control_input[0].control[0].int32_false_true: expected two values"
    )
