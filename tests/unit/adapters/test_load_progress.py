"""What the loader of each platform tells while it loads: its phases, and the bytes of those that read themselves."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.platforms import SETTINGS, Doubler, write_plain, write_script
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader, open_here
from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.core.loader import LoadMeter, LoadPhase, LoadProgress
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError

ID = ServableId("m", 1)


class NotedMeter(LoadMeter):
    """Remembers the phases with what was expected and read in each."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[list[Any]] = []

    def begin(self, phase: LoadPhase, expected_bytes: int | None = None) -> None:
        super().begin(phase, expected_bytes)
        self.phases.append([phase, expected_bytes, 0])

    def add(self, nbytes: int) -> None:
        super().add(nbytes)
        if self.phases:
            self.phases[-1][2] += nbytes


@dataclass
class Looker:
    """Opens models with a meter that notes, and looks at the loader while it loads."""

    loader: ArtifactLoader | None = None
    meter: NotedMeter = field(default_factory=NotedMeter)
    seen: list[LoadProgress | None] = field(default_factory=list)

    def look(self, *_: object) -> None:
        assert self.loader is not None
        self.seen.append(self.loader.progress)

    def opens(self, platform: Platform, request: OpenRequest) -> Sequence[OpenedModel]:
        self.look()
        return open_here(platform, replace(request, meter=self.meter))

    def make(self, directory: Path) -> ArtifactLoader:
        settings = AdapterSettings(
            lambda models, request: models[0],
            "cpu",
            opens=self.opens,
            trusted=TrustedPaths.of((str(directory),)),
            model_settings=lambda path, name: None if (directory / "model.pt2").exists() else SETTINGS,
            warm_up=self.look,
        )
        self.loader = ArtifactLoader(str(directory), "", settings, PLATFORMS)
        return self.loader


def phases_of(looker: Looker) -> list[LoadPhase | None]:
    return [found and found.phase for found in looker.seen]


def test_a_loader_tells_its_phase_while_it_loads_and_only_then(exported_once: Path) -> None:
    looker = Looker()
    loader = looker.make(exported_once)
    assert loader.progress is None
    loader.load(ID)
    assert phases_of(looker) == [LoadPhase.OPENING, LoadPhase.WARMING_UP]
    assert loader.progress is None
    loader.unload()


def test_a_loader_that_fails_tells_nothing_any_more(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"broken")
    loader = Looker().make(tmp_path)
    with pytest.raises(ServingError):
        loader.load(ID)
    assert loader.progress is None


def test_weights_of_an_exported_program_are_counted_byte_by_byte(exported_once: Path) -> None:
    looker = Looker()
    loader = looker.make(exported_once)
    loader.load(ID)
    loader.unload()
    with open_archive(str(exported_once / "model.pt2"), "model.pt2") as archive:
        size = sum(archive.size(name) for name in archive.members if "/weight_" in name)
    assert size > 0
    assert looker.meter.phases == [[LoadPhase.READING, size, size], [LoadPhase.OPENING, None, 0]]


def test_a_packed_archive_counts_unpacked_bytes(tmp_path: Path) -> None:
    path = write_script(tmp_path, Doubler()) / "model.pt"
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    meter = NotedMeter()
    with open_archive(str(packed), "packed.pt", meter) as archive:
        archive.verify_checksums()
        size = sum(map(archive.size, archive.members))
        ((_, expected, read),) = meter.phases
        assert (expected, read) == (size, size)
        member = max(archive.members, key=archive.size)
        meter.begin(LoadPhase.READING, archive.size(member))
        archive.read_into(member, memoryview(bytearray(archive.size(member))), lambda: None)
    assert meter.phases[-1] == [LoadPhase.READING, archive.size(member), archive.size(member)]


def test_a_script_is_checked_with_bytes_and_opened_without(tmp_path: Path) -> None:
    looker = Looker()
    loader = looker.make(write_script(tmp_path, Doubler()))
    loader.load(ID)
    loader.unload()
    (checking, expected, read), opening = looker.meter.phases
    assert checking is LoadPhase.CHECKING
    assert expected == read > 0
    assert opening == [LoadPhase.OPENING, None, 0]


def test_a_python_model_is_opened_without_bytes(tmp_path: Path) -> None:
    write_plain(tmp_path)
    looker = Looker()
    loader = looker.make(tmp_path)
    loader.load(ID)
    loader.unload()
    assert looker.meter.phases == []
    assert phases_of(looker) == [LoadPhase.OPENING, LoadPhase.WARMING_UP]


@pytest.mark.parametrize("write", [write_plain, lambda directory: write_script(directory, Doubler())])
def test_progress_can_be_read_by_any_thread_at_any_time(tmp_path: Path, write: Callable[[Path], object]) -> None:
    write(tmp_path)
    looker = Looker()
    loader = looker.make(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(loader.load, ID)
        while not loading.done():
            found = loader.progress
            assert found is None or found.seconds >= found.phase_seconds >= 0
        loading.result()
    loader.unload()
