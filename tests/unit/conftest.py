"""An event loop in a thread of its own, and models to serve."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tfs_lite.serving.options import GRPC_SERVERS
from tfs_lite.testing.servers.models import TaggedArchives, write_python_version

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of a test on the loop and waits for them."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        gc.collect()


@pytest.fixture(params=GRPC_SERVERS)
def each_server(request: pytest.FixtureRequest) -> str:
    """Both gRPC servers, one after the other: what they promise is the same."""
    name: str = request.param
    return name


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


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

    def put(model: str, version: int, source: str) -> Path:
        write_python_version(tmp_path / ".staging" / model, version, source)
        return _move_in(tmp_path, model, version)

    return put


def _move_in(root: Path, model: str, version: int) -> Path:
    base = root / model
    base.mkdir(exist_ok=True)
    return (root / ".staging" / model / str(version)).rename(base / str(version))
