"""Python models in processes of their own that do their worst: whoever asked is told, and nobody else notices.

Each model here misbehaves when the first number it gets is negative. Its neighbour, a process beside it, is asked
before, meanwhile and afterwards.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support.profiles import is_soak
from tests.support.servers.platforms import SETTINGS, WIDTH, write_python
from tests.support.servers.process import wait_until
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.remote import OPEN_VERSION, PRELOAD, describe
from tfs_lite.core.model import WorkerLost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.workers.connection import RemoteModel
from tfs_lite.workers.process import ProcessModel
from tfs_lite.workers.supervisor import Backoff, Supervisor

ROWS = np.ones((2, WIDTH), np.float32)
NEVER = threading.Event()

SOURCE = """
import ctypes, mmap, os, pathlib, signal, socket, struct, subprocess, sys, threading, time

import torch


def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{{name}}").startswith("socket:"):
                yield int(name)
        except OSError:
            pass


def write(data):
    for number in sockets():
        os.write(number, data)


def scribble():
    # over all memory that is shared with the server
    for line in open("/proc/self/maps"):
        if "memfd:tfs-lite" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            ctypes.memset(start, 0xFF, end - start)


def swell():
    # more memory than was ever asked for, and an attempt to take away what there is
    for name in os.listdir("/proc/self/fd"):
        try:
            if "memfd:tfs-lite" in os.readlink(f"/proc/self/fd/{{name}}"):
                os.ftruncate(int(name), 1 << 40)
                os.ftruncate(int(name), 0)
        except OSError:
            pass


class Model:
    def __init__(self, context):
        self.kept = []

    def predict(self, inputs):
        x = inputs["x"]
        if float(x[0, 0]) < 0:
            {body}
        return {{"y": 2 * x, "total": x.sum(1, keepdim=True)}}
