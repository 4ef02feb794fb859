"""What a new config changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.config.diff import check_platforms, diff
from tfs_lite.config.model_server import ModelConfig, ModelConfigList, ModelServerConfig
from tfs_lite.core.status import ServingError, StatusCode


def model(name: str = "m", **fields: Any) -> ModelConfig:
    return ModelConfig(name=name, **{"base_path": f"/{name}", **fields})


def config(*models: ModelConfig) -> ModelServerConfig:
    return ModelServerConfig(model_config_list=ModelConfigList(config=models))


def test_every_model_falls_into_one_of_four_groups() -> None:
    difference = diff(
        config(model("kept"), model("gone"), model("moved")),
        config(model("new"), model("moved", base_path="/elsewhere"), model("kept")),
    )
    assert difference.added == (model("new"),)
    assert difference.removed == (model("gone"),)
    assert [(change.new.name, change.fields) for change in difference.changed] == [("moved", ("base_path",))]
    assert difference.unchanged == (model("kept"),)


def test_the_first_config_adds_everything() -> None:
    assert diff(None, config(model("a"), model("b"))).added == (model("a"), model("b"))


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"base_path": "/x"}, ("base_path",)),
        ({"model_platform": "python"}, ("model_platform",)),
        ({"version_labels": {"a": 1}}, ("version_labels",)),
        ({"model_version_policy": {"all": {}}}, ("model_version_policy",)),
        ({"model_version_policy": {"latest": {"num_versions": 2}}}, ("model_version_policy",)),
        ({"base_path": "/x", "version_labels": {"a": 1}}, ("base_path", "version_labels")),
        ({"logging_config": {"log_collector_config": {"filename_prefix": "/x"}}}, ("logging_config",)),
        ({"model_version_policy": {"latest": {"num_versions": 1}}}, ()),
        ({"model_platform": "tensorflow"}, ()),
        ({"model_type": "TENSORFLOW"}, ()),
    ],
)
def test_a_change_names_its_fields_and_other_spellings_are_no_change(
    fields: dict[str, Any], changed: tuple[str, ...]
) -> None:
    difference = diff(config(model()), config(model(**fields)))
    assert tuple(change.fields for change in difference.changed) == ((changed,) if changed else ())
    assert len(difference.unchanged) == (0 if changed else 1)


@pytest.mark.parametrize(("old", "new"), [("", "python"), ("python", "tensorflow"), ("python", "python")])
def test_a_platform_may_be_named_or_left_open_later(old: str, new: str) -> None:
    check_platforms(diff(config(model(model_platform=old)), config(model(model_platform=new))))


def test_a_platform_may_not_change_while_the_model_stays() -> None:
    difference = diff(config(model(model_platform="python")), config(model(model_platform="pytorch_export")))
    with pytest.raises(
        ServingError, match=r"Illegal to change a model's platform.*from python to pytorch_export"
    ) as raised:
        check_platforms(difference)
    assert raised.value.code is StatusCode.INVALID_ARGUMENT


CONFIGS = st.lists(
    st.builds(model, st.sampled_from("abcd"), base_path=st.sampled_from(["/x", "/y"])), unique_by=lambda item: item.name
).map(lambda models: config(*models))


@given(CONFIGS, CONFIGS)
def test_a_difference_accounts_for_every_model_once(old: ModelServerConfig, new: ModelServerConfig) -> None:
    difference = diff(old, new)
    stay = [*(change.new for change in difference.changed), *difference.unchanged]
    assert sorted(model.name for model in [*difference.added, *stay]) == sorted(model.name for model in new.models)
    assert {model.name for model in difference.removed} == {model.name for model in old.models} - {
        model.name for model in new.models
    }
    assert diff(new, new).unchanged == new.models
