"""Puts a finished version into a base path in one step, so that no reader ever sees half of it.

    with staging_directory(base) as staging:      # a hidden sibling of the versions
        ... write the files of the version into it ...
        published = commit(staging, base)         # manifest, fsync, rename to BASE/<version>

:func:`publish` does that for files that already exist. A caller that writes artefacts itself (``save``) uses the
two steps directly and so writes the data once. Nothing here overwrites a version, and a process that dies in between
leaves only a hidden directory, which scans ignore.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestFile,
    file_stamp,
    is_litter,
    parse_version,
    sha256_of,
)
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument, not_found

OnProgress: TypeAlias = Callable[[str, int, int], None]
"""Called often: what is done (``copying``, ``hashing``), how many bytes of it are done, and how many there are."""

HIDDEN_PREFIX = ".publish-"
_MAX_RACES = 100
_CHUNK = 1 << 20
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class Published:
    """A version that is complete and visible, and the path of its directory."""

    version: int
    path: str


def publish(source: str, base: str, version: int | None = None, on_progress: OnProgress = ignore) -> Published:
    """Copies ``source`` to ``base/<version>``; without a version, to the highest one there plus 1. ``on_progress`` is
    called on this thread.

    A directory is copied with everything in it, litter aside; a single file is stored as ``model`` plus its suffix, the
    name under which platforms look for it. Errors: NOT_FOUND (no source), FAILED_PRECONDITION (source empty, not a
    plain file, or with a link that leaves it), ALREADY_EXISTS (that version is there), ABORTED (source changed
    meanwhile); OSError when the disk refuses.
    """
    files = _files_of(source)
    with staging_directory(base, version) as staging:
        copied = _Counter("copying", sum(map(os.path.getsize, files.values())), on_progress)
        for relative, origin in sorted(files.items()):
            _copy(origin, os.path.join(staging, relative), relative, copied.add)
        return commit(staging, base, version, on_progress)


@contextlib.contextmanager
def staging_directory(base: str, version: int | None = None) -> Iterator[str]:
    """A new hidden directory inside ``base``, which is made if needed. Removed at the end unless it was committed.

    A version that cannot be committed later is refused at once, with the errors of :func:`commit`.
    """
    os.makedirs(base, exist_ok=True)
    _pick_version(base, version)
    label = "next" if version is None else str(version)
    staging = os.path.join(base, f"{HIDDEN_PREFIX}{label}-{secrets.token_hex(6)}")
    os.mkdir(staging)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def commit(staging: str, base: str, version: int | None = None, on_progress: OnProgress = ignore) -> Published:
    """Writes the manifest, brings everything to the disk and renames ``staging`` to its version.

    When others publish at the same time and ``version`` is None, the loser takes the next number. Errors:
    FAILED_PRECONDITION (nothing was staged), INVALID_ARGUMENT (no such version can be), ALREADY_EXISTS.
    """
    _write_manifest(staging, on_progress)
    _sync_directories(staging)
    for _ in range(_MAX_RACES):
        number = _pick_version(base, version)
        path = os.path.join(base, str(number))
        if _rename_to_new(staging, path):
            _sync(base)
            return Published(number, path)
    raise ServingError(StatusCode.ABORTED, f"{_MAX_RACES} version numbers in a row were taken by other publishers")


class _Counter:
    """Adds up the bytes of one phase and tells of them."""

    def __init__(self, phase: str, expected: int, on_progress: OnProgress) -> None:
        self._phase, self._expected, self._on_progress = phase, expected, on_progress
        self._done = 0
        on_progress(phase, 0, expected)

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        self._on_progress(self._phase, self._done, self._expected)


def _files_of(source: str) -> dict[str, str]:
    """Path inside the version -> path of the original."""
    if os.path.isfile(source):
        return {"model" + os.path.splitext(source)[1]: source}
    if not os.path.isdir(source):
        raise not_found(f"source {source!r}: expected a file or a directory, found neither")
    root = os.path.realpath(source)
    files: dict[str, str] = {}
    for directory, subdirectories, names in os.walk(root, onerror=_raise):
        subdirectories[:] = [name for name in subdirectories if not is_litter(name)]
        for name in subdirectories:
            if os.path.islink(os.path.join(directory, name)):
                raise _refuse(root, directory, name, "a link to a directory")
        for name in names:
            if is_litter(name):
                continue
            path = os.path.join(directory, name)
            _check_file(root, directory, name)
            files[os.path.relpath(path, root).replace(os.sep, "/")] = path
    files.pop(MANIFEST_NAME, None)
    if not files:
        raise failed_precondition(f"source {source!r}: expected at least one file, it is empty")
    return files


def _check_file(root: str, directory: str, name: str) -> None:
    target = os.path.realpath(os.path.join(directory, name))
    if os.path.commonpath([root, target]) != root:
        raise _refuse(root, directory, name, "a link that leaves the source")
    if not os.path.isfile(target):
        raise _refuse(root, directory, name, "a broken link" if not os.path.exists(target) else "not a plain file")


def _refuse(root: str, directory: str, name: str, what: str) -> ServingError:
    return failed_precondition(f"{os.path.relpath(os.path.join(directory, name), root)} is {what}")


def _raise(error: OSError) -> None:
    raise error


def _copy(origin: str, target: str, relative: str, on_copied: Callable[[int], None]) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    before = os.stat(origin)
    with open(origin, "rb") as source, open(target, "wb") as copy:
        while chunk := source.read(_CHUNK):
            copy.write(chunk)
            on_copied(len(chunk))
    after = os.stat(origin)
    if (before.st_size, before.st_mtime_ns, before.st_ino) != (after.st_size, after.st_mtime_ns, after.st_ino):
        raise ServingError(StatusCode.ABORTED, f"{relative} changed while it was copied")


def _write_manifest(staging: str, on_progress: OnProgress) -> None:
    paths = [
        os.path.join(directory, name) for directory, _, names in os.walk(staging, onerror=_raise) for name in names
    ]
    hashed = _Counter("hashing", sum(map(os.path.getsize, paths)), on_progress)
    files = {os.path.relpath(path, staging).replace(os.sep, "/"): _synced_entry(path, hashed.add) for path in paths}
    files.pop(MANIFEST_NAME, None)
    if not files:
        raise failed_precondition("nothing to publish: no file was written")
    with open(os.path.join(staging, MANIFEST_NAME), "wb") as file:
        file.write(Manifest(files).to_bytes())
        file.flush()
        os.fsync(file.fileno())


def _synced_entry(path: str, on_read: Callable[[int], None]) -> ManifestFile:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        digest = sha256_of(file, on_read=on_read)
        status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise failed_precondition(f"{os.path.basename(path)} is not a plain file")
    return ManifestFile(status.st_size, digest, file_stamp(status.st_ino, status.st_ctime_ns))


def _sync_directories(root: str) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        _sync(directory)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pick_version(base: str, version: int | None) -> int:
    """The number to publish as, checked against what is there now."""
    if version is not None and not 0 <= version <= MAX_VERSION:
        raise invalid_argument(f"version {version}: expected a number in 0..2^63-1")
    taken = [number for name in os.listdir(base) if (number := parse_version(name)) is not None]
    if version in taken:
        raise ServingError(StatusCode.ALREADY_EXISTS, f"version {version} exists and is never overwritten")
    if version is not None:
        return version
    if max(taken, default=0) == MAX_VERSION:
        raise failed_precondition(f"version {MAX_VERSION} exists: there is no higher number")
    return max(taken, default=0) + 1


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
