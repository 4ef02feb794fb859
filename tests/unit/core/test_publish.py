"""Publishing: atomic, complete, and never over an existing version."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.errors import fail_syncs
from tests.support.servers.process import wait_until
from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile, file_stamp, parse_manifest
from tfs_lite.core.publish import (
    HIDDEN_PREFIX,
    LEFTOVER_SECONDS,
    Published,
    commit,
    leftovers,
    publish,
    staging_directory,
)
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


# Disks that cannot do everything.


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_disk_that_does_not_sync_directories_is_published_to_without_a_word(
    source: Path, base: Path, monkeypatch: pytest.MonkeyPatch, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    fail_syncs(monkeypatch, number, of_files=False)
    assert publish(str(source), str(base)).version == 1
    assert caplog.text == ""


def test_a_disk_that_does_not_sync_files_is_published_to_and_named(
    source: Path, base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_syncs(monkeypatch, errno.EINVAL, of_files=True)
    assert publish(str(source), str(base)).version == 1
    assert "model.py was not synced" in caplog.text


def refused(call: Callable[[], object]) -> ServingError:
    with pytest.raises(ServingError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("of_files", [False, True])
def test_a_disk_with_errors_publishes_nothing_and_says_where_and_what_to_do(
    source: Path, base: Path, monkeypatch: pytest.MonkeyPatch, of_files: bool
) -> None:
    fail_syncs(monkeypatch, errno.EIO, of_files=of_files)
    error = refused(lambda: publish(str(source), str(base)))
    assert error.code is StatusCode.UNAVAILABLE
    assert str(base / HIDDEN_PREFIX) in str(error)
    assert "that disk has errors" in str(error)
    assert os.listdir(base) == []


def test_a_version_that_has_its_name_is_published_whatever_the_last_sync_says(
    source: Path, base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(base):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert publish(str(source), str(base)).version == 1
    assert "a loss of power now may take the version" in caplog.text


def test_a_full_disk_leaves_nothing_behind_and_says_so(
    source: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    opened = open

    def full(path: object, mode: str = "r", **rest: object) -> object:
        return opened("/dev/full" if mode == "wb" and str(path).endswith("words.txt") else path, mode, **rest)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", full)
    error = refused(lambda: publish(str(source), str(base)))
    assert error.code is StatusCode.RESOURCE_EXHAUSTED
    assert "assets/words.txt: No space left on device; make room on that disk" in str(error)
    assert os.listdir(base) == []


def test_holes_of_a_sparse_file_stay_holes(source: Path, base: Path) -> None:
    size = 64 << 20
    with open(source / "sparse.bin", "wb") as file:
        file.write(b"begin")
        file.truncate(size)
        file.seek(size // 2)
        file.write(b"middle")
    copy = Path(publish(str(source), str(base)).path) / "sparse.bin"
    assert copy.stat().st_size == size
    assert copy.stat().st_blocks * 512 < size // 2
    with open(copy, "rb") as file:
        assert file.read(5) == b"begin"
        file.seek(size // 2)
        assert file.read(6) == b"middle"


def test_names_that_are_no_text_are_published_as_they_are(source: Path, base: Path) -> None:
    name = os.fsdecode(b"w\xf6rter.txt")
    (source / name).write_bytes(b"words")
    directory = Path(publish(str(source), str(base)).path)
    assert (directory / name).read_bytes() == b"words"
    assert name in parse_manifest((directory / MANIFEST_NAME).read_bytes()).files


# Links, which an option follows.


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """As the hub's cache has a model: links to files that are named by their digest."""
    cache = tmp_path / "models--org--name"
    (cache / "blobs").mkdir(parents=True)
    found = cache / "snapshots" / "0123abcd"
    (found / "onnx").mkdir(parents=True)
    for index, name in enumerate(("config.json", "model.safetensors", "onnx/model.onnx")):
        (cache / "blobs" / f"blob{index}").write_bytes(name.encode())
        (found / name).symlink_to(os.path.relpath(cache / "blobs" / f"blob{index}", (found / name).parent))
    return found


def test_a_snapshot_of_the_hub_is_refused_with_the_option_that_publishes_it(snapshot: Path, base: Path) -> None:
    assert "is a link that leaves the source; --follow_links copies what it points to" in str(
        refused(lambda: publish(str(snapshot), str(base)))
    )
    directory = Path(publish(str(snapshot), str(base), follow_links=True).path)
    for name in ("config.json", "model.safetensors", "onnx/model.onnx"):
        assert (directory / name).read_bytes() == name.encode()
        assert not (directory / name).is_symlink()


