"""The models of a whole directory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.status import OK, Status
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


def test_a_name_that_is_no_text_is_no_model_and_is_told_when_it_comes_and_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, models, told = MemoryDisk(VirtualClock()), dict[str, str](), list[frozenset[str]]()
    disk.write("/r/good/1/model.pt2", b"x")
    disk.write("/r/bad\udcff/1/model.pt2", b"x")
    repository = ModelRepository(
        "/r", disk, VirtualClock(), models.update, poll_interval=None, watch=False, on_no_text=told.append
    )
    repository.poll()
    repository.poll()
    assert models == {"good": "/r/good"}
    assert told == [{"bad\\xff"}]
    assert len([message for message in caplog.messages if "no UTF-8 text" in message]) == 1
    disk.remove("/r/bad\udcff")
    repository.poll()
    assert told[1:] == [frozenset()]
    assert models_in({"bad\udcff": [DirectoryEntry("1", True)]}, {"bad\udcff"}) == []


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

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.disk = MemoryDisk(self.clock)
        self.sent: list[dict[str, str]] = []
        self.problems: list[Status] = []
        self.fail = False
        self.repository = ModelRepository(
            *("/models", self.disk, self.clock, self.on_models),
            poll_interval=None,
            watch=False,
            on_problem=self.problems.append,
            **settings,
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


def test_directories_that_are_no_models_are_told_when_they_come(fixture, caplog) -> None:
    caplog.set_level("INFO")
    fixture.disk.write("/models/good/1/model.pt2", b"x")
    fixture.disk.write("/models/flat/model.pt2", b"x")
    fixture.disk.mkdir("/models/secret")
    fixture.disk.deny("/models/secret")
    for _ in range(2):
        fixture.repository.poll()
    assert caplog.messages == [
        "secret in the model repository cannot be read: Permission denied",
        "not models in the repository, for they have no version directory: flat",
        "models in the repository: good",
    ]
    fixture.disk.write("/models/flat/1/model.pt2", b"x")
    fixture.repository.poll()
    assert caplog.messages[3:] == ["models in the repository: flat, good"]


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


def test_model_whose_directory_is_replaced_stays() -> None:
    fixture = RepositoryFixture(quiet_period=2.0)
    fixture.disk.mkdir("/models/a/1")
    fixture.disk.mkdir("/models/b/1")
    fixture.repository.poll()
    fixture.disk.rename("/models/a", "/models/.a")
    fixture.repository.poll()
    assert fixture.sent == [{"a": "/models/a", "b": "/models/b"}] * 2
    assert fixture.clock.next_due == 2.0
    fixture.clock.advance(1.9)
    fixture.disk.rename("/models/.a", "/models/a")
    fixture.repository.poll()
    fixture.disk.remove("/models/a")
    fixture.repository.poll()
    fixture.clock.advance(2.0)
    fixture.repository.poll()
    assert fixture.sent[2:] == [{"a": "/models/a", "b": "/models/b"}] * 2 + [{"b": "/models/b"}]


def test_repository_that_becomes_another_directory_without_models_changes_nothing(fixture: RepositoryFixture) -> None:
    fixture.disk.mkdir("/models/a/1")
    fixture.repository.poll()
    fixture.disk.rename("/models", "/away")
    fixture.disk.mkdir("/models/lost+found")
    fixture.repository.poll()
    assert fixture.sent == [{"a": "/models/a"}]
    (problem,) = fixture.problems
    assert problem.message == "the model repository has become another directory, which holds no model"
    fixture.disk.mkdir("/models/b/1")
    fixture.repository.poll()
    assert fixture.sent[1:] == [{"b": "/models/b"}]
    assert fixture.problems[1:] == [OK]


def test_repository_that_is_emptied_has_no_models_unless_there_always_are_some() -> None:
    for always, sent in ((False, [{"a": "/models/a"}, {}]), (True, [{"a": "/models/a"}])):
        fixture = RepositoryFixture(models_always_present=always)
        fixture.disk.mkdir("/models/a/1")
        fixture.repository.poll()
        fixture.disk.remove("/models/a")
        fixture.repository.poll()
        assert fixture.sent == sent
        assert len(fixture.problems) == always


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


class SilentDisk(RealDisk):
    """Below ``base`` nothing is listed before ``answers`` is set."""

    def __init__(self, base: Path) -> None:
        self._base = str(base)
        self.asked, self.answers = threading.Event(), threading.Event()

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        if path != self._base:
            self.asked.set()
            assert self.answers.wait(BOUND)
        return super().list_directory(path)


def test_a_repository_that_ends_in_the_middle_of_a_round_does_not_wait_for_it(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    disk, clock, models = SilentDisk(tmp_path), SystemClock(), dict[str, str]()
    repository = ModelRepository(str(tmp_path), disk, clock, models.update, None, watch=False, disk_timeout=BOUND)
    poll = threading.Thread(target=repository.poll)
    poll.start()
    assert disk.asked.wait(BOUND)
    repository.end()
    poll.join(BOUND)
    ended = not poll.is_alive()
    disk.answers.set()
    repository.close()
    clock.close()
    assert ended
    assert models == {}
