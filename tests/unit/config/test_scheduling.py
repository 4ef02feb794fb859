"""``dynamic_batching`` and ``instance_group`` of a model's config, in both syntaxes."""

from __future__ import annotations

from typing import Any

import pytest

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import MAX_INSTANCES, DynamicBatching, InstanceGroup, ModelQueuePolicy, Resource
from tfs_lite.config.text import parse_model_settings
from tfs_lite.protocols import messages
from tfs_lite.testing.errors import refusal

PROTO_TEXT = """
max_batch_size: 8
dynamic_batching {
  preferred_batch_size: [4, 8]
  max_queue_delay_microseconds: 500
  priority_levels: 18446744073709551615
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 100 }
  priority_queue_policy { key: 1 value { allow_timeout_override: true max_queue_size: 4294967295 } }
  priority_queue_policy { key: 18446744073709551615 value { timeout_action: REJECT } }
}
instance_group [
  { name: "on the gpu" count: 2 kind: KIND_GPU },
  { kind: KIND_CPU count: 0 worker: "process" }
]
instance_group {}
"""
YAML = """
max_batch_size: 8
dynamic_batching:
  preferred_batch_size: [4, 8]
  max_queue_delay_microseconds: 500
  priority_levels: 18446744073709551615
  default_priority_level: 2
  default_queue_policy: {timeout_action: DELAY, default_timeout_microseconds: 100}
  priority_queue_policy:
    1: {allow_timeout_override: true, max_queue_size: 4294967295}
    "18446744073709551615": {timeout_action: REJECT}
instance_group:
  - {name: on the gpu, count: 2, kind: KIND_GPU}
  - {kind: KIND_CPU, count: 0, worker: process, gpus: [], passive: false}
  - {}
"""
SYNTAXES = pytest.mark.parametrize(("text", "name"), [(PROTO_TEXT, "c.pbtxt"), (YAML, "c.yaml")], ids=["text", "yaml"])


def error_of(text: str, name: str) -> str:
    return refusal(parse_model_settings, text, name)


@SYNTAXES
def test_both_syntaxes_say_the_same(text: str, name: str) -> None:
    settings = parse_model_settings(text, name)
    assert settings.dynamic_batching == DynamicBatching(
        preferred_batch_size=(4, 8),
        max_queue_delay_microseconds=500,
        priority_levels=2**64 - 1,
        default_priority_level=2,
        default_queue_policy=ModelQueuePolicy(timeout_action="DELAY", default_timeout_microseconds=100),
        priority_queue_policy={
            1: ModelQueuePolicy(allow_timeout_override=True, max_queue_size=2**32 - 1),
            2**64 - 1: ModelQueuePolicy(),
        },
    )
    assert settings.instance_group == (
        InstanceGroup(name="on the gpu", count=2, kind="KIND_GPU"),
        InstanceGroup(kind="KIND_CPU", count=1, worker="process"),
        InstanceGroup(),
    )


@pytest.mark.parametrize(("text", "name"), [("dynamic_batching {}", "c.pbtxt"), ("dynamic_batching: {}", "c.yaml")])
def test_an_empty_block_switches_batching_on_with_the_defaults(text: str, name: str) -> None:
    assert parse_model_settings(text, name).dynamic_batching == DynamicBatching()
    assert DynamicBatching().model_dump() == {
        "preferred_batch_size": (),
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "default_queue_policy": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 0,
            "allow_timeout_override": False,
            "max_queue_size": 0,
        },
        "priority_queue_policy": {},
    }


def test_without_blocks_nothing_is_said() -> None:
    assert ModelSettings().dynamic_batching is None
    assert ModelSettings().instance_group == ()


def test_the_messages_have_the_fields_of_the_settings() -> None:
    for message, settings in (("dynamic_batching", DynamicBatching), ("instance_group", InstanceGroup)):
        fields = messages.TritonModelConfig.DESCRIPTOR.fields_by_name[message].message_type.fields_by_name
        refused = {"gpus", "passive"} if settings is InstanceGroup else set()
        assert set(fields) == set(settings.model_fields) | refused


