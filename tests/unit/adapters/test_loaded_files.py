"""What a version was loaded from, and that nothing else is opened as the same version."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import refusal
from tests.support.servers.models import write_python_version
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.opening import LoadedFiles, SeenFiles
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.text import load_model_settings
from tfs_lite.core.manifest import has_state, revision_of
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.sources.look import LookStream, look_at
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.executor import ManualExecutor

ID = ServableId("m", 1)
NAMES_LABELS = ModelSettings.model_validate(
    {"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3], "label_filename": "labels.txt"}]}
)
QUIET_MODEL = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"]}
"""


@pytest.fixture
def version(tmp_path: Path) -> Path:
    return write_python_version(tmp_path / "m", 1, QUIET_MODEL)


def loader_of(version: Path, factory: Any) -> ArtifactLoader:
    settings = AdapterSettings(
        factory,
        "cpu",
        trusted=TrustedPaths.of([str(version.parent)]),
        model_settings=lambda directory, model: load_model_settings(Path(directory), model),
    )
    return ArtifactLoader(str(version), "", settings, PLATFORMS, "m")


def test_other_files_and_missing_ones_are_refused_once_the_version_is_loaded(version: Path) -> None:
    (version.parent / "labels.txt").write_text("cat")
    files = LoadedFiles(str(version), NAMES_LABELS)
    (version / "data.bin").write_bytes(b"data")
    assert files.changes() == ["data.bin"]
    files.require()
    files.note_loaded(accept=True)
    files.require()
    for name, expected in (("data.bin", "data.bin"), ("../labels.txt", "../labels.txt")):
        files.note_loaded(accept=True)
        (version / name).write_text("others")
        message = refusal(files.require, code=StatusCode.UNAVAILABLE)
        assert message == f"its files have changed since it was loaded ({expected})"
    files.note_loaded(accept=True)
    for harmless in ("config.pbtxt", ".DS_Store", "train.log", "../train.log", "../notes.txt"):
        (version / harmless).write_text("others")
        files.require()
    shutil.rmtree(version)
    assert refusal(files.require, code=StatusCode.NOT_FOUND) == "version 1: its directory is gone"


def test_the_state_is_the_one_that_a_source_tells_of(version: Path) -> None:
    base = version.parent
    text = (version / "config.pbtxt").read_text()
    (version / "config.pbtxt").unlink()
    (base / "config.pbtxt").write_text(text.replace("output {", 'output { label_filename: "labels.txt"'))
    (base / "labels.txt").write_text("cat")
    executor = ManualExecutor(0)
    inspector = VersionInspector(RealDisk(), VirtualClock(), executor)
    look = look_at(
        ServableToMonitor("m", str(base)), SourceConfig((), quiet_period=0.0), LookStream(), RealDisk(), inspector
    )
    (item,) = look.aspired or ()
    settings = load_model_settings(version, "m")
    assert SeenFiles.look(item.payload, settings).beside
    assert has_state(item.revision, SeenFiles.look(item.payload, settings).state)
    assert not has_state(revision_of("", ""), SeenFiles.look(item.payload, settings).state)


class Writes:
    """A factory of servables during which files change: by call, what is written."""

    def __init__(self, *names: str) -> None:
        self._names = list(names)
        self.made: list[Any] = []

    def __call__(self, models: Any, request: Any) -> Any:
        self.made.append(models[0])
        if self._names:
            (Path(request.files.directory) / self._names.pop(0)).write_text(f"{len(self.made)}")
        return models[0]


def test_files_that_change_while_they_are_read_are_no_version(exported: Path) -> None:
    """What was read may be of both."""
    factory = Writes("more.bin")
    loader = loader_of(exported, factory)
    message = refusal(loader.load, ID, code=StatusCode.UNAVAILABLE)
    assert "its files changed while it was loaded (more.bin)" in message
    assert loader.servable is None
    loader.load(ID)
    assert loader.servable is factory.made[-1]
    loader.unload()


def test_code_may_be_what_has_written_so_it_is_loaded_once_more(version: Path) -> None:
    factory = Writes("a.bin")
    loader = loader_of(version, factory)
    loader.load(ID)
    assert len(factory.made) == 2
    assert loader.servable is factory.made[-1]
    loader.unload()
    loader = loader_of(version, Writes("b.bin", "c.bin"))
    assert "(c.bin)" in refusal(loader.load, ID, code=StatusCode.UNAVAILABLE)


def test_code_that_writes_into_its_own_directory_is_loaded_with_a_line(version: Path, caplog: Any) -> None:
    (version / "model.py").write_text(
        "import os, pathlib\n(pathlib.Path(__file__).parent / 'cache.bin').write_bytes(os.urandom(8))\n" + QUIET_MODEL
    )
    loader = loader_of(version, lambda models, request: models[0])
    loader.load(ID)
    assert "its load writes cache.bin into its own directory" in caplog.text
    loader.unload()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_cannot_be_looked_at_are_refused(version: Path) -> None:
    files = LoadedFiles(str(version), ModelSettings())
    files.note_loaded()
    version.chmod(0)
    try:
        with pytest.raises(ServingError, match="cannot be read"):
            files.require()
    finally:
        version.chmod(0o755)
