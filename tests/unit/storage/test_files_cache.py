"""The versions that a node keeps: whole ones only, within a bound, one writer at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tfs_lite.cluster.replicas.generation import files_digest, has_digest
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.storage.files_cache import Download, FilesCache, default_directory

TIMEOUT = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def digest_of(tmp_path: Path) -> Callable[[bytes], str]:
    """The digest of a version with one file of this content."""

    def digest(content: bytes) -> str:
        directory = tmp_path / "source" / content.hex()[:32]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.pt2").write_bytes(content)
        return files_digest(str(directory))

    return digest


@pytest.fixture
def keep(root: Path, digest_of: Callable[[bytes], str]) -> Callable[..., Path]:
    """Brings a version into the cache, as a process does that has ended since, and gives its directory."""

    def keep_one(content: bytes, most: int = 1000) -> Path:
        cache = cache_at(root, most)
        found = cache.find_or_begin(digest_of(content), "1", len(content))
        if isinstance(found, Download):
            found.write("model.pt2", content)
            found = found.finish()
        cache.release(digest_of(content))
        return Path(found)

    return keep_one


def cache_at(root: Path, most: int = 1000) -> FilesCache:
    """The cache as a process of its own has it."""
    return FilesCache(str(root), most, has_digest)


def names(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.name not in ("bases", "locks"))


def test_version_is_written_once_and_found_again_under_its_own_name(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    directory = keep(b"weights")
    assert directory == root / digest_of(b"weights") / "1"
    assert (directory / "model.pt2").read_bytes() == b"weights"
    written = (directory / "model.pt2").stat().st_mtime_ns
    assert keep(b"weights") == directory
    assert (directory / "model.pt2").stat().st_mtime_ns == written


def test_what_is_given_up_leaves_nothing(root: Path, digest_of: Callable[[bytes], str]) -> None:
    cache = cache_at(root)
    download = cache.find_or_begin(digest_of(b"weights"), "1", 7)
    assert isinstance(download, Download)
    download.write("data/a.bin", b"wei")
    download.abort()
    assert names(root) == []
    again = cache.find_or_begin(digest_of(b"weights"), "1", 7)
    assert isinstance(again, Download)
    again.abort()


def test_what_a_killed_process_has_left_half_is_removed(root: Path, digest_of: Callable[[bytes], str]) -> None:
    half = f"""
import os
from tfs_lite.cluster.replicas.generation import has_digest
from tfs_lite.storage.files_cache import FilesCache
download = FilesCache({str(root)!r}, 100, has_digest).find_or_begin({digest_of(b"weights")!r}, "1", 90)
download.write("model.pt2", b"wei")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", half], check=True, timeout=TIMEOUT)
    assert names(root) == [f"{digest_of(b'weights')}.partial"]
    other = cache_at(root, 100).find_or_begin(digest_of(b"other"), "1", 50)  # it counts with 90, and goes
    assert isinstance(other, Download)
    assert names(root) == [f"{digest_of(b'other')}.partial"]
    other.abort()


