"""``tfs-lite check`` on real artefacts: what would be served, and the reason for everything that would not."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.servers.models import TaggedArchives, write_python_version
from tfs_lite.cli.main import main
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.publish import LEFTOVER_SECONDS, publish

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def published(archives: TaggedArchives, tmp_path: Path) -> Path:
    """A base path with the published version 1 of a good model."""
    publish(str(archives.write(1, tmp_path / "model.pt2")), str(tmp_path / "base"), 1)
    return tmp_path / "base"


def check(path: Path, capsys: Captured, *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the only model."""
    code = main(["check", str(path), "--json", *flags])
    (model,) = json.loads(capsys.readouterr().out)["models"]
    return code, model


def verdicts(model: dict[str, Any]) -> dict[int, str]:
    return {entry["version"]: entry["verdict"] for entry in model["versions"]}


def reason(model: dict[str, Any], version: int) -> str:
    return next(entry["reason"] for entry in model["versions"] if entry["version"] == version)


def test_a_good_version_would_be_served(published: Path, capsys: Captured) -> None:
    code, model = check(published, capsys)
    assert code == 0
    (version,) = model["versions"]
    takes, gives = {"x": "float[-1,3]"}, {"y": "float[-1,3]", "version": "float[-1]"}
    own = {"name": "serving_default", "method": "predict", "inputs": takes, "outputs": gives}
    assert version.pop("signatures") == [own]
    assert version == {"version": 1, "verdict": "served", "platform": "pytorch_export", "reason": "", "unread": []}


def test_files_that_would_not_be_read_are_named(published: Path, capsys: Captured) -> None:
    for name in ("steer.json", "README.md"):
        (published / "1" / name).write_text("{}")
    code, model = check(published, capsys)
    assert (code, model["versions"][0]["unread"]) == (0, ["steer.json"])
    assert model["remarks"] == ["version 1: files of the version that are not read, and so have no effect: steer.json"]


def test_what_a_killed_publication_has_left_is_named(published: Path, capsys: Captured) -> None:
    (published / ".publish-2-0123456789ab").mkdir()
    then = time.time() - 2 * LEFTOVER_SECONDS
    os.utime(published / ".publish-2-0123456789ab", (then, then))
    assert main(["check", str(published)]) == 0
    assert ".publish-2-0123456789ab beside the versions is passed over: a publication that did not" in " ".join(
        capsys.readouterr().out.split()
    )


def test_only_the_latest_version_is_wanted(published: Path, capsys: Captured) -> None:
    shutil.copytree(published / "1", published / "2")
    code, model = check(published, capsys)
    assert (code, verdicts(model)) == (0, {2: "served", 1: "not wanted"})


def test_a_version_that_lacks_files_of_its_manifest_waits_and_the_older_one_is_served(
    published: Path, capsys: Captured
) -> None:
    (published / "2").mkdir()
    shutil.copy(published / "1" / MANIFEST_NAME, published / "2" / MANIFEST_NAME)
    code, model = check(published, capsys)
    assert (code, verdicts(model)) == (1, {2: "waiting", 1: "served"})
    assert "found no such file" in reason(model, 2)


def test_a_file_that_differs_from_its_manifest_is_noticed(published: Path, capsys: Captured) -> None:
    archive = published / "1" / "model.pt2"
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    code, model = check(published, capsys)
    assert (code, verdicts(model)) == (1, {1: "waiting"})
    assert "sha256" in reason(model, 1)


def test_files_that_were_just_written_are_waited_for(
    archives: TaggedArchives, tmp_path: Path, capsys: Captured
) -> None:
    archives.write_version(1, tmp_path / "base")
    code, model = check(tmp_path / "base", capsys)
    assert (code, verdicts(model)) == (0, {1: "served"})


