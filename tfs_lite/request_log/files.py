"""The files of a request log: their names, how they grow, and how they end.

    PREFIX.<yyyymmdd-hhmmss, UTC>.<process>.<number>.tfrecord          finished: complete, never changed again
    PREFIX.<yyyymmdd-hhmmss, UTC>.<process>.<number>.tfrecord.open     being written

A file belongs to the process that holds its lock (``flock``), so that two servers with one prefix never write into the
same file. The system drops the lock of a process that dies: the next server with that prefix finds the file unlocked,
truncates it behind its last complete record and finishes it. Only names of exactly this form are read, renamed or
deleted. All functions block on the disk and raise its OSError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time

from tfs_lite.core.status import ServingError
from tfs_lite.protocols.tfrecord import FOOTER_BYTES, HEADER_BYTES, read_records

FINISHED = ".tfrecord"
OPEN = ".tfrecord.open"
MODE = 0o640
"""Records hold data of clients, so that other users of the machine may not read them."""
PAUSE_SECONDS = 0.0001
RECORDS_BETWEEN_PAUSES = 64
_MAX_TRIES = 1000
_ANY_RECORD = 2**31


def pause() -> None:
    """Yields the interpreter lock. Without a sleep a busy thread releases it only every 5 ms, and each request would
    wait that long."""
    time.sleep(PAUSE_SECONDS)


class LogFile:
    """A file that is being written. ``size`` is the length of its complete records, in bytes. One thread."""

    def __init__(self, descriptor: int, path: str, number: int) -> None:
        self.path = path
        self.number = number
        self.size = 0
        self._descriptor = descriptor

    @property
    def removed(self) -> bool:
        """Whether the file was deleted, so that records written to it are lost."""
        return os.fstat(self._descriptor).st_nlink == 0

    def append(self, data: bytes) -> None:
        """Writes complete records. After an error only :meth:`finish` and :meth:`abandon` may be called."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.size += len(data)

    def finish(self) -> None:
        """Truncates an incomplete record and gives the file its final name; an empty file is deleted. A file for which
        that fails is finished by the next server."""
        try:
            os.ftruncate(self._descriptor, self.size)
            _rename_final(self.path, self.size)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the file as it is."""
        os.close(self._descriptor)


def create(prefix: str, seconds: float, number: int) -> LogFile:
    """Makes a locked, empty file for the time ``seconds`` since the epoch, with the next free number from ``number``
    on."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds))
    for tried in range(number, number + _MAX_TRIES):
        path = f"{prefix}.{stamp}.{os.getpid()}.{tried:04d}{OPEN}"
        descriptor = _create(path)
        if descriptor is not None:
            return LogFile(descriptor, path, tried)
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), prefix)


def finished(prefix: str) -> list[str]:
    """The paths of all finished files, the oldest first."""
    return _list(prefix, FINISHED)


def prune(prefix: str, keep: int) -> None:
    """Deletes the oldest finished files until at most ``keep`` are left."""
    for path in finished(prefix)[: -keep or None]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def recover(prefix: str) -> None:
    """Finishes the open files of servers that died. A file for which that fails stays as it is."""
    for path in _list(prefix, OPEN):
        with contextlib.suppress(OSError):
            _take_over(path)


def _create(path: str) -> int | None:
    """The descriptor; None if the name is taken."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, MODE)
    except FileExistsError:
        return None
    if _owned(descriptor, path, lock_needed=False):
        if not os.path.lexists(_final(path)):
            return descriptor
        os.unlink(path)
    os.close(descriptor)
    return None


def _take_over(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "r+b") as file:
        if not _owned(descriptor, path, lock_needed=True) or os.path.lexists(_final(path)):
            return
        size = 0
        with contextlib.suppress(ServingError):
            for number, record in enumerate(read_records(file, _ANY_RECORD)):
                size += HEADER_BYTES + len(record) + FOOTER_BYTES
                if number % RECORDS_BETWEEN_PAUSES == 0:
                    pause()
        os.ftruncate(descriptor, size)
        _rename_final(path, size)


def _owned(descriptor: int, path: str, lock_needed: bool) -> bool:
    """Whether this process has the lock of the file, and the file still has that name. On a file system without locks
    only a file that this process has made counts as locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if lock_needed:
            return False
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _rename_final(path: str, size: int) -> None:
    if size:
        os.rename(path, _final(path))
    else:
        os.unlink(path)


def _final(path: str) -> str:
    return path.removesuffix(OPEN) + FINISHED


def _list(prefix: str, suffix: str) -> list[str]:
    directory, name = os.path.split(prefix)
    pattern = re.compile(rf"{re.escape(name)}\.(\d{{8}}-\d{{6}})\.\d+\.(\d+){re.escape(suffix)}", re.ASCII)
    found: list[tuple[str, int, str]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                found.append((match[1], int(match[2]), entry.path))
    return [path for _, _, path in sorted(found)]