IN_TEXT = [
    (
        "max_batch_size: 8\ndynamic_batching {\n preferred_batch_size: [4,\n 9] }",
        "c:4:2: dynamic_batching.preferred_batch_size[1]: must be at most max_batch_size, 8; got 9",
    ),
    (
        "max_batch_size: 2\ndynamic_batching {\n preferred_batch_size: 4 }",
        "c:3:2: dynamic_batching.preferred_batch_size[0]: must be at most max_batch_size, 2; got 4",
    ),
    (
        "max_batch_size: 8\ndynamic_batching { preferred_batch_size: 0 }",
        "c:2:20: dynamic_batching.preferred_batch_size[0]: Input should be greater than or equal to 1, got 0",
    ),
    (
        "dynamic_batching {\n priority_levels: 2 }",
        "c:1:1: dynamic_batching.default_priority_level: must be from 1 to priority_levels, 2; got 0",
    ),
    (
        "dynamic_batching { priority_levels: 2\n default_priority_level: 3 }",
        "c:2:2: dynamic_batching.default_priority_level: must be from 1 to priority_levels, 2; got 3",
    ),
    (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1\n"
        " priority_queue_policy { key: 2 value { } }\n priority_queue_policy { value { } key: 3 } }",
        "c:3:2: dynamic_batching.priority_queue_policy.3: there is no such level; priority_levels is 2",
    ),
    (
        "dynamic_batching {\n priority_queue_policy { value {} } }",
        "c:2:2: dynamic_batching.priority_queue_policy.0: Input should be greater than or equal to 1",
    ),
    (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1\n preserve_ordering: true }",
        "c:2:2: dynamic_batching.preserve_ordering: is not possible with 2 priority_levels",
    ),
    (
        "dynamic_batching { preserve_ordering: true\n default_queue_policy {\n timeout_action: WAIT } }",
        'c:3:18: Enum type "inference.ModelQueuePolicy.TimeoutAction" has no value named WAIT',
    ),
    (
        "dynamic_batching {\n default_queue_policy {\n timeout_action: 2 } }",
        'c:3:2: dynamic_batching.default_queue_policy.timeout_action: "2" is no timeout action',
    ),
    (
        "dynamic_batching { max_queue_delay_microsecond: 1 }",
        'c:1:20: unknown field "max_queue_delay_microsecond"; did you mean "max_queue_delay_microseconds"?',
    ),
    (
        "instance_group { kind: KIND_CPU }\ninstance_group { gpus: [0] }",
        "c:2:18: instance_group[1].gpus: is not supported yet; leave it out",
    ),
    ("instance_group { passive: true }", "c:1:18: instance_group[0].passive: is not supported yet"),
    ("instance_group [{\n count: -1 }]", "c:2:2: instance_group[0].count: Input should be greater"),
    ("instance_group { kind: KIND_TPU }", 'c:1:24: Enum type "inference.ModelInstanceGroup.Kind" has no value named'),
    ('instance_group {\n worker: "proces" }', 'c:2:2: instance_group[0].worker: "proces" is no worker; did you mean'),
]
IN_YAML = [
    (
        "max_batch_size: 8\ndynamic_batching:\n  preferred_batch_size: [4, 9]",
        "c.yaml:3:29: dynamic_batching.preferred_batch_size[1]: must be at most max_batch_size, 8; got 9",
    ),
    (
        "dynamic_batching:\n  preferred_batch_size: [true]",
        "c.yaml:2:26: dynamic_batching.preferred_batch_size[0]: Input should be a valid integer, got True",
    ),
    (
        "dynamic_batching:\n  default_priority_level: 0\n  priority_levels: 1",
        "c.yaml:2:3: dynamic_batching.default_priority_level: must be from 1 to priority_levels, 1; got 0",
    ),
    (
        "dynamic_batching:\n  priority_queue_policy:\n    1: {}",
        "c.yaml:3:5: dynamic_batching.priority_queue_policy.1: there is no such level; priority_levels is 0",
    ),
    (
        "dynamic_batching:\n  priority_queue_policy:\n    0: {}",
        "c.yaml:3:5: dynamic_batching.priority_queue_policy.0: Input should be greater than or equal to 1",
    ),
    (
        "dynamic_batching:\n  priority_queue_policy:\n    urgent: {}",
        "c.yaml:3:5: dynamic_batching.priority_queue_policy.urgent: Input should be a valid integer",
    ),
    (
        "dynamic_batching:\n  priority_queue_policy:\n    2:\n      max_queue_size: -1",
        "c.yaml:4:7: dynamic_batching.priority_queue_policy.2.max_queue_size: Input should be greater",
    ),
    (
        "dynamic_batching:\n  priority_queue_policy:\n    2:\n      max_queue: 1",
        'c.yaml:4:7: dynamic_batching.priority_queue_policy.2.max_queue: unknown field; did you mean "max_queue_size"?',
    ),
    (
        "dynamic_batching:\n  max_queue_delay_microseconds: 18446744073709551616",
        "c.yaml:2:3: dynamic_batching.max_queue_delay_microseconds: Input should be less than 184467440737095516",
    ),
    (
        "dynamic_batching:\n  default_queue_policy: {timeout_action: delay}",
        'c.yaml:2:26: dynamic_batching.default_queue_policy.timeout_action: "delay" is no timeout action; known: DELAY',
    ),
    (
        "dynamic_batching:\n  preserve_ordering: true\n"
        "  default_queue_policy: {timeout_action: DELAY, default_timeout_microseconds: 1}",
        "c.yaml:2:3: dynamic_batching.preserve_ordering: is not possible with a queue policy that delays calls",
    ),
    (
        "dynamic_batching:\n  preserve_ordering: true\n  priority_levels: 1\n  default_priority_level: 1\n"
        "  priority_queue_policy: {1: {timeout_action: DELAY, default_timeout_microseconds: 1}}",
        "c.yaml:2:3: dynamic_batching.preserve_ordering: is not possible with a queue policy that delays calls",
    ),
    ("dynamic_batching: true", "c.yaml:1:1: dynamic_batching: Input should be a valid dictionary"),
    (
        "instance_group:\n  - {kind: KIND_GPU,\n     gpus: [0, 1]}",
        "c.yaml:3:6: instance_group[0].gpus: is not supported yet; leave it out",
    ),
    ("instance_group: [{passive: true}]", "c.yaml:1:19: instance_group[0].passive: is not supported yet; leave it out"),
    (
        "instance_group:\n  - rate_limiter: {resources: [{count: -1}]}",
        "c.yaml:2:33: instance_group[0].rate_limiter.resources[0].count: Input should be greater than or equal to 0",
    ),
    ("instance_group: [{kind: KIND_GPUS}]", 'c.yaml:1:19: instance_group[0].kind: "KIND_GPUS" is no kind of instanc'),
    ("instance_group: [{worker: fork}]", 'c.yaml:1:19: instance_group[0].worker: "fork" is no worker; known: process'),
    ("instance_group: [{count: 65}]", "c.yaml:1:19: instance_group[0].count: Input should be less than or equal to 64"),
    (
        "instance_group:\n  - count: 60\n  - count: 4\n  - count: 0",
        "c.yaml:4:5: instance_group[2].count: more than 64 instances in all",
    ),
    ("instance_group: [{cout: 1}]", 'c.yaml:1:19: instance_group[0].cout: unknown field; did you mean "count"?'),
    ("instance_group: [2]", "c.yaml:1:18: instance_group[0]: Input should be a valid dictionary"),
]


