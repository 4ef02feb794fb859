"""``dynamic_batching`` and ``instance_group`` of a model's config, in both syntaxes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import (
    MAX_INSTANCES,
    DynamicBatching,
    InstanceGroup,
    ModelQueuePolicy,
    RateLimiterResource,
)
from tfs_lite.config.text import parse_model_settings
from tfs_lite.protocols import messages

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
        refused = {"passive"} if settings is InstanceGroup else set()
        assert set(fields) == set(settings.model_fields) | refused


TWO_LEVELS = "priority_levels: 2 default_priority_level: 1\n "
DYNAMIC_BATCHING_IN_TEXT = [
    ("preferred_batch_size: [4,\n 9]", "4:2", "preferred_batch_size[1]: must be at most max_batch_size, 8; got 9"),
    ("preferred_batch_size: 9", "3:1", "preferred_batch_size[0]: must be at most max_batch_size, 8; got 9"),
    ("preferred_batch_size: 0", "3:1", "preferred_batch_size[0]: Input should be greater than or equal to 1, got 0"),
    ("priority_levels: 2", "2:1", "default_priority_level: must be from 1 to priority_levels, 2; got 0"),
    (TWO_LEVELS[:-3] + "3", "3:20", "default_priority_level: must be from 1 to priority_levels, 2; got 3"),
    (
        TWO_LEVELS + "priority_queue_policy { key: 2 value { } }\n priority_queue_policy { value { } key: 3 }",
        "5:2",
        "priority_queue_policy.3: there is no such level; priority_levels is 2",
    ),
    (
        "priority_queue_policy { value {} }",
        "3:1",
        "priority_queue_policy.0: Input should be greater than or equal to 1",
    ),
    (TWO_LEVELS + "preserve_ordering: true", "4:2", "preserve_ordering: is not possible with 2 priority_levels"),
    (
        "default_queue_policy {\n timeout_action: 2 }",
        "4:2",
        'default_queue_policy.timeout_action: "2" is no timeout action',
    ),
]
DYNAMIC_BATCHING_IN_YAML = [
    ("preferred_batch_size: [4, 9]", "3:29", "preferred_batch_size[1]: must be at most max_batch_size, 8; got 9"),
    ("preferred_batch_size: [true]", "3:26", "preferred_batch_size[0]: Input should be a valid integer, got True"),
    (
        "default_priority_level: 0\n  priority_levels: 1",
        "3:3",
        "default_priority_level: must be from 1 to priority_levels, 1; got 0",
    ),
    (
        "priority_queue_policy:\n    1: {}",
        "4:5",
        "priority_queue_policy.1: there is no such level; priority_levels is 0",
    ),
    ("priority_queue_policy: {0: {}}", "3:27", "priority_queue_policy.0: Input should be greater than or equal to 1"),
    ("priority_queue_policy: {urgent: {}}", "3:27", "priority_queue_policy.urgent: Input should be a valid integer"),
    (
        "priority_queue_policy:\n    2:\n      max_queue_size: -1",
        "5:7",
        "priority_queue_policy.2.max_queue_size: Input should be greater",
    ),
    (
        "priority_queue_policy:\n    2:\n      max_queue: 1",
        "5:7",
        'priority_queue_policy.2.max_queue: unknown field; did you mean "max_queue_size"?',
    ),
    (
        "max_queue_delay_microseconds: 18446744073709551616",
        "3:3",
        "max_queue_delay_microseconds: Input should be less than 184467440737095516",
    ),
    (
        "default_queue_policy: {timeout_action: delay}",
        "3:26",
        'default_queue_policy.timeout_action: "delay" is no timeout action; known: DELAY',
    ),
    (
        "preserve_ordering: true\n  default_queue_policy: {timeout_action: DELAY, default_timeout_microseconds: 1}",
        "3:3",
        "preserve_ordering: is not possible with a queue policy that delays calls",
    ),
    (
        "preserve_ordering: true\n  priority_levels: 1\n  default_priority_level: 1\n"
        "  priority_queue_policy: {1: {timeout_action: DELAY, default_timeout_microseconds: 1}}",
        "3:3",
        "preserve_ordering: is not possible with a queue policy that delays calls",
    ),
]
INSTANCE_GROUP_IN_TEXT = [
    ("{ }\ninstance_group { kind: KIND_CPU gpus: [0] }", "2:33", "[1].gpus: does not go with KIND_CPU"),
    ("{ gpus: [0]\n worker: 'ray' }", "1:18", "[0].gpus: does not go with replicas; say ray_actor_options.num_gpus"),
    ("{ gpus: [0]\n gpus: -1 }", "2:2", "[0].gpus[1]: Input should be greater than or equal to 0"),
    ("{ passive: true }", "1:18", "[0].passive: is not supported yet"),
    ("[{\n count: -1 }]", "2:2", "[0].count: Input should be greater"),
    ('{\n worker: "proces" }', "2:2", '[0].worker: "proces" is no worker; did you mean'),
]
INSTANCE_GROUP_IN_YAML = [
    ("\n  - {kind: KIND_GPU,\n     gpus: [0, 1, 0]}", "3:6", "[0].gpus: names a GPU twice; count says how many"),
    ("[{gpus: [0, 1, 2, 3], count: 16}, {}]", "1:51", "[1].count: more than 64 instances in all"),
    ("[{passive: true}]", "1:19", "[0].passive: is not supported yet; leave it out"),
    (
        "\n  - rate_limiter: {resources: [{count: -1}]}",
        "2:33",
        "[0].rate_limiter.resources[0].count: Input should be greater than or equal to 0",
    ),
    ("[{kind: KIND_GPUS}]", "1:19", '[0].kind: "KIND_GPUS" is no kind of instanc'),
    ("[{worker: fork}]", "1:19", '[0].worker: "fork" is no worker; known: process'),
    ("[{count: 65}]", "1:19", "[0].count: Input should be less than or equal to 64"),
    ("\n  - count: 60\n  - count: 4\n  - count: 0", "4:5", "[2].count: more than 64 instances in all"),
    ("[{cout: 1}]", "1:19", '[0].cout: unknown field; did you mean "count"?'),
    ("[2]", "1:18", "[0]: Input should be a valid dictionary"),
]

MISTAKES = [
    *[
        ("c", f"max_batch_size: 8\ndynamic_batching {{\n{body} }}", f"c:{place}: dynamic_batching.{message}")
        for body, place, message in DYNAMIC_BATCHING_IN_TEXT
    ],
    *[
        ("c.yaml", f"max_batch_size: 8\ndynamic_batching:\n  {body}", f"c.yaml:{place}: dynamic_batching.{message}")
        for body, place, message in DYNAMIC_BATCHING_IN_YAML
    ],
    *[
        ("c", f"instance_group {body}", f"c:{place}: instance_group{message}")
        for body, place, message in INSTANCE_GROUP_IN_TEXT
    ],
    *[
        ("c.yaml", f"instance_group: {body}", f"c.yaml:{place}: instance_group{message}")
        for body, place, message in INSTANCE_GROUP_IN_YAML
    ],
    (
        "c",
        "dynamic_batching { preserve_ordering: true\n default_queue_policy {\n timeout_action: WAIT } }",
        'c:3:18: Enum type "inference.ModelQueuePolicy.TimeoutAction" has no value named WAIT',
    ),
    (
        "c",
        "dynamic_batching { max_queue_delay_microsecond: 1 }",
        'c:1:20: unknown field "max_queue_delay_microsecond"; did you mean "max_queue_delay_microseconds"?',
    ),
    ("c", "instance_group { kind: KIND_TPU }", 'c:1:24: Enum type "inference.ModelInstanceGroup.Kind" has no value na'),
    ("c.yaml", "dynamic_batching: true", "c.yaml:1:1: dynamic_batching: Input should be a valid dictionary"),
]


@pytest.mark.parametrize(("name", "text", "message"), MISTAKES)
def test_a_mistake_names_its_place(name: str, text: str, message: str) -> None:
    assert message in error_of(text, name)


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
    assert group.rate_limiter.resources == (RateLimiterResource(name="r", global_=True, count=3),)
    assert (group.host_policy, group.secondary_devices[0].device_id) == ("p", 1)


def test_as_many_instances_as_allowed_are_taken() -> None:
    groups = ModelSettings.model_validate({"instance_group": [{"count": MAX_INSTANCES - 1}, {}]}).instance_group
    assert sum(group.count for group in groups) == MAX_INSTANCES
