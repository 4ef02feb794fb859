"""What ``rollout`` sends in its first step, and which servers it asks. The steps are run in tests/integration."""

from __future__ import annotations

import socket

import pytest

from tfs_lite.cli import rollout
from tfs_lite.cli.main import main
from tfs_lite.cli.output import CliError, UsageError
from tfs_lite.cli.rollout import Before, beside_config, named_versions, server_addresses
from tfs_lite.config.model_server import Latest, ModelConfig, Specific
from tfs_lite.config.text import parse_model_server_config


def model(settings: str) -> ModelConfig:
    return parse_model_server_config(f"model_config_list {{ {config(settings)} }}", "m.pbtxt").models[0]


def config(settings: str) -> str:
    return f'config {{ name: "m" base_path: "/m" {settings} }}'


def beside(settings: str, versions: set[int], **labels: int) -> ModelConfig:
    """What a server with these available versions and labels is sent in the first step."""
    wanted = parse_model_server_config(f"model_config_list {{ {config(settings)} }}", "m.pbtxt")
    return beside_config(wanted, Before({"m": frozenset(versions)}, {"m": labels})).models[0]


LABELLED = 'version_labels { key: "stable" value: 2 }'
SPECIFIC = "model_version_policy { specific { versions: 5 versions: 2 } }"


def test_versions_are_named_by_labels_and_by_the_policy() -> None:
    assert named_versions(model(f"{SPECIFIC} {LABELLED}")) == {2, 5}
    assert named_versions(model(LABELLED)) == {2}
    assert named_versions(model("model_version_policy { latest { num_versions: 2 } }")) == frozenset()


def test_new_versions_are_beside_those_that_a_server_has_and_labels_stay() -> None:
    sent = beside(f"{SPECIFIC} {LABELLED}", {1, 4}, stable=1)
    assert sent.model_version_policy.choice == Specific(versions=(1, 2, 4, 5))
    assert sent.version_labels == {"stable": 1}


def test_a_label_that_a_server_does_not_have_waits_for_the_second_step() -> None:
    sent = beside(f"model_version_policy {{ latest {{ num_versions: 3 }} }} {LABELLED}", {1})
    assert sent.model_version_policy.choice == Specific(versions=(1, 2))
    assert sent.version_labels == {}


def test_a_model_without_named_versions_is_sent_as_it_is() -> None:
    sent = beside("model_version_policy { latest { num_versions: 2 } }", {1, 2})
    assert sent.model_version_policy.choice == Latest(num_versions=2)


def test_servers_are_a_list_of_addresses() -> None:
    assert server_addresses(" a:1, [::1]:2 ,unix:/run/s") == ["a:1", "[::1]:2", "unix:/run/s"]


def test_a_name_stands_for_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(host: str, port: int, type: int) -> list[tuple[object, ...]]:
        assert (host, port) == ("pods", 8500)
        places = (("10.0.0.1", port), ("10.0.0.2", port), ("10.0.0.1", port), ("fd00::1", port, 0, 0))
        return [(socket.AF_INET, type, 6, "", place) for place in places]

    monkeypatch.setattr(rollout.socket, "getaddrinfo", lookup)
    assert server_addresses("dns:///pods:8500") == ["10.0.0.1:8500", "10.0.0.2:8500", "[fd00::1]:8500"]


def test_a_name_that_is_not_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(*place: object, type: int) -> list[tuple[object, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(rollout.socket, "getaddrinfo", lookup)
    with pytest.raises(CliError, match="pods is not found: Name or service not known"):
        server_addresses("dns:///pods:8500")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 1 to 1000 different addresses, got 0 addresses"),
        ("a:1,b:2,a:1", "got a:1 twice"),
        ("a", "expected HOST:PORT, got 'a'"),
        ("a:x", "expected HOST:PORT, got 'a:x'"),
        ("a:0", "expected HOST:PORT"),
        (":8500", "expected HOST:PORT"),
        ("dns:///a", "expected HOST:PORT"),
        (",".join(f"a:{port}" for port in range(1, 1002)), "got 1001 addresses"),
    ],
)
def test_addresses_that_are_wrong_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        server_addresses(text)


def test_a_relative_base_path_is_refused(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{tmp_path}/models.config"
    with open(path, "w") as file:
        file.write('model_config_list { config { name: "m" base_path: "m" } }')
    assert main(["rollout", path, "--servers=127.0.0.1:1"]) == 1
    assert "absolute path" in capsys.readouterr().err
