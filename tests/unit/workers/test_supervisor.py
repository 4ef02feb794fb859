"""The fork server and its children, as real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tfs_lite.core.status import StatusCode
from tfs_lite.workers.supervisor import Backoff, Supervisor

PATIENCE = 60

SERVER = """
import socket, sys, threading
from tfs_lite.workers.supervisor import Backoff, Supervisor

supervisor = Supervisor()
ours, theirs = socket.socketpair()
worker = supervisor.spawn("model m version 1", theirs)
theirs.close()
worker.started.wait()
print(supervisor.pid, worker.pid, flush=True)
threading.Event().wait()
"""


class Child:
    """A process that waits at its socket for what it is to open."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.sock, theirs = socket.socketpair()
        with theirs:
            self.worker = supervisor.spawn("model m version 1", theirs)
        assert self.worker.started.wait(PATIENCE)

    @property
    def pid(self) -> int:
        assert self.worker.pid is not None
        return self.worker.pid

    def end(self) -> str:
        """By closing the connection; why it ended."""
        self.sock.close()
        return self.cause()

    def cause(self) -> str:
        assert self.worker.ended.wait(PATIENCE)
        return self.worker.cause


@pytest.fixture
def child(supervisor):
    found = Child(supervisor)
    yield found
    found.end()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_child_is_forked_by_the_fork_server_and_has_one_thread(supervisor, child):
    assert os.getpgid(child.pid) == child.pid
    assert psutil.Process(child.pid).ppid() == supervisor.pid
    assert psutil.Process(supervisor.pid).num_threads() == 1
    assert os.getsid(child.pid) == os.getsid(0)


def test_child_whose_server_closes_the_connection_ends(child):
    assert child.end() == "exit code 0"
    assert not psutil.pid_exists(child.pid)


def test_child_is_killed_on_request_and_the_others_live(supervisor, child):
    other = Child(supervisor)
    other.worker.kill()
    assert other.cause() == "signal 9"
    assert not psutil.pid_exists(other.pid)
    other.worker.kill()
    other.sock.close()
    assert not child.worker.ended.is_set()


def test_callbacks_get_the_end_of_a_process_before_and_after_it(child):
    ended = []
    child.worker.on_end(lambda: ended.append("before"))
    child.worker.kill()
    child.cause()
    wait_until(lambda: ended, "the end is ended")
    child.worker.on_end(lambda: ended.append("after"))
    assert ended == ["before", "after"]


def test_failing_callback_does_no_harm(supervisor, child, caplog):
    ended = []
    child.worker.on_end(lambda: 1 / 0)
    child.worker.on_end(lambda: ended.append(1))
    child.worker.kill()
    wait_until(lambda: ended, "the end is ended")
    assert "ZeroDivisionError" in caplog.text
    assert Child(supervisor).end() == "exit code 0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_meant_for_the_server_are_ignored(supervisor, child, number):
    os.kill(supervisor.pid, number)
    os.kill(child.pid, number)
    assert Child(supervisor).end() == "exit code 0"
    assert not child.worker.ended.is_set()


def test_fork_server_that_dies_takes_its_children_along_and_is_started_again(child_models):
    supervisor = Supervisor()
    first = Child(supervisor)
    pid = supervisor.pid
    os.kill(pid, signal.SIGKILL)
    assert first.cause() == "the process that starts models ended"
    wait_until(lambda: gone(first.pid), "the child is gone")
    second = Child(supervisor)
    assert supervisor.pid not in (None, pid)
    second.end()
    first.sock.close()
    supervisor.close()


@pytest.mark.parametrize("name", ["tfs-fork-server", "tfs-worker-output"])
def test_fork_server_one_of_whose_threads_is_refused_is_ended_and_started_again_when_asked_for(monkeypatch, name):
    supervisor, start = Supervisor(), threading.Thread.start
    before = psutil.Process().children()

    def refuse(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            told = refusal(supervisor.spawn, "model m version 1", theirs, code=StatusCode.UNAVAILABLE)
        assert told == f"the thread {name} cannot be started: can't start new thread"
        assert (supervisor.pid, psutil.Process().children()) == (None, before)
        assert supervisor.spawn("model m version 1", theirs).started.wait(PATIENCE)
    supervisor.close()


def test_closed_supervisor_leaves_nothing_and_starts_nothing():
    threads, files = threading.active_count(), set(os.listdir("/proc/self/fd"))
    supervisor = Supervisor()
    children = [Child(supervisor) for _ in range(3)]
    pid = supervisor.pid
    supervisor.close()
    assert {child.cause() for child in children} == {"the process that starts models ended"}
    assert not any(psutil.pid_exists(number) for number in (pid, *(child.pid for child in children)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        refusal(supervisor.spawn, "model m version 1", theirs, code=StatusCode.UNAVAILABLE)
    supervisor.close()
    for child in children:
        child.sock.close()
    assert threading.active_count() == threads
    assert set(os.listdir("/proc/self/fd")) == files


def test_supervisor_that_was_never_needed_starts_no_process():
    supervisor = Supervisor()
    assert supervisor.pid is None
    supervisor.close()
    assert supervisor.pid is None


def test_fork_server_that_still_imports_does_not_hold_up_the_end(tmp_path):
    (tmp_path / "slow_import.py").write_text("import threading\nthreading.Event().wait(120)\n")
    sys.path.insert(0, str(tmp_path))
    try:
        supervisor = Supervisor(["slow_import"])
        ours, theirs = socket.socketpair()
        with ours, theirs:
            worker = supervisor.spawn("model m version 1", theirs)
            supervisor.close()
            assert worker.cause == "the process that starts models ended"
    finally:
        sys.path.remove(str(tmp_path))


def test_module_that_cannot_be_imported_is_no_hindrance():
    supervisor = Supervisor(["there_is_no_such_module"])
    assert Child(supervisor).end() == "exit code 0"
    supervisor.close()


def test_server_that_is_killed_leaves_no_process():
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pids = [int(number) for number in server.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(gone(pid) for pid in pids)
        server.send_signal(signal.SIGKILL)
    for pid in pids:
        wait_until(lambda pid=pid: gone(pid), "nothing is left of the server")


def test_pauses_double_up_to_a_bound_until_the_process_ran_well_for_a_while():
    backoff = Backoff(first=0.1, most=1.0, well=60.0)
    assert [round(backoff.next(5.0), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert Backoff(failures=100_000).next(0.0) == 30.0
    backoff = Backoff(well=60.0)
    for _ in range(8):
        backoff.next(0.0)
    assert backoff.next(59.9) > 20
    assert backoff.next(60.0) == 0.1
    assert backoff.next(0.0) == 0.2
