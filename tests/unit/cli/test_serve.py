"""``tfs-lite serve`` as a process: its banner, its log, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.process import READY_TIMEOUT, free_ports
from tfs_lite import __version__

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) .+")


NOT_INSTALLED = """
import importlib.metadata, sys

known = importlib.metadata.version

def version(name):
    if name == "tfs-lite":
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)

importlib.metadata.version = version
from tfs_lite.cli.main import main

sys.exit(main())
"""
"""The command line of a source tree that is on the path and was never installed."""


def serve(*flags: str, program: tuple[str, ...] = ("-m", "tfs_lite.cli.main")) -> subprocess.Popen[str]:
    command = [sys.executable, *program, "serve", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_the_banner_says_what_is_served_and_where_and_an_interrupt_ends_it(tmp_path: Path) -> None:
    grpc_port, http_port = free_ports(2)
    flags = (f"--model_base_path={tmp_path}", f"--port={grpc_port}", f"--rest_api_port={http_port}")
    with serve(*flags, "--grpc_max_threads=3") as process:
        assert process.stdout is not None
        banner = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        output, log = process.communicate(timeout=READY_TIMEOUT)
    assert banner == [
        f"tfs_lite {__version__} serves {tmp_path}\n",
        f"  page  http://127.0.0.1:{http_port}/\n",
        f"  gRPC  127.0.0.1:{grpc_port}\n",
        f"  HTTP  http://127.0.0.1:{http_port}/v1/models\n",
    ]
    assert process.returncode == 0
    assert output == ""
    assert log
    assert all(LOG_LINE.fullmatch(line) for line in log.splitlines()), log


@pytest.mark.slow
def test_with_json_the_banner_is_one_line_and_threads_of_torch_can_be_set_and_a_tree_serves_uninstalled(
    tmp_path: Path,
) -> None:
    (grpc_port,) = free_ports(1)
    flags = (f"--port={grpc_port}", "--rest_api_port=0", "--log_level=error", "--tensorflow_session_parallelism=1")
    with serve(f"--model_base_path={tmp_path}", "--json", *flags, program=("-c", NOT_INSTALLED)) as process:
        assert process.stdout is not None
        banner = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=READY_TIMEOUT) == ("", "")
    assert process.returncode == 0
    assert (banner["host"], banner["port"], banner["rest_api_port"]) == ("127.0.0.1", grpc_port, None)
    assert banner["source"] == str(tmp_path)


@pytest.mark.slow
def test_a_model_that_fails_at_start_ends_the_server_when_asked_to(tmp_path: Path) -> None:
    (tmp_path / "base" / "1").mkdir(parents=True)
    (tmp_path / "base" / "1" / "model.onnx").write_bytes(b"onnx")
    (grpc_port,) = free_ports(1)
    flags = (f"--port={grpc_port}", "--rest_api_port=0", "--version_quiet_period_seconds=0")
    with serve(f"--model_base_path={tmp_path / 'base'}", "--exit_on_initial_load_failure", *flags) as process:
        _, log = process.communicate(timeout=READY_TIMEOUT)
    last = log.splitlines()[-1]
    assert process.returncode == 1
    assert last.startswith("tfs-lite: stopped, because --exit_on_initial_load_failure is set: ")
    assert "the file is damaged" in last


SIGNAL_ON_ANOTHER_THREAD = """
import signal, threading
from tfs_lite.cli.serve import StopSignal

stop = StopSignal()
stop.arm()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # so that the main thread is not interrupted in its wait

def receive():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=receive).start()
stop.wait()
print("awake")
"""


def test_a_signal_that_does_not_interrupt_the_wait_wakes_it_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNAL_ON_ANOTHER_THREAD], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "awake\n"), done.stderr


SIGNAL_DURING_AN_IMPORT = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the kernel does for process 1
sys.meta_path.insert(0, Finder())
from tfs_lite.cli.main import main
sys.argv[1:1] = ["serve", "--model_base_path=/nowhere", "--port=64999", "--model_name"]
main()
print("went on")
"""


@pytest.mark.parametrize("late", ["tfs_lite.cli.serve", "numpy", "torch", "tfs_lite.server.server"])
def test_a_server_that_is_stopped_while_it_begins_ends_at_once(late: str) -> None:
    command = [sys.executable, "-c", SIGNAL_DURING_AN_IMPORT, late]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
