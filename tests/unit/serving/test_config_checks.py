from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.diff import diff
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.status import ServingError
from tfs_lite.serving.config_checks import check_actual_platforms, check_models, source_config, version_labels
from tfs_lite.serving.options import ServerOptions
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy

PLATFORMS = ("python", "pytorch_export")


def config(*models: dict[str, Any]) -> ModelServerConfig:
    return ModelServerConfig.model_validate({"model_config_list": {"config": list(models)}})


def model(name: str = "m", path: str = "/models/m", **rest: Any) -> dict[str, Any]:
    return {"name": name, "base_path": path, **rest}


def test_known_platform_and_none_are_accepted() -> None:
    check_models(config(model(), model("n", model_platform="python")), PLATFORMS, ())


def test_unknown_platform_offers_the_nearest() -> None:
    assert refusal(check_models, config(model(model_platform="pytorch_exprt")), PLATFORMS, ()) == (
        'model m requests unsupported platform "pytorch_exprt"; did you mean "pytorch_export"?'
    )
    assert "this server has: python, pytorch_export" in refusal(
        check_models, config(model(model_platform="zzz")), PLATFORMS, ()
    )


def test_uri_is_refused() -> None:
    assert "URI" in refusal(check_models, config(model(path="gs://bucket/m")), PLATFORMS, ())


def test_base_path_must_lie_below_an_allowed_root(tmp_path: Path) -> None:
    inside, outside = tmp_path / "models", tmp_path / "elsewhere"
    (inside / "m").mkdir(parents=True)
    outside.mkdir()
    check_models(config(model(path=str(inside / "m"))), PLATFORMS, (str(inside),))
    check_models(config(model(path=str(inside / "not_there_yet"))), PLATFORMS, (str(inside),))
    for path in (outside, tmp_path / "models2", inside / ".." / "elsewhere"):
        error = refusal(check_models, config(model(path=str(path))), PLATFORMS, (str(inside),))
        assert error == "model m: base_path is outside the allowed roots (--allowed_model_base_paths)"


def test_link_does_not_lead_out_of_an_allowed_root(tmp_path: Path) -> None:
    inside, outside = tmp_path / "models", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    (inside / "m").symlink_to(outside)
    refusal(check_models, config(model(path=str(inside / "m"))), PLATFORMS, (str(inside),))


def test_platform_that_was_found_out_cannot_be_changed_either() -> None:
    difference = diff(config(model()), config(model(model_platform="python")))
    check_actual_platforms(difference, {})
    check_actual_platforms(difference, {"m": "python"})
    with pytest.raises(ServingError, match="Illegal to change a model's platform"):
        check_actual_platforms(difference, {"m": "pytorch_export"})


def test_version_policies_reach_the_source() -> None:
    wanted = config(
        model("a"),
        model("b", model_version_policy={"latest": {"num_versions": 3}}),
        model("c", model_version_policy={"all": {}}),
        model("d", model_version_policy={"specific": {"versions": [3, 7]}}),
    )
    servables = source_config(wanted, ServerOptions()).servables
    assert [servable.policy for servable in servables] == [
        LatestPolicy(1),
        LatestPolicy(3),
        AllPolicy(),
        SpecificPolicy((3, 7)),
    ]


@pytest.mark.parametrize(("seconds", "interval"), [(5.0, 5.0), (0, 0), (-1, None)])
def test_poll_interval_is_the_flags(seconds: float, interval: float | None) -> None:
    options = ServerOptions(file_system_poll_wait_seconds=seconds, version_quiet_period_seconds=0.5)
    found = source_config(config(model()), options)
    assert (found.poll_interval, found.quiet_period) == (interval, 0.5)


def test_control_mode_none_looks_once() -> None:
    assert source_config(config(model()), ServerOptions(model_control_mode="none")).poll_interval == 0


def test_labels_are_gathered_by_model() -> None:
    wanted = config(model("a", version_labels={"stable": 1, "canary": 2}), model("b"))
    assert version_labels(wanted) == {"a": {"stable": 1, "canary": 2}}
