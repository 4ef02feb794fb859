"""Every field of Triton's model config can be written, in both syntaxes; what cannot be honoured is refused by name."""

from __future__ import annotations

import typing
from typing import Any

import pytest
import yaml
from google.protobuf.descriptor import Descriptor

from tests.support.errors import refusal
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Settings
from tfs_lite.config.syntax import parse_proto_text, to_plain
from tfs_lite.config.text import parse_model_settings
from tfs_lite.protocols import messages

EVERYTHING = """
name: "m" platform: "python" backend: "python" runtime: "r" default_model_filename: "model.py"
cc_model_filenames { key: "9.0" value: "fast.pt" }
metric_tags { key: "team" value: "vision" }
version_policy { specific { versions: [1, 3] } }
max_batch_size: 8
optimization {
  graph { level: -1 } priority: PRIORITY_MAX gather_kernel_buffer_threshold: 4 eager_batching: true
  cuda {
    graphs: true busy_wait_events: true output_copy_stream: true
    graph_spec {
      batch_size: 2 input { key: "x" value { dim: [1, 2] } }
      graph_lower_bound { batch_size: 1 input { key: "x" value { dim: 1 } } }
    }
  }
  execution_accelerators {
    gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision" value: "FP16" } }
    cpu_execution_accelerator { name: "openvino" }
  }
  input_pinned_memory { enable: true } output_pinned_memory { enable: false }
}
model_operations { op_library_filename: ["a.so", "b.so"] }
model_transaction_policy { decoupled: true }
model_repository_agents {}
response_cache { enable: false }
model_metrics {
  metric_control {
    metric_identifier { family: "nv_inference_first_response_histogram_ms" }
    histogram_options { buckets: [1, 2.5, 100] }
  }
}
"""


AUTOSCALING = {
    *("min_replicas", "max_replicas", "initial_replicas", "target_ongoing_requests", "upscale_delay_s"),
    *("downscale_delay_s", "look_back_period_s", "metrics_interval_s", "upscaling_factor", "downscaling_factor"),
}
"""They can be written, and are refused as a whole."""


def test_both_syntaxes_keep_what_they_were_told() -> None:
    settings = parse_model_settings(EVERYTHING, "c.pbtxt")
    plain = to_plain(parse_proto_text(EVERYTHING, messages.TritonModelConfig, "c.pbtxt"))
    assert parse_model_settings(yaml.safe_dump(plain), "c.yaml") == settings
    assert settings.model_dump(mode="json", exclude_unset=True) == plain
    assert settings.optimization is not None
    assert settings.optimization.cuda is not None
    assert settings.optimization.cuda.graph_spec[0].input["x"].dim == (1, 2)
    assert settings.model_transaction_policy.decoupled
    assert settings.version_policy is not None
    assert settings.version_policy.specific is not None
    assert settings.version_policy.specific.versions == (1, 3)


def test_the_settings_have_the_fields_of_the_messages() -> None:
    differences = dict(_differences(messages.TritonModelConfig.DESCRIPTOR, ModelSettings, ()))
    assert differences == {
        (): {"guard"},  # which are parameters in the message
        ("autoscaling_config",): AUTOSCALING,
        ("instance_group",): {"passive"},
        ("instance_group", "autoscaling_config"): AUTOSCALING,
        ("input",): {"label_filename"},
        ("output",): {"format", "allow_ragged_batch", "optional"},
    }


def _differences(
    descriptor: Descriptor, settings: type[Settings], path: tuple[str, ...]
) -> typing.Iterator[tuple[tuple[str, ...], set[str]]]:
    """Where one has fields that the other does not have."""
    ours = {field.alias or name: field.annotation for name, field in settings.model_fields.items()}
    theirs = descriptor.fields_by_name
    if set(ours) != set(theirs):
        yield path, set(ours) ^ set(theirs)
    for name in set(ours) & set(theirs):
        below = _settings_in(ours[name])
        if below is not None:
            message = theirs[name].message_type
            value = message.fields_by_name["value"].message_type if message.GetOptions().map_entry else message
            yield from _differences(value, below, (*path, name))


def _settings_in(annotation: Any) -> type[Settings] | None:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return next((found for each in typing.get_args(annotation) if (found := _settings_in(each))), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'batch_input {\n kind: BATCH_ITEM_SHAPE target_name: "s" data_type: TYPE_FP32 source_input: "x" }',
            "c:1:1: batch_input[0]: is not supported yet; leave it out",
        ),
        ('\nbatch_output { target_name: "y" source_input: "x" }', "c:2:1: batch_output[0]: is not supported yet"),
        (
            'model_repository_agents {\n agents { name: "checksum" } }',
            "c:2:2: model_repository_agents.agents: is not supported; leave it out",
        ),
        (
            "response_cache { enable: true }\nmodel_transaction_policy { decoupled: true }",
            "c:1:18: response_cache.enable: is not possible for a decoupled model",
        ),
        ("version_policy { latest {}\n all {} }", "c:2:2: "),
        ("optimization {\n gather_kernel_buffer_threshold: -1 }", "c:2:"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_place(text: str, message: str) -> None:
    assert refusal(parse_model_settings, text, "c").startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimization:\n  priority: PRIORITY_HIGH", "c.yaml:2:3: optimization.priority: "),
        ("optimization: {cuda: {graph: true}}", 'optimization.cuda.graph: unknown field; did you mean "graphs"?'),
        ("version_policy: {latest: {}, all: {}}", "c.yaml:1:30: version_policy.all: latest and all exclude each other"),
        ("model_metrics: {metric_control: [{histogram_options: {buckets: [.nan]}}]}", "buckets[0]"),
        ("default_model_filename: ../model.py", "default_model_filename: "),
        ("batch_input: [{kind: BATCH, data_type: TYPE_FP32}]", 'batch_input[0].kind: "BATCH" is no kind of batch inp'),
    ],
)
def test_a_mistake_in_yaml_names_its_place(text: str, message: str) -> None:
    assert message in refusal(parse_model_settings, text, "c.yaml")
