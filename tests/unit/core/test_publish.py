"""Publishing: atomic, complete, and never over an existing version."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile, file_stamp, parse_manifest
from tfs_lite.core.publish import HIDDEN_PREFIX, Published, commit, publish, staging_directory
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import ServingError, StatusCode


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "assets").mkdir(parents=True)
    (directory / "model.py").write_bytes(b"class Model: ...")
    (directory / "assets" / "words.txt").write_bytes(b"one two")
    return directory


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


def code_of(call: Callable[[], object]) -> StatusCode:
    with pytest.raises(ServingError) as caught:
        call()
    return caught.value.code


def test_a_directory_is_published_with_all_its_files(source: Path, base: Path) -> None:
    published = publish(str(source), str(base), 7)
    assert published == Published(7, str(base / "7"))
    assert (base / "7" / "model.py").read_bytes() == b"class Model: ..."
    assert (base / "7" / "assets" / "words.txt").read_bytes() == b"one two"
    assert os.listdir(base) == ["7"]


def test_litter_is_left_behind_and_an_old_manifest_that_lists_some_still_fits(source: Path, base: Path) -> None:
    for name in (
        ".DS_Store",
        "._model.py",
        "model.py~",
        "assets/Thumbs.db",
        ".git/config",
        "lost+found/x",
        "train.log",
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"")
    published = Path(publish(str(source), str(base)).path)
    found = sorted(str(path.relative_to(published)) for path in published.rglob("*") if path.is_file())
    assert found == ["assets/words.txt", "model.py", MANIFEST_NAME, "train.log"]
    listed = Manifest({name: ManifestFile(1, "0" * 64) for name in (".gitattributes", "train.log", "a/.DS_Store")})
    assert listed.size_problem({}) == ""


def test_a_single_file_is_stored_under_the_name_that_platforms_look_for(tmp_path: Path, base: Path) -> None:
    (tmp_path / "digits-final.pt2").write_bytes(b"archive")
    publish(str(tmp_path / "digits-final.pt2"), str(base))
    assert sorted(os.listdir(base / "1")) == ["model.pt2", MANIFEST_NAME]


def test_the_manifest_lists_every_file_with_size_digest_and_stamp(source: Path, base: Path) -> None:
    directory = Path(publish(str(source), str(base)).path)
    manifest = parse_manifest((directory / MANIFEST_NAME).read_bytes())
    assert set(manifest.files) == {"model.py", "assets/words.txt"}
    for name, listed in manifest.files.items():
        data, status = (directory / name).read_bytes(), (directory / name).stat()
        assert (listed.size, listed.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert listed.stamp == file_stamp(status.st_ino, status.st_ctime_ns)


def test_without_a_version_the_next_number_is_taken(source: Path, base: Path) -> None:
    assert publish(str(source), str(base)).version == 1
    (base / "0041").mkdir()
    (base / "99999999999999999999").mkdir()
    (base / "v99").mkdir()
    assert publish(str(source), str(base)).version == 42


def test_an_existing_version_is_never_overwritten_in_any_spelling(source: Path, base: Path) -> None:
    for spelling in ("5", "006"):
        (base / spelling).mkdir(parents=True)
    (base / "7").write_bytes(b"a file")
    for version in (5, 6, 7):
        assert code_of(lambda version=version: publish(str(source), str(base), version)) is StatusCode.ALREADY_EXISTS
    assert sorted(os.listdir(base)) == ["006", "5", "7"]
    assert os.listdir(base / "5") == []


@pytest.mark.parametrize("version", [-1, MAX_VERSION + 1])
def test_a_version_outside_of_int64_is_refused(source: Path, base: Path, version: int) -> None:
    assert code_of(lambda: publish(str(source), str(base), version)) is StatusCode.INVALID_ARGUMENT


def test_after_the_highest_number_there_is_no_next_one(source: Path, base: Path) -> None:
    (base / str(MAX_VERSION)).mkdir(parents=True)
    assert code_of(lambda: publish(str(source), str(base))) is StatusCode.FAILED_PRECONDITION


def test_a_missing_or_empty_source_is_refused(tmp_path: Path, base: Path) -> None:
    assert code_of(lambda: publish(str(tmp_path / "nowhere"), str(base))) is StatusCode.NOT_FOUND
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    assert code_of(lambda: publish(str(tmp_path / "empty"), str(base))) is StatusCode.FAILED_PRECONDITION
    (tmp_path / "empty" / MANIFEST_NAME).write_bytes(b"{}")
    assert code_of(lambda: publish(str(tmp_path / "empty"), str(base))) is StatusCode.FAILED_PRECONDITION


def test_links_that_leave_the_source_are_refused_and_links_inside_are_followed(source: Path, base: Path) -> None:
    (source / "same.py").symlink_to("model.py")
    directory = Path(publish(str(source), str(base)).path)
    assert (directory / "same.py").read_bytes() == b"class Model: ..."
    assert not (directory / "same.py").is_symlink()
    for target in ("/etc/hostname", "../outside", "missing", "assets"):
        link = source / "link"
        link.symlink_to(target)
        (source.parent / "outside").write_bytes(b"secret")
        assert code_of(lambda: publish(str(source), str(base))) is StatusCode.FAILED_PRECONDITION
        link.unlink()


def test_a_pipe_in_the_source_is_refused(source: Path, base: Path) -> None:
    os.mkfifo(source / "pipe")
    assert code_of(lambda: publish(str(source), str(base))) is StatusCode.FAILED_PRECONDITION


def test_publishing_a_published_version_again_writes_a_new_manifest(source: Path, base: Path) -> None:
    first = publish(str(source), str(base))
    (Path(first.path) / "more.txt").write_bytes(b"more")
    second = publish(first.path, str(base))
    assert second.version == 2
    manifest = parse_manifest((Path(second.path) / MANIFEST_NAME).read_bytes())
    assert set(manifest.files) == {"model.py", "assets/words.txt", "more.txt"}


def test_a_failed_publication_leaves_nothing_behind(source: Path, base: Path) -> None:
    def write_and_fail() -> None:
        with staging_directory(str(base)) as staging:
            Path(staging, "model.py").write_bytes(b"half")
            assert os.path.basename(staging).startswith(HIDDEN_PREFIX)
            raise ValueError("export failed")

    with pytest.raises(ValueError, match="export failed"):
        write_and_fail()
    assert os.listdir(base) == []


def test_nothing_staged_is_nothing_to_commit(base: Path) -> None:
    def commit_nothing() -> None:
        with staging_directory(str(base)) as staging:
            commit(staging, str(base))

    assert code_of(commit_nothing) is StatusCode.FAILED_PRECONDITION
    assert os.listdir(base) == []


def test_a_source_that_changes_while_it_is_copied_is_not_published(source: Path, base: Path) -> None:
    def change(phase: str, done: int, expected: int) -> None:
        for file in source.rglob("*"):
            if done and file.is_file():
                file.write_bytes(b"more")

    assert code_of(lambda: publish(str(source), str(base), on_progress=change)) is StatusCode.ABORTED
    assert os.listdir(base) == []


def test_progress_counts_the_bytes_of_copying_and_then_of_hashing(tmp_path: Path, base: Path) -> None:
    source = tmp_path / "large"
    source.mkdir()
    size = (1 << 20) + 5
    (source / "a").write_bytes(b"x" * size)
    (source / "b").write_bytes(b"y" * 3)
    (source / "empty").write_bytes(b"")
    told: list[tuple[str, int, int]] = []
    published = publish(str(source), str(base), on_progress=lambda *what: told.append(what))
    assert (Path(published.path) / "a").stat().st_size == size
    total = size + 3
    steps = sorted({done for phase, done, _ in told if phase == "copying"})
    assert steps == [0, 1 << 20, size, total]
    assert [phase for phase, done, _ in told if done == 0] == ["copying", "hashing"]
    assert [what for what in told if what[1] == total] == [("copying", total, total), ("hashing", total, total)]
    assert {expected for _, _, expected in told} == {total}


def test_publishers_at_the_same_time_get_different_numbers(source: Path, base: Path) -> None:
    numbers: list[int] = []
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait(30)
        numbers.extend(publish(str(source), str(base)).version for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(numbers) == list(range(1, 41))
    assert sorted(map(int, os.listdir(base))) == list(range(1, 41))


def test_of_two_publishers_of_one_number_one_is_told_that_it_exists(source: Path, base: Path) -> None:
    with staging_directory(str(base), 3) as first, staging_directory(str(base), 3) as second:
        for staging in (first, second):
            Path(staging, "model.py").write_text(staging)
        commit(second, str(base), 3)
        assert code_of(lambda: commit(first, str(base), 3)) is StatusCode.ALREADY_EXISTS
    assert (base / "3" / "model.py").read_text() == second
    assert os.listdir(base) == ["3"]


def test_a_published_directory_is_readable_as_the_umask_allows(source: Path, base: Path) -> None:
    before = os.umask(0o022)
    try:
        path = Path(publish(str(source), str(base)).path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o755
    assert (path / "model.py").stat().st_mode & 0o777 == 0o644