def test_links_to_directories_are_followed_only_when_that_is_asked_for(source: Path, base: Path) -> None:
    (source.parent / "elsewhere" / "deep").mkdir(parents=True)
    (source.parent / "elsewhere" / "deep" / "file.txt").write_bytes(b"far")
    (source / "linked").symlink_to("../elsewhere")
    assert "--follow_links" in str(refused(lambda: publish(str(source), str(base))))
    directory = Path(publish(str(source), str(base), follow_links=True).path)
    assert (directory / "linked" / "deep" / "file.txt").read_bytes() == b"far"


@pytest.mark.parametrize("links", [{"up": ".."}, {"self": "."}, {"assets/x": "../other", "other/y": "../assets"}])
def test_links_in_a_circle_are_refused(source: Path, base: Path, links: dict[str, str]) -> None:
    (source / "other").mkdir()
    for name, target in links.items():
        (source / name).symlink_to(target)
    assert "holds it" in str(refused(lambda: publish(str(source), str(base), follow_links=True)))


@pytest.mark.parametrize("target", ["missing", "/dev/null", "link"])
def test_links_to_nothing_to_a_device_or_to_themselves_are_refused_with_the_option_too(
    source: Path, base: Path, target: str
) -> None:
    (source / "link").symlink_to(target)
    message = str(refused(lambda: publish(str(source), str(base), follow_links=True)))
    assert message.startswith("link is")
    assert "--follow_links" not in message


# Source and base path in one another.


def test_a_base_path_is_not_published_into_itself(source: Path, base: Path) -> None:
    publish(str(source), str(base))
    for outer in (base, base.parent, base / "..", base / "1" / ".."):
        message = str(refused(lambda outer=outer: publish(str(outer), str(base))))
        assert "every version in it would be copied into the new one" in message
    link = base.parent / "link"
    link.symlink_to(base)
    assert "would be copied" in str(refused(lambda: publish(str(link), str(base))))
    assert os.listdir(base) == ["1"]


# What publications leave behind.

_STAGES = """
import os, signal, sys, time
# A shell in the background may have had them ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from tfs_lite.core.publish import staging_directory
with staging_directory(sys.argv[1]) as staging:
    open(os.path.join(staging, "half"), "wb").write(b"half")
    print(staging, flush=True)
    time.sleep(120)
"""


def staging_process(base: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that is in the middle of a publication, and its hidden directory."""
    process = subprocess.Popen([sys.executable, "-c", _STAGES, str(base)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def age(directory: Path, seconds: float) -> None:
    for path in (*directory.rglob("*"), directory):
        then = directory.parent.stat().st_mtime - seconds
        os.utime(path, (then, then))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_publication_that_a_signal_ends_leaves_nothing_behind(base: Path, number: signal.Signals) -> None:
    process, staging = staging_process(base)
    with process:
        assert staging.is_dir()
        process.send_signal(number)
        process.communicate()
    assert process.returncode == -number
    assert os.listdir(base) == []


def test_what_a_killed_publication_has_left_is_removed_by_the_next_one_after_an_hour(
    source: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process, staging = staging_process(base)
    with process:
        process.kill()
        process.communicate()
    age(staging, LEFTOVER_SECONDS - 60)
    publish(str(source), str(base))
    assert staging.is_dir()
    age(staging, LEFTOVER_SECONDS + 60)
    assert leftovers(str(base), base.stat().st_mtime) == [staging.name]
    publish(str(source), str(base))
    assert sorted(os.listdir(base)) == ["1", "2"]
    assert f"removed {staging.name}, which a publication that did not end has left" in caplog.text


def test_a_publication_in_progress_is_never_removed_however_old_its_files_are(source: Path, base: Path) -> None:
    process, staging = staging_process(base)
    with process:
        age(staging, 100 * LEFTOVER_SECONDS)
        publish(str(source), str(base))
        assert (staging / "half").read_bytes() == b"half"
        process.terminate()
        process.communicate()
    assert os.listdir(base) == ["1"]


def test_without_locks_a_sign_of_life_in_the_directory_or_its_files_counts(
    source: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, "no locks on this disk")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    staging = base / f"{HIDDEN_PREFIX}next-0123456789ab"
    staging.mkdir(parents=True)
    (staging / "model.pt2").write_bytes(b"half")
    age(staging, 2 * LEFTOVER_SECONDS)
    os.utime(staging / "model.pt2")
    publish(str(source), str(base))
    assert staging.is_dir()
    age(staging, 2 * LEFTOVER_SECONDS)
    publish(str(source), str(base))
    assert not staging.exists()


def test_a_long_publication_shows_that_it_is_alive(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfs_lite.core.publish._BEAT_SECONDS", 0.01)
    with staging_directory(str(base)) as staging:
        age(Path(staging), 2 * LEFTOVER_SECONDS)
        then = os.stat(staging).st_mtime
        wait_until(lambda: os.stat(staging).st_mtime > then + LEFTOVER_SECONDS, "a sign of life")


def test_the_handlers_of_signals_are_as_before_after_a_publication(source: Path, base: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    publish(str(source), str(base))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
