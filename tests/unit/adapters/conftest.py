"""Archives that many tests look at. Exporting takes a second, so it is done once; tests change copies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tfs_lite.adapters.loader import ArtifactLoader
    from tfs_lite.adapters.opening import OpenedModel, OpenRequest
    from tfs_lite.config.model import ModelSettings


@pytest.fixture(scope="session")
def exported_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an exported version; do not change it."""
    from tests.support.servers.platforms import write_exported

    return write_exported(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="session")
def scripted_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a TorchScript version; do not change it."""
    from tests.support.servers.platforms import WRITERS

    return WRITERS["pytorch_libtorch"](tmp_path_factory.mktemp("scripted"), 0.0)


@pytest.fixture
def exported(exported_once: Path, tmp_path: Path) -> Path:
    """A copy of the exported version."""
    return Path(shutil.copytree(exported_once, tmp_path / "1"))


@pytest.fixture
def request_for() -> Callable[..., OpenRequest]:
    """Makes the request to open a version's directory on the CPU."""

    from tfs_lite.adapters.detect import read_version
    from tfs_lite.adapters.opening import OpenRequest
    from tfs_lite.config.model import ModelSettings
    from tfs_lite.core.servable import ServableId

    def make(
        directory: Path,
        settings: ModelSettings | None = None,
        trusted: bool = False,
        batch_rows: tuple[int, ...] = (1,),
    ) -> OpenRequest:
        files = read_version(str(directory))
        return OpenRequest(
            ServableId("m", 1), files, "cpu", trusted, settings or ModelSettings(), batch_rows=batch_rows
        )

    return make


@pytest.fixture
def loader_for() -> Callable[..., ArtifactLoader]:
    """Makes a loader whose servable is the bare model."""
    from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
    from tfs_lite.adapters.platforms import PLATFORMS
    from tfs_lite.adapters.trust import TrustedPaths

    def bare(models: Sequence[OpenedModel], request: OpenRequest) -> OpenedModel:
        (model,) = models
        return model

    def make(
        directory: Path, settings: ModelSettings | None = None, trusted: str = "", platform: str = ""
    ) -> ArtifactLoader:
        adapter = AdapterSettings(
            bare, "cpu", trusted=TrustedPaths.of([trusted]), model_settings=lambda path, model: settings
        )
        return ArtifactLoader(str(directory), platform, adapter, PLATFORMS)

    return make
