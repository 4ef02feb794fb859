"""Processes of models in a sandbox: what a thief in one can do, and what a model needs all the same."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tests.support.servers.thief import DONE, REFUSED
from tfs_lite.core.model import SandboxStatus, WorkerLost
from tfs_lite.core.status import StatusCode
from tfs_lite.workers.landlock import OWN, READ, WRITE, Kernel, probe_kernel
from tfs_lite.workers.sandbox import Interpreter, Sandbox, linked_files, plan, status_of
from tfs_lite.workers.supervisor import Backoff

X = np.zeros(1, np.float32)
WHOLE = Kernel(7, True)
KERNEL = probe_kernel()
on_landlock = pytest.mark.skipif(
    not {"files", "programs", "network"}.issubset(status_of(KERNEL).holds), reason="the kernel has no whole sandbox"
)
INTERPRETER = Interpreter(
    ("/opt/python", "/opt/python"),
    ("", "/home/me", "/opt/libs", "/srv", "/srv/models/m"),
    ("/home/me/package",),
    "/home/me",
)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    found = tmp_path / "models" / "m" / "1"
    found.mkdir(parents=True)
    (found / "model.py").write_text("x = 1\n")
    return found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    found = tmp_path / "outside"
    found.mkdir()
    (found / "secret").write_text("the secret")
    return found


@pytest.fixture
def thief(open_child, version: Path, outside: Path):
    """Opens one, in the given sandbox or in none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = {"version": str(version), "outside": str(outside), "port": listener.getsockname()[1]}
        yield lambda sandbox, **settings: open_child(options=options, sandbox=sandbox, **settings)


def loot(model) -> dict[str, dict[str, str]]:
    found = json.loads(model.run("steal", {"x": X}, ("y",))["y"][0])
    assert isinstance(found, dict)
    return found


@on_landlock
def test_thief_in_a_sandbox_is_stopped_and_finds_what_a_model_needs(thief, version: Path, outside: Path) -> None:
    model = thief(plan(str(version)))
    found = loot(model)
    expected = dict.fromkeys(found["attempts"], REFUSED)
    if "signals" not in status_of(KERNEL).holds:
        expected["signal the server"] = DONE
    assert found["attempts"] == expected
    assert found["needs"] == dict.fromkeys(found["needs"], DONE)
    assert (outside / "secret").read_text() == "the secret"
    assert os.listdir(outside) == ["secret"]
    assert model.worker.sandbox == status_of(KERNEL)


def test_thief_in_no_sandbox_takes_what_it_wants(thief, outside: Path) -> None:
    model = thief(None)
    found = loot(model)["attempts"]
    for attempt in ("read a file outside", "write outside", "connect", "talk to a unix socket", "start a program"):
        assert found[attempt] == DONE
    assert (outside / "loot").exists()
    assert model.worker.sandbox is None


@on_landlock
def test_sandbox_with_filters_alone_stops_programs_and_connections(thief, version: Path) -> None:
    model = thief(plan(str(version), kernel=Kernel(0, True)))
    found = loot(model)["attempts"]
    assert model.worker.sandbox == SandboxStatus(("programs", "network"), ("files", "signals"))
    assert found["read a file outside"] == DONE
    for attempt in ("connect", "send a datagram", "talk to a unix socket", "start a program", "listen"):
        assert found[attempt] == REFUSED


@on_landlock
@pytest.mark.parametrize("landlock", [number for number in range(1, 8) if number <= KERNEL.landlock])
def test_every_older_version_of_landlock_keeps_files_out_of_reach(thief, version: Path, landlock: int) -> None:
    found = loot(thief(plan(str(version), kernel=Kernel(landlock, True))))
    assert found["needs"]["read its version"] == found["needs"]["start a thread"] == DONE
    kept = {name: what for name, what in found["attempts"].items() if name != "signal the server"}
    assert kept == dict.fromkeys(kept, REFUSED)


