"""One fork server for the tests of processes, and models in children of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tfs_lite.workers.process import ProcessModel
    from tfs_lite.workers.supervisor import Supervisor


@pytest.fixture(scope="session")
def child_models() -> Iterator[str]:
    """The module ``child_models`` can be imported, here and in processes."""
    sys.path.insert(0, str(Path(__file__).parent))
    yield "child_models"
    sys.path.remove(str(Path(__file__).parent))


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
