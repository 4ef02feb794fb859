"""The models of a whole directory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.status import Status
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


class Bench:
    """A repository in memory, polled by hand."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.disk = MemoryDisk(self.clock)
        self.sent: list[dict[str, str]] = []
        self.problems: list[str] = []
        self.fail = False
        self.repository = ModelRepository(
            "/models", self.disk, self.clock, self.on_change, self.on_problem, poll_interval=None, watch=False
        )

    def on_change(self, models: Mapping[str, str]) -> None:
        if self.fail:
            raise RuntimeError("refused")
        self.sent.append(dict(models))

    def on_problem(self, problem: Status) -> None:
        self.problems.append(str(problem))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_mapping_is_sent_when_it_changes(bench: Bench) -> None:
    bench.disk.write("/models/a/1/model.pt2", b"x")
    bench.repository.poll()
    bench.repository.poll()
    bench.disk.mkdir("/models/b")
    bench.repository.poll()
    assert bench.sent == [{"a": "/models/a"}]
    bench.disk.mkdir("/models/b/1")
    bench.repository.poll()
    bench.disk.remove("/models/a")
    bench.repository.poll()
    assert bench.sent[1:] == [{"a": "/models/a", "b": "/models/b"}, {"b": "/models/b"}]


def test_an_empty_repository_is_sent_as_empty(bench: Bench) -> None:
    bench.disk.mkdir("/models")
    bench.repository.poll()
    assert bench.sent == [{}]
    assert bench.problems == []


def test_a_missing_repository_is_reported_once_and_changes_nothing(bench: Bench) -> None:
    bench.repository.poll()
    bench.repository.poll()
    assert (bench.sent, bench.problems) == ([], ["NOT_FOUND: the model repository does not exist"])
    bench.disk.mkdir("/models/a/1")
    bench.repository.poll()
    bench.disk.deny("/models")
    bench.repository.poll()
    assert bench.sent == [{"a": "/models/a"}]
    assert bench.problems[1:] == ["OK", "UNAVAILABLE: the model repository cannot be read: Permission denied"]


def test_a_model_that_cannot_be_read_for_a_moment_stays_and_its_siblings_are_found(bench: Bench) -> None:
    bench.disk.mkdir("/models/a/1")
    bench.repository.poll()
    bench.disk.deny("/models/a")
    bench.disk.mkdir("/models/b/1")
    bench.repository.poll()
    assert bench.sent[-1] == {"a": "/models/a", "b": "/models/b"}


def test_a_mapping_that_was_refused_is_sent_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.disk.mkdir("/models/a/1")
    bench.fail = True
    bench.repository.poll()
    assert "sent again" in caplog.text
    bench.fail = False
    bench.repository.poll()
    assert bench.sent == [{"a": "/models/a"}]


def test_after_closing_nothing_is_sent(bench: Bench) -> None:
    bench.disk.mkdir("/models/a/1")
    bench.repository.close()
    bench.repository.poll()
    assert bench.sent == []


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
