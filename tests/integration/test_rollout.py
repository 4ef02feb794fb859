"""``tfs-lite rollout`` on three real servers: labels move on all of them, or on none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.in_process import QUICK, TIMEOUT, ServerFixture, config_text, entry
from tests.support.servers.models import TaggedArchives, write_python_version
from tests.support.servers.process import free_ports, wait_until
from tfs_lite.cli.main import main
from tfs_lite.cli.output import CliError
from tfs_lite.cli.rollout import Rollout
from tfs_lite.client import Client
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError
from tfs_lite.server.server import Server

AVAILABLE, END = VersionState.AVAILABLE, VersionState.END
CODE = """
class Model:
    def __init__(self, context): pass
    def predict(self, inputs): return {"y": inputs["x"] + 3}
"""
Captured = pytest.CaptureFixture[str]


class ServersFixture:
    """Three servers of one directory with the versions 1 and 2 of ``m``, and version 3, which is code that the second
    server does not trust. All start with version 1 under the label ``stable``."""

    def __init__(self, root: Path, archives: TaggedArchives, servers: ExitStack) -> None:
        self.root = root
        for version in (1, 2):
            archives.write_version(version, root / "m")
        write_python_version(root / "m", 3, CODE)
        first = self.file(stable=1)
        self.all = [
            self._start(servers, model_config_file=first, max_num_load_retries=0, trusted_model_base_paths=trusted)
            for trusted in ((str(root / "m"),), (), (str(root / "m"),))
        ]

    def _start(self, servers: ExitStack, **fields: Any) -> ServerFixture:
        server = Server(**{**QUICK, **fields}).start()
        servers.callback(server.stop)
        started = ServerFixture(server, self.root)
        servers.callback(started.client.close)
        server.wait_ready(TIMEOUT)
        return started

    def text(self, *versions: int, **labels: int) -> str:
        """A config of ``m`` with the versions of its labels, and further ones."""
        wanted = " ".join(f"versions: {version}" for version in sorted({*versions, *labels.values()}))
        named = " ".join(f'version_labels {{ key: "{key}" value: {value} }}' for key, value in labels.items())
        model = entry("m", f"model_version_policy {{ specific {{ {wanted} }} }} {named}")
        return config_text(self.root, model)

    def file(self, *versions: int, **labels: int) -> str:
        path = self.root / "models.config"
        path.write_text(self.text(*versions, **labels))
        return str(path)

    def rollout(self, *more: Client, timeout: float = TIMEOUT, **labels: int) -> Rollout:
        """One that has not begun, of a config with these labels. ``more`` are clients of further servers."""
        clients = {f"server {number}": client for number, client in enumerate(self.clients() + list(more), 1)}
        return Rollout(parse_model_server_config(self.text(**labels), "models.config"), clients, timeout)

    def clients(self) -> list[Client]:
        return [each.client for each in self.all]

    def addresses(self) -> str:
        return "--servers=" + ",".join(each.target for each in self.all)

    def labelled(self, label: str = "stable") -> list[int]:
        """The version that answers under the label, of each server."""
        return [each.version("m", label=label) for each in self.all]

    def available(self) -> list[set[int]]:
        return [{version for version, state in each.states("m").items() if state is AVAILABLE} for each in self.all]


@pytest.fixture
def three(archives: TaggedArchives, tmp_path: Path) -> Iterator[ServersFixture]:
    with ExitStack() as servers:
        yield ServersFixture(tmp_path, archives, servers)


def states(rollout: Rollout) -> list[str]:
    return [report.state for report in rollout.reports.values()]


def printed(capsys: Captured) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_label_moves_on_every_server_and_no_request_fails(three: ServersFixture, capsys: Captured) -> None:
    with Callers(three) as callers:
        assert main(["rollout", three.file(stable=2), three.addresses(), "--json"]) == 0
    assert callers.failures == []
    for answers in callers.answers:
        assert answers == sorted(answers), "a caller got version 1 after version 2"
    assert three.labelled() == [2, 2, 2]
    for each in three.all:
        each.wait_states({1: END, 2: AVAILABLE})
    report = printed(capsys)
    assert [each["state"] for each in report["servers"]] == ["moved", "moved", "moved"]
    assert report["skew_seconds"] > 0


def test_people_read_a_table_and_how_far_apart_the_servers_were(three: ServersFixture, capsys: Captured) -> None:
    assert main(["rollout", three.file(stable=2, canary=2), three.addresses()]) == 0
    page = capsys.readouterr().out
    assert all(each.target in page for each in three.all)
    assert page.splitlines()[-1].startswith("the labels have moved on 3 servers, at most ")
    assert three.labelled("canary") == [2, 2, 2]


def test_a_version_that_one_server_cannot_load_moves_nothing(three: ServersFixture, capsys: Captured) -> None:
    assert main(["rollout", three.file(stable=3), three.addresses(), "--json"]) == 1
    report = printed(capsys)
    assert report["error"]["message"].startswith(f"failed on {three.all[1].target}: no label has moved")
    assert report["servers"][1]["state"] == "failed"
    assert report["servers"][1]["reason"].startswith("m 3: END, PERMISSION_DENIED: ")
    assert {report["servers"][index]["state"] for index in (0, 2)} <= {"loading", "loaded"}
    assert three.labelled() == [1, 1, 1]
    assert three.available()[1] == {1}


def test_a_version_that_was_rolled_back_moves_nothing_and_says_why(three: ServersFixture, capsys: Captured) -> None:
    carried_out(three.rollout(stable=2))
    three.all[1].client.rollback("m", 1)
    wait_until(lambda: three.available()[1] == {1}, "the second server is back at version 1", TIMEOUT)
    assert main(["rollout", three.file(stable=2, canary=2), three.addresses(), "--json"]) == 1
    shown = printed(capsys)
    reasons = [each["reason"] for each in shown["servers"]]
    assert [bool(reason) for reason in reasons] == [False, True, False]
    assert "rolled back to version 1" in reasons[1]


def test_people_read_which_server_failed_and_what_is_to_be_done(three: ServersFixture, capsys: Captured) -> None:
    assert main(["rollout", three.file(stable=3), three.addresses()]) == 1
    captured = capsys.readouterr()
    assert "PERMISSION_DENIED" in captured.out
    assert captured.err.count("\n") == 1
    assert three.all[1].target in captured.err
    assert "run this again" in captured.err


def test_with_an_unreachable_server_nothing_is_sent(three: ServersFixture) -> None:
    with Client(f"127.0.0.1:{free_ports(1)[0]}", connect_timeout=0.3) as nobody:
        rollout = three.rollout(nobody, stable=2)
        with pytest.raises(CliError, match="failed on server 4: nothing was sent to any server"):
            rollout.look()
    assert states(rollout) == ["unchanged", "unchanged", "unchanged", "failed"]
    assert rollout.reports["server 4"].reason.startswith("UNAVAILABLE: no gRPC server answered at 127.0.0.1:")
    assert three.available() == [{1}, {1}, {1}]


def test_a_version_that_is_there_already_is_moved_to(three: ServersFixture) -> None:
    for each in three.all:
        each.client.reload(parse_model_server_config(three.text(2, stable=1), "both"))
        each.wait_states({1: AVAILABLE, 2: AVAILABLE})
    rollout = carried_out(three.rollout(stable=2))
    assert states(rollout) == ["moved"] * 3
    assert three.labelled() == [2, 2, 2]


def test_a_config_that_is_in_force_already_changes_nothing(three: ServersFixture) -> None:
    assert states(carried_out(three.rollout(stable=1))) == ["moved"] * 3
    assert three.available() == [{1}, {1}, {1}]


def test_a_server_that_dies_after_the_look_keeps_the_others_where_they_are(three: ServersFixture) -> None:
    rollout = three.rollout(stable=2)
    rollout.look()
    three.all.pop().server.stop()
    with pytest.raises(CliError, match="failed on server 3: no label has moved"):
        rollout.load()
    assert three.labelled() == [1, 1]


def test_a_server_that_dies_between_the_steps_is_named_and_the_others_move(three: ServersFixture) -> None:
    rollout = three.rollout(stable=2)
    rollout.look()
    rollout.load()
    assert states(rollout) == ["loaded"] * 3
    assert three.labelled() == [1, 1, 1]
    assert three.available() == [{1, 2}, {1, 2}, {1, 2}]
    three.all.pop().server.stop()
    with pytest.raises(CliError, match="failed on server 3: the labels have moved on 2 of 3 servers; run this again"):
        rollout.move()
    assert states(rollout) == ["moved", "moved", "failed"]
    assert three.labelled() == [2, 2]


def test_a_rollout_that_failed_goes_on_when_it_is_run_again(three: ServersFixture, archives: TaggedArchives) -> None:
    rollout = three.rollout(stable=4, timeout=1.0)
    rollout.look()
    with pytest.raises(CliError, match="no label has moved"):
        rollout.load()
    assert three.labelled() == [1, 1, 1]
    archives.write_version(4, three.root / "m")
    carried_out(three.rollout(stable=4))
    assert three.labelled() == [4, 4, 4]


def test_a_config_that_a_server_refuses_moves_nothing(three: ServersFixture, capsys: Captured) -> None:
    config = three.root / "models.yaml"
    config.write_text(
        "model_config_list:\n  config:\n"
        "    - {name: m, base_path: 'http://bucket/m', model_version_policy: {specific: {versions: [2]}}}\n"
    )
    assert main(["rollout", str(config), three.addresses(), "--json"]) == 1
    assert [each["state"] for each in printed(capsys)["servers"]] == ["failed"] * 3
    assert three.labelled() == [1, 1, 1]


def carried_out(rollout: Rollout) -> Rollout:
    rollout.look()
    rollout.load()
    rollout.move()
    return rollout


class Callers:
    """A thread for each server, which asks for the label ``stable`` without pause. Entering waits for first answers."""

    def __init__(self, three: ServersFixture) -> None:
        self.answers: list[list[int]] = [[] for _ in three.all]
        self.failures: list[ServingError] = []
        self._stop = threading.Event()
        self._begun = [threading.Event() for _ in three.all]
        self._threads = [
            threading.Thread(target=self._ask, args=(each.version, index)) for index, each in enumerate(three.all)
        ]

    def _ask(self, version: Callable[..., int], index: int) -> None:
        while not self._stop.is_set():
            try:
                self.answers[index].append(version("m", label="stable"))
            except ServingError as error:
                self.failures.append(error)
            self._begun[index].set()

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        assert all(begun.wait(TIMEOUT) for begun in self._begun)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
