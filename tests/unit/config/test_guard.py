"""The parameters ``guard.*`` of a model's config: whose they are, what is wrong with them, and where they are shown."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.adapters.instances import differ_in_instances_only
from tfs_lite.config.generation import generation_settings
from tfs_lite.config.guard import GuardSettings
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_export import config_message
from tfs_lite.config.model_json import settings_of_json
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.config.text import parse_model_settings
from tfs_lite.serving.opening.model_configs import settings_digest

EVERYTHING = {
    "bake_seconds": "600",
    "bake_requests": "100",
    "bake_verdict": "tell",
    "replay": "false",
    "max_changed": "0.02",
    "rtol": "0.1",
    "atol": "0.001",
    "signature": "any",
}


def pbtxt(**parameters: str) -> str:
    rows = (f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items())
    return "".join(row.replace("guard_", "guard.") for row in rows)


def test_they_are_a_field_of_their_own_and_no_parameters_of_the_platform() -> None:
    text = pbtxt(max_num_seqs="4", **{f"guard_{name}": value for name, value in EVERYTHING.items()})
    settings = parse_model_settings(text, "config.pbtxt")
    assert settings.parameters == {"max_num_seqs": "4"}
    assert settings.guard == GuardSettings(
        bake_seconds=600,
        bake_requests=100,
        bake_verdict="tell",
        replay=False,
        max_changed=0.02,
        rtol=0.1,
        atol=0.001,
        signature="any",
    )
    assert generation_settings(settings).max_num_seqs == 4, "a language model knows none of them"


def test_yaml_may_write_numbers_and_booleans_bare() -> None:
    text = "parameters:\n  guard.bake_seconds: 600\n  guard.replay: false\n  guard.max_changed: 0.02\n"
    assert parse_model_settings(text, "config.yaml").guard.model_dump(exclude_unset=True) == {
        "bake_seconds": 600,
        "replay": False,
        "max_changed": 0.02,
    }


def test_a_load_call_brings_them_as_parameters() -> None:
    text = '{"parameters": {"guard.signature": {"string_value": "any"}, "other": {"string_value": "1"}}}'
    settings = settings_of_json(text, "config")
    assert (settings.guard.signature, settings.parameters) == ("any", {"other": "1"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_chnged", "1", 'unknown parameter; did you mean "guard.max_changed"?'),
        ("max_changed", "1.5", "Input should be less than or equal to 1, got '1.5'"),
        ("max_changed", "nan", "Input should be a finite number, got 'nan'"),
        ("bake_seconds", "59", "must be 0 (no trial) or from 60 to 86400; got 59"),
        ("bake_verdict", "revrt", "Input should be 'revert' or 'tell', got 'revrt'"),
        ("replay", "maybe", "Input should be a valid boolean, unable to interpret input, got 'maybe'"),
        ("rtol", "-1", "Input should be greater than or equal to 0, got '-1'"),
    ],
)
def test_a_mistake_is_named_with_its_line(name: str, value: str, message: str) -> None:
    text = pbtxt(other="1", **{f"guard_{name}": value})
    expected = f"config.pbtxt:2:1: parameters.guard.{name}: {message}"
    assert refusal(parse_model_settings, text, "config.pbtxt") == expected


def test_a_config_that_is_asked_for_shows_those_that_were_given() -> None:
    settings = parse_model_settings(pbtxt(other="1", guard_replay="false", guard_max_changed="0.02"), "config.pbtxt")
    shown = config_message(settings, "m", "python").parameters
    assert {key: value.string_value for key, value in shown.items()} == {
        "other": "1",
        "guard.replay": "false",
        "guard.max_changed": "0.02",
    }


def test_a_change_of_them_loads_nothing_anew() -> None:
    before = ModelSettings()
    after = parse_model_settings(pbtxt(guard_bake_seconds="600"), "config.pbtxt")
    assert settings_digest(before) == settings_digest(after)
    more = after.model_copy(update={"instance_group": (InstanceGroup(count=2),)})
    assert differ_in_instances_only(before, more)


def test_settings_that_go_to_a_process_of_a_model_come_back_equal() -> None:
    settings = parse_model_settings(pbtxt(guard_bake_seconds="600", other="1"), "config.pbtxt")
    assert ModelSettings.model_validate(settings.model_dump(exclude_unset=True)) == settings
