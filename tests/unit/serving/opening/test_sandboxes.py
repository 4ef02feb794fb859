"""Which processes of models get a sandbox."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest, Platform
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.serving.opening.sandboxes import Sandboxes, asks_for_sandbox
from tfs_lite.workers.landlock import Kernel

WHOLE, FILTERS, NOTHING = Kernel(7, True), Kernel(0, True), Kernel(0, False)
ASKS = ModelSettings(parameters={"worker_sandbox": "true"})
Wish = Literal["auto", "asked", "required"]


@pytest.fixture
def request_(tmp_path: Path) -> OpenRequest:
    (tmp_path / "file").touch()
    return OpenRequest(ServableId("m", 1), read_version(str(tmp_path)), "cpu", False)


def platform(wish: Wish) -> Platform:
    return Platform("p", "file", lambda files: True, None, sandbox=wish)


@pytest.mark.parametrize(
    ("mode", "wish", "gets_one"),
    [
        ("auto", "auto", True),
        ("auto", "asked", False),
        ("auto", "required", True),
        ("require", "auto", True),
        ("require", "asked", True),
        ("off", "auto", False),
        ("off", "asked", False),
    ],
)
def test_flag_and_platform_decide(request_: OpenRequest, mode: str, wish: Wish, gets_one: bool) -> None:
    sandbox = Sandboxes(mode, lambda: WHOLE).choose(platform(wish), request_)
    assert (sandbox is not None) is gets_one


@pytest.mark.parametrize("kernel", [FILTERS, NOTHING])
@pytest.mark.parametrize(("mode", "wish"), [("require", "auto"), ("auto", "required"), ("require", "required")])
def test_what_needs_a_sandbox_is_refused_where_there_is_none(
    request_: OpenRequest, mode: str, wish: Wish, kernel: Kernel
) -> None:
    with pytest.raises(ServingError) as caught:
        Sandboxes(mode, lambda: kernel).choose(platform(wish), request_)
    status = caught.value.status
    code = StatusCode.PERMISSION_DENIED if wish == "required" else StatusCode.FAILED_PRECONDITION
    assert (status.code, status.reason) == (code, Reason.NEEDS_TRUST if wish == "required" else None)
    assert "files" in status.message
    assert ("--trusted_model_base_paths" in status.message) is (wish == "required")


def test_trusted_version_needs_no_sandbox_and_gets_one_where_there_is_one(request_: OpenRequest) -> None:
    trusted = replace(request_, trusted=True)
    assert Sandboxes("auto", lambda: NOTHING).choose(platform("required"), trusted) is None
    assert Sandboxes("off", lambda: WHOLE).choose(platform("required"), trusted) is None
    assert Sandboxes("auto", lambda: WHOLE).choose(platform("required"), trusted) is not None


def test_version_that_needs_a_sandbox_is_refused_where_they_are_off(request_: OpenRequest) -> None:
    with pytest.raises(ServingError, match="--worker_sandbox=off") as caught:
        Sandboxes("off", lambda: WHOLE).choose(platform("required"), request_)
    assert caught.value.status.code is StatusCode.PERMISSION_DENIED


def test_config_that_asks_gets_a_sandbox_or_an_error(request_: OpenRequest) -> None:
    asking = replace(request_, settings=ASKS)
    assert Sandboxes("auto", lambda: WHOLE).choose(platform("asked"), asking) is not None
    for mode, kernel in (("auto", NOTHING), ("auto", FILTERS), ("off", WHOLE)):
        with pytest.raises(ServingError, match="worker_sandbox is true") as caught:
            Sandboxes(mode, lambda kernel=kernel: kernel).choose(platform("asked"), asking)
        assert caught.value.status.code is StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(("value", "asks"), [("true", True), ("True", True), ("false", False), ("", False)])
def test_parameter_of_a_config(value: str, asks: bool) -> None:
    assert asks_for_sandbox({"worker_sandbox": value}) is asks
    assert not asks_for_sandbox({})


def test_kernel_without_a_part_is_logged_once(request_: OpenRequest, caplog: pytest.LogCaptureFixture) -> None:
    sandboxes = Sandboxes("auto", lambda: FILTERS)
    with caplog.at_level(logging.WARNING):
        assert sandboxes.choose(platform("auto"), request_) is not None
        sandboxes.choose(platform("auto"), request_)
    (record,) = caplog.records
    assert "not out of their reach: files, signals" in record.getMessage()


def test_nothing_is_logged_where_everything_holds(request_: OpenRequest, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Sandboxes("auto", lambda: WHOLE).choose(platform("auto"), request_)
    assert not caplog.records


def test_linked_files_are_readable_unless_a_stranger_may_have_linked_them(
    tmp_path: Path, request_: OpenRequest
) -> None:
    elsewhere = tmp_path.parent / "elsewhere"
    elsewhere.touch()
    (tmp_path / "linked").symlink_to(elsewhere)
    for wish, trusted, readable in (("auto", False, True), ("required", False, False), ("required", True, True)):
        chosen = Sandboxes("auto", lambda: WHOLE).choose(platform(wish), replace(request_, trusted=trusted))
        assert chosen is not None
        assert (str(elsewhere) in dict(chosen.paths)) is readable


@pytest.mark.parametrize(
    ("mode", "wish", "refused"),
    [("auto", "auto", False), ("off", "auto", False), ("require", "auto", True), ("auto", "required", True)],
)
def test_replicas_are_refused_where_a_sandbox_is_needed(
    request_: OpenRequest, mode: str, wish: Wish, refused: bool
) -> None:
    check = Sandboxes(mode, lambda: WHOLE).check_replicas
    if not refused:
        check(platform(wish), request_)
        return
    with pytest.raises(ServingError, match=r'a replica \(worker "ray"\) has none'):
        check(platform(wish), request_)


def test_python_models_have_to_ask() -> None:
    assert PLATFORMS["python"].sandbox == "asked"
    assert PLATFORMS["pytorch_export"].sandbox == "auto"
