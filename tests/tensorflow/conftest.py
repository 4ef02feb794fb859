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

from tfs_lite.testing.servers.in_process import ServerFixture, serving

HERE = Path(__file__).parent
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
        for path in (shelf / model).iterdir():
            if path.is_file() and not (base / path.name).exists():
                base.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, base)
        return Path(shutil.copytree(shelf / model / str(version), base / str(to or version)))

    return copy


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """A server of the test's own repository, which is trusted unless the fields say otherwise."""
    root = tmp_path / "models"

    def start(**fields: object) -> AbstractContextManager[ServerFixture]:
        settings: dict[str, object] = {
            "model_repository": str(root),
            "trusted_model_base_paths": (str(root),),
            "max_num_load_retries": 0,
        }
        return serving(root, **(settings | fields))

    return start


@pytest.fixture(scope="module")
def served(shelf: Path) -> Iterator[ServerFixture]:
    """A server of the whole shelf, started once."""
    with serving(shelf, model_repository=str(shelf), trusted_model_base_paths=(str(shelf),)) as server:
        yield server
