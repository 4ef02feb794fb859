"""What a model's config says of its replicas: fields, refusals by name, and the value that follows from them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.support.errors import refusal
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_export import config_message
from tfs_lite.config.model_json import settings_of_json
from tfs_lite.config.replicas import ReplicaOptions
from tfs_lite.config.scheduling import InstanceGroup, replica_options
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2.message_json import message_json

TEXT = """
instance_group {
  count: 3 kind: KIND_GPU worker: "ray"
  ray_actor_options {
    num_cpus: 2 num_gpus: 0.5 memory: 4000000000
    resources { key: "disk" value: 0.5 }
    label_selector { key: "zone" value: "in(a, b)" }
    label_selector { key: "kind" value: "!slow" }
  }
  placement_strategy: PACK max_replicas_per_node: 2 max_ongoing_batches: 4 ready_replicas: 2
}
retry_lost_batches: false
"""
YAML = """
instance_group:
  - count: 3
    kind: KIND_GPU
    worker: ray
    ray_actor_options:
      {num_cpus: 2, num_gpus: 0.5, memory: 4000000000, resources: {disk: 0.5},
       label_selector: {zone: "in(a, b)", kind: "!slow"}}
    placement_strategy: PACK
    max_replicas_per_node: 2
    max_ongoing_batches: 4
    ready_replicas: 2
