"""The fork server as a fork of the server: real processes, started by a small server of one thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.servers.process import wait_until
from tfs_lite.workers.fork_server import IGNORED

SERVER = """
import os, sys, threading
from tfs_lite.workers.launch import fork_early

if "thread" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os.environ["SET_BY_THE_SERVER"] = "yes"
kept = os.pipe()  # as the one by which a signal stops the server
fork_early(["child_models", "no_such_module"])
import numpy as np
from tfs_lite.workers.process import open_in_process
from tfs_lite.workers.supervisor import Supervisor

supervisors = [Supervisor(["child_models"]), Supervisor(["child_models"])]
for line in sys.stdin:
    number = int(line)
    if number < 0:
        supervisors[0].end_if_unused()
        print("ended if unused", flush=True)
        continue
    model = open_in_process(supervisors[number], "model m version 1", "child_models:make", "{}")
    answer = model.run("", {"x": np.ones(3)}, ("pid",))["pid"].tolist()
    print(supervisors[number].pid, *answer, flush=True)
for supervisor in supervisors:
    supervisor.close()
print("closed", flush=True)
"""

Server = subprocess.Popen[str]


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start_one(*arguments: str) -> Server:
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", SERVER, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        )
        return started[-1]

    yield start_one
    for server in started:
        server.kill()
        with server:
            pass


def open_model(server: Server, supervisor: int = 0) -> tuple[psutil.Process, psutil.Process]:
    """The processes of the fork server and of a new model."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{supervisor}\n")
    server.stdin.flush()
    fork_server, model = map(int, server.stdout.readline().split())
    return psutil.Process(fork_server), psutil.Process(model)


def is_fork(process: psutil.Process, server: Server) -> bool:
    """Whether it runs the server's program; it is the server's child in any case."""
    assert process.ppid() == server.pid
    return process.cmdline() == psutil.Process(server.pid).cmdline()


def pipes(pid: int) -> dict[int, str]:
    """The descriptors of a process that are pipes, and which ones."""
    directory = f"/proc/{pid}/fd"
    found = {int(name): os.readlink(f"{directory}/{name}") for name in os.listdir(directory)}
    return {number: target for number, target in found.items() if target.startswith("pipe:")}


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_first_supervisor_has_the_fork_of_the_server_and_the_others_a_new_program(start: Callable[..., Server]) -> None:
    server = start()
    (first, model), (again, _), (other, _) = open_model(server), open_model(server), open_model(server, 1)
    assert is_fork(first, server)
    assert [process.name() for process in (first, model)] == ["tfs-lite-forks", "tfs-lite-model"]
    assert again == first
    assert model.ppid() == first.pid
    assert not is_fork(other, server)


def test_server_with_threads_is_not_forked(start: Callable[..., Server]) -> None:
    server = start("thread")
    fork_server, _ = open_model(server)
    assert not is_fork(fork_server, server)


def test_fork_of_the_server_leaves_its_input_and_its_signals_alone(start: Callable[..., Server]) -> None:
    server = start()
    fork_server, model = open_model(server)
    for process in (fork_server, model):
        assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
        for number in IGNORED:
            process.send_signal(number)
    assert open_model(server)[0] == fork_server
    assert model.is_running()


def test_neither_fork_of_the_server_nor_models_have_anything_open_that_the_server_had(
    start: Callable[..., Server],
) -> None:
    server = start()
    fork_server, model = open_model(server)
    own = pipes(server.pid)
    assert own  # also the one that brings it the output of the others
    for process in (fork_server, model):
        assert {number for number, target in pipes(process.pid).items() if target in own.values()} <= {1, 2}


def test_fork_of_the_server_that_dies_is_replaced_by_a_new_program(start: Callable[..., Server]) -> None:
    server = start()
    fork_server, model = open_model(server)
    fork_server.kill()
    wait_until(lambda: gone(fork_server) and gone(model), "fork server and model are gone")
    assert not is_fork(open_model(server)[0], server)


@pytest.mark.parametrize("used", [True, False])
def test_fork_of_the_server_ends_on_request_unless_a_model_has_needed_it(
    start: Callable[..., Server], used: bool
) -> None:
    server = start()
    if used:
        open_model(server)
    wait_until(lambda: psutil.Process(server.pid).children(), "the server is forked")
    (fork_server,) = psutil.Process(server.pid).children()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("-1\n")
    server.stdin.flush()
    assert server.stdout.readline() == "ended if unused\n"
    assert fork_server.is_running() is used
    assert (open_model(server)[0] == fork_server) is used


@pytest.mark.parametrize("used", [True, False])
def test_server_that_closes_ends_its_fork_and_waits_for_it(start: Callable[..., Server], used: bool) -> None:
    server = start()
    if used:
        open_model(server)
    wait_until(lambda: psutil.Process(server.pid).children(), "the server is forked")
    processes = psutil.Process(server.pid).children(recursive=True)
    assert server.stdin is not None
    server.stdin.close()
    assert server.stdout is not None
    assert server.stdout.readline() == "closed\n"
    assert not any(process.is_running() for process in processes)
    assert server.wait() == 0


@pytest.mark.parametrize("used", [True, False])
def test_server_that_is_killed_leaves_no_fork(start: Callable[..., Server], used: bool) -> None:
    server = start()
    if used:
        open_model(server)
    wait_until(lambda: psutil.Process(server.pid).children(), "the server is forked")
    processes = psutil.Process(server.pid).children(recursive=True)
    server.send_signal(signal.SIGKILL)
    for process in processes:
        wait_until(lambda process=process: gone(process), "nothing is left of the server")