@on_landlock
def test_links_are_followed_only_where_the_plan_says_so(open_child, version: Path, outside: Path) -> None:
    (version / "linked").symlink_to(outside / "secret")
    options = {"version": str(version), "outside": str(outside), "port": 1}
    links = linked_files(str(version))
    assert links == (str(outside / "secret"),)
    for given, became in ((links, DONE), ((), REFUSED)):
        model = open_child(options=options, sandbox=plan(str(version), links=given))
        assert loot(model)["attempts"]["read a file outside"] == became


FRAMEWORKS = {
    "torch": """
import torch
program = torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))
program.module()(torch.ones(2, 3))
""",
    "onnxruntime": """
import numpy as np
import onnx
import onnxruntime
x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, 64]) for name in "xy")
graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "x"], ["y"])], "g", [x], [y])
model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
session.run(None, {"x": np.ones((64, 64), np.float32)})
""",
    "tensorflow": """
import tensorflow as tf
tf.linalg.matmul(tf.ones((300, 300)), tf.ones((300, 300)))
try:
    tf.io.read_file(outside + "/secret")
except tf.errors.PermissionDeniedError:
    pass
else:
    raise AssertionError("an operator has read it")
""",
}
THIEF = """
import json, sys
from tests.support.servers.thief import attempts, needs, outcomes
from tfs_lite.workers.sandbox import enter, plan

version, outside, own, port = sys.argv[1:]
enter(plan(version), own)
{framework}
found = [outcomes(attempts(version, outside, int(port))), outcomes(needs(version))]
print(json.dumps(found))
"""


@on_landlock
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_framework_runs_inside_and_its_threads_have_no_more_rights(
    version: Path, outside: Path, tmp_path: Path, framework: str
) -> None:
    if find_spec(framework) is None or (framework == "onnxruntime" and find_spec("onnx") is None):
        pytest.skip(f"{framework} is not installed")
    own = tmp_path / "own"
    own.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        program = THIEF.replace("{framework}", FRAMEWORKS[framework])
        command = [sys.executable, "-c", program, str(version), str(outside), str(own), port]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    tried, needed = json.loads(done.stdout.splitlines()[-1])
    tried.pop("signal the server")
    assert tried == dict.fromkeys(tried, REFUSED)
    assert needed == dict.fromkeys(needed, DONE)


@on_landlock
def test_own_directory_of_a_process_goes_with_it(thief, version: Path) -> None:
    model = thief(plan(str(version)), backoff=Backoff(first=0.0, most=0.0))
    first = Path(loot(model)["own"]["directory"])
    assert first.is_dir()
    assert first.parent != version
    os.kill(model.pid, signal.SIGKILL)
    wait_until(lambda: model.restarts == 1 and model.alive, "it runs again")
    second = Path(loot(model)["own"]["directory"])
    assert second.is_dir()
    wait_until(lambda: not first.exists(), "the first one is gone")
    model.close()
    assert not second.exists()


@on_landlock
def test_own_directory_of_a_model_that_cannot_be_opened_goes(open_child, version: Path, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = set(os.listdir(tmp_path))
    refusal(lambda: open_child("no_such_function", sandbox=plan(str(version))), code=StatusCode.FAILED_PRECONDITION)
    assert set(os.listdir(tmp_path)) == before


@on_landlock
def test_process_in_a_sandbox_ends_with_the_one_that_started_it(open_child, supervisor, version: Path) -> None:
    model = open_child(sandbox=plan(str(version)), backoff=Backoff(first=600.0, most=600.0))
    process = psutil.Process(model.pid)
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "it has ended")


@on_landlock
def test_model_that_ends_its_process_is_lost_and_comes_back_in_the_sandbox(open_child, version: Path) -> None:
    model = open_child(sandbox=plan(str(version)), backoff=Backoff(first=0.0, most=0.0))
    with pytest.raises(WorkerLost):
        model.run("crash", {"x": X}, ())
    wait_until(lambda: model.alive, "it runs again")
    assert model.worker.sandbox == status_of(KERNEL)


