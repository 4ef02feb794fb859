"""Fixtures for Triton's own client: models, a server that has them from its start, one that loads them by calls.

Both of the client's protocols look the same to a test: ``api`` is one of them, with the differences that a caller sees
(classes of values, status codes) evened out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tfs_lite.testing.servers.process import ServerProcess, wait_until

REPO = Path(__file__).resolve().parents[2]
SERVER = Path(os.environ.get("TFS_LITE_BIN", REPO / ".venv/bin/tfs-lite"))
PYTHON = Path(os.environ.get("TFS_LITE_PYTHON", SERVER.with_name("python")))
PATIENCE = 60.0
T = TypeVar("T")

HTTP_STATUS = {
    "INVALID_ARGUMENT": "400",
    "NOT_FOUND": "404",
    "UNAVAILABLE": "503",
    "UNIMPLEMENTED": "501",
    "INTERNAL": "500",
    "ALREADY_EXISTS": "400",
}


class Api:
    """One protocol of the client. ``client`` has the methods that both have."""

    def __init__(self, module: ModuleType, address: str) -> None:
        self.module = module
        self.is_grpc = module is tritonclient.grpc
        self.address = address
        self.client: Any = module.InferenceServerClient(address)

    def input(self, name: str, array: Any, datatype: str = "", **how: Any) -> Any:
        """A tensor with its data; ``how`` goes to ``set_data_from_numpy``."""
        array = np.asarray(array)
        tensor = self.module.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, **how)
        return tensor

    def output(self, name: str, **how: Any) -> Any:
        return self.module.InferRequestedOutput(name, **how)

    def refused(self, code: str, *words: str, call: Callable[[], object]) -> InferenceServerException:
        """``call`` fails with the status that ``code`` is in this protocol, and a message that has the ``words``."""
        with pytest.raises(InferenceServerException) as caught:
            call()
        error = caught.value
        expected = f"StatusCode.{code}" if self.is_grpc else HTTP_STATUS[code]
        assert (error.status(), [word for word in words if word not in error.message()]) == (expected, []), error
        return error

    @contextmanager
    def beside(self, work: Callable[[Api], T]) -> Iterator[Future[T]]:
        """``work`` on a thread of its own, with a client of its own; it has ended when the block is left."""

        def alone() -> T:
            other = Api(self.module, self.address)
            try:
                return work(other)
            finally:
                other.client.close()

        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(alone)

    def plain(self, answer: Any) -> Any:
        """A message as what JSON would say of it."""
        if not self.is_grpc:
            return answer
        return MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


class Gate:
    """Of the model ``gate``: who enters waits for it to be opened. Shut at the start and the end of each test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shut()

    def shut(self) -> None:
        for name in ("open", "entered"):
            (self._folder / name).unlink(missing_ok=True)

    def open(self) -> None:
        (self._folder / "open").touch()

    def wait_entered(self) -> None:
        wait_until(lambda: (self._folder / "entered").exists(), "a request is at the gate", PATIENCE)


@pytest.fixture(scope="session")
def triton_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("triton_models")
    script = Path(__file__).with_name("make_triton_models.py")
    subprocess.run([PYTHON, script, root], check=True, cwd=REPO, stdout=sys.stderr)
    return root


@pytest.fixture(scope="session")
def serve_triton(triton_models: Path) -> Callable[..., ServerProcess]:
    """Makes a server of the models in a folder; use it as ``with serve_triton("served", "--flag=value") as server``."""

    def start(folder: str, *flags: str) -> ServerProcess:
        return ServerProcess(
            f"--model_repository={triton_models / folder}",
            f"--trusted_model_base_paths={triton_models}/*",
            "--max_num_load_retries=0",
            "--ready_requires_all_models",
            *flags,
            command=[str(SERVER)],
        )

    return start


@pytest.fixture(scope="session")
def triton_server(serve_triton: Callable[..., ServerProcess]) -> Iterator[ServerProcess]:
    with serve_triton("served") as process:
        yield process
    assert process.exit_code == 0


@pytest.fixture(scope="session")
def grpc_api(triton_server: ServerProcess) -> Iterator[Api]:
    api = Api(tritonclient.grpc, triton_server.target)
    yield api
    api.client.close()


@pytest.fixture(scope="session")
def http_api(triton_server: ServerProcess) -> Iterator[Api]:
    api = Api(tritonclient.http, f"127.0.0.1:{triton_server.http_port}")
    yield api
    api.client.close()


@pytest.fixture(params=["grpc", "http"])
def api(request: pytest.FixtureRequest) -> Api:
    found: Api = request.getfixturevalue(f"{request.param}_api")
    return found


@pytest.fixture
def gate(triton_models: Path, triton_server: ServerProcess) -> Iterator[Gate]:
    gate = Gate(triton_models / "gate")
    yield gate
    gate.open()


@pytest.fixture
def sums_inputs() -> Callable[..., list[Any]]:
    """Inputs of the model ``sums``: as many rows as asked for."""

    def make(api: Api, rows: int = 1, **how: Any) -> list[Any]:
        a = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        return [api.input("a", a, **how), api.input("b", np.ones((rows, 4), np.float32), **how)]

    return make
