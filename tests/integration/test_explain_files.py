"""Each cause that lies in files, configs or references: a real server in that state names it, and its fix, carried out,
leads to SERVING."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch

from tests.support.servers.explanations import Explanations, link_of
from tests.support.servers.in_process import ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives, write_python_version
from tests.support.servers.platforms import write_onnx
from tests.support.servers.process import wait_until
from tfs_lite import save
from tfs_lite.cli.main import main
from tfs_lite.core.history import EventKind
from tfs_lite.core.servable import ModelRef
from tfs_lite.operations.admin.feature import Admin

BROKEN = "raise ValueError('the weights are not there')"
GOOD = "class Model:\n    def __init__(self, context):\n        pass\n\n    def predict(self, inputs):\n"
GOOD += "        return {'y': inputs['x'] + 1}\n"


@contextmanager
def started(root: Path, *models: str, **options: Any) -> Iterator[tuple[ServerFixture, Explanations]]:
    """A server with a config file of these entries."""
    file = root / "models.config"
    file.write_text(config_text(root, *models))
    with serving(root, model_config_file=str(file), **options) as served:
        yield served, Explanations(served, root)


def test_a_model_that_is_not_in_the_config(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "ranker")
    archives.write_version(1, tmp_path / "other")
    with started(tmp_path, entry("ranker")) as (served, explain):
        answer = explain.wait("rankr", "NOT_CONFIGURED", "!NOT_CONFIGURED", "did you mean ranker")
        assert "--model_config_file" in answer["sentence"]
        assert "tfs-lite reload" in link_of(explain.ask("other"), "NOT_CONFIGURED")["fix"]
        served.reload(entry("ranker"), entry("other"))
        explain.wait("other", "SERVING")


def test_a_base_path_that_is_not_there(tmp_path: Path, archives: TaggedArchives) -> None:
    with started(tmp_path, entry("m")) as (_, explain):
        answer = explain.wait("m", "NOT_ON_DISK", "!BASE_PATH_PROBLEM", "does not exist")
        assert link_of(answer, "BASE_PATH_PROBLEM")["since"]
        archives.write_version(1, tmp_path / "m")
        explain.wait("m", "SERVING")


def test_a_base_path_that_goes_while_a_version_serves(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    with started(tmp_path, entry("m")) as (_, explain):
        (tmp_path / "m").rename(tmp_path / "away")
        explain.wait("m", "SERVING", "!BASE_PATH_PROBLEM", "does not exist")
        (tmp_path / "away").rename(tmp_path / "m")
        wait_until(lambda: not explain.ask("m")["because"], "all is well again")
        told = [event["kind"] for event in explain.ask("m")["events"] if event["kind"].startswith("BASE_PATH")]
        assert told == ["BASE_PATH_PROBLEM", "BASE_PATH_GOOD"]


def test_a_base_path_without_versions(tmp_path: Path, archives: TaggedArchives) -> None:
    (tmp_path / "m").mkdir()
    with started(tmp_path, entry("m")) as (_, explain):
        explain.wait("m", "NOT_ON_DISK", "!NO_VERSIONS", "holds no version")
        archives.write_version(1, tmp_path / "m")
        explain.wait("m", "SERVING")


def test_a_version_that_was_never_there_and_one_that_has_gone(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    archives.write_version(2, tmp_path / "m")
    with started(tmp_path, entry("m")) as (_, explain):
        explain.wait("m/versions/2", "SERVING")
        answer = explain.wait("m/versions/7", "NOT_ON_DISK", "!NOT_ON_DISK", "there are: 2, 1")
        assert answer["answers_now"] == [{"reference": "unversioned", "version": 2, "weight": 1.0}]
        shutil.rmtree(tmp_path / "m" / "2")
        explain.wait("m/versions/1", "SERVING")
        explain.wait("m/versions/2", "NOT_ON_DISK", "!NOT_ON_DISK", "it was there before")
        archives.write_version(2, tmp_path / "m")
        explain.wait("m/versions/2", "SERVING")


def test_a_version_that_the_policy_passes_over(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    archives.write_version(2, tmp_path / "m")
    with started(tmp_path, entry("m")) as (served, explain):
        answer = explain.wait("m/versions/1", "NOT_WANTED", "!POLICY_PASSES_OVER", "latest {num_versions: 1} takes 2")
        assert "version 2 answers instead" in answer["sentence"]
        assert "latest {num_versions: 2}" in link_of(answer, "POLICY_PASSES_OVER")["fix"]
        served.reload(entry("m", "model_version_policy { latest { num_versions: 2 } }"))
        explain.wait("m/versions/1", "SERVING")
        served.reload(entry("m", "model_version_policy { specific { versions: 2 } }"))
        answer = explain.wait("m/versions/1", "NOT_WANTED", "!POLICY_PASSES_OVER", "specific takes 2")
        assert "versions: 1" in link_of(answer, "POLICY_PASSES_OVER")["fix"]


def test_a_newer_version_that_the_policy_passes_over_shows_in_what_is_said_of_the_model(
    tmp_path: Path, archives: TaggedArchives
) -> None:
    archives.write_version(1, tmp_path / "m")
    archives.write_version(2, tmp_path / "m")
    with started(tmp_path, entry("m", "model_version_policy { specific { versions: 1 } }")) as (served, explain):
        answer = explain.wait("m", "SERVING", "POLICY_PASSES_OVER", "version 2 is on disk and newer, but")
        assert answer["sentence"] == "version 1 answers"
        line = explain.get("/v1/models:explain")["models"][0]
        assert line["verdict"] == "SERVING"
        assert line["cause"] == "POLICY_PASSES_OVER"
        assert line["sentence"].startswith("version 1 answers; version 2 is on disk and newer, but the version policy")
        assert "version 2 is on disk and newer" in explain.get("/v1/overview")["models"][0]["sentence"]
        fix = link_of(answer, "POLICY_PASSES_OVER")["fix"]
        copied = fix.removeprefix("set ").partition(" in the model's config")[0]
        served.reload(entry("m", copied))
        explain.wait("m/versions/2", "SERVING")


def test_a_version_below_the_one_that_serves_which_came_last_shows_in_the_list(
    tmp_path: Path, archives: TaggedArchives
) -> None:
    archives.write_version(1, tmp_path / "m")
    archives.write_version(7, tmp_path / "m")
    with started(tmp_path, entry("m")) as (_, explain):
        explain.wait("m", "SERVING")
        assert explain.get("/v1/models:explain")["models"][0]["sentence"] == "version 7 answers"
        archives.write_version(5, tmp_path / "m")
        answer = explain.wait("m", "SERVING", "POLICY_PASSES_OVER", "version 5 came last, but the version policy")
        assert "or publish it under a higher number" in link_of(answer, "POLICY_PASSES_OVER")["fix"]
        sentence = explain.get("/v1/models:explain")["models"][0]["sentence"]
        assert sentence.startswith("version 7 answers; version 5 came last, but")
        archives.write_version(8, tmp_path / "m")
        explain.wait("m/versions/8", "SERVING")
        wait_until(lambda: not explain.ask("m")["because"], "the version that came last answers")
        assert explain.get("/v1/models:explain")["models"][0]["sentence"] == "version 8 answers"


def test_a_version_that_is_asked_for_by_number_and_missing(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    with started(tmp_path, entry("m", "model_version_policy { specific { versions: [1, 4] } }")) as (_, explain):
        explain.wait("m/versions/1", "SERVING")
        explain.wait("m/versions/4", "NOT_ON_DISK", "!NOT_ON_DISK")
        explain.wait("m", "SERVING_OTHER", "!NOT_ON_DISK")
        archives.write_version(4, tmp_path / "m")
        explain.wait("m", "SERVING")


def test_half_a_copy(tmp_path: Path, archives: TaggedArchives) -> None:
    whole = archives.write(1, tmp_path / "whole").read_bytes()
    archive = tmp_path / "m" / "1" / "model.pt2"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(whole[: len(whole) // 2])
    with started(tmp_path, entry("m"), ready=False) as (_, explain):
        answer = explain.wait("m", "WAITING", "!INCOMPLETE", "model.pt2")
        assert answer["next"]["what"] == "nothing happens before its files change"
        archive.write_bytes(whole)
        explain.wait("m", "SERVING")


def test_files_that_have_not_been_quiet_for_long_enough(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    quiet = {"version_quiet_period_seconds": 4.0}
    with started(tmp_path, entry("m"), ready=False, **quiet) as (_, explain):
        answer = explain.wait("m", "WAITING", "!INCOMPLETE", "s of quiet are left")
        assert answer["next"]["at"]
        explain.wait("m", "SERVING")


def test_files_that_nothing_loads(tmp_path: Path, archives: TaggedArchives) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "notes.txt").write_text("the weights follow")
    with started(tmp_path, entry("m"), max_num_load_retries=0) as (_, explain):
        explain.wait("m", "FAILED", "!PLATFORM_UNKNOWN", "notes.txt")
        archives.write(1, tmp_path / "m" / "1" / "model.pt2")
        explain.wait("m", "SERVING")


def test_an_archive_that_holds_a_pickle(tmp_path: Path, archives: TaggedArchives) -> None:
    archive = archives.write_version(1, tmp_path / "m") / "model.pt2"
    with zipfile.ZipFile(archive, "a") as file:
        first = file.namelist()[0].partition("/")[0]
        file.writestr(f"{first}/data/x.pkl", b"\x80\x04N.")
    with started(tmp_path, entry("m")) as (_, explain):
        answer = explain.wait("m", "REFUSED", "!ARTEFACT_REFUSED", "x.pkl")
        assert "publish a good one as version 2" in link_of(answer, "ARTEFACT_REFUSED")["fix"]
        archives.write_version(2, tmp_path / "m")
        explain.wait("m", "SERVING")


@pytest.mark.parametrize("name", ["model.pt2", "model.pt"])
@pytest.mark.parametrize("as_zip", [True, False])
def test_a_pickle_in_place_of_an_archive(tmp_path: Path, archives: TaggedArchives, name: str, as_zip: bool) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    state = torch.nn.Linear(1, 1).state_dict()
    torch.save(state, tmp_path / "m" / "1" / name, _use_new_zipfile_serialization=as_zip)
    with started(tmp_path, entry("m"), ready=False) as (_, explain):
        answer = explain.wait("m", "REFUSED", "!ARTEFACT_REFUSED", "is a pickle that torch.save wrote")
        assert "tfs_lite.save" in answer["sentence"]
        archives.write_version(2, tmp_path / "m")
        explain.wait("m", "SERVING")


def test_code_that_is_not_trusted(tmp_path: Path) -> None:
    write_python_version(tmp_path / "m", 1, GOOD)
    with started(tmp_path, entry("m")) as (served, explain):
        answer = explain.wait("m", "REFUSED", "!TRUST_MISSING", "model.py")
        assert "--trusted_model_base_paths" in link_of(answer, "TRUST_MISSING")["fix"]
        link = served.server.core.find(Admin).control.explain(ModelRef("m"), paths=True).because[0]
        assert str(tmp_path) in link.fix
    with started(tmp_path, entry("m"), trusted_model_base_paths=(str(tmp_path / "m"),)) as (_, explain):
        explain.wait("m", "SERVING")


def trusting(root: Path, **options: Any) -> dict[str, Any]:
    return {"trusted_model_base_paths": (str(root),), **options}


def test_a_load_that_is_tried_again(tmp_path: Path) -> None:
    model = write_python_version(tmp_path / "m", 1, BROKEN) / "model.py"
    often = trusting(tmp_path, max_num_load_retries=10_000, load_retry_interval_micros=1_000_000)
    with started(tmp_path, entry("m"), ready=False, **often) as (_, explain):
        answer = explain.wait("m", "WAITING", "!RETRYING", "the weights are not there")
        assert answer["next"]["at"]
        assert "of 10001" in answer["next"]["what"]
        model.write_text(GOOD)
        explain.wait("m", "SERVING")


def held_until(signal: Path, then: str, begun: Path) -> str:
    """Code of a model whose load waits for a file outside of the version."""
    return f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n" + (
        f"while not pathlib.Path({str(signal)!r}).exists():\n    time.sleep(0.01)\n{then}"
    )


def count_of(explain: Explanations, kind: EventKind) -> int:
    return sum(event["kind"] == kind.name for event in explain.ask("m")["events"])


def test_a_config_that_changes_while_a_version_is_loaded_at_first_comes_into_force(tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    config = write_python_version(tmp_path / "m", 1, held_until(go, GOOD, begun)) / "config.pbtxt"
    with started(tmp_path, entry("m"), ready=False, **trusting(tmp_path)) as (served, explain):
        wait_until(begun.exists, "the version is being loaded")
        changes = count_of(explain, EventKind.FILES_CHANGED)
        config.write_text(config.read_text() + '\nparameters { key: "size" value { string_value: "8" } }\n')
        wait_until(lambda: count_of(explain, EventKind.FILES_CHANGED) > changes, "the change is seen")
        go.touch()
        explain.wait("m", "SERVING")
        core = served.server.core

        def is_in_force() -> bool:
            with core.handle(ModelRef("m")) as handle:
                return "size" in core.renewal.settings_of(handle.servable).parameters

        wait_until(is_in_force, "the config is in force")


def test_a_load_that_has_failed_for_good(tmp_path: Path) -> None:
    model = write_python_version(tmp_path / "m", 1, BROKEN) / "model.py"
    with started(tmp_path, entry("m"), **trusting(tmp_path, max_num_load_retries=0)) as (_, explain):
        answer = explain.wait("m", "FAILED", "!LOAD_FAILED", "1 attempt failed")
        assert "the weights are not there" in answer["sentence"]
        model.write_text(GOOD)
        explain.wait("m", "SERVING")


def test_a_label_that_is_not_known_and_one_of_a_version_that_fails(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    (tmp_path / "m" / "2").mkdir()
    (tmp_path / "m" / "2" / "notes.txt").write_text("nothing")
    both = 'model_version_policy { all {} } version_labels { key: "next" value: 2 }'
    with started(tmp_path, entry("m", both), max_num_load_retries=0) as (served, explain):
        answer = explain.wait("m/labels/stable", "NOT_CONFIGURED", "!LABEL_UNKNOWN", "it has: next")
        assert 'key: "stable" value: 1' in link_of(answer, "LABEL_UNKNOWN")["fix"]
        answer = explain.wait("m/labels/next", "FAILED", "!LABEL_TO_MISSING", "version 2, which has failed")
        assert answer["because"][1]["cause"] == "PLATFORM_UNKNOWN"
        label = 'version_labels { key: "stable" value: 1 } version_labels { key: "next" value: 1 }'
        served.reload(entry("m", f"model_version_policy {{ all {{}} }} {label}"))
        explain.wait("m/labels/stable", "SERVING")
        explain.wait("m/labels/next", "SERVING")


def test_a_config_that_is_wrong_beside_a_version_that_serves(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    with started(tmp_path, entry("m")) as (_, explain):
        config = tmp_path / "m" / "config.pbtxt"
        config.write_text("max_batch_size: -3")
        explain.wait("m", "SERVING", "!CONFIG_NOT_APPLIED")
        config.write_text("max_batch_size: 4")
        wait_until(lambda: not explain.ask("m")["because"], "the config is in force")


def test_a_config_file_that_is_refused_while_its_models_serve(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    archives.write_version(1, tmp_path / "other")
    file = tmp_path / "models.config"
    with started(tmp_path, entry("m"), model_config_file_poll_wait_seconds=0.1) as (served, explain):
        good = file.read_text()
        file.write_text(good.replace("base_path", "bsae_path"))
        answer = explain.wait("m", "SERVING", "!CONFIG_NOT_APPLIED", "models.config:")
        assert answer["sentence"].startswith("version 1 answers, but the config file was refused: ")
        assert link_of(answer, "CONFIG_NOT_APPLIED")["since"]
        assert "was refused" in explain.get("/v1/models:explain")["models"][0]["sentence"]
        assert "was refused" in explain.get("/v1/overview")["server"]["config_refused"]["text"]
        explain.wait("other", "NOT_CONFIGURED", "!NOT_CONFIGURED", "the config file may name it, but cannot be read")
        link = served.server.core.find(Admin).control.explain(ModelRef("m"), paths=True).because[0]
        assert str(file) in link.text
        file.write_text(good)
        wait_until(lambda: not explain.ask("m")["because"], "what the file says is in force")
        assert explain.get("/v1/overview")["server"]["config_refused"] is None
        labelled = config_text(tmp_path, entry("m", 'version_labels { key: "stable" value: 7 }'), entry("other"))
        file.write_text(labelled)
        answer = explain.wait("m/labels/stable", "NOT_CONFIGURED", "!LABEL_UNKNOWN", "gives it to version 7, but was")
        assert "stable" in link_of(answer, "CONFIG_NOT_APPLIED")["text"]
        explain.wait("other", "NOT_CONFIGURED", "!NOT_CONFIGURED", "the config file names model 'other'")
        file.write_text(labelled.replace("value: 7", "value: 1"))
        explain.wait("m/labels/stable", "SERVING")
        explain.wait("other", "SERVING")
        assert not explain.ask("m")["because"]


def test_labels_that_are_refused_at_every_look_are_one_line_and_the_status_says_it(
    tmp_path: Path, archives: TaggedArchives, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    archives.write_version(1, tmp_path / "m")
    file = tmp_path / "models.config"
    with started(tmp_path, entry("m"), model_config_file_poll_wait_seconds=0.1) as (served, explain):
        file.write_text(config_text(tmp_path, entry("m", 'version_labels { key: "stable" value: 7 }')))
        explain.wait("m", "SERVING", "!CONFIG_NOT_APPLIED", "stable")
        wait_until(lambda: times(served) > 3, "it was looked at some more times")
        assert len([line for line in caplog.messages if "refused, nothing changed" in line]) == 1
        rest = f"--server={served.url.removeprefix('http://')}"
        assert main(["status", rest]) == 0
        table, _, told = capsys.readouterr().out.partition("the config file was refused: ")
        assert "AVAILABLE" in table
        assert 'label "stable" to version 7' in " ".join(told.split())
        assert "do: correct the config file" in " ".join(told.split())
        assert main(["status", rest, "--json"]) == 0
        assert "stable" in json.loads(capsys.readouterr().out)["config_refused"]["text"]
        file.write_text(config_text(tmp_path, entry("m", 'version_labels { key: "stable" value: 1 }')))
        explain.wait("m/labels/stable", "SERVING")
        assert main(["status", rest]) == 0
        assert "refused" not in capsys.readouterr().out


def times(served: ServerFixture) -> int:
    """How often the config was refused."""
    events = served.server.core.history.after(0)
    return sum(event.count for event in events if event.kind is EventKind.CONFIG_REFUSED)


def test_a_library_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix is what to install. The version is loaded when the server starts again, which a new server stands for."""
    write_onnx(tmp_path / "m" / "1")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnxruntime", None)
        with started(tmp_path, entry("m")) as (_, explain):
            answer = explain.wait("m", "FAILED", "!EXTRA_MISSING", "needs onnxruntime, which is not installed")
            fix = link_of(answer, "EXTRA_MISSING")["fix"]
            assert fix == "pip install 'tfs-lite[onnx]' in the environment of the server, then start the server again"
    with started(tmp_path, entry("m")) as (_, explain):
        explain.wait("m", "SERVING")


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_module_that_the_code_of_a_model_imports_and_that_is_not_installed(
    tmp_path: Path, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are fine: the fix names the module, and no other export."""
    write_python_version(tmp_path / "m", 1, f"import not_installed_here.inner\n{GOOD}")
    with started(tmp_path, entry("m"), worker=worker, trusted_model_base_paths=(str(tmp_path / "m"),)) as (_, explain):
        answer = explain.wait("m", "FAILED", "!EXTRA_MISSING", "No module named 'not_installed_here'")
        fix = link_of(answer, "EXTRA_MISSING")["fix"]
        assert fix.startswith("install what has the module not_installed_here in the environment of the server")
        assert fix.endswith(", then start the server again")
    (tmp_path / "installed" / "not_installed_here").mkdir(parents=True)
    (tmp_path / "installed" / "not_installed_here" / "inner.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    with started(tmp_path, entry("m"), trusted_model_base_paths=(str(tmp_path / "m"),)) as (_, explain):
        explain.wait("m", "SERVING")


def test_a_file_in_the_place_of_a_version_directory_is_named(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    (tmp_path / "m" / "2").write_text("weights")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "1").write_text("weights")
    with started(tmp_path, entry("m"), entry("empty")) as (_, explain):
        explain.wait(
            "m", "SERVING", "NAME_PASSED_OVER", "2 beside the versions is passed over: it is no directory but a"
        )
        answer = explain.wait("m/versions/2", "NOT_ON_DISK", "!NAME_PASSED_OVER", "it is no directory but a")
        assert answer["sentence"].startswith("version 2 is not on disk: 2 beside the versions is passed over")
        fix = link_of(answer, "NAME_PASSED_OVER")["fix"]
        assert fix.startswith("move it away, and publish a directory: tfs-lite publish SRC --base BASE --version 2")
        explain.wait("empty/versions/1", "NOT_ON_DISK", "NAME_PASSED_OVER", "it is no directory but a")
        (tmp_path / "m" / "2").unlink()
        archives.write_version(2, tmp_path / "m")
        explain.wait("m/versions/2", "SERVING")


class Centred(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


def test_a_model_that_is_not_batched_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Centred(), tmp_path / "m", example_inputs=(torch.ones(2, 3),))
    with started(tmp_path, entry("m"), enable_batching=True) as (served, explain):
        answer = explain.wait("m", "SERVING")
        (note,) = answer["notes"]
        assert note.startswith("version 1: no two calls share a run: a row's answer depends on the rows beside it")
        assert not answer["because"]
        rest = f"--server={served.url.removeprefix('http://')}"
        assert main(["explain", "m", rest]) == 0
        assert note in " ".join(capsys.readouterr().out.split())
        assert main(["status", rest, "--verbose"]) == 0
        assert "no two calls share a run" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["config.yaml", "config.pbtxt"])
def test_a_fix_for_a_model_of_a_repository_names_its_config_and_can_be_pasted_into_it(
    tmp_path: Path, archives: TaggedArchives, name: str
) -> None:
    archives.write_version(1, tmp_path / "m")
    archives.write_version(2, tmp_path / "m")
    config, empty = tmp_path / "m" / name, "max_batch_size: 8\n"
    config.write_text(empty)
    with started_repository(tmp_path) as explain:
        answer = explain.wait("m/versions/1", "NOT_WANTED", "!POLICY_PASSES_OVER")
        fix = link_of(answer, "POLICY_PASSES_OVER")["fix"]
        assert f"({name} beside the versions)" in fix
        first, _, second = fix.removeprefix("set ").partition(" in the model's config")[0].partition(" or ")
        for each in (first, second):
            config.write_text(f"{empty}{each}\n")
            explain.wait("m/versions/1", "SERVING")
            config.write_text(empty)
            explain.wait("m/versions/1", "NOT_WANTED")


def test_a_fix_for_a_yaml_config_of_the_server_is_yaml_and_can_be_pasted_into_it(
    tmp_path: Path, archives: TaggedArchives
) -> None:
    for version in (1, 2):
        archives.write_version(version, tmp_path / "m")
    file = tmp_path / "models.yaml"
    head = "model_config_list:\n  config:\n"
    text = f"{head}    - name: m\n      base_path: {tmp_path}/m\n"
    file.write_text(text)
    options = {"model_config_file": str(file), "model_config_file_poll_wait_seconds": 0.1}
    with serving(tmp_path, **options) as served:
        explain = Explanations(served, tmp_path)
        fix = link_of(explain.wait("m/versions/1", "NOT_WANTED"), "POLICY_PASSES_OVER")["fix"]
        first = fix.removeprefix("set ").partition(" in the model's config")[0].partition(" or ")[0]
        file.write_text(f"{text}      {first}\n")
        explain.wait("m/versions/1", "SERVING")
        fix = link_of(explain.wait("m/labels/old", "NOT_CONFIGURED"), "LABEL_UNKNOWN")["fix"]
        label = fix.partition("or add ")[2].partition(" to the model's config")[0]
        file.write_text(f"{text}      {first}\n      {label}\n")
        explain.wait("m/labels/old", "SERVING")
        archives.write_version(1, tmp_path / "n")
        fix = link_of(explain.wait("n", "NOT_CONFIGURED"), "NOT_CONFIGURED")["fix"]
        added = fix.removeprefix("add ").partition(" below config:")[0].replace("...", f"{tmp_path}/n")
        file.write_text(f"{text}    {added}\n")
        explain.wait("n", "SERVING")


@contextmanager
def started_repository(root: Path, **options: Any) -> Iterator[Explanations]:
    with serving(root, model_repository=str(root), ready=False, **options) as served:
        yield Explanations(served, root)


def test_a_model_of_a_repository_whose_config_is_wrong(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text("max_batch_size: many")
    with started_repository(tmp_path) as explain:
        answer = explain.wait("m", "REFUSED", "!ARTEFACT_REFUSED", "config.pbtxt:1:17")
        assert link_of(answer, "ARTEFACT_REFUSED")["fix"].startswith("correct that config file")
        config.write_text("max_batch_size: 8")
        explain.wait("m", "SERVING")


def test_a_model_of_a_repository_whose_name_no_request_can_hold(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "a:b")
    with started_repository(tmp_path) as explain:
        answer = explain.wait("a%3Ab", "NOT_CONFIGURED", "!NOT_CONFIGURED", "which a URL cannot hold")
        assert "rename its directory" in link_of(answer, "NOT_CONFIGURED")["fix"]
        assert explain.verdicts() == {"a:b": "NOT_CONFIGURED"}
        (tmp_path / "a:b").rename(tmp_path / "ab")
        explain.wait("ab", "SERVING")
        wait_until(lambda: explain.verdicts() == {"ab": "SERVING"}, "the old name is forgotten")


def test_a_repository_that_cannot_be_read_while_its_models_serve(tmp_path: Path, archives: TaggedArchives) -> None:
    repository = tmp_path / "repository"
    archives.write_version(1, repository / "m")
    with started_repository(repository) as explain:
        explain.wait("m", "SERVING")
        repository.rename(tmp_path / "away")
        explain.wait("m", "SERVING", "!BASE_PATH_PROBLEM", "does not exist")
        answer = explain.wait("m", "SERVING", "CONFIG_NOT_APPLIED", "repository is not followed: it does not")
        assert answer["because"][-1]["cause"] == "CONFIG_NOT_APPLIED"
        assert link_of(answer, "CONFIG_NOT_APPLIED")["since"]
        assert str(repository) not in str(answer)
        band = explain.get("/v1/overview")["server"]["config_refused"]
        assert band["text"] == "the model repository is not followed: it does not exist"
        explain.wait("other", "NOT_CONFIGURED", "!NOT_CONFIGURED", "the model repository may name it, but cannot")
        (tmp_path / "away").rename(repository)
        wait_until(lambda: not explain.ask("m")["because"], "the repository is followed again")
        assert explain.get("/v1/overview")["server"]["config_refused"] is None


def test_a_directory_of_a_repository_whose_files_are_in_no_version(tmp_path: Path, archives: TaggedArchives) -> None:
    files = archives.write_version(1, tmp_path / "m")
    files.rename(tmp_path / "m" / "files")
    with started_repository(tmp_path) as explain:
        answer = explain.wait("m", "NOT_CONFIGURED", "!NOT_CONFIGURED", "directory of this name without a version")
        assert "m/1" in link_of(answer, "NOT_CONFIGURED")["fix"]
        (tmp_path / "m" / "files").rename(tmp_path / "m" / "1")
        explain.wait("m", "SERVING")


def test_a_server_that_looks_at_the_disk_once(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    with started(tmp_path, entry("m"), model_control_mode="none") as (_, explain):
        archives.write_version(2, tmp_path / "m")
        explain.wait("m/versions/2", "NOT_ON_DISK", "CONTROL_MODE", "--model_control_mode=none")
    with started(tmp_path, entry("m")) as (_, explain):
        explain.wait("m/versions/2", "SERVING")


def test_a_version_policy_that_is_not_read_is_told_although_every_version_has_a_config_of_its_own(
    tmp_path: Path, archives: TaggedArchives
) -> None:
    for version in (1, 2):
        archives.write_version(version, tmp_path / "m")
        (tmp_path / "m" / str(version) / "config.pbtxt").write_text("max_batch_size: 4")
    with started_repository(tmp_path) as explain:
        explain.wait("m", "SERVING")
        config = tmp_path / "m" / "config.yaml"
        config.write_text("version_polcy: {all: {}}\n")
        answer = explain.wait("m", "SERVING", "CONFIG_NOT_APPLIED", "version_polcy")
        assert link_of(answer, "CONFIG_NOT_APPLIED")["fix"].startswith("correct that config file")
        config.write_text("version_policy: {all: {}}\n")
        explain.wait("m/versions/1", "SERVING")
        assert explain.ask("m")["because"] == []


def test_what_the_policy_wants_too_and_cannot_be_served_is_told_of_the_model(
    tmp_path: Path, archives: TaggedArchives
) -> None:
    model = tmp_path / "m"
    archives.write_version(4, model)
    for version, content in ((1, b""), (2, b"<html>404</html>")):
        (model / str(version)).mkdir()
        (model / str(version) / "model.pt2").write_bytes(content)
    (model / "3").mkdir()
    (model / "3" / "weights.bin").write_bytes(b"1234")
    (model / "config.yaml").write_text("version_policy: {all: {}}\n")
    with started_repository(tmp_path) as explain:
        explain.wait("m", "SERVING", "PLATFORM_UNKNOWN", "version 3 is wanted too")
        explain.wait("m", "SERVING", "INCOMPLETE", "version 2 is wanted too")
        answer = explain.wait("m", "SERVING", "INCOMPLETE", "version 1 is wanted too")
        assert answer["sentence"] == "version 4 answers"
        told = [link["text"].partition(" is wanted too")[0] for link in answer["because"]]
        assert told == ["version 3", "version 2", "version 1"]
        assert all(link["fix"] for link in answer["because"])
        (line,) = explain.get("/v1/models:explain")["models"]
        assert (line["verdict"], line["cause"]) == ("SERVING", answer["because"][0]["cause"])
        assert "version 3 is wanted too" in line["sentence"]
        for version in (1, 2, 3):
            shutil.rmtree(model / str(version))
        wait_until(lambda: explain.ask("m")["because"] == [], "nothing else is wanted")


def test_models_that_are_loaded_by_calls(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    archives.write_version(1, tmp_path / "other")
    options: dict[str, Any] = {"model_control_mode": "explicit", "model_repository": str(tmp_path)}
    with serving(tmp_path, load_model=("m",), **options) as served:
        explain = Explanations(served, tmp_path)
        explain.wait("m", "SERVING")
        answer = explain.wait("other", "NOT_CONFIGURED", "CONTROL_MODE")
        assert "POST /v2/repository/models/other/load" in link_of(answer, "NOT_CONFIGURED")["fix"]
        served.server._lifecycle.repository.load("other", {})
        explain.wait("other", "SERVING")
        urllib.request.urlopen(f"{served.url}/v2/repository/models/m/unload", b"{}", timeout=30).close()
        answer = explain.wait("m", "NOT_CONFIGURED", "!UNLOADED", "version 1 was withdrawn by an unload call")
        link = link_of(answer, "UNLOADED")
        assert link["since"]
        assert link["fix"] == "load it again: POST /v2/repository/models/m/load"
        assert "NOT_CONFIGURED" not in [each["cause"] for each in answer["because"]]
        urllib.request.urlopen(f"{served.url}/v2/repository/models/m/load", b"{}", timeout=30).close()
        explain.wait("m", "SERVING")


def test_a_version_that_a_call_has_withdrawn(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "m")
    archives.write_version(2, tmp_path / "m")
    options: dict[str, Any] = {"model_control_mode": "explicit", "model_repository": str(tmp_path)}
    with serving(tmp_path, load_model=("m",), **options) as served:
        explain, repository = Explanations(served, tmp_path), served.server._lifecycle.repository

        def load(version: int) -> None:
            repository.load("m", {"config": f'{{"version_policy": {{"specific": {{"versions": [{version}]}}}}}}'})

        explain.wait("m/versions/2", "SERVING")
        load(1)
        answer = explain.wait("m/versions/2", "ENDED", "!UNLOADED", "it was withdrawn")
        assert "POST /v2/repository/models/m/load" in link_of(answer, "UNLOADED")["fix"]
        path, _, body = (
            link_of(answer, "CONTROL_MODE")["fix"].removeprefix("load it: POST ").partition(" with the body ")
        )
        urllib.request.urlopen(f"{served.url}{path}", body.encode(), timeout=30).close()
        explain.wait("m/versions/2", "SERVING")


def test_the_list_has_the_worst_first(tmp_path: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, tmp_path / "a")
    archives.write_version(1, tmp_path / "z")
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "notes.txt").write_text("nothing")
    with started(tmp_path, *map(entry, "azm"), max_num_load_retries=0) as (_, explain):
        explain.wait("m", "FAILED")
        explain.wait("z", "SERVING")
        explain.wait("a", "SERVING")
        assert list(explain.verdicts().items()) == [("m", "FAILED"), ("a", "SERVING"), ("z", "SERVING")]


@pytest.mark.parametrize("name", ["<b>x</b>", "a b", "ü" * 200, "%00\n"])
def test_hostile_names_are_answered_in_bounds(tmp_path: Path, archives: TaggedArchives, name: str) -> None:
    archives.write_version(1, tmp_path / "m")
    with started(tmp_path, entry("m")) as (_, explain):
        assert explain.ask(quote(name, safe=""))["verdict"] == "NOT_CONFIGURED"
