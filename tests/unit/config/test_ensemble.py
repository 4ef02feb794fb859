"""Ensembles in a model's config: the pipeline and the check of its graph."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.ensemble import EnsembleScheduling, EnsembleStep
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Document, build
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.status import ServingError

PROTO_TEXT = """
platform: "ensemble"
input { name: "IMAGE" data_type: TYPE_STRING dims: 1 }
output { name: "CLASS" data_type: TYPE_FP32 dims: 1000 }
output { name: "SEGMENTS" data_type: TYPE_FP32 dims: [3, 224, 224] }
ensemble_scheduling {
  max_inflight_requests: 4
  step {
    model_name: "preprocess" model_version: -1
    input_map { key: "raw" value: "IMAGE" } output_map { key: "ready" value: "image" }
  }
  step {
    model_name: "classify" model_version: 0
    input_map { key: "x" value: "image" } output_map { key: "y" value: "CLASS" }
  }
  step {
    model_name: "segment"
    input_map { key: "x" value: "image" } output_map { key: "y" value: "SEGMENTS" }
  }
}
"""
YAML = """
platform: ensemble
input: [{name: IMAGE, data_type: TYPE_STRING, dims: [1]}]
output:
  - {name: CLASS, data_type: TYPE_FP32, dims: [1000]}
  - {name: SEGMENTS, data_type: TYPE_FP32, dims: [3, 224, 224]}
ensemble_scheduling:
  max_inflight_requests: 4
  step:
    - {model_name: preprocess, model_version: -1, input_map: {raw: IMAGE}, output_map: {ready: image}}
    - {model_name: classify, model_version: 0, input_map: {x: image}, output_map: {y: CLASS}}
    - {model_name: segment, input_map: {x: image}, output_map: {y: SEGMENTS}}
