"""The files of recorded requests of a version: TFRecords of ``PredictionLog``, plain files of a bounded size.

Messages name a file by its path inside the version, or by its name where it lies beside the versions.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from tfs_lite.core.manifest import open_unlinked
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.tensorflow.prediction_log import MAX_LOG_BYTES
from tfs_lite.protocols.tfrecord import read_records

MAX_FILE_BYTES = 4 << 30


def open_records(directory: str, path: str) -> BinaryIO | None:
    """The file at ``path`` in a directory, opened; None if it has none. INVALID_ARGUMENT for a link, also as the folder
    that the path names, for anything but a plain file, or a file that is too large; UNAVAILABLE if it cannot be
    read."""
    place, folder = os.path.join(directory, path), os.path.dirname(path)
    try:
        if folder and os.path.islink(os.path.dirname(place)):
            raise _unfit(path, f"{folder} is a link")
        _check(path, os.lstat(place))
        file = open(place, "rb", opener=open_unlinked)  # noqa: SIM115 - the caller closes it
        try:
            _check(path, os.fstat(file.fileno()))
        except BaseException:
            file.close()
            raise
        return file
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from None


def records_of(file: BinaryIO, path: str, hint: str = "") -> Iterator[bytes]:
    """The records. DATA_LOSS, with the ``hint``, if the file is damaged or none of records; INVALID_ARGUMENT for a
    record that is too large; UNAVAILABLE if it cannot be read."""
    try:
        yield from read_records(file, MAX_LOG_BYTES)
    except ServingError as error:
        advice = hint if error.code is StatusCode.DATA_LOSS else ""
        raise ServingError(error.code, f"{path}: {error}{advice}") from None
    except OSError as error:
        raise _unreadable(path, error) from None


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Puts ``what`` failed in front of an error's message."""
    try:
        yield
    except ServingError as error:
        raise ServingError(error.code, f"{what}: {error}") from None


def _check(path: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _unfit(path, "it is a link")
    if not stat.S_ISREG(status.st_mode):
        raise _unfit(path, "it is no file but something else")
    if status.st_size > MAX_FILE_BYTES:
        raise _unfit(path, f"it has {status.st_size} bytes, at most {MAX_FILE_BYTES} are allowed")


def _unfit(path: str, reason: str) -> ServingError:
    where = "of the version" if os.path.dirname(path) else "beside the versions"
    return invalid_argument(f"{path} has to be a plain file {where}: {reason}")


def _unreadable(path: str, error: OSError) -> ServingError:
    return ServingError(StatusCode.UNAVAILABLE, f"{path} cannot be read: {error.strerror}")
