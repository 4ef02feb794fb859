"""Puts a finished version into a base path in one step, so that no reader ever sees half of it.

    with staging_directory(base) as staging:      # a hidden sibling of the versions
        ... write the files of the version into it ...
        published = commit(staging, base)         # manifest, fsync, rename to BASE/<version>

:func:`publish` does that for files that already exist. A caller that writes artefacts itself (``save``) uses the two
steps directly and so writes the data once. Nothing here overwrites a version. A process that is ended by a signal
removes its hidden directory; one that is killed leaves it behind. Scans ignore it, and the next publication to that
base path removes it once it has not changed for an hour.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from types import FrameType
from typing import BinaryIO, TypeAlias

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile, file_stamp, is_litter, sha256_of
from tfs_lite.core.servable import MAX_VERSION, parse_version
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument, not_found

OnProgress: TypeAlias = Callable[[str, int, int], None]
"""Called often: what is done (``copying``, ``hashing``, ``uploading``), how many bytes of it are done, and how many
there are."""

HIDDEN_PREFIX = ".publish-"
LEFTOVER_SECONDS = 3600.0
"""The age after which a hidden copy that no process writes to counts as left by a process that is gone."""
FOLLOW_LINKS = "--follow_links"
"""The option of ``tfs-lite publish`` that refusals name."""
_BEAT_SECONDS = 60.0
"""The seconds between two signs of life in the directory of a publication, in which no file may change for hours."""
MAX_RACES = 100
_CHUNK = 1 << 20
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.ENOSYS, errno.EISDIR})
"""Errors of file systems that cannot bring a directory to the disk by itself, such as CIFS and some of FUSE."""
_FATAL = (signal.SIGTERM, signal.SIGHUP)
_FULL = "make room on that disk, then publish again"
_ADVICE = {
    errno.ENOSPC: (StatusCode.RESOURCE_EXHAUSTED, _FULL),
    errno.EDQUOT: (StatusCode.RESOURCE_EXHAUSTED, _FULL),
    errno.EFBIG: (StatusCode.RESOURCE_EXHAUSTED, "that disk takes no file of this size"),
    errno.EROFS: (StatusCode.FAILED_PRECONDITION, "that disk is mounted read-only: publish where it can be written"),
    errno.EACCES: (StatusCode.PERMISSION_DENIED, "let this user read the source and write to the base path"),
    errno.EPERM: (StatusCode.PERMISSION_DENIED, "let this user read the source and write to the base path"),
    errno.ENOENT: (StatusCode.ABORTED, "it was removed meanwhile: publish again when nothing else changes it"),
    errno.EIO: (StatusCode.UNAVAILABLE, "that disk has errors: look at the system's log, then publish again"),
    errno.ESTALE: (StatusCode.UNAVAILABLE, "the file server has lost it: publish again"),
    errno.ENAMETOOLONG: (StatusCode.INVALID_ARGUMENT, "that disk takes no name of this length"),
    errno.ELOOP: (StatusCode.FAILED_PRECONDITION, "its links lead in a circle"),
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """A version that is complete and visible, and the path of its directory."""

    version: int
    path: str


def publish(
    source: str, base: str, version: int | None = None, on_progress: OnProgress = ignore, *, follow_links: bool = False
) -> Published:
    """Copies ``source`` to ``base/<version>``; without a version, to the highest one there plus 1. ``on_progress`` is
    called on this thread. ``follow_links``: what links point to is copied too, wherever it is.

    A directory is copied with everything in it, litter aside; a single file is stored as ``model`` plus its suffix, the
    name under which platforms look for it. Errors: NOT_FOUND (no source), FAILED_PRECONDITION (source empty, not a
    plain file, with a link that leaves it, or with the base path in it), ALREADY_EXISTS (that version is there),
    ABORTED (source changed meanwhile), and those of :func:`staging_directory`.
    """
    with advised(base):
        files = files_of(source, follow_links)
        _refuse_base_inside(source, base)
    with staging_directory(base, version) as staging:
        copied = Counter("copying", sum(map(os.path.getsize, files.values())), on_progress)
        for relative, origin in sorted(files.items()):
            _copy(origin, os.path.join(staging, relative), relative, copied.add)
        return commit(staging, base, version, on_progress)


@contextlib.contextmanager
def staging_directory(base: str, version: int | None = None) -> Iterator[str]:
    """A new hidden directory inside ``base``, which is made if needed. Removed at the end unless it was committed, also
    if a signal ends the process. Removes what earlier publications have left in ``base``.

    A version that cannot be committed later is refused at once, with the errors of :func:`commit`. An OSError of the
    block becomes a ServingError that names the file and the next step: RESOURCE_EXHAUSTED (the disk is full),
    PERMISSION_DENIED, FAILED_PRECONDITION, or UNAVAILABLE.
    """
    with advised(base):
        os.makedirs(base, exist_ok=True)
        next_version(os.listdir(base), version)
        label = "next" if version is None else str(version)
        staging = os.path.join(base, f"{HIDDEN_PREFIX}{label}-{secrets.token_hex(6)}")
        os.mkdir(staging)
        with _removed_at_the_end(staging), _alive(staging):
            _remove_leftovers(base, os.stat(staging).st_mtime)
            yield staging


def leftovers(base: str, now: float) -> list[str]:
    """The hidden copies in ``base`` that processes have left which are gone. ``now``: seconds since 1970 by the clock
    of its disk. A copy that is being made is locked, or was written to in the last hour."""
    with os.scandir(base) as children:
        names = [child.name for child in children if child.name.startswith(HIDDEN_PREFIX)]
    return sorted(name for name in names if _is_left(os.path.join(base, name), now))


def commit(staging: str, base: str, version: int | None = None, on_progress: OnProgress = ignore) -> Published:
    """Writes the manifest, brings everything to the disk and renames ``staging`` to its version.

    When others publish at the same time and ``version`` is None, the loser takes the next number. Errors:
    FAILED_PRECONDITION (nothing was staged), INVALID_ARGUMENT (no such version can be), ALREADY_EXISTS.
    """
    _write_manifest(staging, on_progress)
    _sync_directories(staging)
    for _ in range(MAX_RACES):
        number = next_version(os.listdir(base), version)
        path = os.path.join(base, str(number))
        if _rename_to_new(staging, path):
            try:
                sync_directory(base)
            except OSError as error:  # it is there: a publisher that is told of a failure would publish it twice
                logger.warning("%s was not synced (%s): a loss of power now may take the version", path, error)
            return Published(number, path)
    raise too_many_races()


@contextlib.contextmanager
def fatal_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """For the time of the block, the handler gets the signals that would end the process at once. Elsewhere than on the
    main thread, and for those that have a handler already, nothing changes."""
    in_main = threading.current_thread() is threading.main_thread()  # others may not set handlers
    taken = [number for number in _FATAL if in_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _removed_at_the_end(staging: str) -> Iterator[None]:
    """Removes the directory after the block, and before a signal ends the process that would end it at once."""

    def end(number: int, frame: FrameType | None) -> None:
        shutil.rmtree(staging, ignore_errors=True)
        end_by(number)

    with fatal_signals(end):
        try:
            yield
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def end_by(number: int) -> None:
    """Ends this process by the signal, as if it had no handler."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def _alive(staging: str) -> Iterator[None]:
    """Shows others for the time of the block that the directory is in use: by a lock, where the disk has them, and by
    its time, for those on other machines."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):  # it was committed, or the disk does not answer
                os.utime(staging)

    thread = threading.Thread(target=beat, name="tfs-publish", daemon=True)
    thread.start()
    descriptor = os.open(staging, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
        done.set()


def _is_left(directory: str, now: float) -> bool:
    """False where that cannot be told."""
    try:
        newest = max(os.lstat(path).st_mtime for path in _all_below(directory))
        return now - newest >= LEFTOVER_SECONDS and not _is_locked(directory)
    except (OSError, ValueError):
        return False


def _all_below(directory: str) -> Iterator[str]:
    for folder, _, names in os.walk(directory):
        yield folder
        yield from (os.path.join(folder, name) for name in names)


def _is_locked(directory: str) -> bool:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # such disks tell by the time alone
    finally:
        os.close(descriptor)
    return False


def _remove_leftovers(base: str, now: float) -> None:
    for name in leftovers(base, now):
        shutil.rmtree(os.path.join(base, name), ignore_errors=True)
        logger.warning("removed %s, which a publication that did not end has left in %s", name, base)


@contextlib.contextmanager
def advised(base: str) -> Iterator[None]:
    """An OSError of the block becomes a ServingError that names the file and the next step."""
    try:
        yield
    except BrokenPipeError:
        raise  # the error of the reader of the progress
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code, advice = _ADVICE.get(error.errno or 0, (StatusCode.UNAVAILABLE, "nothing was published"))
        reason = error.strerror or type(error).__name__
        raise ServingError(code, f"publishing to {base} failed: {where}{reason}; {advice}") from error


def _refuse_base_inside(source: str, base: str) -> None:
    """A version of the base path may be published again; the base path itself, or what holds it, may not."""
    root, target = os.path.realpath(source), os.path.realpath(base)
    if os.path.isdir(root) and os.path.commonpath([root, target]) == root:
        is_in = "is" if root == target else "lies in"
        raise failed_precondition(
            f"the base path {base!r} {is_in} the source {source!r}: every version in it would be copied into the new "
            "one; publish the directory that holds the files of one version"
        )


class Counter:
    """Adds up the bytes of one phase and tells of them; bytes that have to be done again are taken away."""

    def __init__(self, phase: str, expected: int, on_progress: OnProgress) -> None:
        self._phase, self._expected, self._on_progress = phase, expected, on_progress
        self._done = 0
        on_progress(phase, 0, expected)

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        self._on_progress(self._phase, self._done, self._expected)


def files_of(source: str, follow_links: bool) -> dict[str, str]:
    """Path inside the version -> path of the original. NOT_FOUND, FAILED_PRECONDITION (nothing that can be published),
    or an OSError."""
    if os.path.isfile(source):
        return {"model" + os.path.splitext(source)[1]: source}
    if not os.path.isdir(source):
        raise not_found(f"source {source!r}: expected a file or a directory, found neither")
    root = os.path.realpath(source)
    files: dict[str, str] = {}
    for directory, subdirectories, names in os.walk(root, onerror=_raise, followlinks=follow_links):
        subdirectories[:] = [name for name in subdirectories if not is_litter(name)]
        for name in subdirectories:
            _check_directory(root, directory, name, follow_links)
        for name in names:
            if is_litter(name):
                continue
            path = os.path.join(directory, name)
            _check_file(root, directory, name, follow_links)
            files[os.path.relpath(path, root).replace(os.sep, "/")] = path
    files.pop(MANIFEST_NAME, None)
    if not files:
        raise failed_precondition(f"source {source!r}: expected at least one file, it is empty")
    return files


def _check_directory(root: str, directory: str, name: str, follow_links: bool) -> None:
    path = os.path.join(directory, name)
    if not os.path.islink(path):
        return
    if not follow_links:
        raise _refuse(root, directory, name, "a link to a directory", leads_on=True)
    above, target = {root}, os.path.realpath(path)
    while directory != root:
        above.add(os.path.realpath(directory))
        directory = os.path.dirname(directory)
    if target in above or os.path.commonpath([target, root]) == target:
        raise _refuse(root, os.path.dirname(path), name, "a link to a directory that holds it")


def _check_file(root: str, directory: str, name: str, follow_links: bool) -> None:
    target = os.path.realpath(os.path.join(directory, name))
    if not os.path.exists(target):
        raise _refuse(root, directory, name, "a broken link")
    if not follow_links and os.path.commonpath([root, target]) != root:
        raise _refuse(root, directory, name, "a link that leaves the source", leads_on=True)
    if not os.path.isfile(target):
        raise _refuse(root, directory, name, "not a plain file")


def _refuse(root: str, directory: str, name: str, what: str, leads_on: bool = False) -> ServingError:
    path = os.path.relpath(os.path.join(directory, name), root)
    return failed_precondition(f"{path} is {what}" + (f"; {FOLLOW_LINKS} copies what it points to" if leads_on else ""))


def _raise(error: OSError) -> None:
    raise error


def _copy(origin: str, target: str, relative: str, on_copied: Callable[[int], None]) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    before = os.stat(origin)
    is_sparse = before.st_blocks * 512 < before.st_size
    with open(origin, "rb") as source, _named(target), open(target, "wb", buffering=0) as copy:
        while chunk := source.read(_CHUNK):
            if is_sparse and not chunk.lstrip(b"\0"):
                copy.truncate(copy.seek(len(chunk), os.SEEK_CUR))
            else:
                _write_all(copy, chunk)
            on_copied(len(chunk))
    check_unchanged(relative, before, os.stat(origin), "copied")


def check_unchanged(relative: str, before: os.stat_result, after: os.stat_result, what: str) -> None:
    """ABORTED if the file of the source was changed while it was ``what``."""
    if (before.st_size, before.st_mtime_ns, before.st_ino) != (after.st_size, after.st_mtime_ns, after.st_ino):
        raise ServingError(StatusCode.ABORTED, f"{relative} changed while it was {what}")


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """An OSError of the block that names no file names this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def _write_manifest(staging: str, on_progress: OnProgress) -> None:
    paths = [
        os.path.join(directory, name) for directory, _, names in os.walk(staging, onerror=_raise) for name in names
    ]
    hashed = Counter("hashing", sum(map(os.path.getsize, paths)), on_progress)
    files = {os.path.relpath(path, staging).replace(os.sep, "/"): _synced_entry(path, hashed.add) for path in paths}
    files.pop(MANIFEST_NAME, None)
    if not files:
        raise failed_precondition("nothing to publish: no file was written")
    path = os.path.join(staging, MANIFEST_NAME)
    with _named(path), open(path, "wb") as file:
        file.write(Manifest(files).to_bytes())
        sync_file(file)


