"""What hangs, hangs alone: a disk, a load, an unload. The others go on, the server says so, and it can be stopped."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.hang import HangingDisk
from tests.support.servers.models import PYTHON_CONFIG
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, default_command, wait_until
from tfs_lite.core.servable import VersionState

LEFT_BEHIND = 3
STEPS = ("load", "predict", "close")
MODEL = """
import pathlib
import time

GATE = pathlib.Path({gate!r})


def wait(what):
    (GATE / what).touch()
    while not (GATE / "open").exists():
        time.sleep(0.01)


class Model:
    def __init__(self, context):
        {load}

    def predict(self, inputs):
        {predict}
        return {{"y": inputs["x"] + 1}}

    def close(self):
        {close}
"""


class Models:
    """Python models below one directory, some of which hang in their load, predict or close until ``release``."""

    def __init__(self, path: Path, gate: Path) -> None:
        self.path, self.gate = path, gate
        gate.mkdir()

    def write(self, name: str, version: int, hangs_in: str = "") -> None:
        """The whole version appears at once."""
        waits = {step: f'wait("{step}-{name}")' if step == hangs_in else "pass" for step in STEPS}
        staged = self.path / name / f".staged-{version}"
        staged.mkdir(parents=True)
        (staged / "model.py").write_text(MODEL.format(gate=str(self.gate), **waits))
        (staged / "config.pbtxt").write_text(PYTHON_CONFIG)
        staged.rename(self.path / name / str(version))

    def has_come_to(self, step: str, name: str) -> bool:
        return (self.gate / f"{step}-{name}").exists()

    def release(self) -> None:
        (self.gate / "open").touch()


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path / "models", tmp_path / "gate")


class Served:
    """A server, and what it says of its models."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process

    def states(self, name: str) -> dict[int, tuple[str, str]]:
        """By version: state and message."""
        code, body = self.process.get(f"/v1/models/{name}")
        if code != 200:
            return {}
        found = json.loads(body)["model_version_status"]
        return {int(each["version"]): (each["state"], each["status"]["error_message"]) for each in found}

    def wait_for(self, name: str, version: int, state: VersionState = VersionState.AVAILABLE) -> None:
        def there() -> bool:
            return self.states(name).get(version, ("", ""))[0] == state.name

        try:
            wait_until(there, f"{name} {version} is {state.name}", 60)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.process.log()}") from None

    def causes(self, name: str) -> list[str]:
        answer = json.loads(self.process.get(f"/v1/models/{name}:explain")[1])
        assert all(link["fix"] for link in answer["because"]), answer
        return [link["cause"] for link in answer["because"]]

    def hanging(self, what: str, name: str) -> bool:
        return f'tfs_lite_hanging_seconds{{model="{name}",what="{what}"}}' in self.process.get("/metrics")[1].decode()

    def events(self, name: str) -> list[str]:
        answer = json.loads(self.process.get(f"/v1/models/{name}:explain")[1])
        return [event["kind"] for event in answer["events"]]

    def post(self, path: str) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.process.http_port}{path}", b"{}", {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)


@pytest.fixture
def serve(models: Models) -> Iterator[Callable[..., Served]]:
    """Servers with the default flags and the models trusted."""
    running: list[ServerProcess] = []

    def start(*flags: str, **settings: Any) -> Served:
        process = ServerProcess(
            f"--model_repository={models.path}", f"--trusted_model_base_paths={models.path}/*", *flags, **settings
        )
        running.append(process)
        process.start()
        process.wait_ready()
        return Served(process)

    yield start
    models.release()
    for process in running:
        process.stop()