@on_landlock
def test_model_in_a_sandbox_answers_as_one_outside(open_child, version: Path) -> None:
    inside, outside = open_child(sandbox=plan(str(version))), open_child()
    for signature in ("", "multiply"):
        answers = [model.run(signature, {"x": X}, ("y",))["y"] for model in (inside, outside)]
        np.testing.assert_array_equal(*answers)


@on_landlock
def test_process_that_cannot_enter_says_so_and_ends(open_child, version: Path) -> None:
    (version / "loop").symlink_to(version / "loop")
    impossible = Sandbox(((str(version / "loop"), int(READ)),), KERNEL.landlock, False)
    message = refusal(lambda: open_child(sandbox=impossible), code=StatusCode.FAILED_PRECONDITION)
    assert "the system refuses its process the sandbox" in message


@on_landlock
def test_entering_takes_less_than_ten_milliseconds_of_a_processor(version: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from tfs_lite.workers.sandbox import enter, plan\n"
        "before = time.process_time()\n"
        "enter(plan(sys.argv[1]), sys.argv[2])\n"
        "print(time.process_time() - before)\n"
    )
    command = [sys.executable, "-c", program, str(version), str(tmp_path)]
    taken = [float(subprocess.run(command, capture_output=True, check=True, text=True).stdout) for _ in range(3)]
    assert min(taken) < 0.01


@on_landlock
def test_facts_about_itself_stay_readable_when_the_kernel_forgets_names(version: Path, tmp_path: Path) -> None:
    """Landlock's rules are for inodes, and /proc makes new ones for names that were dropped."""
    if os.geteuid() != 0 or not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        pytest.skip("only root drops the kernel's caches")
    program = (
        "import sys\n"
        "from tfs_lite.workers.sandbox import enter, plan\n"
        "drop = open('/proc/sys/vm/drop_caches', 'w')\n"
        "enter(plan(sys.argv[1]), sys.argv[2])\n"
        "drop.write('2')\n"
        "drop.flush()\n"
        "open('/proc/self/status').read(), open('/proc/meminfo').read(), open('/proc/cpuinfo').read()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(version), str(tmp_path)], check=True)


def test_process_with_threads_does_not_enter(tmp_path: Path) -> None:
    program = (
        "import sys, threading\n"
        "from tfs_lite.workers.sandbox import enter, plan\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "enter(plan('.'), '.')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)
    assert "this one has 2" in done.stderr


def test_plan_names_the_version_the_interpreter_and_nothing_beside_them() -> None:
    sandbox = plan("/srv/models/m/1", interpreter=INTERPRETER, kernel=WHOLE)
    paths = dict(sandbox.paths)
    for path in ("/srv/models/m/1", "/opt/python", "/opt/libs", "/home/me/package", "/proc/self"):
        assert paths[path] == int(READ)
    assert paths["/dev/null"] == int(WRITE)
    assert not {"/", "/home/me", "/srv", "/srv/models/m", "/tmp", "/dev/shm", "/proc", "/etc"} & set(paths)
    assert not any("nvidia" in path for path in paths)
    assert any("nvidia" in path for path, _ in plan("/m", gpu=True, interpreter=INTERPRETER, kernel=WHOLE).paths)
    assert int(OWN) not in paths.values()


@pytest.mark.parametrize(
    ("kernel", "holds"),
    [
        (Kernel(7, True), ("files", "programs", "network", "signals")),
        (Kernel(5, True), ("files", "programs", "network")),
        (Kernel(1, True), ("files", "programs", "network")),
        (Kernel(2, False), ("programs",)),
        (Kernel(6, False), ("files", "programs", "signals")),
        (Kernel(0, True), ("programs", "network")),
        (Kernel(0, False), ()),
    ],
)
def test_status_names_what_holds_and_what_does_not(kernel: Kernel, holds: tuple[str, ...]) -> None:
    everything = ("files", "programs", "network", "signals")
    assert status_of(kernel) == SandboxStatus(holds, tuple(name for name in everything if name not in holds))
