"""The models of a whole directory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.clock import SystemClock
from tfs_lite.sources.disk import DirectoryEntry, RealDisk
from tfs_lite.sources.repository import ModelRepository, models_in
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk

BOUND = 30.0


def test_a_model_has_a_version_or_a_config() -> None:
    listing = {
        "versions": [DirectoryEntry("0003", True)],
        "pbtxt": [DirectoryEntry("config.pbtxt", False)],
        "yaml": [DirectoryEntry("config.yaml", False)],
        "empty": [],
        "other": [
            DirectoryEntry("v1", True),
            DirectoryEntry("README", False),
            DirectoryEntry("7", False),
            DirectoryEntry("config.yaml.bak", False),
        ],
        ".hidden": [DirectoryEntry("1", True)],
    }
    assert models_in(listing, ()) == ["pbtxt", "versions", "yaml"]
    assert models_in(listing, {"empty", "gone", ".hidden"}) == ["empty", "pbtxt", "versions", "yaml"]


entries = st.builds(DirectoryEntry, st.sampled_from(["1", "002", "config.yaml", "x", ".1"]), st.booleans())
listings = st.dictionaries(st.sampled_from(["a", "b", ".c", "d"]), st.lists(entries, max_size=3))


@given(listings, st.sets(st.sampled_from(["a", "b", "d", "e"])))
def test_known_models_stay_exactly_as_long_as_their_directory_exists(
    listing: dict[str, list[DirectoryEntry]], known: set[str]
) -> None:
    models = models_in(listing, known)
    assert set(models) - known == set(models_in(listing, ())) - known
    assert set(models) & known == set(listing) & known


class RepositoryFixture:
    """A repository in memory, polled by hand."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.disk = MemoryDisk(self.clock)
        self.sent: list[dict[str, str]] = []
        self.fail = False
        self.repository = ModelRepository(
            "/models", self.disk, self.clock, self.on_models, poll_interval=None, watch=False
        )

    def on_models(self, models: Mapping[str, str]) -> None:
        if self.fail:
            raise RuntimeError("refused")
        self.sent.append(dict(models))


@pytest.fixture
def fixture() -> RepositoryFixture:
    return RepositoryFixture()


def test_the_mapping_is_sent_after_each_look(fixture: RepositoryFixture) -> None:
    fixture.disk.write("/models/a/1/model.pt2", b"x")
    fixture.repository.poll()
    fixture.repository.poll()
    fixture.disk.mkdir("/models/b")
    fixture.repository.poll()
    assert fixture.sent == [{"a": "/models/a"}] * 3
    fixture.disk.mkdir("/models/b/1")
    fixture.repository.poll()
    fixture.disk.remove("/models/a")
    fixture.repository.poll()
    assert fixture.sent[3:] == [{"a": "/models/a", "b": "/models/b"}, {"b": "/models/b"}]


def test_an_empty_repository_is_sent_as_empty(fixture: RepositoryFixture) -> None:
    fixture.disk.mkdir("/models")
    fixture.repository.poll()
    assert fixture.sent == [{}]


def test_a_missing_repository_is_logged_once_and_changes_nothing(fixture, caplog) -> None:
    fixture.repository.poll()
    fixture.repository.poll()
    assert fixture.sent == []
    assert [record.getMessage() for record in caplog.records] == [
        "the model repository does not exist (/models): the models stay as they are"
    ]
    fixture.disk.mkdir("/models/a/1")
    fixture.repository.poll()
    fixture.disk.deny("/models")
    fixture.repository.poll()
    assert fixture.sent == [{"a": "/models/a"}]
    assert "the model repository cannot be read: Permission denied" in caplog.records[-1].getMessage()


def test_a_model_that_cannot_be_read_for_a_moment_stays_and_its_siblings_are_found(fixture: RepositoryFixture) -> None:
    fixture.disk.mkdir("/models/a/1")
    fixture.repository.poll()
    fixture.disk.deny("/models/a")
    fixture.disk.mkdir("/models/b/1")
    fixture.repository.poll()
    assert fixture.sent[-1] == {"a": "/models/a", "b": "/models/b"}


def test_a_mapping_that_was_refused_is_sent_again(fixture: RepositoryFixture, caplog: pytest.LogCaptureFixture) -> None:
    fixture.disk.mkdir("/models/a/1")
    fixture.fail = True
    fixture.repository.poll()
    assert "sent again" in caplog.text
    fixture.fail = False
    fixture.repository.poll()
    assert fixture.sent == [{"a": "/models/a"}]


def test_after_closing_nothing_is_sent(fixture: RepositoryFixture) -> None:
    fixture.disk.mkdir("/models/a/1")
    fixture.repository.close()
    fixture.repository.poll()
    assert fixture.sent == []


def test_models_that_appear_are_noticed_by_watching(tmp_path: Path) -> None:
    clock, changed = SystemClock(), threading.Condition()
    sent: list[Mapping[str, str]] = []

    def on_change(models: Mapping[str, str]) -> None:
        with changed:
            sent.append(models)
            changed.notify_all()

    def wait_for(*names: str) -> None:
        with changed:
            assert changed.wait_for(lambda: bool(sent) and sorted(sent[-1]) == list(names), BOUND), sent

    root = tmp_path / "late" / "models"
    repository = ModelRepository(str(root), RealDisk(), clock, on_change, poll_interval=60.0)
    repository.start()
    try:
        root.mkdir(parents=True)
        wait_for()
        (root / "a").mkdir()
        (root / "a" / "1").mkdir()
        wait_for("a")
        (root / "b").mkdir()
        (root / "b" / "config.pbtxt").write_bytes(b"")
        wait_for("a", "b")
        (root / "a").rename(tmp_path / "elsewhere")
        wait_for("b")
    finally:
        repository.close()
        clock.close()


def test_what_lies_in_a_known_model_is_not_listed_again(fixture: RepositoryFixture) -> None:
    for number in range(20):
        fixture.disk.write(f"/models/m{number}/1/model.pt2", b"")
    fixture.repository.poll()
    listed: list[str] = []
    list_directory = fixture.disk.list_directory
    fixture.disk.list_directory = lambda path: listed.append(path) or list_directory(path)  # type: ignore[method-assign]
    fixture.disk.write("/models/new/1/model.pt2", b"")
    fixture.repository.poll()
    assert "new" in fixture.sent[-1]
    assert len(fixture.sent[-1]) == 21
    assert listed == ["/models", "/models/new"]