@pytest.mark.skipif(bool(HangingDisk.lacks()), reason=HangingDisk.lacks() or "-")
def test_disk_of_one_model_hangs_and_the_others_go_on(serve: Callable[..., Served], models: Models, tmp_path) -> None:
    disk = HangingDisk(tmp_path)
    for name in ("well", "sick"):
        models.write(name, 1)
    server = serve("--disk_timeout_seconds=2", command=default_command(), env={**os.environ, **disk.env})
    for name in ("well", "sick"):
        server.wait_for(name, 1)
    try:
        disk.hang(models.path / "sick")
        wait_until(lambda: server.causes("sick") == ["DISK_HANGS"], "explain says so", 40)
        models.write("well", 2)
        server.wait_for("well", 2)
        assert server.hanging("disk", "sick")
        assert "BASE_PATH_PROBLEM" in server.events("sick")
        assert "has not answered for 2 s" in server.process.get("/v1/models")[1].decode()
        assert server.post("/v1/config:reload") == 200
        models.write("late", 1)
        server.wait_for("late", 1)
        models.write("sick", 2)
        disk.free()
        server.wait_for("sick", 2)
        wait_until(lambda: server.causes("sick") == [], "the disk answers again", 20)
        disk.hang(models.path / "sick")
        wait_until(lambda: server.hanging("disk", "sick"), "it hangs again", 40)
        server.process.terminate()
        assert server.process.wait(60) == LEFT_BEHIND
        assert "left behind: " in server.process.log()
    finally:
        disk.free()


@pytest.mark.parametrize("policy", ["availability", "resource"])
def test_load_that_hangs_holds_up_no_other(serve: Callable[..., Served], models: Models, policy: str) -> None:
    models.write("well", 1)
    server = serve(f"--aspired_version_policy={policy}", "--slow_load_seconds=1", "--drain_timeout_seconds=3")
    models.write("sick", 1, hangs_in="load")
    wait_until(lambda: models.has_come_to("load", "sick"), "its load hangs", 60)
    models.write("well", 2)
    server.wait_for("well", 2)
    assert server.causes("sick") == ["LOAD_HANGS"]
    assert server.hanging("load", "sick")
    assert "OVERDUE" in server.events("sick")
    assert server.states("sick")[1] == (
        "LOADING",
        "its load takes longer than 1 s and goes on; others do not wait for it",
    )
    server.process.terminate()
    assert server.process.wait(40) == LEFT_BEHIND
    assert "left behind: load {name: sick version: 1}" in server.process.log()


@pytest.mark.parametrize("policy", ["availability", "resource"])
def test_close_that_hangs_holds_up_no_other(serve: Callable[..., Served], models: Models, policy: str) -> None:
    for name in ("well", "other"):
        models.write(name, 1)
    models.write("sick", 1, hangs_in="close")
    server = serve(f"--aspired_version_policy={policy}", "--slow_unload_seconds=1", "--drain_timeout_seconds=3")
    models.write("sick", 2)
    wait_until(lambda: models.has_come_to("close", "sick"), "its close hangs", 60)
    for name in ("well", "other"):
        models.write(name, 2)
        server.wait_for(name, 2)
        server.wait_for(name, 1, VersionState.END)
    server.wait_for("sick", 2)
    assert server.states("sick")[1][0] == "UNLOADING"
    assert "takes longer than 1 s" in server.states("sick")[1][1]
    assert server.hanging("unload", "sick")
    server.process.terminate()
    assert server.process.wait(40) == LEFT_BEHIND
    assert "left behind: unload {name: sick version: 1}" in server.process.log()


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_request_that_never_ends_is_named_by_the_stop_that_leaves_it(
    serve: Callable[..., Served], models: Models, worker: str
) -> None:
    """Also where the process that ran it has been killed: it was not answered."""
    models.write("sick", 1, hangs_in="predict")
    server = serve("--drain_timeout_seconds=1", f"--worker={worker}")
    server.wait_for("sick", 1)
    with ThreadPoolExecutor(1) as pool, Probe(server.process) as probe:
        inside = pool.submit(probe.ask, "sick")
        wait_until(lambda: models.has_come_to("predict", "sick"), "a request is inside", 60)
        server.process.terminate()
        code, log = server.process.wait(60), server.process.log()
        assert inside.exception(60) is not None
    assert code == LEFT_BEHIND, log
    assert "left behind: requests inside {name: sick version: 1}" in log.splitlines()[-1], log


