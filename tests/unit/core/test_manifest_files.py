"""Which files count, and what makes another state of a version."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tfs_lite.core.manifest import (
    has_state,
    have_same_configs,
    is_fuse,
    is_litter,
    is_looked_at,
    is_partial,
    read_tree,
    revision_of,
    state_of,
)

LITTER = [
    "._model.pt2",
    ".DS_Store",
    "Thumbs.db",
    "thumbs.db",
    "desktop.ini",
    ".nfs000000000001",
    ".nfs00000000abcdef.123456",
    "lost+found",
    "__pycache__",
    ".git",
    ".gitattributes",
    "model.py~",
    ".model.py.swp",
    "#model.py#",
    ".#model.py",
    ".publish-3-0a1b2c3d4e5f",
]
PARTIAL = [
    ".model.pt2.x7Gh2k",
    ".~tmp~",
    ".rsync-partial",
    "model.pt2.part",
    "model.pt2.partial",
    "model.pt2.tmp",
    "model.pt2.filepart",
    "model.pt2.crdownload",
    "blob.incomplete",
]
FILES = [
    "model.pt2",
    "model.py",
    "config.pbtxt",
    "a.b.abcdef",
    "model.onnx.data",
    "events.txt",
    "log",
    "#",
    "labels.txt",
]
LOGS = ["train.log", "events.out.tfevents.1700000000.host.1.0", "logs/run.log", "runs/events.out.tfevents.1.a"]


@pytest.mark.parametrize("name", LITTER)
def test_litter_is_not_looked_at_wherever_it_lies(name: str) -> None:
    assert is_litter(name)
    assert not is_partial(name)
    assert not any(map(is_looked_at, (name, f"sub/{name}", f"{name}/model.pt2")))


@pytest.mark.parametrize("name", PARTIAL)
def test_what_copying_tools_leave_half_done_is_looked_at_and_no_part_of_the_version(name: str, tmp_path: Path) -> None:
    assert is_partial(name)
    assert is_looked_at(name)
    (tmp_path / "model.pt2").write_bytes(b"whole")
    before = read_tree(str(tmp_path))
    (tmp_path / name).write_bytes(b"half")
    after = read_tree(str(tmp_path))
    assert before.fingerprint != after.fingerprint
    assert before.version.files == after.version.files
    assert before.version.fingerprint == after.version.fingerprint


@pytest.mark.parametrize("name", FILES)
def test_every_other_file_counts(name: str) -> None:
    assert is_looked_at(name)
    assert not is_litter(name)
    assert not is_partial(name)


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_a_training_are_not_looked_at_and_yet_published(name: str) -> None:
    assert not is_looked_at(name)
    assert not any(map(is_litter, name.split("/")))


def test_directory_that_is_litter_is_not_walked_into(tmp_path: Path) -> None:
    """What lies in this one could not be looked at."""
    (tmp_path / "model.pt2").write_bytes(b"whole")
    (tmp_path / "lost+found").mkdir()
    os.mkfifo(tmp_path / "lost+found" / "pipe")
    os.symlink("nowhere", tmp_path / ".#model.py")
    assert [file.name for file in read_tree(str(tmp_path)).files] == ["model.pt2"]


def test_another_path_another_file_and_another_file_beside_are_another_state(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"one")
    (tmp_path / "config.pbtxt").write_bytes(b"config")
    before = read_tree(str(tmp_path)).version.fingerprint
    (tmp_path / "config.pbtxt").write_bytes(b"another config")
    assert read_tree(str(tmp_path)).version.fingerprint == before
    (tmp_path / "model.pt2").write_bytes(b"two")
    after = read_tree(str(tmp_path)).version.fingerprint
    labels = [("labels.txt", "state")]
    states = [
        state_of("/m/1", before),
        state_of("/m/1", after),
        state_of("/n/1", before),
        state_of("/m/1", before, labels),
        state_of("/m/1", before, [("labels.txt", "another state")]),
    ]
    assert len(set(states)) == len(states)


def test_inode_numbers_count_only_where_they_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of file systems in user space change by themselves."""
    (tmp_path / "model.pt2").write_bytes(b"one")
    (file,) = read_tree(str(tmp_path)).files
    assert replace(file, inode=1).state != replace(file, inode=2).state
    monkeypatch.setattr("tfs_lite.core.manifest.is_fuse", lambda device: True)
    (file,) = read_tree(str(tmp_path)).files
    assert replace(file, inode=1).state == replace(file, inode=2).state
    assert replace(file, size=1).state != replace(file, size=2).state


def test_this_disk_is_told_from_others() -> None:
    assert is_fuse(os.stat("/proc").st_dev) is False
    assert is_fuse(os.makedev(4000, 1)) is False


def test_revision_says_which_files_and_which_configs() -> None:
    one = revision_of("files", "configs")
    assert has_state(one, "files")
    assert not has_state(one, "others")
    assert have_same_configs(one, revision_of("others", "configs"))
    assert not have_same_configs(one, revision_of("files", ""))