def test_files_that_are_still_being_written_wait_and_the_check_ends(
    archives: TaggedArchives, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, waits = archives.write_version(1, tmp_path / "base") / "model.pt2", []

    def write_more(seconds: float) -> None:
        waits.append(seconds)
        archive.write_bytes(archive.read_bytes() + b"more")

    monkeypatch.setattr("tfs_lite.cli.check.time", SimpleNamespace(sleep=write_more))
    code, model = check(tmp_path / "base", capsys)
    assert (code, verdicts(model)) == (1, {1: "waiting"})
    assert "changed less than" in reason(model, 1)
    assert sum(waits) == pytest.approx(3.0)


def test_a_broken_config_in_a_repository_is_the_reason_in_the_table(published: Path, capsys: Captured) -> None:
    (published / "config.yaml").write_text("input: [{name: x\nmax_batch")
    (published.parent / "repository").mkdir()
    shutil.move(published, published.parent / "repository" / "m")
    code, model = check(published.parent / "repository", capsys)
    assert (code, verdicts(model), model["problem"]) == (1, {1: "refused"}, "")
    assert reason(model, 1).startswith("INVALID_ARGUMENT: config.yaml:2:10: expected")


def test_a_truncated_archive_is_refused(archives: TaggedArchives, tmp_path: Path, capsys: Captured) -> None:
    whole = archives.write(1, tmp_path / "model.pt2").read_bytes()
    (tmp_path / "half.pt2").write_bytes(whole[: len(whole) // 2])
    publish(str(tmp_path / "half.pt2"), str(tmp_path / "base"))
    code, model = check(tmp_path / "base", capsys)
    assert (code, verdicts(model)) == (1, {1: "refused"})
    assert reason(model, 1).startswith("DATA_LOSS: model.pt2 is truncated")


@pytest.mark.parametrize(("name", "why"), [("notes.txt", "no platform serves"), ("model.onnx", "the file is damaged")])
def test_a_version_without_an_artefact_that_is_served_is_refused(
    tmp_path: Path, capsys: Captured, name: str, why: str
) -> None:
    (tmp_path / name).write_text("nothing here")
    publish(str(tmp_path / name), str(tmp_path / "base"))
    code, model = check(tmp_path / "base", capsys)
    assert (code, verdicts(model)) == (1, {1: "refused"})
    assert why in reason(model, 1)


def test_code_is_refused_unless_its_path_is_trusted_and_is_never_run(tmp_path: Path, capsys: Captured) -> None:
    trap = tmp_path / "was-run"
    source = f"import pathlib\npathlib.Path({str(trap)!r}).touch()\nclass Model:\n    pass\n"
    publish(str(write_python_version(tmp_path / "drafts", 1, source)), str(tmp_path / "base"))
    code, model = check(tmp_path / "base", capsys)
    assert (code, verdicts(model)) == (1, {1: "refused"})
    assert reason(model, 1).startswith("PERMISSION_DENIED")
    assert "--trusted_model_base_paths" in reason(model, 1)
    code, model = check(tmp_path / "base", capsys, f"--trusted-model-base-paths={tmp_path}")
    assert (code, verdicts(model)) == (0, {1: "served"})
    assert not trap.exists()


def test_trusted_code_that_is_not_python_is_refused(tmp_path: Path, capsys: Captured) -> None:
    publish(str(write_python_version(tmp_path / "drafts", 1, "class Model(:\n")), str(tmp_path / "base"))
    code, model = check(tmp_path / "base", capsys, f"--trusted_model_base_paths={tmp_path}")
    assert (code, verdicts(model)) == (1, {1: "refused"})
    assert "model.py is not Python" in reason(model, 1)


def test_a_mistake_in_a_models_config_is_refused_with_its_place(published: Path, capsys: Captured) -> None:
    (published / "config.pbtxt").write_text("max_batch_sise: 4\n")
    code, model = check(published, capsys)
    assert (code, verdicts(model)) == (1, {1: "refused"})
    assert "config.pbtxt:1:1" in reason(model, 1)


def test_a_base_path_without_versions_says_so(tmp_path: Path, capsys: Captured) -> None:
    code, model = check(tmp_path, capsys)
    assert code == 1
    assert "holds no version" in model["problem"]


def test_a_repository_is_checked_model_by_model(published: Path, tmp_path: Path, capsys: Captured) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(published, repository / "good")
    (repository / "bad" / "1").mkdir(parents=True)
    (repository / "no-model").mkdir()
    assert main(["check", str(repository)]) == 1
    output = capsys.readouterr()
    rows = [line.split() for line in output.out.splitlines()]
    assert ["good", "1", "served", "pytorch_export"] in rows
    assert any(row[:3] == ["bad", "1", "waiting"] for row in rows)
    assert output.err == "tfs-lite: not served as wanted: bad; the table says why\n"


def test_a_config_is_validated_with_line_and_column(tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "models.pbtxt"
    config.write_text(
        'model_config_list {\n  config { name: "a" base_path: "/a" }\n  config { name: "a" base_path: "/b" }\n}'
    )
    assert main(["check", str(config)]) == 1
    error = capsys.readouterr().err
    assert "models.pbtxt:3:12" in error
    assert "multiple times" in error


def test_every_model_of_a_config_is_checked_by_its_own_policy(
    published: Path, tmp_path: Path, capsys: Captured
) -> None:
    config = tmp_path / "models.pbtxt"
    config.write_text(
        f"model_config_list {{ config {{ name: 'm' base_path: '{published}' "
        "model_version_policy { specific { versions: [1, 5] } } } }"
    )
    code, model = check(config, capsys)
    assert (code, verdicts(model)) == (1, {5: "waiting", 1: "served"})
    assert reason(model, 5) == "there is no such version directory"


def test_a_path_that_is_no_allowed_base_path_is_refused(published: Path, tmp_path: Path, capsys: Captured) -> None:
    for words, message in [
        ([str(published), f"--allowed_model_base_paths={tmp_path / 'elsewhere'}"], "outside the allowed roots"),
        ([str(published / "1")], f"check its base path: tfs-lite check {published}"),
        ([str(tmp_path / "nothing")], "there is no such file or directory"),
    ]:
        assert main(["check", *words]) == 1
        assert message in capsys.readouterr().err


PLAIN = "class Model(object):\n    def predict(self, inputs):\n        return inputs\n"
INPUT = 'input { name: "x" data_type: TYPE_FP32 dims: [3] }\n'


@pytest.mark.parametrize(
    ("source", "config", "verdict"),
    [
        (PLAIN, "", "refused"),
        (PLAIN, INPUT, "served"),
        (PLAIN.replace("object", "torch.nn.Module"), "", "served"),
        (f"{PLAIN}\nModel = wrapped(Model)\n", "", "served"),
        ("from .impl import Model\n", "", "served"),
        ("from .impl import *\n", "", "served"),
        ("if True:\n    class Model: pass\n", "", "served"),
        ("x = 1\n", "", "refused"),
    ],
)
def test_code_that_the_server_would_refuse_is_refused_unread_by_python(
    tmp_path: Path, capsys: Captured, source: str, config: str, verdict: str
) -> None:
    draft = write_python_version(tmp_path / "drafts", 1, source)
    (draft / "config.pbtxt").write_text(config)
    publish(str(draft), str(tmp_path / "base"))
    code, model = check(tmp_path / "base", capsys, f"--trusted_model_base_paths={tmp_path}")
    assert (code, verdicts(model)) == (int(verdict == "refused"), {1: verdict})
    if verdict == "refused":
        assert reason(model, 1).startswith("INVALID_ARGUMENT")


def labelled(base: Path, directory: Path, labels: dict[str, int]) -> Path:
    config = directory / "models.pbtxt"
    entries = "".join(f"version_labels {{ key: '{label}' value: {version} }} " for label, version in labels.items())
    config.write_text(f"model_config_list {{ config {{ name: 'm' base_path: '{base}' {entries} }} }}")
    return config


def test_a_label_of_a_version_that_would_not_be_served_is_a_problem(
    published: Path, tmp_path: Path, capsys: Captured
) -> None:
    shutil.copytree(published / "1", published / "2")
    config = labelled(published, tmp_path, {"good": 2, "old": 1, "gone": 7})
    code, model = check(config, capsys)
    assert (code, model["ok"]) == (1, False)
    assert model["label_problems"] == [
        'label "gone" names version 7, which is not on disk',
        'label "old" names version 1, which the version policy passes over',
    ]
    assert main(["check", str(config)]) == 1
    output = capsys.readouterr()
    assert "names version 7" in output.out
    assert "not served as wanted: m" in output.err


def test_labels_of_served_versions_are_fine(published: Path, tmp_path: Path, capsys: Captured) -> None:
    code, model = check(labelled(published, tmp_path, {"stable": 1}), capsys)
    assert (code, model["label_problems"]) == (0, [])


def test_a_label_of_a_waiting_version_is_no_problem_of_its_own(
    published: Path, tmp_path: Path, capsys: Captured
) -> None:
    (published / "1" / "model.pt2").unlink()
    _, model = check(labelled(published, tmp_path, {"next": 1}), capsys)
    assert (verdicts(model), model["label_problems"]) == ({1: "waiting"}, [])


@pytest.mark.parametrize("trust", [False, True])
def test_a_config_that_contradicts_the_program_is_refused(
    published: Path, tmp_path: Path, capsys: Captured, trust: bool
) -> None:
    (published / "config.pbtxt").write_text(INPUT.replace("x", "nothing_like_this"))
    flags = [f"--trusted_model_base_paths={tmp_path}"] if trust else []
    code, model = check(published, capsys, *flags)
    assert (code, verdicts(model)) == (1, {1: "refused"})
    assert 'INVALID_ARGUMENT: input "nothing_like_this" of the config: the model has "' in reason(model, 1)


SIGNATURES = """
signatures:
  total: {method_name: regress, inputs: {pixels: x}, outputs: {outputs: y}, defaults: {pixels: [1, 2, 3]}}
"""


def test_all_signatures_of_a_served_version_are_shown(published: Path, capsys: Captured) -> None:
    (published / "config.yaml").write_text(SIGNATURES)
    code, model = check(published, capsys)
    assert code == 0
    assert model["versions"][0]["signatures"] == [
        {
            "name": "serving_default",
            "method": "predict",
            "inputs": {"x": "float[-1,3]"},
            "outputs": {"y": "float[-1,3]", "version": "float[-1]"},
        },
        {
            "name": "total",
            "method": "regress",
            "inputs": {"pixels": "float[-1,3] or its default"},
            "outputs": {"outputs": "float[-1,3]"},
        },
    ]
    assert main(["check", str(published)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "base 1 total regress pixels float[-1,3] or its default outputs float[-1,3]" in lines


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (SIGNATURES.replace(": y", ": z"), 'signatures.total.outputs.outputs: the model has no output "z"'),
        (SIGNATURES.replace("regress", "guess"), "config.yaml:3:11: signatures.total.method_name: "),
        ("signatures: {c: {method_name: classify, outputs: {scores: y}, label_filename: a.txt}}", "no file a.txt"),
    ],
)
def test_a_signature_that_would_fail_the_load_is_refused(
    published: Path, capsys: Captured, config: str, why: str
) -> None:
    (published / "config.yaml").write_text(config)
    code, model = check(published, capsys)
    assert (code, verdicts(model)) == (1, {1: "refused"})
    assert reason(model, 1).startswith("INVALID_ARGUMENT: ")
    assert why in reason(model, 1)
    assert model["versions"][0]["signatures"] == []


def test_signatures_of_code_are_checked_as_far_as_its_config_declares_them(tmp_path: Path, capsys: Captured) -> None:
    draft = write_python_version(tmp_path / "drafts", 1, PLAIN)
    (draft / "config.yaml").write_text(
        "input: [{name: x, data_type: TYPE_FP32, dims: [3]}]\nsignatures: {s: {inputs: {a: b}}}"
    )
    (draft / "config.pbtxt").unlink()
    publish(str(draft), str(tmp_path / "base"))
    code, model = check(tmp_path / "base", capsys, f"--trusted_model_base_paths={tmp_path}")
    assert (code, verdicts(model)) == (1, {1: "refused"})
    assert 'signatures.s.inputs.a: the model has no input "b"' in reason(model, 1)
