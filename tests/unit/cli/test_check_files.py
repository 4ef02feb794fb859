"""``tfs-lite check`` on the files that flags of the server name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.servers.models import TaggedArchives
from tfs_lite.cli.main import main
from tfs_lite.core.publish import publish

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def published(archives: TaggedArchives, tmp_path: Path) -> Path:
    """A base path with the published version 1 of a good model."""
    publish(str(archives.write(1, tmp_path / "model.pt2")), str(tmp_path / "base"), 1)
    return tmp_path / "base"


GOOD_MONITORING = "prometheus_config { enable: true }"
GOOD_BATCHING = "max_batch_size { value: 8 } allowed_batch_sizes: [4, 8]"


def tls_text(owner: trustme.CA, key_of: trustme.CA) -> str:
    """The TLS settings of a certificate with the key of another one, unless both are of one authority."""
    pair = owner.issue_cert("localhost")
    key = pair if owner is key_of else key_of.issue_cert("localhost")
    fields = {"server_key": key.private_key_pem.bytes(), "server_cert": pair.cert_chain_pems[0].bytes()}
    return "\n".join(f"{name}: {json.dumps(pem.decode())}" for name, pem in fields.items())


def check_files(capsys: Captured, *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_the_small_files_of_a_server_are_checked_without_any_model(tmp_path: Path, capsys: Captured) -> None:
    authority = trustme.CA()
    texts = {
        "ssl_config_file": tls_text(authority, authority),
        "monitoring_config_file": GOOD_MONITORING,
        "batching_parameters_file": GOOD_BATCHING,
    }
    for flag, text in texts.items():
        (tmp_path / flag).write_text(text)
    code, answer = check_files(capsys, *(f"--{flag}={tmp_path / flag}" for flag in texts))
    assert (code, answer["ok"], answer["models"]) == (0, True, [])
    assert answer["files"] == [
        {"flag": flag, "path": str(tmp_path / flag), "ok": True, "problem": ""} for flag in texts
    ]
    assert main(["check", "--ssl-config-file", str(tmp_path / "ssl_config_file")]) == 0
    output = capsys.readouterr()
    assert "taken" in output.out
    assert "no models" not in output.out
    assert output.err == ""


def test_every_file_that_would_be_refused_is_named_with_its_place(tmp_path: Path, capsys: Captured) -> None:
    texts = {
        "ssl_config_file": tls_text(trustme.CA(), trustme.CA()),
        "monitoring_config_file": "\nprometheus_config { path: 'm' }",
        "batching_parameters_file": "max_batch_size: 8",
    }
    for flag, text in texts.items():
        (tmp_path / flag).write_text(text)
    words = [f"--{flag}={tmp_path / flag}" for flag in texts]
    code, answer = check_files(capsys, *words)
    problems = [file["problem"].removeprefix(f"{tmp_path}/") for file in answer["files"]]
    assert (code, answer["ok"]) == (1, False)
    assert problems[0] == "ssl_config_file:1:1: server_key: does not belong to the first certificate"
    assert problems[1].startswith("monitoring_config_file:2:21: prometheus_config.path: must start with")
    assert problems[2].startswith("batching_parameters_file:1:17: ")
    assert main(["check", *words]) == 1
    output = capsys.readouterr()
    assert output.out.count("refused") == 3
    assert output.err == (
        "tfs-lite: refused: --ssl_config_file, --monitoring_config_file, --batching_parameters_file; "
        "the table says why\n"
    )


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, capsys: Captured) -> None:
    code, answer = check_files(capsys, f"--monitoring_config_file={tmp_path}/nothing")
    assert (code, answer["files"][0]["problem"]) == (1, f"{tmp_path}/nothing: there is no such file")


def test_files_and_models_are_checked_together(published: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "batching.yaml").write_text("max_batch_size: 0")
    words = [str(published), f"--batching_parameters_file={tmp_path / 'batching.yaml'}"]
    code, answer = check_files(capsys, *words)
    assert (code, answer["ok"]) == (1, False)
    assert [model["ok"] for model in answer["models"]] == [True]
    assert [file["ok"] for file in answer["files"]] == [False]
    (published / "1" / "model.pt2").unlink()
    assert main(["check", *words]) == 1
    output = capsys.readouterr()
    assert output.err == (
        "tfs-lite: refused: --batching_parameters_file; not served as wanted: base; the table says why\n"
    )


def test_a_config_may_be_given_by_the_flag_of_serve(published: Path, tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "models.pbtxt"
    config.write_text(f"model_config_list {{ config {{ name: 'm' base_path: '{published}' }} }}")
    code, answer = check_files(capsys, f"--model_config_file={config}")
    assert (code, [model["name"] for model in answer["models"]], answer["files"]) == (0, ["m"], [])
    config.write_text("model_config_list { nothing }")
    code, answer = check_files(capsys, "--model-config-file", str(config))
    assert code == 1
    assert f"{config}:1:21" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "nothing to check"),
        (["base", "--model_config_file=m.pbtxt"], 2, "PATH and --model_config_file both say what is served"),
        (["--ssl_config_fil=x"], 2, "did you mean --ssl_config_file?"),
        (["--model_config_file=nowhere.pbtxt"], 1, "nowhere.pbtxt: there is no such file or directory"),
        (["--model_config_file=."], 1, "--model_config_file names a directory"),
    ],
)
def test_a_command_line_that_says_nothing_or_too_much_is_refused(
    capsys: Captured, words: list[str], code: int, message: str
) -> None:
    assert main(["check", *words]) == code
    assert message in capsys.readouterr().err