retry_lost_batches: false
"""


def options_of(text: str, worker: str = "thread") -> ReplicaOptions | None:
    return replica_options(parse_model_settings(text, "config.pbtxt").instance_group, worker)


@pytest.mark.parametrize(("name", "text"), [("config.pbtxt", TEXT), ("config.yaml", YAML)])
def test_both_syntaxes_say_the_same(name: str, text: str) -> None:
    settings = parse_model_settings(text, name)
    assert replica_options(settings.instance_group, "thread") == ReplicaOptions(
        count=3,
        kind="KIND_GPU",
        needs={"num_cpus": 2.0, "num_gpus": 0.5, "memory": 4e9, "disk": 0.5},
        labels={"zone": "in(a, b)", "kind": "!slow"},
        strategy="PACK",
        max_per_node=2,
        max_ongoing_batches=4,
        ready_replicas=2,
    )
    assert not settings.retry_lost_batches


def test_config_is_shown_as_it_was_written_and_can_be_loaded_again() -> None:
    settings = parse_model_settings(TEXT, "config.pbtxt")
    message = config_message(settings, "m", "pytorch_export")
    body = message_json(message)
    assert body["instance_group"][0]["ray_actor_options"]["num_gpus"] == 0.5
    assert body["retry_lost_batches"] is False
    again = settings_of_json(orjson.dumps(body), "override")
    assert replica_options(again.instance_group, "thread") == replica_options(settings.instance_group, "thread")
    plain = message_json(config_message(ModelSettings(), "m", "pytorch_export"))
    assert not {"retry_lost_batches", "autoscaling_config"} & set(plain)
    assert set(plain["instance_group"][0]) == {
        *("name", "count", "gpus", "kind", "profile", "passive", "secondary_devices", "host_policy")
    }


def test_zero_gpus_are_not_the_same_as_none_said() -> None:
    said = options_of('instance_group { worker: "ray" ray_actor_options { num_gpus: 0 } }')
    silent = options_of('instance_group { worker: "ray" ray_actor_options { } }')
    assert said is not None
    assert silent is not None
    assert (said.needs, silent.needs) == ({"num_gpus": 0.0}, {})


@pytest.mark.parametrize(
    ("text", "worker", "count"),
    [
        ("", "ray", 1),
        ("", "thread", None),
        ("instance_group { count: 4 }", "ray", 4),
        ("instance_group { count: 4 }", "process", None),
        ('instance_group { count: 4 worker: "thread" }', "ray", None),
        ('instance_group { count: 4 worker: "ray" }', "thread", 4),
        ('instance_group { count: 512 worker: "ray" }', "thread", 512),
        ('instance_group { worker: "thread" } instance_group { worker: "process" }', "ray", None),
    ],
)
def test_model_has_replicas_if_its_group_or_else_the_flag_says_so(text: str, worker: str, count: int | None) -> None:
    options = options_of(text, worker)
    assert (None if options is None else options.count) == count


def test_several_groups_are_no_replicas() -> None:
    groups = (InstanceGroup(count=2), InstanceGroup(kind="KIND_CPU"))
    assert replica_options(groups, "thread") is None
    assert "one group" in refusal(replica_options, groups, "ray")


def test_defaults_leave_to_others_what_only_they_know() -> None:
    options = options_of('instance_group { worker: "ray" count: 3 }')
    assert options == ReplicaOptions(count=3)
    assert (options.ready, options.lanes(on_gpu=False), options.lanes(on_gpu=True)) == (3, 1, 2)
    bound = ReplicaOptions(count=3, ready_replicas=2, max_ongoing_batches=3)
    assert (bound.ready, bound.lanes(on_gpu=False), bound.lanes(on_gpu=True)) == (2, 3, 3)


def test_equal_groups_are_found_again_by_their_hash() -> None:
    first, second = (
        parse_model_settings(text, name).instance_group[0]
        for name, text in (("config.pbtxt", TEXT), ("config.yaml", YAML))
    )
    assert hash(first) == hash(second)


NEEDS_RAY = 'is for replicas: it needs worker: "ray" in the same group'
IN_TEXT = [
    *[
        (f"\n {field}", "2:2", f"{field.split(':')[0].split(' ')[0]}: {NEEDS_RAY}")
        for field in (
            "ray_actor_options { }",
            "ray_actor_options { num_cpus: 1 }",
            "placement_strategy: SPREAD",
            "placement_strategy: PACK",
            "max_replicas_per_node: 0",
            "max_ongoing_batches: 1",
            "ready_replicas: 1",
        )
    ],
    ('worker: "process"\n ready_replicas: 1', "2:2", f"ready_replicas: {NEEDS_RAY}"),
    ('worker: "rey"', "1:18", 'worker: "rey" is no worker; did you mean "ray"?'),
    ('worker: "ray"\n ready_replicas: 2', "2:2", "ready_replicas: must be at most count, 1; got 2"),
    ('worker: "ray"\n ready_replicas: 0', "2:2", "ready_replicas: Input should be greater than or equal to 1"),
    ('worker: "ray"\n count: 513', "2:2", "count: Input should be less than or equal to 512"),
    ('worker: "ray"\n max_ongoing_batches: 9', "2:2", "max_ongoing_batches: Input should be less than or equal to 8"),
    ('worker: "ray"\n max_ongoing_batches: 0', "2:2", "max_ongoing_batches: Input should be greater than"),
    ('worker: "ray"\n max_replicas_per_node: -1', "2:2", "max_replicas_per_node: Input should be greater than"),
    (
        'worker: "ray" placement_strategy: STRICT_SPREAD\n max_replicas_per_node: 2',
        "2:2",
        "max_replicas_per_node: must be 1 with STRICT_SPREAD",
    ),
    ('worker: "ray"\n autoscaling_config { }', "2:2", "autoscaling_config: the number of replicas is fixed"),
    ('worker: "ray"\n autoscaling_config { min_replicas: 1 }', "2:2", "autoscaling_config: the number of replicas is"),
]
OF_ACTORS_IN_TEXT = [
    ("num_gpus: 2", "num_gpus: a replica has one GPU or a part of one; got 2"),
    ("num_gpus: 1.5", "num_gpus: a replica has one GPU or a part of one; got 1.5"),
    ("num_gpus: 0.00001", "num_gpus: must be 0 or from 0.0001 to 1"),
    ("num_gpus: -1", "num_gpus: Input should be greater than or equal to 0"),
    ("num_gpus: nan", "num_gpus: Input should be"),
    ("num_gpus: inf", "num_gpus: Input should be"),
    ("num_cpus: 0", "num_cpus: Input should be greater than or equal to 0.0001"),
    ("memory: -1", "memory: Input should be greater than or equal to 0"),
    ('resources { key: "GPU" value: 1 }', "resources.GPU: is not to be asked for here; say num_gpus"),
    ('resources { key: "CPU" value: 1 }', "resources.CPU: is not to be asked for here; say num_cpus"),
    ('resources { key: "object_store_memory" value: 1 }', "resources.object_store_memory: is not to be asked for here"),
    ('resources { key: "tpu" value: -1 }', "resources.tpu"),
    ('label_selector { key: "a" value: "in(" }', 'label_selector.a: "in(" is no demand on a label'),
    ('label_selector { key: "a" value: "x;y" }', 'label_selector.a: "x;y" is no demand on a label'),
]


@pytest.mark.parametrize(("body", "place", "message"), IN_TEXT)
def test_mistake_in_a_group_names_its_place(body: str, place: str, message: str) -> None:
    found = refusal(parse_model_settings, f"instance_group {{ {body} }}", "c")
    assert found.startswith(f"c:{place}: instance_group[0].{message}")


@pytest.mark.parametrize(("body", "message"), OF_ACTORS_IN_TEXT)
def test_mistake_in_what_replicas_ask_for_names_its_place(body: str, message: str) -> None:
    text = f'instance_group {{ worker: "ray" ray_actor_options {{\n  {body} }} }}'
    assert refusal(parse_model_settings, text, "c").startswith(f"c:2:3: instance_group[0].ray_actor_options.{message}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c", 'instance_group { worker: "ray"\n max_replica_per_node: 1 }', 'c:2:2: unknown field "max_replica_per'),
        ("c", 'instance_group { worker: "ray" ray_actor_options {\n num_gpu: 1 } }', 'did you mean "num_gpus"?'),
        ("c.yaml", "instance_group: [{worker: ray, ray_actor_options: {num_cpu: 1}}]", 'did you mean "num_cpus"?'),
        ("c.yaml", "instance_group: [{worker: ray, placement_stategy: PACK}]", 'did you mean "placement_strategy"?'),
        ("c.yaml", "instance_group: [{worker: ray, placement_strategy: SPREED}]", '"SPREED" is no placement strategy'),
        ("c.yaml", "retry_lost_batch: false", 'did you mean "retry_lost_batches"?'),
        ("c", "autoscaling_config { max_replicas: 8 }", "c:1:1: autoscaling_config: the number of replicas is fixed"),
        ("c", 'instance_group { }\ninstance_group { worker: "ray" }', "c:2:18: instance_group[1].worker: a model"),
        ("c", 'instance_group { worker: "ray" }\ninstance_group { }', "instance_group[0].worker: a model with worker"),
        (
            "c",
            'instance_group { worker: "ray" kind: KIND_CPU ray_actor_options { num_gpus: 0.5 } }',
            "num_gpus: does not fit KIND_CPU; got 0.5",
        ),
        (
            "c",
            'instance_group { worker: "ray" kind: KIND_GPU ray_actor_options { num_gpus: 0 } }',
            "num_gpus: does not fit KIND_GPU; got 0",
        ),
    ],
)
def test_unknown_and_contradictory_fields_are_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ServingError) as caught:
        parse_model_settings(text, name)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert message in str(caught.value)


def test_ensemble_has_no_lost_batches_of_its_own() -> None:
    ensemble: dict[str, Any] = {
        "platform": "ensemble",
        "input": [{"name": "in", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "out", "data_type": "TYPE_FP32", "dims": [1]}],
        "ensemble_scheduling": {"step": [{"model_name": "n", "input_map": {"x": "in"}, "output_map": {"y": "out"}}]},
    }
    ModelSettings.model_validate(ensemble)
    with pytest.raises(ValueError, match="is not possible for an ensemble"):
        ModelSettings.model_validate({**ensemble, "retry_lost_batches": False})
