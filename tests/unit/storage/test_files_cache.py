"""The versions that a node keeps: whole ones only, within a bound, one writer at a time."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.errors import fail_syncs
from tfs_lite.cluster.replicas.generation import files_digest, has_digest
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.storage import files_cache
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


# Downloads that go on.


def begin(cache: FilesCache, key: str, size: int = 7, resume: bool = True) -> Download:
    found = cache.find_or_begin(key, "1", size, resume=resume)
    assert isinstance(found, Download)
    return found


def test_download_goes_on_with_what_an_earlier_one_has_left(root: Path, digest_of: Callable[[bytes], str]) -> None:
    digest = digest_of(b"weights")
    first = begin(cache_at(root), digest)
    first.write("model.pt2", b"wei")
    first.leave()
    second = begin(cache_at(root), digest)
    pieces: list[int] = []
    assert second.resume("model.pt2", pieces.append) == 3
    assert pieces == [3]
    assert second.resume("data/other.bin") == 0
    second.write("model.pt2", b"ghts")
    assert second.written("model.pt2") == 7
    assert second.sha256("model.pt2") == hashlib.sha256(b"weights").hexdigest()
    assert Path(second.finish(), "model.pt2").read_bytes() == b"weights"


def test_download_that_does_not_go_on_begins_with_nothing(root: Path, digest_of: Callable[[bytes], str]) -> None:
    first = begin(cache_at(root), digest_of(b"weights"))
    first.write("model.pt2", b"wei")
    first.leave()
    second = begin(cache_at(root), digest_of(b"weights"), resume=False)
    assert second.resume("model.pt2") == 0
    second.abort()


@pytest.mark.parametrize("of_files", [False, True])
def test_disk_that_cannot_sync_keeps_a_version(
    root: Path, digest_of: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, of_files: bool
) -> None:
    fail_syncs(monkeypatch, errno.EINVAL, of_files=of_files)
    download = begin(cache_at(root), digest_of(b"weights"))
    download.write("model.pt2", b"weights")
    assert Path(download.finish(), "model.pt2").read_bytes() == b"weights"


def test_file_is_begun_anew_and_files_of_others_go(root: Path, digest_of: Callable[[bytes], str]) -> None:
    first = begin(cache_at(root), digest_of(b"weights"))
    first.write("model.pt2", b"xyz")
    first.write("data/old.bin", b"old")
    first.leave()
    second = begin(cache_at(root), digest_of(b"weights"))
    second.keep_only({"model.pt2"})
    assert second.resume("data/old.bin") == 0
    second.resume("model.pt2")
    second.restart("model.pt2")
    assert second.written("model.pt2") == 0
    second.write("model.pt2", b"weights")
    assert Path(second.finish(), "model.pt2").read_bytes() == b"weights"


def test_half_a_version_counts_with_all_of_it_and_goes_like_others(
    root: Path, digest_of: Callable[[bytes], str]
) -> None:
    half = begin(cache_at(root, 100), digest_of(b"weights"), 90)
    half.write("model.pt2", b"wei")
    assert cache_at(root).bytes_held == 90
    half.leave()
    again = begin(cache_at(root, 100), digest_of(b"weights"), 90)  # it needs no room beside itself
    again.leave()
    evicted: list[tuple[str, int]] = []
    cache = FilesCache(str(root), 100, has_digest, lambda key, size: evicted.append((key, size)))
    begin(cache, digest_of(b"other"), 50).abort()
    assert evicted == [(digest_of(b"weights"), 3)]
    assert names(root) == []


# Versions that are held.


def test_held_version_stays_until_it_is_released_as_often(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    keep(b"a" * 60, 100)
    holder, other = cache_at(root, 100), cache_at(root, 100)
    assert holder.hold(digest_of(b"a" * 60))
    assert holder.hold(digest_of(b"a" * 60))
    holder.release(digest_of(b"a" * 60))
    with pytest.raises(ServingError):
        other.find_or_begin(digest_of(b"b" * 60), "1", 60)
    holder.release(digest_of(b"a" * 60))
    begin(other, digest_of(b"b" * 60), 60).abort()
    assert names(root) == []
    assert not holder.hold(digest_of(b"a" * 60))


def test_release_counts_as_a_use(root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]) -> None:
    holder = cache_at(root)
    for content in (b"a", b"b"):
        keep(content)
        assert holder.hold(digest_of(content))
        os.utime(root / "locks" / f"{digest_of(content)}.use", (1000, 1000))
    holder.release(digest_of(b"a"))
    os.utime(root / "locks" / f"{digest_of(b'b')}.use", (1000, 1000))
    holder.release(digest_of(b"b"))
    os.utime(root / "locks" / f"{digest_of(b'a')}.use", (1000, 1000))
    cache_at(root).evict(1)
    assert names(root) == [digest_of(b"b")]


def test_version_is_not_held_once_all_of_the_cache_was_removed_and_its_new_lock_counts(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    digest = digest_of(b"weights")
    keep(b"weights")
    holder = cache_at(root)
    assert holder.hold(digest)
    shutil.rmtree(root)
    assert not holder.hold(digest)
    download = begin(holder, digest)
    download.write("model.pt2", b"weights")
    download.finish()
    cache_at(root).evict(100)
    assert names(root) == [digest]
    holder.release(digest)
    holder.release(digest)
    cache_at(root).evict(100)
    assert names(root) == []


def test_find_waits_for_nobody_and_removes_nothing(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    digest = digest_of(b"weights")
    assert cache_at(root).find(digest, "1") is None
    download = begin(cache_at(root), digest)
    assert cache_at(root).find(digest, "1") is None
    download.abort()
    directory = keep(b"weights")
    assert cache_at(root).find(digest, "1") == str(directory)
    (directory / "model.pt2").write_bytes(b"WEIGHTS")
    assert cache_at(root).find(digest, "1") is None
    assert directory.exists()


# Room.


def test_what_cannot_make_enough_room_removes_nothing(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    keep(b"a" * 40, 100)
    keep(b"b" * 30, 100)
    holder = cache_at(root, 100)
    assert holder.hold(digest_of(b"b" * 30))
    with pytest.raises(ServingError, match="model_cache_bytes is 100: 70 are left, and the files have 80"):
        holder.find_or_begin(digest_of(b"c" * 80), "1", 80)
    assert names(root) == sorted([digest_of(b"a" * 40), digest_of(b"b" * 30)])


def disk_with(free: int, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """From now on the disk has so many bytes for the cache, of which it has written some."""

    def statvfs(path: object) -> SimpleNamespace:
        written = sum(file.stat().st_size for file in root.rglob("model.pt2"))
        return SimpleNamespace(f_bavail=free - written, f_frsize=1)

    monkeypatch.setattr(os, "statvfs", statvfs)


def test_what_does_not_fit_on_the_disk_is_not_begun_and_the_numbers_are_told(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(b"a" * 40)
    holder = cache_at(root)
    assert holder.hold(digest_of(b"a" * 40))
    keep(b"b" * 40)
    disk_with(130, monkeypatch, root)
    with pytest.raises(ServingError, match="the disk of the cache has about 48 bytes free, and the files need 200 byt"):
        holder.find_or_begin(digest_of(b"c" * 200), "1", 200)
    assert names(root) == sorted([digest_of(b"a" * 40), digest_of(b"b" * 40)])
    download = holder.find_or_begin(digest_of(b"d" * 90), "1", 90)
    assert isinstance(download, Download)
    download.write("model.pt2", b"d" * 60)
    download.leave()
    assert digest_of(b"b" * 40) not in names(root)
    again = holder.find_or_begin(digest_of(b"d" * 90), "1", 90, resume=True)
    assert isinstance(again, Download), "what was written needs no room again"
    again.abort()


def test_room_on_the_disk_is_made_of_what_nobody_uses_and_is_told(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    for age, content in enumerate((b"a" * 40, b"b" * 40, b"c" * 40, b"d" * 40)):
        keep(content)
        os.utime(root / "locks" / f"{digest_of(content)}.use", (1000 + age, 1000 + age))
    evicted: list[tuple[str, int]] = []
    cache = FilesCache(str(root), 1000, has_digest, lambda key, size: evicted.append((key, size)))
    assert cache.hold(digest_of(b"b" * 40))
    os.utime(root / "locks" / f"{digest_of(b'b' * 40)}.use", (1, 1))
    cache.evict(41)
    assert evicted == [(digest_of(b"a" * 40), 40), (digest_of(b"c" * 40), 40)]
    assert cache.bytes_held == 80


def test_what_a_process_killed_while_it_removed_a_version_has_left_is_no_version(
    root: Path, keep: Callable[..., Path], digest_of: Callable[[bytes], str]
) -> None:
    digest = digest_of(b"weights")
    keep(b"weights")
    (root / digest).rename(root / f"{digest}.gone")
    cache = cache_at(root, 10)
    assert cache.bytes_held == 7
    assert not cache.hold(digest)
    begin(cache, digest_of(b"other"), 9).abort()
    assert names(root) == []


@pytest.mark.parametrize("error", [None, OSError(errno.ENOLCK, "No locks available")])
def test_disk_that_keeps_no_locks_is_refused(
    root: Path, digest_of: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    def flock(file: object, how: int) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(files_cache.fcntl, "flock", flock)
    with pytest.raises(ServingError, match="locks") as caught:
        cache_at(root).find_or_begin(digest_of(b"weights"), "1", 7)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    assert names(root) == []
