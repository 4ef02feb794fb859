"""Fixtures for Triton's own client: models, a server that has them from its start, one that loads them by calls.

Both of the client's protocols look the same to a test: ``api`` is one of them, with the differences that a caller sees
(classes of values, status codes) evened out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.conformance.servers import PATIENCE, make_models, new_server, running
from tests.support.servers.process import ServerProcess, wait_until

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

    def refused(self, code: str, words: str | tuple[str, ...], call: Callable[..., object], *given, **how) -> None:
        """``call(*given, **how)`` fails with the status of ``code`` in this protocol; its message has the words."""
        with pytest.raises(InferenceServerException) as caught:
            call(*given, **how)
        error = caught.value
        missing = [word for word in ((words,) if isinstance(words, str) else words) if word not in error.message()]
        assert (error.status(), missing) == (f"StatusCode.{code}" if self.is_grpc else HTTP_STATUS[code], []), error

    @contextmanager
    def beside(self, work: Callable[[Api], T]) -> Iterator[Future[T]]:
        """``work`` on a thread of its own, with a client of its own; it has ended when the block is left."""

        def alone() -> T:
            other = Api(self.module, self.address)
            with closing(other.client):
                return work(other)

        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(alone)

    def plain(self, answer: Any) -> Any:
        """A message as what JSON would say of it."""
        if not self.is_grpc:
            return answer
        return MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


@contextmanager
def connected(protocol: str, server: ServerProcess) -> Iterator[Api]:
    """The server by ``grpc`` or ``http``."""
    api = Api(getattr(tritonclient, protocol), f"127.0.0.1:{getattr(server, f'{protocol}_port')}")
    with closing(api.client):
        yield api


class Gate:
    """Of the model ``gate``: requests wait for it to be opened. It is shut when a test starts."""

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
def triton_models(tmp_path_factory) -> Path:
    return make_models("make_triton_models.py", tmp_path_factory.mktemp("triton_models"))


@pytest.fixture(scope="session")
def serve_triton(triton_models: Path) -> Callable[..., ServerProcess]:
    """Makes a server of the models in a folder; use it as ``with serve_triton("served", "--flag=value") as server``."""
    flags = (f"--trusted_model_base_paths={triton_models}/*", "--ready_requires_all_models")
    return lambda folder, *more: new_server(f"--model_repository={triton_models / folder}", *flags, *more)


@pytest.fixture(scope="session")
def triton_server(serve_triton) -> Iterator[ServerProcess]:
    yield from running(serve_triton("served"))


@pytest.fixture(scope="session")
def grpc_api(triton_server: ServerProcess) -> Iterator[Api]:
    with connected("grpc", triton_server) as api:
        yield api


@pytest.fixture(scope="session")
def http_api(triton_server: ServerProcess) -> Iterator[Api]:
    with connected("http", triton_server) as api:
        yield api


@pytest.fixture(params=["grpc", "http"])
def api(request: pytest.FixtureRequest) -> Api:
    return request.getfixturevalue(f"{request.param}_api")


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
