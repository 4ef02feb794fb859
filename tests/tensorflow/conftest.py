"""SavedModels of TensorFlow itself, and servers of them, in an environment that has torch and TensorFlow.

Without TensorFlow the folder is skipped; ``make test-tensorflow`` makes an environment that has it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.servers.in_process import ServerFixture, serving

HERE = Path(__file__).parent
ALL_SECONDS = 300.0
"""One process after the other imports TensorFlow, which takes 5 seconds on a quiet machine."""
Serve = Callable[..., AbstractContextManager[ServerFixture]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(
                    pytest.mark.skip(
                        reason="needs TensorFlow: make test-tensorflow, or pip install tfs-lite[tensorflow]"
                    )
                )


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of ``make_models``; not to be changed."""
    root = tmp_path_factory.mktemp("shelf")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([sys.executable, HERE / "make_models.py", root], check=True, env=environment, stdout=sys.stderr)
    return root


@pytest.fixture
def publish(shelf: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copies a version of the shelf to the test's own repository, under another number or name if they are given."""

    def copy(model: str, version: int = 1, to: int | None = None, name: str = "") -> Path:
        base = tmp_path / "models" / (name or model)
        made = shelf / "served" / model if (shelf / "served" / model).exists() else shelf / model
        for path in made.iterdir():
            if path.is_file() and not (base / path.name).exists():
                base.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, base)
        return Path(shutil.copytree(made / str(version), base / str(to or version)))

    return copy


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """A server of the test's own repository, of which nothing is trusted."""
    root = tmp_path / "models"

    def start(**fields: object) -> AbstractContextManager[ServerFixture]:
        settings: dict[str, object] = {"model_repository": str(root), "max_num_load_retries": 0}
        return serving(root, **(settings | fields))

    return start


@pytest.fixture(scope="module")
def served(shelf: Path) -> Iterator[ServerFixture]:
    """A server of everything in ``served``, started once. Nothing is trusted, so the thief is refused."""
    root = shelf / "served"
    with serving(root, ready=False, model_repository=str(root)) as server:
        server.server.wait_ready(ALL_SECONDS)
        yield server
