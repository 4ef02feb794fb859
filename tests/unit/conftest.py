"""An event loop in a thread of its own, models to serve, and models in processes. Imports nothing heavy before a test
asks for it."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.servers.models import TaggedArchives
    from tfs_lite.server.runtime.event_loop import LoopThread
    from tfs_lite.workers.process import ProcessModel
    from tfs_lite.workers.supervisor import Supervisor


WIRE = pytest.mark.wire


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs tests that are coroutines, each on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(params=[pytest.param("native", marks=WIRE), pytest.param("grpcio", marks=WIRE)])
def each_server(request: pytest.FixtureRequest) -> str:
    """Each gRPC server: what they promise is the same."""
    name: str = request.param
    return name


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    from tfs_lite.server.runtime.event_loop import LoopThread

    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def child_models() -> Iterator[str]:
    """The module ``child_models`` can be imported, here and in processes."""
    directory = str(Path(__file__).parent / "workers")
    sys.path.insert(0, directory)
    yield "child_models"
    sys.path.remove(directory)


@pytest.fixture(scope="session")
def supervisor(child_models: str) -> Iterator[Supervisor]:
    from tfs_lite.workers.supervisor import Supervisor

    found = Supervisor([child_models])
    yield found
    found.close()


@pytest.fixture
def open_child(supervisor: Supervisor, child_models: str) -> Iterator[Callable[..., ProcessModel]]:
    """Opens models of ``child_models``: the function's name, its options, settings of the connection."""
    from tfs_lite.workers.connection import RemoteModel
    from tfs_lite.workers.process import ProcessModel
    from tfs_lite.workers.supervisor import Backoff

    opened: list[ProcessModel] = []

    def open_one(
        function: str = "make", options: object = None, backoff: Backoff | None = None, **settings: Any
    ) -> ProcessModel:
        arguments = options if isinstance(options, str) else json.dumps(options or {})
        remote = RemoteModel("model m version 1", f"{child_models}:{function}", arguments, **settings)
        opened.append(ProcessModel(supervisor, remote, backoff))
        return opened[-1]

    yield open_one
    for model in opened:
        model.close()


@pytest.fixture
def publish(archives: TaggedArchives, tmp_path: Path) -> Callable[[str, int], Path]:
    """``publish(model, version)`` puts a version into the model's directory in one step."""

    def put(model: str, version: int) -> Path:
        archives.write_version(version, tmp_path / ".staging" / model)
        return _move_in(tmp_path, model, version)

    return put


@pytest.fixture
def publish_python(tmp_path: Path) -> Callable[[str, int, str], Path]:
    """The same for a ``model.py`` with the given text."""
    from tests.support.servers.models import write_python_version

    def put(model: str, version: int, source: str) -> Path:
        write_python_version(tmp_path / ".staging" / model, version, source)
        return _move_in(tmp_path, model, version)

    return put


def _move_in(root: Path, model: str, version: int) -> Path:
    base = root / model
    base.mkdir(exist_ok=True)
    return (root / ".staging" / model / str(version)).rename(base / str(version))
