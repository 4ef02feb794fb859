"""Runs TensorFlow Serving's own ``tensorflow_model_server_test.py``, from a checkout of it, against ``tfs-lite serve``.

python run_tensorflow_serving.py CHECKOUT [--only NAME] [--logs DIRECTORY]

Nothing of theirs is in this repository. The tests start a binary with flags; here that is a script that hands the flags
to ``tfs-lite serve``. Their models are taken from the checkout, or made where it has none. Three things are not theirs:
a server is waited for until its models are loaded, because ours opens its ports before; a fixed sleep of a test is
longer, because here every version imports TensorFlow; and servers run one after the other, because they share one UNIX
socket. Exits with 1 if a case fails that the table does not list.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
TESTS = "tensorflow_serving.model_servers.tensorflow_model_server_test"
BASE = "tensorflow_serving.model_servers.test_util.tensorflow_model_server_test_base"
READY_SECONDS = 120.0
LONGER = 30
"""How much longer their fixed sleeps are here."""
NOT_OURS = {
    "testPredictOnTfLite": "TensorFlow Lite: docs/savedmodel.md",
    "testPredictWithSignatureDefOnTfLite": "TensorFlow Lite: docs/savedmodel.md",
    "test_profiler_service_with_valid_trace_request": "TensorFlow's profiler: docs/savedmodel.md",
    "test_tf_text": "operators of tensorflow_text, which is not installed: docs/savedmodel.md",
}
if find_spec("tf_keras") is not None:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
else:
    for keras in ("test_sequential_keras_saved_model_save", "test_distrat_sequential_keras_saved_model_save"):
        NOT_OURS[keras] = "Keras 3 saves the input under another name: pip install tf_keras"
DIFFERS = {"testBadModelConfig": "the message names file, line and nearest field: docs/from-tf-serving.md"}
"""What differs by decision, and the page that says so."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/tensorflow/serving")
    parser.add_argument("--only", default="", help="run the cases with this in their names")
    parser.add_argument("--logs", type=Path, help="a directory for what each case and its servers print")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tfs-lite-upstream-") as directory:
        logs = arguments.logs or Path(tempfile.mkdtemp(prefix="tfs-lite-upstream-logs-"))
        logs.mkdir(parents=True, exist_ok=True)
        root = Path(directory)
        prepare(arguments.checkout.resolve(), root)
        ends = []
        for name, found, reason in run(arguments.checkout.resolve(), root, logs, arguments.only):
            print(f"{name:<56} {found:<10} {reason}", flush=True)
            ends.append(found)
    print(", ".join(f"{ends.count(end)} {end}" for end in ("pass", "differs", "not ours", "FAILS")), f"(logs: {logs})")
    return int("FAILS" in ends)


def prepare(checkout: Path, root: Path) -> None:
    """The tree in which their tests look for the binary and for models, at ``$TEST_SRCDIR``."""
    tree = root / "tf_serving" / "tensorflow_serving"
    launcher = tree / "model_servers" / "tensorflow_model_server"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; from tfs_lite.cli.main import main; sys.exit(main())" '
        'serve "$@"\n'
    )
    launcher.chmod(0o755)
    testdata = Path("servables") / "tensorflow" / "testdata"
    shutil.copytree(checkout / "tensorflow_serving" / testdata, tree / testdata)
    subprocess.run(
        [sys.executable, HERE / "make_tensorflow_serving_models.py", tree / testdata],
        check=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    (root / "tmp").mkdir()
    os.environ |= {"TEST_SRCDIR": str(root), "TEST_TMPDIR": str(root / "tmp"), "TF_CPP_MIN_LOG_LEVEL": "3"}


def run(checkout: Path, root: Path, logs: Path, only: str) -> Iterator[tuple[str, str, str]]:
    """The name, the end and the reason of each case."""
    with printing_to(logs / "import.txt"):
        base, tests = modules(checkout)
    servers = base.TensorflowModelServerTestBase.model_servers_dict
    for case in unittest.defaultTestLoader.loadTestsFromTestCase(tests.TensorflowModelServerTest):
        name = case._testMethodName
        if only not in name or name == "test_session":  # of tf.test.TestCase
            continue
        if name in NOT_OURS:
            yield name, "not ours", NOT_OURS[name]
            continue
        result = unittest.TestResult()
        with printing_to(logs / f"{name}.txt"):
            case.run(result)
            for _, trace in (*result.failures, *result.errors):
                print(trace)
        bad = [*result.failures, *result.errors]
        if bad:
            yield name, "differs" if name in DIFFERS else "FAILS", DIFFERS.get(name) or reason_of(bad[0][1])
        else:
            yield name, "pass", "the table says that it differs" if name in DIFFERS else ""
    stop(servers)


def reason_of(trace: str) -> str:
    """The line of a stack that says what was wrong: that of the server if there is one, else the last."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("details =")), lines[-1])[:160]


def modules(checkout: Path) -> tuple[Any, Any]:
    """Their modules; the package is that of the stock client, and has only the messages."""
    import tensorflow
    import tensorflow_serving
    from absl import flags

    tensorflow_serving.__path__.append(str(checkout / "tensorflow_serving"))
    base, tests = importlib.import_module(BASE), importlib.import_module(TESTS)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["tensorflow_model_server_test"])
    tensorflow.compat.v1.enable_eager_execution()
    own = base.WaitForServerReady

    def wait(port: int) -> None:
        own(port)
        wait_loaded(port)

    def start(*arguments: Any, **options: Any) -> Any:
        """Their servers share one UNIX socket, which ours do not take from one another."""
        stop(base.TensorflowModelServerTestBase.model_servers_dict)
        return subprocess.Popen(*arguments, **options)

    base.WaitForServerReady = wait
    base.subprocess = SimpleNamespace(Popen=start)
    tests.time = SimpleNamespace(sleep=lambda seconds: time.sleep(LONGER * seconds))
    return base, tests


def wait_loaded(port: int) -> None:
    """Until the server says that its models are available, or have failed."""
    import grpc

    ends = time.monotonic() + READY_SECONDS
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        while time.monotonic() < ends and check(b"", timeout=5) != b"\x08\x01":
            time.sleep(0.2)


def stop(servers: dict[Any, Any]) -> None:
    while servers:
        process = servers.popitem()[1][0]
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """What this process and its children print goes to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with open(path, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, own in enumerate(kept, 1):
                os.dup2(own, number)
                os.close(own)


if __name__ == "__main__":
    sys.exit(main())