def test_the_version_that_was_used_least_recently_goes_first(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    for age, content in enumerate((b"a" * 40, b"b" * 40, b"c" * 10)):
        keep(content, 100)
        os.utime(root / "locks" / f"{digest_of(content)}.use", (1000 + age, 1000 + age))
    keep(b"a" * 40, 100)  # is used again
    keep(b"d" * 30, 100)
    assert names(root) == sorted(digest_of(content) for content in (b"a" * 40, b"c" * 10, b"d" * 30))


def test_version_in_use_stays_and_without_room_nothing_is_written(
    root: Path, digest_of: Callable[[bytes], str]
) -> None:
    using, other = cache_at(root, 100), cache_at(root, 100)
    download = using.find_or_begin(digest_of(b"a" * 60), "1", 60)
    assert isinstance(download, Download)
    with pytest.raises(ServingError) as caught:  # what is on its way counts with all of it
        other.find_or_begin(digest_of(b"b" * 60), "1", 60)
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert "40 are left" in str(caught.value)
    download.write("model.pt2", b"a" * 60)
    directory = Path(download.finish())
    with pytest.raises(ServingError):
        other.find_or_begin(digest_of(b"b" * 60), "1", 60)
    assert (directory / "model.pt2").read_bytes() == b"a" * 60
    assert names(root) == [digest_of(b"a" * 60)]


def test_version_that_is_larger_than_all_of_the_room_evicts_nothing(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    keep(b"a" * 40, 100)
    with pytest.raises(ServingError):
        cache_at(root, 100).find_or_begin(digest_of(b"b"), "1", 101)
    assert names(root) == [digest_of(b"a" * 40)]


def test_what_is_not_the_caches_is_neither_counted_nor_removed(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    (root / "holiday").mkdir(parents=True)
    (root / "holiday" / "photo").write_bytes(bytes(5000))
    (root / "notes.partial").mkdir()
    keep(b"a" * 90, 100)
    keep(b"b" * 90, 100)
    assert names(root) == sorted([digest_of(b"b" * 90), "holiday", "notes.partial"])


def test_damaged_version_is_written_anew(root: Path, keep: Callable[..., Path]) -> None:
    directory = keep(b"weights")
    (directory / "model.pt2").write_bytes(b"WEIGHTS")
    assert (keep(b"weights") / "model.pt2").read_bytes() == b"weights"


class Second:
    """A second process of the machine, on a thread: it asks for a version that another one writes."""

    def __init__(self, root: Path, digest: str) -> None:
        self.waits = threading.Event()
        self.is_cancelled = False
        self.found: str | Download | ServingError | None = None
        self._thread = threading.Thread(target=self._ask, args=(cache_at(root), digest))
        self._thread.start()
        assert self.waits.wait(TIMEOUT)

    def _ask(self, cache: FilesCache, digest: str) -> None:
        try:
            self.found = cache.find_or_begin(digest, "1", 7, cancelled=self._cancelled)
        except ServingError as error:
            self.found = error

    def _cancelled(self) -> bool:
        self.waits.set()
        return self.is_cancelled

    def answer(self) -> object:
        self._thread.join(TIMEOUT)
        return self.found


def test_second_process_waits_for_the_first_one_and_then_finds_the_version(
    root: Path, digest_of: Callable[[bytes], str]
) -> None:
    digest = digest_of(b"weights")
    download = cache_at(root).find_or_begin(digest, "1", 7)
    assert isinstance(download, Download)
    second = Second(root, digest)
    download.write("model.pt2", b"weights")
    directory = download.finish()
    assert second.answer() == directory


def test_second_process_writes_it_when_the_first_one_gives_up(root: Path, digest_of: Callable[[bytes], str]) -> None:
    digest = digest_of(b"weights")
    download = cache_at(root).find_or_begin(digest, "1", 7)
    assert isinstance(download, Download)
    second = Second(root, digest)
    download.abort()
    made = second.answer()
    assert isinstance(made, Download)
    made.abort()


def test_second_process_that_is_cancelled_waits_no_longer(root: Path, digest_of: Callable[[bytes], str]) -> None:
    digest = digest_of(b"weights")
    download = cache_at(root).find_or_begin(digest, "1", 7)
    assert isinstance(download, Download)
    second = Second(root, digest)
    second.is_cancelled = True
    answer = second.answer()
    assert isinstance(answer, ServingError)
    assert answer.code is StatusCode.CANCELLED
    download.abort()


def test_link_in_the_place_of_a_file_is_not_followed(root: Path, digest_of: Callable[[bytes], str]) -> None:
    download = cache_at(root).find_or_begin(digest_of(b"weights"), "1", 7)
    assert isinstance(download, Download)
    victim = root.parent / "victim"
    victim.write_bytes(b"mine")
    os.symlink(victim, os.path.join(download.directory, "model.pt2"))
    with pytest.raises(OSError):
        download.write("model.pt2", b"weights")
    assert victim.read_bytes() == b"mine"
    download.abort()


def test_cache_that_others_may_write_to_is_refused(root: Path, digest_of: Callable[[bytes], str]) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ServingError) as caught:
        cache_at(root).find_or_begin(digest_of(b"weights"), "1", 7)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION


def test_default_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert default_directory() == str(tmp_path / "caches" / "tfs-lite" / "versions")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/nonexistent/home")
    assert default_directory().endswith(f"tfs-lite-{os.getuid()}/versions")