"""


def step(model: str = "m", reads: str = "in", writes: str = "out", **fields: Any) -> dict[str, Any]:
    """A step whose model has inputs and outputs called as the tensors are."""
    inputs, outputs = ({name: name for name in names.split()} for names in (reads, writes))
    return {"model_name": model, "input_map": inputs, "output_map": outputs, **fields}


def ensemble(*steps: dict[str, Any], inputs: str = "in", outputs: str = "out", **fields: Any) -> ModelSettings:
    tensors = {
        kind: [{"name": name, "data_type": "TYPE_FP32", "dims": [1]} for name in names.split()]
        for kind, names in (("input", inputs), ("output", outputs))
    }
    data = {"platform": "ensemble", **tensors, "ensemble_scheduling": {"step": list(steps)}, **fields}
    return build(ModelSettings, Document(data))


def message_of(*steps: dict[str, Any], **fields: Any) -> str:
    return refusal(ensemble, *steps, **fields)


@pytest.mark.parametrize(("text", "name"), [(PROTO_TEXT, "c.pbtxt"), (YAML, "c.yaml")], ids=["text", "yaml"])
def test_both_syntaxes_say_the_same(text: str, name: str) -> None:
    assert parse_model_settings(text, name).ensemble_scheduling == EnsembleScheduling(
        max_inflight_requests=4,
        step=(
            EnsembleStep(model_name="preprocess", input_map={"raw": "IMAGE"}, output_map={"ready": "image"}),
            EnsembleStep(model_name="classify", model_version=0, input_map={"x": "image"}, output_map={"y": "CLASS"}),
            EnsembleStep(model_name="segment", input_map={"x": "image"}, output_map={"y": "SEGMENTS"}),
        ),
    )


def test_steps_may_be_listed_in_any_order_and_share_tensors() -> None:
    ensemble(
        step("last", "a b in", "out"),
        step("left", "first", "a"),
        step("right", "first", "b extra"),
        step("first", "in", "first"),
        inputs="in",
        outputs="out extra a",
    )


@pytest.mark.parametrize(
    ("steps", "fields", "message"),
    [
        ([], {}, "ensemble_scheduling.step: Tuple should have at least 1 item"),
        ([step("")], {}, "step[0].model_name: String should have at least 1 character"),
        ([step(reads="")], {}, "step[0].input_map: Dictionary should have at least 1 item"),
        ([step(writes="")], {}, "step[0].output_map: Dictionary should have at least 1 item"),
        ([step(model_version=-2)], {}, "step[0].model_version: Input should be greater than or equal to -1"),
        ([step(model_namespace="n")], {}, "step[0].model_namespace: namespaces are not supported"),
        ([step()], {"inputs": "in more"}, 'input[1].name: ensemble input "more" is not used by any step'),
        ([step()], {"outputs": "out more"}, 'output[1].name: ensemble output "more" is not written by any step'),
        ([step()], {"inputs": "in out"}, 'step[0].output_map.out: step 0 (model "m") writes "out", which is an input'),
        ([step()], {"inputs": ""}, "an ensemble needs its inputs declared"),
        ([step()], {"outputs": ""}, "an ensemble needs its outputs declared"),
        (
            [step(), step("n")],
            {},
            'step[1].output_map.out: step 1 (model "n") writes "out", which step 0 (model "m") writes already',
        ),
        (
            [step("m", "in", "out"), step("n", "in", "lost")],
            {},
            'step[1].output_map.lost: ensemble tensor "lost" is unused: step 1 (model "n") writes it and no step reads',
        ),
        (
            [step("m", "in never", "out")],
            {},
            'step[0].input_map.never: ensemble tensor "never" is unused: step 0 (model "m") reads it and no step wri',
        ),
        ([step("m", "in b", "out a"), step("n", "a", "b")], {}, "the steps form a cycle: step "),
        ([step("m", "in a", "out a")], {}, 'step[0]: the steps form a cycle: step 0 (model "m") needs step 0 (mode'),
        ([step()], {"platform": ""}, 'ensemble_scheduling: needs platform: "ensemble"'),
        ([step()], {"platform": "python"}, 'ensemble_scheduling: needs platform: "ensemble"'),
        ([step()], {"backend": "python"}, "backend: is not possible for an ensemble"),
        ([step()], {"instance_group": [{}]}, "instance_group: is not possible for an ensemble"),
        ([step()], {"optimization": {}}, "optimization: is not possible for an ensemble"),
        ([step()], {"dynamic_batching": {}}, "ensemble_scheduling: a model has one scheduler"),
        ([step()], {"sequence_batching": {}}, "ensemble_scheduling: a model has one scheduler"),
        (
            [step()],
            {"model_warmup": [{"inputs": {"in": {"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}}}]},
            "model_warmup: is not possible for an ensemble",
        ),
    ],
    ids=str,
)
def test_a_mistake_names_the_step_and_the_tensor(
    steps: list[dict[str, Any]], fields: dict[str, Any], message: str
) -> None:
    assert message in message_of(*steps, **fields)


def test_a_cycle_is_told_in_the_order_in_which_steps_need_one_another() -> None:
    message = message_of(step("a", "in c", "out a"), step("b", "a", "b"), step("c", "b", "c"))
    circle = message.partition("cycle: ")[2].split(" needs ")
    needs = {"0": "2", "1": "0", "2": "1"}
    numbers = [each.split()[1] for each in circle]
    assert len(numbers) == 4
    assert all(needs[one] == other for one, other in pairwise(numbers))


def test_the_platform_needs_the_block() -> None:
    with pytest.raises(ServingError, match=r'^c:1:1: platform: platform "ensemble" needs ensemble_scheduling'):
        parse_model_settings('platform: "ensemble"', "c")


def test_a_mistake_in_the_graph_names_its_line() -> None:
    text = PROTO_TEXT.replace('value: "SEGMENTS"', 'value: "CLASS"')
    with pytest.raises(ServingError, match=r"^c\.pbtxt:18:\d+: .*writes \"CLASS\", which step 1"):
        parse_model_settings(text, "c.pbtxt")
