"""Nobody reads the server's standard error, and its standard output is full or closed: it serves all the same."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.servers.models import write_python_version
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, default_command, wait_until
from tfs_lite.client import Client
from tfs_lite.core.status import ServingError

TALKATIVE = """
import ctypes

LIBC = ctypes.CDLL(None)
TALK = b"w" * 4095 + b"\\n"


class Model:
    def __init__(self, context):
        self.version = context.version

    def predict(self, inputs):
        print("p" * 4096)
        LIBC.write(2, TALK, len(TALK))  # as a library of C does, which does not ask whether it was written
        return {"y": inputs["x"] + self.version}
"""


class Piped(ServerProcess):
    """Its standard output and error are what the test says."""

    def __init__(self, *flags: str, stdout: int, stderr: int) -> None:
        super().__init__(*flags)
        self._streams = stdout, stderr

    def start(self) -> ServerProcess:
        stdout, stderr = self._streams
        self._process = subprocess.Popen(
            self._arguments, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        return self


@contextmanager
def unread_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


def wait_answer(probe: Probe, model: str, version: int) -> None:
    def answers() -> bool:
        try:
            return probe.ask(model) == version
        except ServingError:
            return False

    wait_until(answers, f"version {version} of {model} answers")


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_server_whose_log_nobody_reads_serves_loads_and_stops(tmp_path: Path, worker: str) -> None:
    base = tmp_path / "models" / "code"
    write_python_version(base, 1, TALKATIVE)
    flags = (f"--model_repository={base.parent}", f"--trusted_model_base_paths={base}", f"--worker={worker}")
    full = os.open("/dev/full", os.O_WRONLY)
    with unread_pipe() as (_, writer), Piped(*flags, "--access_log=all", stdout=full, stderr=writer) as server:
        os.close(full)
        with Client(server.target) as client, Probe(server) as probe:
            wait_answer(probe, "code", 1)
            refused = 0
            for _ in range(3000):
                try:
                    client.predict("missing", {"x": [[1.0]]}, timeout=20)
                except ServingError:
                    refused += 1
            assert refused == 3000
            for _ in range(60):
                assert probe.ask("code") == 1
            assert server.get("/readyz")[0] == 200
            write_python_version(base, 2, TALKATIVE)
            wait_answer(probe, "code", 2)
            assert b'tfs_lite_output_lost_lines_total{stream="stderr"} ' in server.get("/metrics")[1]
        server.terminate()
        assert server.wait(30) == 0


@pytest.mark.parametrize("redirect", ["> /dev/full", "<&- >&- 2>&-"])
def test_a_server_without_standard_output_or_error_serves(tmp_path: Path, redirect: str) -> None:
    (tmp_path / "models").mkdir()
    server = ServerProcess(f"--model_repository={tmp_path / 'models'}", command=["sh", "-c", f'exec "$@" {redirect}'])
    (program,) = default_command()
    server._arguments[3:3] = ["sh", program]
    with server:
        descriptors = {number: os.readlink(f"/proc/{server.pid}/fd/{number}") for number in (0, 1, 2)}
        assert not [path for path in descriptors.values() if "socket" in path or "anon" in path], descriptors
        server.terminate()
        assert server.wait(30) == 0


@pytest.mark.parametrize("command", ["--help", "--version"])
def test_other_commands_end_quietly_where_their_output_is_closed(command: str) -> None:
    (program,) = default_command()
    closed = subprocess.run(["sh", "-c", f"exec {program} {command} >&-"], capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")
    full = subprocess.run(["sh", "-c", f"exec {program} {command} > /dev/full"], capture_output=True, text=True)
    assert (full.returncode, full.stderr) == (1, "tfs-lite: No space left on device\n")


def wanted_by(http: httpx.Client, kind: str) -> tuple[str, str]:
    event = http.get(f"/v1/events?kind={kind}").json()["events"][-1]
    return event["cause"], event["by"]


def test_a_hang_up_reads_the_config_again_and_ends_nothing(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_python_version(tmp_path / name, 1, TALKATIVE)
    file = tmp_path / "models.yaml"

    def write(*names: str) -> None:
        models = "".join(f"    - {{name: {name}, base_path: {tmp_path / name}}}\n" for name in names)
        file.write_text(f"model_config_list:\n  config:\n{models}")

    write("one")
    flags = (f"--model_config_file={file}", f"--trusted_model_base_paths={tmp_path}/*")
    with ServerProcess(*flags) as server, Probe(server) as probe:
        assert probe.ask("one") == 1
        write("one", "two")
        os.kill(server.pid, signal.SIGHUP)
        wait_answer(probe, "two", 1)
        file.write_text("nonsense: [\n")
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "SIGHUP: refused" in server.log() or None, "the config is refused")
        assert (probe.ask("one"), probe.ask("two")) == (1, 1)
        with httpx.Client(base_url=f"http://127.0.0.1:{server.http_port}") as http:
            assert wanted_by(http, "CONFIG_APPLIED") == ("OPERATOR", "SIGHUP")
            assert wanted_by(http, "CONFIG_REFUSED") == ("OPERATOR", "SIGHUP")
            refused = http.get("/v1/models").json()["config_refused"]
            assert "the config file was refused" in refused["text"]
            assert "then send the server SIGHUP" in refused["fix"], "nothing polls it"
            write("one", "two")
            os.kill(server.pid, signal.SIGHUP)
            wait_until(lambda: "config_refused" not in http.get("/v1/models").json(), "the right file is read")
    assert server.exit_code == 0
