from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.diff import diff
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.serving.config_checks import (
    below_allowed_roots,
    check_actual_platforms,
    check_models,
    check_versions_present,
    remote_config,
    source_config,
    version_labels,
)
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
    assert 'did you mean "pytorch_aoti" or "pytorch_export"?' in refusal(
        check_models, config(model(model_platform="pytorch")), {*PLATFORMS, "pytorch_aoti"}, ()
    )
    assert "this server has: python, pytorch_export" in refusal(
        check_models, config(model(model_platform="zzz")), PLATFORMS, ()
    )


@pytest.mark.parametrize(
    "url", ["s3://bucket/m", "gs://bucket", "az://container/m", "abfss://c@acc.dfs.core.windows.net/m"]
)
def test_url_that_can_be_read_is_let_through(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    check_models(config(model(path=url)), PLATFORMS, ())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host/m", "another scheme than s3://"),
        ("file:///models/m", "another scheme"),
        ("s3://id:key@bucket/m", "credentials come from the environment"),
        ("s3://bucket:9000/m", "set AWS_ENDPOINT_URL"),
        ("s3://bucket/m?x=1", "a query or a fragment"),
        ("s3://bucket/a/../m", 'an empty part, "." or ".."'),
    ],
)
def test_url_that_is_none_is_refused_and_not_repeated(url: str, words: str) -> None:
    error = refusal(check_models, config(model(path=url)), PLATFORMS, ())
    assert error.startswith("model m: base_path: the URL has ")
    assert words in error
    assert "key@" not in error


def test_url_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    code = StatusCode.FAILED_PRECONDITION
    error = refusal(check_models, config(model(path="s3://bucket/m")), PLATFORMS, (), code=code)
    assert error.startswith("model m: base_path: ")
    assert "pip install 'tfs-lite[remote]'" in error


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        ("s3://models/team-a/m", True),
        ("s3://models/team-a", True),
        ("s3://models/team-ab/m", False),
        ("s3://models/team-b/m", False),
        ("s3://other/team-a/m", False),
        ("gs://models/team-a/m", False),
        ("/models/team-a", False),
        ("/srv/m", True),
    ],
)
def test_allowed_roots_are_urls_and_directories_and_neither_allows_the_other(path: str, is_allowed: bool) -> None:
    assert below_allowed_roots(path, ("s3://models/team-a", "/srv")) is is_allowed
    assert below_allowed_roots(path, ())


def test_url_outside_the_allowed_roots_is_refused() -> None:
    error = refusal(check_models, config(model(path="s3://other/m")), PLATFORMS, ("s3://models", "/models"))
    assert error == "model m: base_path is outside the allowed roots (--allowed_model_base_paths)"


def test_versions_at_urls_need_not_be_there_for_a_config_to_be_accepted(tmp_path: Path) -> None:
    check_versions_present(config(model(path="s3://bucket/m")))
    error = refusal(check_versions_present, config(model(path=str(tmp_path))), code=StatusCode.NOT_FOUND)
    assert "holds no version" in error


def test_each_model_goes_to_the_source_of_its_kind() -> None:
    wanted = config(model("a"), model("b", path="s3://bucket/b/"), model("c", path="as://account/container/c"))
    assert [servable.name for servable in source_config(wanted, ServerOptions()).servables] == ["a"]
    remote = remote_config(wanted, ServerOptions())
    assert [servable.base_path for servable in remote.servables] == ["s3://bucket/b", "as://account/container/c"]


def test_urls_are_polled_once_a_minute_give_or_take_a_tenth() -> None:
    remote = remote_config(config(model(path="s3://b/m")), ServerOptions())
    assert remote.poll_interval is not None
    assert 54 <= remote.poll_interval <= 66
    assert remote.quiet_period == 30
    again = remote_config(config(model(path="s3://b/m")), ServerOptions(remote_poll_wait_seconds=600))
    assert again.poll_interval == pytest.approx(10 * remote.poll_interval)


@pytest.mark.parametrize(("seconds", "interval"), [(0, 0), (-1, None)])
def test_urls_are_looked_at_once_or_never_as_directories_are(seconds: float, interval: float | None) -> None:
    options = ServerOptions(file_system_poll_wait_seconds=seconds)
    assert remote_config(config(model(path="s3://b/m")), options).poll_interval == interval


def test_control_mode_none_looks_once_at_urls() -> None:
    assert remote_config(config(model()), ServerOptions(model_control_mode="none")).poll_interval == 0


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