def _synced_entry(path: str, on_read: Callable[[int], None]) -> ManifestFile:
    with _named(path), open(path, "rb") as file:
        sync_file(file)
        digest = sha256_of(file, on_read=on_read)
        status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise failed_precondition(f"{os.path.basename(path)} is not a plain file")
    return ManifestFile(status.st_size, digest, file_stamp(status.st_ino, status.st_ctime_ns))


def _sync_directories(root: str) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        sync_directory(directory)


def sync_file(file: BinaryIO) -> None:
    """Brings a file to the disk. Where the disk cannot do that, a loss of power may take the contents: that is logged,
    and a manifest shows it."""
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
        logger.warning("%s was not synced, its disk cannot do that: a loss of power now may damage it", file.name)


def sync_directory(directory: str) -> None:
    """Brings a directory to the disk. Where the disk cannot do that, a loss of power may take what was renamed in it as
    a whole, and no part of it."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            error.filename = error.filename or directory
            raise


def next_version(names: Iterable[str], version: int | None = None) -> int:
    """The number to publish as: ``version``, or the highest one of the names in the base path plus 1. INVALID_ARGUMENT
    (no such version can be), ALREADY_EXISTS, FAILED_PRECONDITION (there is no higher number)."""
    if version is not None and not 0 <= version <= MAX_VERSION:
        raise invalid_argument(f"version {version}: expected a number in 0..2^63-1")
    taken = [number for name in names if (number := parse_version(name)) is not None]
    if version in taken:
        raise already_exists(version)
    if version is not None:
        return version
    if max(taken, default=0) == MAX_VERSION:
        raise failed_precondition(f"version {MAX_VERSION} exists: there is no higher number")
    return max(taken, default=0) + 1


def too_many_races() -> ServingError:
    return ServingError(StatusCode.ABORTED, f"{MAX_RACES} version numbers in a row were taken by other publishers")


def already_exists(version: int | None) -> ServingError:
    return ServingError(StatusCode.ALREADY_EXISTS, f"version {version} exists and is never overwritten")


def _rename_to_new(staging: str, path: str) -> bool:
    """False when something of that name has appeared meanwhile. A published version is never an empty directory,
    which is all that renaming a directory could replace."""
    try:
        os.rename(staging, path)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True