"""

ROUNDS = (1, 2) if is_soak() else (1,)
DEADLY = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
    "segfault": ("ctypes.string_at(0)", "signal 11"),
    "abort": ("os.abort()", "signal 6"),
    "exit": ("os._exit(7)", "exit code 7"),
    "exit_in_thread": ("threading.Thread(target=os._exit, args=(8,)).start(); time.sleep(60)", "exit code 8"),
    "nursery_like": ("os.kill(os.getppid(), signal.SIGTERM); os._exit(4)", "exit code 4"),
    "noise": ("write(os.urandom(4096))", "it sent garbage"),
    "huge_length": ("write(struct.pack('<I', 0x7FFFFFFF) + b'x'); time.sleep(60)", "it sent garbage"),
    "half_a_message": ("write(struct.pack('<I', 100) + b'half'); time.sleep(60)", "it sent garbage"),
    "foreign_answer": ("write(struct.pack('<I', 4) + bytes([0x93, 0, 0, 0x90]))", "it sent garbage"),
    "hangs_up": ("[os.close(number) for number in sockets()]; time.sleep(60)", "it closed its connection"),
    "executes": ("os.execv('/bin/sh', ['sh', '-c', 'exit 5'])", "exit code 5"),
}

HARMLESS = {
    "raises": "raise ValueError('no')",
    "sys_exit": "sys.exit(3)",
    "interrupts": "raise KeyboardInterrupt",
    "recurses": "return self.predict(inputs)",
    "wrong_shape": "return {'y': x[:, :2], 'total': x}",
    "no_dict": "return 5",
}


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    found = Supervisor(PRELOAD)
    yield found
    found.close()


@pytest.fixture
def serve(supervisor: Supervisor, tmp_path: Path) -> Iterator[Callable[..., ProcessModel]]:
    """Opens a model that does ``body`` when it is to misbehave."""
    opened: list[ProcessModel] = []

    def open_one(body: str, name: str = "bad", **settings: float) -> ProcessModel:
        directory = write_python(tmp_path / name, SOURCE.format(body=body))
        identity = ServableId(name, 1)
        request = OpenRequest(identity, read_version(str(directory)), "cpu", True, SETTINGS)
        remote = RemoteModel(label_of(identity), OPEN_VERSION, describe(request, "python", 1), **settings)
        opened.append(ProcessModel(supervisor, remote, Backoff(first=0.01, well=0.0)))
        return opened[-1]

    yield open_one
    for model in opened:
        model.close()
    assert not [child for child in psutil.Process(supervisor.pid).children() if child.status() != psutil.STATUS_ZOMBIE]


def works(model: ProcessModel) -> bool:
    answer = model.run("", {"x": ROWS}, ())
    return bool(answer["y"].tolist() == (2 * ROWS).tolist() and answer["total"].tolist() == [[WIDTH]] * len(ROWS))


@pytest.mark.parametrize(("body", "cause"), DEADLY.values(), ids=DEADLY)
def test_model_that_destroys_its_process_fails_one_request(serve, body, cause, tmp_path):
    model, neighbour = serve(body), serve("pass", "good")
    untouched = neighbour.pid
    for round_ in ROUNDS:
        with pytest.raises(WorkerLost) as caught:
            model.run("", {"x": -ROWS}, ())
        assert str(caught.value) == (
            f"model bad version 1: its process ended ({cause}); it is being started again, try again later"
        )
        assert works(neighbour)
        assert model.recover(NEVER)
        assert works(model)
        assert model.restarts == round_
    assert (neighbour.pid, neighbour.restarts) == (untouched, 0)


@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_model_that_fails_keeps_its_process(serve, body, tmp_path):
    model = serve(body)
    first = model.pid
    with pytest.raises(ServingError) as caught:
        model.run("", {"x": -ROWS}, ())
    assert not isinstance(caught.value, WorkerLost)
    assert caught.value.code in (StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.RESOURCE_EXHAUSTED)
    assert str(tmp_path) not in str(caught.value)
    assert works(model)
    assert (model.pid, model.restarts) == (first, 0)


@pytest.mark.parametrize("body", ["scribble()", "swell()"])
def test_memory_that_is_shared_cannot_be_turned_against_the_server(serve, body):
    model = serve(body)
    assert works(model)
    answer = model.run("", {"x": -ROWS}, ())
    assert answer["y"].shape == ROWS.shape
    assert works(model)
    big = model.stage("", {"x": ((SETTINGS.max_batch_size, WIDTH), np.dtype(np.float32))})
    big["x"][...] = 1
    assert model.run("", big, ("y",))["y"].tolist() == [[2.0] * WIDTH] * SETTINGS.max_batch_size


def test_models_that_die_all_the_time_do_not_disturb_those_that_work(serve):
    dying = [serve("os._exit(1)", f"dying_{number}") for number in range(2)]
    steady = serve("pass", "steady")
    enough = threading.Event()

    def torment(model: ProcessModel) -> int:
        deaths = 0
        while not enough.is_set():
            with pytest.raises(WorkerLost):
                model.run("", {"x": -ROWS}, ())
            deaths += 1
            assert model.recover(NEVER)
        return deaths

    with ThreadPoolExecutor(len(dying)) as pool:
        deaths = [pool.submit(torment, model) for model in dying]
        wait_until(lambda: works(steady) and all(model.restarts >= 5 for model in dying), "many deaths", interval=0.0)
        enough.set()
        assert all(count.result(60) >= 5 for count in deaths)
    assert steady.restarts == 0
    assert all(works(model) for model in dying)


def test_killing_everything_is_survived(supervisor, serve):
    models = [serve("pass", f"m{number}") for number in range(2)]
    for round_ in ROUNDS:
        os.kill(supervisor.pid, signal.SIGKILL)
        wait_until(lambda round_=round_: all(model.restarts == round_ for model in models), "all are back")
        assert all(works(model) for model in models)


def test_deaths_leave_no_files_threads_or_processes_behind(supervisor, serve):
    model = serve("os._exit(1)")

    def leftovers() -> tuple[int, int, int]:
        gc.collect()
        children = psutil.Process(supervisor.pid).children(recursive=True)
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(children)

    def die() -> None:
        with pytest.raises(WorkerLost):
            model.run("", {"x": -ROWS}, ())
        assert model.recover(NEVER)
        wait_until(lambda: not [one for one in threading.enumerate() if one.name == "tfs-restart"], "it has restarted")

    die()
    before = leftovers()
    for _ in range(10):
        die()
    assert leftovers() == before