@pytest.mark.parametrize(("text", "message"), IN_TEXT)
def test_a_mistake_in_text_format_names_its_place(text: str, message: str) -> None:
    assert message in error_of(text, "c")


@pytest.mark.parametrize(("text", "message"), IN_YAML)
def test_a_mistake_in_yaml_names_its_place(text: str, message: str) -> None:
    assert message in error_of(text, "c.yaml")


@pytest.mark.parametrize(
    "batching",
    [
        {"default_priority_level": 5},
        {"preserve_ordering": True, "priority_levels": 1, "default_priority_level": 1},
        {"preserve_ordering": True, "default_queue_policy": {"timeout_action": "DELAY"}},
        {"preserve_ordering": True, "default_queue_policy": {"default_timeout_microseconds": 1}},
        {"preserve_ordering": True, "max_queue_delay_microseconds": 2**64 - 1},
    ],
    ids=str,
)
def test_what_only_looks_like_a_contradiction_is_taken(batching: dict[str, Any]) -> None:
    assert ModelSettings.model_validate({"dynamic_batching": batching}).dynamic_batching is not None


def test_what_changes_nothing_about_an_instance_is_kept() -> None:
    text = """instance_group {
      rate_limiter { resources { name: "r" global: true count: 3 } priority: 2 }
      profile: "fast" host_policy: "p" secondary_devices { device_id: 1 }
    }"""
    (group,) = parse_model_settings(text, "c.pbtxt").instance_group
    assert group.profile == ("fast",)
    assert group.rate_limiter is not None
    assert group.rate_limiter.resources == (Resource(name="r", global_=True, count=3),)
    assert (group.host_policy, group.secondary_devices[0].device_id) == ("p", 1)


def test_as_many_instances_as_allowed_are_taken() -> None:
    groups = ModelSettings.model_validate({"instance_group": [{"count": MAX_INSTANCES - 1}, {}]}).instance_group
    assert sum(group.count for group in groups) == MAX_INSTANCES
