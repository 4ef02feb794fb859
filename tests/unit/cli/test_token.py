"""``tfs-lite token``, and tokens of the other commands against a server that is closed without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.access_fixture import SECRET, ManagedServer, managed
from tests.support.servers.models import TaggedArchives
from tfs_lite.cli.main import main
from tfs_lite.server.access.access_file import read_entries

Captured = pytest.CaptureFixture[str]


def test_token_and_its_line_fit_together(capsys: Captured) -> None:
    assert main(["token", "deploy", "--scopes", "manage,read", "--models", "a-*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (entry,) = read_entries(found["line"], "f", private=False)
    (same,) = read_entries(f"deploy manage,read,models=a-* {found['token']}", "f")
    assert entry == same
    assert found["token"] not in found["line"]


def test_token_is_shown_once_and_differs_each_time(capsys: Captured) -> None:
    shown = set()
    for _ in range(2):
        assert main(["token", "deploy", "--scopes", "manage"]) == 0
        shown.add(capsys.readouterr().out)
    assert len(shown) == 2
    assert all("shown this once" in text for text in shown)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["deploy", "--scopes", "write"], "unknown scope 'write', expected one of: predict, read, manage"),
        (["two words", "--scopes", "read"], "expected NAME SCOPES SECRET"),
        (["#", "--scopes", "read"], "a name is 1 to"),
        (["a\nb", "--scopes", "read"], "expected NAME SCOPES SECRET"),
        (["deploy"], "--scopes"),
    ],
)
def test_wrong_name_or_scope_is_wrong_usage(words: list[str], message: str, capsys: Captured) -> None:
    assert main(["token", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


@pytest.fixture(scope="module")
def server(archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedServer]:
    """Closed to everybody without a token."""
    root = tmp_path_factory.mktemp("models")
    archives.write_version(1, root / "m")
    closed = {"predict_access": "token", "read_access": "token", "management_access": "token"}
    with managed(root, model_name="m", model_base_path=str(root / "m"), **closed) as found:
        yield found


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    return path


def commands(server: ManagedServer, config: Path) -> list[list[str]]:
    address, rest = server.served.target, f"127.0.0.1:{server.served.server.rest_api_port}"
    return [
        ["status", "--server", rest, "--verbose"],
        ["status", "m", "--server", address],
        ["predict", "m", "--server", address, "--input", "x=[[1, 2, 3]]"],
        ["reload", str(config), "--server", address],
        ["explain", "m", "--server", rest],
        ["events", "--server", rest],
        ["guard", "m", "--server", address],
    ]


@pytest.fixture
def config(server: ManagedServer, tmp_path: Path) -> Path:
    path = tmp_path / "models.config"
    path.write_text(f'model_config_list {{ config {{ name: "m" base_path: "{server.served.root}/m" }} }}')
    return path


@pytest.mark.parametrize("number", range(7))
def test_commands_send_the_token_of_a_file(
    server: ManagedServer,
    config: Path,
    token_file: Path,
    number: int,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = commands(server, config)[number]
    monkeypatch.delenv("TFS_LITE_TOKEN_FILE", raising=False)
    assert main(command) == 1
    said = capsys.readouterr()
    assert "_access=token" in said.err
    assert "give this command --token_file FILE, or set TFS_LITE_TOKEN_FILE in the environment" in said.err
    assert len(said.err.splitlines()) == 1
    assert main([*command, "--token_file", str(token_file)]) == 0
    monkeypatch.setenv("TFS_LITE_TOKEN_FILE", str(token_file))
    assert main(command) == 0
    assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize("content", ["", "two words", "caf\u00e9" * 10])
def test_file_without_a_token_is_wrong_usage(content: str, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    assert main(["status", "--token_file", str(path)]) == 2
    assert main(["status", "--token_file", str(path.with_name("missing"))]) == 2
    said = capsys.readouterr().err
    assert "holds no token" in said
    assert "cannot be read" in said
    assert "words" not in said.replace("one word of", "")


@pytest.mark.parametrize(
    ("address", "warns"),
    [("10.255.255.1:1", True), ("serve.example:1", True), ("127.0.0.1:1", False), ("localhost:1", False)],
)
def test_user_is_told_when_a_token_leaves_the_machine_in_plain_text(
    address: str, warns: bool, token_file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from argparse import Namespace

    from tfs_lite.cli.arguments import grpc_client, http_server

    monkeypatch.chdir(token_file.parent)
    for ask in (http_server, lambda address, given: grpc_client(address, 1.0, given).close()):
        given = Namespace(token_file="token")
        ask(address, given)
        ask(address, given)  # the same command line: it is told once
    lines = capsys.readouterr().err.splitlines()
    assert [address in line and "unencrypted" in line for line in lines] == [True] * (2 * warns)
