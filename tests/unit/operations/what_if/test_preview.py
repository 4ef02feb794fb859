"""What a config or a new version would change, asked of a real server over HTTP and compared with what then happens."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.in_process import ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.servable import ModelRef, VersionState
from tfs_lite.core.status import ServingError

Publish = Callable[[str, int], Path]
PublishPython = Callable[[str, int, str], Path]
ALL = "model_version_policy { all {} }"
AVAILABLE, END = VersionState.AVAILABLE, VersionState.END


@pytest.fixture
def fixture(tmp_path: Path, publish: Publish) -> Iterator[ServerFixture]:
    """Serves version 2 of ``a``, of which there are 1 and 2; ``b`` has version 1 and is to be asked for."""
    for name, version in (("a", 1), ("a", 2), ("b", 1)):
        publish(name, version)
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, entry("a")))
    with serving(tmp_path, model_config_file=str(file), max_num_load_retries=0) as fixture:
        yield fixture


def post(fixture: ServerFixture, body: Any) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{fixture.url}/v1/config:explain", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def what_if(fixture: ServerFixture, *models: str) -> dict[str, Any]:
    """Of the config of these entries."""
    config = parse_model_server_config(config_text(fixture.root, *models), "reload")
    status, answer = post(fixture, config.model_dump(mode="json"))
    assert status == 200, answer
    return answer


def fates(answer: dict[str, Any]) -> dict[str, dict[int, str]]:
    return {model["name"]: {v["version"]: v["fate"] for v in model["versions"]} for model in answer["models"]}


def of(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return next(model for model in answer["models"] if model["name"] == name)


def test_an_added_a_changed_and_a_removed_model_are_told_and_then_come_to_pass(fixture: ServerFixture) -> None:
    answer = what_if(fixture, entry("a", ALL), entry("b"))
    assert answer["ok"] is True
    assert answer["refused"] == []
    assert [(m["name"], m["change"], m["fields"]) for m in answer["models"]] == [
        ("b", "added", []),
        ("a", "changed", ["model_version_policy"]),
    ]
    assert fates(answer) == {"b": {1: "load"}, "a": {2: "stay", 1: "load"}}
    load = of(answer, "b")["versions"][0]
    assert load["fits_now"] is True
    assert load["needs"]["main/0/ram_in_bytes"] > 0
    assert fixture.states("b") == {}

    fixture.reload(entry("a", ALL), entry("b"))
    fixture.wait_states({1: AVAILABLE, 2: AVAILABLE}, "a")
    answer = what_if(fixture, entry("a"))
    assert fates(answer) == {"b": {1: "unload"}, "a": {2: "stay", 1: "unload"}}
    assert of(answer, "b")["gap"] == "no version of it answers afterwards"
    assert of(answer, "b")["versions"][0]["why"] == "the config does not have the model"
    assert of(answer, "a")["versions"][1]["why"] == "the version policy (latest 1) takes others"
    assert of(answer, "a")["gap"] == ""
    fixture.reload(entry("a"))
    fixture.wait_states({2: AVAILABLE, 1: END}, "a")


def test_a_version_that_would_be_refused_keeps_its_predecessor(
    fixture: ServerFixture, publish_python: PublishPython
) -> None:
    publish_python("c", 1, "class Model:\n    def predict(self, x):\n        return {'y': x}\n")
    answer = what_if(fixture, entry("a"), entry("c"))
    assert answer["ok"] is False
    assert fates(answer)["c"] == {1: "fail"}
    assert "runs code of the version" in of(answer, "c")["versions"][0]["why"]
    specific = "model_version_policy { specific { versions: 3 } }"
    answer = what_if(fixture, entry("a", specific))
    assert fates(answer)["a"] == {3: "wait", 2: "keep"}
    assert of(answer, "a")["versions"][1]["why"] == "nothing that is wanted now is there yet"
    assert of(answer, "a")["gap"] == ""


def test_the_version_that_would_stand_in_for_a_refused_one_is_named(
    fixture: ServerFixture, publish_python: PublishPython
) -> None:
    publish_python("d", 3, "class Model:\n    def predict(self, x):\n        return {'y': x}\n")
    TaggedArchives().write_version(1, fixture.root / "d")
    answer = what_if(fixture, entry("a"), entry("d"))
    assert fates(answer)["d"] == {3: "fail", 1: "load"}
    assert of(answer, "d")["versions"][1]["why"] == "it stands in for version 3, whose load failed"


def test_every_model_that_would_be_refused_is_named_and_nothing_else_is_said(fixture: ServerFixture) -> None:
    label = 'version_labels { key: "stable" value: 7 }'
    models = (entry("a", label), entry("x", path="http://host/x"), entry("b"))
    answer = what_if(fixture, *models)
    assert answer["ok"] is False
    assert answer["models"] == []
    assert [refusal["model"] for refusal in answer["refused"]] == ["a", "x"]
    assert answer["refused"][0]["code"] == "FAILED_PRECONDITION"
    assert 'label "stable" to version 7' in answer["refused"][0]["text"]
    assert "another scheme" in answer["refused"][1]["text"]
    with pytest.raises(ServingError):
        fixture.reload(*models)


def test_labels_that_move_are_named_with_where_they_lead(fixture: ServerFixture) -> None:
    def labelled(version: int) -> str:
        return f'{ALL} version_labels {{ key: "stable" value: {version} }}'

    fixture.reload(entry("a", ALL))
    fixture.wait_states({1: AVAILABLE, 2: AVAILABLE}, "a")
    fixture.reload(entry("a", labelled(1)))
    answer = what_if(fixture, entry("a", labelled(2)))
    assert of(answer, "a")["labels"] == [{"label": "stable", "before": 1, "after": 2}]
    assert of(answer, "a")["fields"] == ["version_labels"]
    answer = what_if(fixture, entry("a", 'version_labels { key: "stable" value: 1 }'))
    assert of(answer, "a")["remarks"] == ['label "stable" names version 1, which does not answer afterwards']


def test_base_path_that_moves_and_one_that_is_missing(fixture: ServerFixture) -> None:
    answer = what_if(fixture, entry("a", path="ROOT/nowhere"))
    assert fates(answer)["a"] == {2: "stay"}
    assert of(answer, "a")["problem"] == "model a: its base path does not exist"
    assert of(answer, "a")["remarks"] == ["its base path cannot be read: it keeps the versions that it has"]
    answer = what_if(fixture, entry("a", path="ROOT/b"))
    assert fates(answer)["a"] == {2: "unload", 1: "load"}
    assert of(answer, "a")["versions"][0]["after"] == [{"model": "a", "version": 1}]


def test_resource_policy_has_a_gap_and_says_why(tmp_path: Path, publish: Publish) -> None:
    for version in (1, 2):
        publish("m", version)
    specific = "model_version_policy {{ specific {{ versions: {} }} }}"
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, entry("m", specific.format(1))))
    with serving(tmp_path, model_config_file=str(file), aspired_version_policy="resource") as fixture:
        answer = what_if(fixture, entry("m", specific.format(2)))
        assert fates(answer)["m"] == {2: "load", 1: "unload"}
        assert of(answer, "m")["versions"][0]["after"] == [{"model": "m", "version": 1}]
        assert "in between none answers" in of(answer, "m")["gap"]


def test_a_version_without_room_is_refused_with_the_figures(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    publish("n", 1)
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m")) as fixture:
        needs = of(what_if(fixture, entry("m"), entry("n")), "n")["versions"][0]["needs"]["main/0/ram_in_bytes"]
    limit = needs  # a version that is loaded takes less than was reserved for it
    fields: dict[str, Any] = {"total_model_memory_limit_bytes": limit, "max_num_load_retries": 0}
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m"), **fields) as fixture:
        answer = what_if(fixture, entry("m"), entry("n"))
        version = of(answer, "n")["versions"][0]
        assert (version["fate"], version["fits_now"]) == ("refuse", False)
        assert f"total {limit}" in version["why"]
        answer = what_if(fixture, entry("n"))
        version = of(answer, "n")["versions"][0]
        assert (version["fate"], version["fits_now"]) == ("load", False)
        assert version["after"] == [{"model": "m", "version": 1}]


def test_requests_inside_a_version_that_goes_are_counted(fixture: ServerFixture) -> None:
    core = fixture.server.core
    handle = core.handle(ModelRef("a"))
    try:
        core.metrics.requests.started(handle.id)
        answer = what_if(fixture, entry("b"))
        assert of(answer, "a")["versions"][0]["requests"] == 1
    finally:
        core.metrics.requests.finished(handle.id)
        handle.release()


def publish_body(directory: Path, **more: Any) -> dict[str, Any]:
    return {"publish": {"model": "a", "directory": str(directory), **more}}


def test_a_version_that_is_not_there_yet_is_told_and_nothing_is_published(
    fixture: ServerFixture, tmp_path: Path, archives: Any
) -> None:
    new = archives.write_version(9, tmp_path / "elsewhere")
    status, answer = post(fixture, publish_body(new))
    assert (status, answer["ok"]) == (200, True)
    assert fates(answer) == {"a": {3: "load", 2: "unload"}}
    status, answer = post(fixture, publish_body(new, version=9))
    assert fates(answer) == {"a": {9: "load", 2: "unload"}}
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["1", "2"]
    (tmp_path / "a" / "9").symlink_to(new)
    wait_until(lambda: fixture.states("a") == {9: AVAILABLE, 2: END}, "version 9 has taken over")


def test_files_that_would_be_refused_are_told_before_they_are_published(fixture: ServerFixture, tmp_path: Path) -> None:
    bad = tmp_path / "elsewhere"
    bad.mkdir()
    (bad / "model.pt2").write_bytes(b"PK\x03\x04 half of an archive")
    status, answer = post(fixture, publish_body(bad))
    assert (status, answer["ok"]) == (200, False)
    assert fates(answer)["a"] == {2: "stay", 3: "wait"}
    code = tmp_path / "code"
    code.mkdir()
    (code / "model.py").write_text("class Model:\n    def predict(self, x):\n        return {'y': x}\n")
    status, answer = post(fixture, publish_body(code))
    assert fates(answer)["a"] == {3: "fail", 2: "stay"}
    assert of(answer, "a")["versions"][1]["why"] == "it stands in for version 3, whose load failed"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ([], 400, "expected a JSON object"),
        ({}, 400, "model_config_list"),
        ({"model_config_list": {"config": [{"name": "a"}]}}, 400, "base_path: is required"),
        ({"publish": {"model": "a"}}, 400, "expected a text"),
        ({"publish": {"model": "nope", "directory": "/"}}, 404, "the config has no model nope"),
        ({"publish": {"model": "a", "directory": "here"}}, 400, "absolute path"),
        ({"publish": {"model": "a", "directory": "/no/where"}}, 404, "no such directory"),
        ({"publish": {"model": "a", "directory": "/", "version": 2}}, 409, "has a version 2 on disk already"),
        ({"publish": {"model": "a", "directory": "/", "version": -1}}, 400, "expected a number from 0"),
        ({"publish": {"model": "a", "directory": "/", "what": 1}}, 400, "field 'what' is not known"),
    ],
)
def test_questions_that_make_no_sense_are_refused(fixture: ServerFixture, body: Any, status: int, text: str) -> None:
    code, answer = post(fixture, body)
    assert code == status
    assert text in answer["error"]


def test_a_server_that_follows_nothing_says_so(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m"), model_control_mode="none") as fixture:
        config = parse_model_server_config(config_text(tmp_path, entry("m")), "reload")
        code, answer = post(fixture, config.model_dump(mode="json"))
        assert code == 400
        assert "model_control_mode none" in answer["error"]
