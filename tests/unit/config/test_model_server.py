"""What may be said about the served models, and what not."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.errors import refusal
from tfs_lite.config.model_server import All, Latest, ModelServerConfig, Specific, from_proto, one_model
from tfs_lite.config.settings import Document, build
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols import messages


def config(*models: dict[str, Any], working_directory: Path | None = None) -> ModelServerConfig:
    return build(ModelServerConfig, Document({"model_config_list": {"config": list(models)}}), working_directory)


def model(**fields: Any) -> dict[str, Any]:
    return {"name": "m", "base_path": "/models/m", **fields}


def test_a_model_needs_only_a_name_and_a_path() -> None:
    (only,) = config(model()).models
    assert (only.name, only.base_path, only.platform) == ("m", "/models/m", None)
    assert only.model_version_policy.choice == Latest(num_versions=1)
    assert only.version_labels == {}


@pytest.mark.parametrize(
    ("policy", "choice"),
    [
        ({}, Latest(num_versions=1)),
        ({"latest": {}}, Latest(num_versions=1)),
        ({"latest": {"num_versions": 0}}, Latest(num_versions=1)),
        ({"latest": {"num_versions": 3}}, Latest(num_versions=3)),
        ({"all": {}}, All()),
        ({"specific": {}}, Specific()),
        ({"specific": {"versions": [7, 0]}}, Specific(versions=(7, 0))),
    ],
)
def test_every_version_policy_is_understood(policy: dict[str, Any], choice: object) -> None:
    assert config(model(model_version_policy=policy)).models[0].model_version_policy.choice == choice


@pytest.mark.parametrize(
    ("fields", "platform"),
    [
        ({}, None),
        ({"model_platform": "tensorflow"}, None),
        ({"model_type": "TENSORFLOW"}, None),
        ({"model_type": "MODEL_TYPE_UNSPECIFIED", "model_platform": "python"}, "python"),
        ({"model_platform": "pytorch_export"}, "pytorch_export"),
    ],
)
def test_tensorflow_or_no_platform_means_find_out_from_the_artefact(
    fields: dict[str, str], platform: str | None
) -> None:
    assert config(model(**fields)).models[0].platform == platform


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, r"config\[0\]\.name: must not be empty"),
        ({"name": "a/b"}, '"a/b" has "/" or ":"'),
        ({"name": "a:b"}, '"a:b" has "/" or ":"'),
        ({"name": 3}, "should be a valid string, got 3"),
        ({"base_path": ""}, r"config\[0\]\.base_path: must not be empty"),
        ({"base_path": "models"}, 'Expected model m to have an absolute path or URI; got "models"'),
        ({"model_type": "OTHER"}, "not supported"),
        ({"model_type": "TENSORFLOW", "model_platform": "tensorflow"}, "Illegal setting both"),
        ({"model_version_policy": {"latest": {}, "all": {}}}, "latest and all exclude each other"),
        ({"model_version_policy": {"latest": {"num_versions": -1}}}, "greater than or equal to 0, got -1"),
        ({"model_version_policy": {"latest": {"num_versions": True}}}, "valid integer, got True"),
        ({"model_version_policy": {"specific": {"versions": [1, -2]}}}, r"versions\[1\]: .* got -2"),
        ({"model_version_policy": {"specific": {"versions": [2**63]}}}, "less than or equal to"),
        ({"version_labels": {"a:b": 1}}, r'version_labels\.a:b: "a:b" has "/" or ":"'),
        ({"version_labels": {"": 1}}, "must not be empty"),
        ({"version_labels": {"stable": -1}}, r"version_labels\.stable: .* got -1"),
        ({"version_labels": {"stable": "1"}}, "valid integer, got '1'"),
        ({"logging_config": {}}, r"config\[0\]\.logging_config\.log_collector_config: is required"),
        ({"base_pth": "/x"}, 'base_pth: unknown field; did you mean "base_path"?'),
        ({"model_version_policy": {"newest": {}}}, r"unknown field; known: all, latest, specific"),
    ],
)
def test_a_mistake_in_a_model_names_the_field_and_what_came(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ServingError, match=message) as raised:
        config(model(**fields))
    assert raised.value.code is StatusCode.INVALID_ARGUMENT


def test_a_missing_field_is_named() -> None:
    assert "config[0].base_path: is required" in refusal(config, {"name": "m"})


def test_a_name_that_comes_twice_is_refused_at_its_second_place() -> None:
    assert "config[2].name: Illegal to list model m multiple times" in refusal(
        config, model(), model(name="other"), model()
    )


def test_many_mistakes_are_counted_and_the_first_ones_shown() -> None:
    message = refusal(config, *[model(name="") for _ in range(9)])
    assert message.count("must not be empty") == 5
    assert message.endswith("; and 4 more")


@pytest.mark.parametrize("path", ["models/m", "./m", "../m"])
def test_a_relative_base_path_is_resolved_only_against_a_given_directory(path: str) -> None:
    resolved = config(model(base_path=path), working_directory=Path("/srv")).models[0].base_path
    assert Path(resolved) == Path("/srv") / path


@pytest.mark.parametrize("path", ["/models/m", "gs://bucket/m", "file:///models/m"])
def test_absolute_paths_and_uris_are_left_alone(path: str) -> None:
    assert config(model(base_path=path), working_directory=Path("/srv")).models[0].base_path == path


def test_flags_make_a_config_of_one_model() -> None:
    assert one_model("m", "models/m", Path("/srv")) == config(model(base_path="/srv/models/m"))


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        config(model()).models[0].name = "other"


def test_an_empty_list_is_a_config() -> None:
    message = messages.ModelServerConfig()
    message.model_config_list.SetInParent()
    assert from_proto(message).models == ()


@pytest.mark.parametrize("custom", [False, True])
def test_only_a_list_of_models_is_a_config(custom: bool) -> None:
    message = messages.ModelServerConfig()
    if custom:
        message.custom_model_config.SetInParent()
    assert "Only ModelConfigList is currently supported" in refusal(from_proto, message)


def test_a_reload_message_is_validated_like_a_file() -> None:
    reload = messages.ModelServerConfig()
    reload.model_config_list.config.add(name="m", base_path="relative", model_type=7)
    with pytest.raises(ServingError) as raised:
        from_proto(reload)
    assert "model_config_list.config[0].base_path: Expected model m to have an absolute path or URI" in str(
        raised.value
    )
    assert "model_config_list.config[0].model_type: Input should be" in str(raised.value)


def test_settings_survive_the_way_over_the_wire() -> None:
    settings = config(
        model(model_version_policy={"latest": {"num_versions": 2}}, version_labels={"a": 1, "b": 0}),
        model(name="n", model_version_policy={"all": {}}, model_platform="python"),
        model(name="o", model_version_policy={"specific": {"versions": [3, 4]}}),
        model(
            name="p",
            model_version_policy={"specific": {}},
            logging_config={"log_collector_config": {"filename_prefix": "/logs/p"}},
        ),
    )
    wire = settings.to_proto().SerializeToString()
    assert from_proto(messages.ModelServerConfig.FromString(wire)) == settings


def test_a_path_with_a_nul_is_refused() -> None:
    assert "must not hold a NUL character" in refusal(one_model, "m", "/models/a\0b", Path("/"))
