from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
import yaml

from tests.support.servers.in_process import QUICK
from tests.support.servers.models import TaggedArchives
from tfs_lite.cli.main import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and what a server and a client of it need."""
    root = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client")
    authority.cert_pem.write_to_path(str(root / "ca.pem"))
    client.private_key_pem.write_to_path(str(root / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(root / "client.pem"))
    config = {
        "server_key": server.private_key_pem.bytes().decode(),
        "server_cert": server.cert_chain_pems[0].bytes().decode(),
        "custom_ca": authority.cert_pem.bytes().decode(),
        "client_verify": True,
    }
    (root / "ssl.yaml").write_text(yaml.safe_dump(config))
    return root


@pytest.fixture(scope="module")
def address(files: Path, archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that wants to know its clients."""
    from tfs_lite.server.server import Server

    base = tmp_path_factory.mktemp("models") / "m"
    archives.write_version(1, base)
    options = {"model_name": "m", "model_base_path": str(base), "ssl_config_file": str(files / "ssl.yaml")}
    with Server(**options, **QUICK) as server:
        server.wait_ready(60)
        yield f"127.0.0.1:{server.port}"


def test_commands_speak_tls_with_the_files_they_are_given(address: str, files: Path, capsys: Captured) -> None:
    tls = ["--root_certificates", str(files / "ca.pem"), "--client-key", str(files / "client.key")]
    tls += ["--client_certificate", str(files / "client.pem")]
    assert main(["status", "m", "--server", address, *tls]) == 0
    assert "AVAILABLE" in capsys.readouterr().out
    assert main(["predict", "m", "--server", address, "--input", "x=[[1, 2, 3]]", *tls]) == 0


def test_a_file_that_is_not_there_is_named(capsys: Captured) -> None:
    assert main(["status", "m", "--server", "127.0.0.1:1", "--root_certificates", "nowhere.pem"]) == 2
    assert "--root_certificates: nowhere.pem cannot be read: No such file" in capsys.readouterr().err


def test_a_key_without_its_certificate_is_refused(files: Path, capsys: Captured) -> None:
    assert main(["status", "m", "--server", "127.0.0.1:1", "--client_key", str(files / "client.key")]) == 1
    assert "client_key and client_certificate belong together" in capsys.readouterr().err
