"""A moment in which the system has no thread to give: what was asked for then is done later, by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

PROGRAM = textwrap.dedent(
    """
    import os, resource, threading, time

    from tfs_lite.core.clock import SystemClock
    from tfs_lite.core.executor import PoolExecutor, Task

    os.setgid(64999)
    os.setuid(64999)  # root has no such limit
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        pass
    else:
        raise SystemExit(77)
    clock, pool, loaded, due = SystemClock(), PoolExecutor("load", 1), threading.Event(), threading.Event()
    clock.call_later(0, due.set)
    pool.submit(Task("load", lambda: True, loaded.set, lambda error: None))
    assert threading.active_count() == 1  # nobody is there who could
    assert not loaded.is_set()
    assert not due.is_set()
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    clock.call_later(3600, lambda: None)
    pool.run_pending()  # as every tick of the manager does
    assert loaded.wait(30)
    assert due.wait(30)
    pool.shutdown()
    clock.close()
    print("both came back")
    """
)


SERVER = textwrap.dedent(
    """
    import gzip, json, os, resource, sys, threading, urllib.error, urllib.request

    from tfs_lite.server.server import Server

    def ask(path, data=None, **headers):
        request = urllib.request.Request(f"http://127.0.0.1:{server.rest_api_port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read()}"

    root = sys.argv[1]
    server = Server(model_repository=root, trusted_model_base_paths=(f"{root}/*",), ready_requires_all_models=True)
    server.start()
    server.wait_ready(60)
    small, rows = "/v1/models/plus:predict", [[1.0] * 50_000] * 4
    ask(small, b'{"instances": [[1.0]]}'), ask("/nothing")  # Python's own files cannot be read afterwards
    os.setgid(64999)
    os.setuid(64999)
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        pass
    else:
        raise SystemExit(77)
    instances = json.dumps({"instances": rows}).encode()
    tensor = {"name": "x", "shape": [4, 50_000], "datatype": "FP32", "data": rows}
    asked = {
        "metrics": ask("/metrics"),
        "explain": ask("/v1/models/plus:explain"),
        "large": ask(small, instances),
        "packed": ask(small, gzip.compress(instances), **{"Content-Encoding": "gzip"}),
        "v2": ask("/v2/models/plus/infer", json.dumps({"inputs": [tensor]}).encode()),
        "reload": ask("/v1/config:reload", b"{}", **{"Content-Type": "application/json"}),
    }
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    server.stop()
    print(json.dumps(asked))
    """
)
SOURCE = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] + 1}
"""
CONFIG = """
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
max_batch_size: 8
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user with a limit of its own")
def test_server_answers_everything_while_the_system_has_no_thread_to_give() -> None:
    with tempfile.TemporaryDirectory() as root:  # the folders of pytest are closed to other users
        os.chmod(root, 0o755)
        directory = Path(root) / "plus" / "1"
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(SOURCE)
        (directory.parent / "config.pbtxt").write_text(CONFIG)
        done = subprocess.run([sys.executable, "-c", SERVER, root], capture_output=True, text=True, timeout=240)
    if done.returncode == 77:
        pytest.skip("the system does not enforce RLIMIT_NPROC here")
    assert done.returncode == 0, done.stderr
    asked = json.loads(done.stdout.splitlines()[-1])
    assert asked == dict.fromkeys(("metrics", "explain", "large", "packed", "v2", "reload"), 200), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user with a limit of its own")
def test_clock_and_pool_come_back_when_the_system_has_threads_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("the system does not enforce RLIMIT_NPROC here")
    assert (done.returncode, done.stdout) == (0, "both came back\n"), done.stderr
    assert done.stderr.count("cannot be started") <= 2
