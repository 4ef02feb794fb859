"""The files of a request log: their names, how they grow, and how they end.

    PREFIX.<yyyymmdd-hhmmss, UTC>.<process>.<number>.tfrecord          finished: whole, and never touched again
    PREFIX.<yyyymmdd-hhmmss, UTC>.<process>.<number>.tfrecord.open     being written

A file belongs to whoever holds its lock (``flock``), so no two servers ever write into one, also when they share the
prefix. The system drops the lock of a process that dies: the next server with that prefix finds the file unlocked, cuts
it behind its last whole record and finishes it. Only names of exactly this form are ever looked at, renamed or deleted.
All functions block on the disk and raise its OSError.
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
"""Records hold what clients sent: not for everyone on the machine."""
REST_SECONDS = 0.0001
RECORDS_BETWEEN_RESTS = 64
_MAX_TRIES = 1000
_ANY_RECORD = 2**31


def rest() -> None:
    """Lets other threads have the interpreter lock. Without a true pause a busy thread gives it away only every 5 ms,
    and each request would wait that long."""
    time.sleep(REST_SECONDS)


class LogFile:
    """A file that is being written. ``size`` is the length of what is known to be whole, in bytes. One thread."""

    def __init__(self, descriptor: int, path: str, number: int) -> None:
        self.path = path
        self.number = number
        self.size = 0
        self._descriptor = descriptor

    @property
    def removed(self) -> bool:
        """Somebody deleted it; what is written into it is lost."""
        return os.fstat(self._descriptor).st_nlink == 0

    def append(self, data: bytes) -> None:
        """Whole records. After an error only :meth:`finish` and :meth:`abandon` make sense."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.size += len(data)

    def finish(self) -> None:
        """Cuts off what is not whole and gives the file its final name; an empty file goes. When that fails, it stays
        for the next server to finish."""
        try:
            os.ftruncate(self._descriptor, self.size)
            _settle(self.path, self.size)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes it as it is."""
        os.close(self._descriptor)


def create(prefix: str, seconds: float, number: int) -> LogFile:
    """A new, locked, empty file for the time ``seconds`` since the epoch. Its number is the next free one from
    ``number`` on."""
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
    """Finishes what servers that died have left behind. A file that resists stays as it is."""
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
                if number % RECORDS_BETWEEN_RESTS == 0:
                    rest()
        os.ftruncate(descriptor, size)
        _settle(path, size)


def _owned(descriptor: int, path: str, lock_needed: bool) -> bool:
    """Whether we have the lock of the file, and it still has that name. A file system may know no locks: a file that
    we made ourselves is ours all the same, another is not."""
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


def _settle(path: str, size: int) -> None:
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