def test_version_that_a_request_keeps_is_shown_with_its_process_and_its_request_is_answered(
    serve: Callable[..., Served], models: Models
) -> None:
    """The request is not ended: what was withdrawn waits for it, and everything says so."""
    models.write("sick", 1, hangs_in="predict")
    server = serve("--worker=process", "--slow_unload_seconds=0.5", "--sequence_drain_seconds=0.5")
    server.wait_for("sick", 1)
    with ThreadPoolExecutor(1) as pool, Probe(server.process) as probe:
        inside = pool.submit(probe.ask, "sick")
        wait_until(lambda: models.has_come_to("predict", "sick"), "a request is inside", 60)
        models.write("sick", 2)
        server.wait_for("sick", 2)
        wait_until(lambda: server.hanging("drain", "sick"), "the drain takes long", 60)
        assert server.causes("sick") == ["DRAIN_HANGS"]
        (listed,) = json.loads(server.process.get("/v1/models")[1])["models"]
        (pid,) = [each["pid"] for each in listed["process_status"] if each["drains"]]
        link = json.loads(server.process.get("/v1/models/sick:explain")[1])["because"][0]
        assert link["text"].startswith(f"version 1: 1 request inside, in process {pid}; ")
        assert f"kill -9 {pid}" in link["fix"]
        assert link["since"]
        assert server.states("sick")[1] == (
            "UNLOADING",
            "requests inside it go on for longer than 1 s; they are waited for",
        )
        assert "OVERDUE" in server.events("sick")
        page = server.process.get("/metrics")[1].decode()
        assert 'tfs_lite_draining_requests{model="sick",version="1"} 1.0' in page
        assert f'pid="{pid}",reason="",version="1"' in page
        models.release()
        assert inside.result(60) is not None
    server.wait_for("sick", 1, VersionState.END)
    assert server.causes("sick") == []
    assert "tfs_lite_draining_requests{" not in server.process.get("/metrics")[1].decode()


def test_replaced_load_that_a_request_keeps_is_told_like_a_withdrawn_version(
    serve: Callable[..., Served], models: Models
) -> None:
    """The version answers all the while, by the load of its new files."""
    models.write("sick", 1, hangs_in="predict")
    server = serve("--slow_unload_seconds=0.5", "--sequence_drain_seconds=0.5")
    server.wait_for("sick", 1)
    with ThreadPoolExecutor(1) as pool, Probe(server.process) as probe:
        inside = pool.submit(probe.ask, "sick")
        wait_until(lambda: models.has_come_to("predict", "sick"), "a request is inside", 60)
        file = models.path / "sick" / "1" / "model.py"
        new = file.with_name(".new")
        new.write_text(file.read_text().replace('wait("predict-sick")', "pass"))
        new.rename(file)
        wait_until(lambda: server.hanging("drain", "sick"), "the drain takes long", 60)
        assert probe.ask("sick") is not None
        assert server.states("sick") == {1: ("AVAILABLE", "")}
        assert 'draining_requests{model="sick",version="1"} 1.0' in server.process.get("/metrics")[1].decode()
        command = [*default_command(), "status", "--verbose", f"--server=127.0.0.1:{server.process.http_port}"]
        shown = subprocess.run([*command, "--json"], capture_output=True, timeout=60, check=True).stdout
        assert json.loads(shown)["models"][0]["versions"][0]["numbers"]["draining"] == 1
        assert "was loaded anew, and requests inside it go on for longer than 1 s" in server.process.log()
        models.release()
        assert inside.result(60) is not None
    wait_until(lambda: not server.hanging("drain", "sick"), "the drain has ended", 60)


def test_load_that_was_overdue_is_served_when_it_ends(serve: Callable[..., Served], models: Models) -> None:
    models.write("slow", 1, hangs_in="load")
    server = serve("--slow_load_seconds=1")
    wait_until(lambda: server.hanging("load", "slow"), "it is overdue", 60)
    models.release()
    server.wait_for("slow", 1)
    assert server.states("slow")[1] == ("AVAILABLE", "")
    assert not server.hanging("load", "slow")
    server.process.terminate()
    assert server.process.wait(60) == 0
