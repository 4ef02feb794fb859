"""``check --against`` and what ``explain --config`` and ``--if-published`` ask and show, against a real server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.servers.models import TaggedArchives
from tfs_lite.cli.http import AskedServer
from tfs_lite.cli.main import main
from tfs_lite.cli.views.what_if import PATH, Ask, lines, of_config_file, show
from tfs_lite.core.publish import publish
from tfs_lite.core.status import ServingError
from tfs_lite.server.server import Server

Captured = pytest.CaptureFixture[str]


def address(server: Server) -> str:
    return f"127.0.0.1:{server.rest_api_port}"


def over_http(address: str) -> Ask:
    return lambda asked: AskedServer(address).json(PATH, asked)


def write(path: Path, *models: str) -> str:
    path.write_text("model_config_list {\n%s\n}\n" % "\n".join(models))  # noqa: UP031 - braces
    return str(path)


def entry(name: str, base: Path, rest: str = "") -> str:
    return f'  config {{ name: "{name}" base_path: "{base}" {rest} }}'


@pytest.fixture
def published(archives: TaggedArchives, tmp_path: Path) -> Path:
    """A base path with version 1, complete by its manifest: no time has to pass."""
    publish(str(archives.write(1, tmp_path / "model.pt2")), str(tmp_path / "base"), 1)
    return tmp_path / "base"


def test_check_against_a_server_shows_what_it_would_change_after_what_is_on_disk(
    server: Server, published: Path, tmp_path: Path, capsys: Captured
) -> None:
    file = write(tmp_path / "models.config", entry("other", published))
    assert main(["check", file, f"--against={address(server)}"]) == 0
    out = capsys.readouterr().out
    assert "served" in out
    shown = out.partition(f"{address(server)} would change:\n")[2].splitlines()
    assert shown[0] == "other (added)"
    assert shown[1].startswith("  version 1 is loaded; it reserves ")
    assert shown[1].endswith("which fits now")
    assert shown[2:] == [
        "tagged (removed)",
        "  version 2 is unloaded: the config does not have the model",
        "  gap: no version of it answers afterwards",
    ]


def test_check_against_a_server_is_in_the_json_too(
    server: Server, published: Path, tmp_path: Path, capsys: Captured
) -> None:
    file = write(tmp_path / "models.config", entry("other", published))
    assert main(["check", file, f"--against={address(server)}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert {model["name"]: model["change"] for model in answer["against"]["models"]} == {
        "other": "added",
        "tagged": "removed",
    }


def test_a_config_that_a_server_would_refuse_fails_with_the_line_of_each_model(
    server: Server, base: Path, tmp_path: Path
) -> None:
    label = 'version_labels { key: "stable" value: 7 }'
    file = write(tmp_path / "models.config", entry("b", base), entry("tagged", base, label))
    answer = of_config_file(file, over_http(address(server)))
    told = list(lines(answer))
    assert told[0].startswith(f'refused: {file}:3:3: Request to assign label "stable" to version 7 of model "tagged"')
    assert told[1:] == ["nothing would change"]
    assert show(answer) == 1


def test_a_mistake_in_the_file_is_found_before_the_server_is_asked(tmp_path: Path) -> None:
    file = write(tmp_path / "models.config", '  config { name: "m" base_pth: "/m" }')
    with pytest.raises(ServingError, match=rf"{file}:2:\d+: .*base_pth"):
        of_config_file(file, over_http("127.0.0.1:1"))


def test_files_that_are_not_published_yet_are_told(
    server: Server, archives: TaggedArchives, tmp_path: Path, capsys: Captured
) -> None:
    directory = archives.write_version(5, tmp_path)
    assert main(["explain", "tagged", f"--if-published={directory}", f"--server={address(server)}"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "tagged (unchanged)"
    assert told[1].startswith("  version 3 is loaded; it reserves ")
    assert told[2] == "  version 2 is unloaded; after tagged@3: the version policy (latest 1) takes others"
    assert main(["explain", "tagged@2", f"--if-published={directory}", f"--server={address(server)}"]) == 1
    assert "has a version 2 on disk already" in capsys.readouterr().err


def test_a_config_that_changes_nothing_says_so(server: Server, base: Path, tmp_path: Path, capsys: Captured) -> None:
    file = write(tmp_path / "models.config", entry("tagged", base))
    assert main(["explain", f"--config={file}", f"--server={address(server)}"]) == 0
    assert capsys.readouterr().out == "1 model stays as it is\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--request=x", "--config=y"],
        ["m", "--config=y"],
        ["--if-published=d"],
        ["m@stable", "--if-published=d"],
        ["--config=y", "--follow"],
    ],
)
def test_questions_that_do_not_go_together_are_wrong_usage(words: list[str], capsys: Captured) -> None:
    assert main(["explain", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_failed_request_is_shown_by_its_id(server: Server, capsys: Captured) -> None:
    body = json.dumps({"instances": [[1.0]]}).encode()
    parent = f"00-{'ab' * 16}-{'cd' * 8}-00"
    headers = {"content-type": "application/json", "x-request-id": "bad-1", "traceparent": parent}

    request = urllib.request.Request(f"http://{address(server)}/v1/models/tagged:predict", body, headers)
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=30)
    assert main(["explain", "--request=bad-1", f"--server={address(server)}"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("bad-1: INVALID_ARGUMENT in check: ")
    assert told[1].startswith("  Predict of tagged@2, REST from 127.0.0.1, 2")
    assert told[2].startswith("  stage check: its inputs do not fit the model; ")
    assert told[3] == f"  trace {'ab' * 16}"
    assert main(["explain", f"--request={'ab' * 16}", f"--server={address(server)}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"][0]["request_id"] == "bad-1"
    assert main(["explain", "--request=nobody", f"--server={address(server)}"]) == 1
    assert "no failed request with the id 'nobody' was kept; the ring reaches back to " in capsys.readouterr().err


def test_the_last_failed_requests_are_listed_by_both_doors_of_one_model_or_of_all(
    server: Server, capsys: Captured
) -> None:
    for model, id in (("tagged", "listed-1"), ("tagged", "listed-2"), ("nobody", "listed-3")):
        headers = {"content-type": "application/json", "x-request-id": id}
        url = f"http://{address(server)}/v1/models/{model}:predict"
        request = urllib.request.Request(url, json.dumps({"instances": [[1.0]]}).encode(), headers)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=30)
    for door in (f"--server={address(server)}", f"--server=127.0.0.1:{server.port}"):
        assert main(["explain", "--failed", door]) == 0
        told = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in told[:3]] == ["listed-3", "listed-2", "listed-1"], "the newest first"
        assert "nobody NOT_FOUND in route: " in told[0]
        assert "tagged@2 INVALID_ARGUMENT in check: " in told[1]
        assert main(["explain", "tagged", "--failed", door]) == 0
        assert [line.split()[1] for line in capsys.readouterr().out.splitlines()][:2] == ["listed-2", "listed-1"]
        assert main(["explain", "nobody", "--failed", "--json", door]) == 0
        assert json.loads(capsys.readouterr().out)["requests"][0]["request_id"] == "listed-3"
        assert main(["explain", "other", "--failed", door]) == 0
        assert capsys.readouterr().out.startswith("no request has failed since 20")
    assert main(["explain", "--failed", "--config=x"]) == 2


def test_no_server_and_no_config_are_one_line(tmp_path: Path, published: Path, capsys: Captured) -> None:
    file = write(tmp_path / "models.config", entry("tagged", published))
    assert main(["check", file, "--against=127.0.0.1:1"]) == 1
    assert "no server answers at http://127.0.0.1:1/v1/config:explain" in capsys.readouterr().err
    assert main(["check", "--batching_parameters_file=x", "--against=127.0.0.1:1"]) == 2


def test_both_doors_answer_what_a_config_and_files_would_change(
    server: Server, published: Path, tmp_path: Path, capsys: Captured
) -> None:
    file = write(tmp_path / "models.config", entry("other", published))
    told = []
    for door in (f"--server={address(server)}", f"--server=127.0.0.1:{server.port}"):
        assert main(["explain", "--config", file, door]) == 0
        assert main(["explain", "tagged", "--if-published", str(published / "1"), door]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


def test_both_doors_say_that_a_failed_request_was_not_kept(server: Server, capsys: Captured) -> None:
    for door in (f"--server={address(server)}", f"--server=127.0.0.1:{server.port}"):
        assert main(["explain", "--request", "unknown", door]) == 1
        assert "no failed request with the id 'unknown' was kept" in capsys.readouterr().err
