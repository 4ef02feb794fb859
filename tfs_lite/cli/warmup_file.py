"""The warm-up file that ``tfs-lite record`` writes: where it lies, what is in it, and how records are added.

A file is replaced as a whole: whoever reads it sees it as it was or with everything that was added.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfs_lite.cli.output import CliError
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.tensorflow.prediction_log import (
    MAX_LOG_BYTES,
    MAX_WARMUP_RECORDS,
    WARMUP_DIRECTORY,
    WARMUP_FILE,
)
from tfs_lite.protocols.tfrecord import read_records, write_record


def locate(out: str) -> Path:
    """The file that ``out`` means: itself, or the warm-up file of the version if it is a directory.

    CliError for what must not be written: files of a published version, which a manifest describes, links, and what is
    no file.
    """
    path = Path(out)
    if path.is_dir():
        path = path / WARMUP_FILE
    for directory in list(path.absolute().parents)[:2]:
        if (directory / MANIFEST_NAME).exists():
            raise CliError(
                f"{directory} is a published version, which never changes: record into the directory that you "
                "publish from, then publish it"
            )
    if path.is_symlink() or (_in_assets(path) and path.parent.is_symlink()):
        raise CliError(f"{path} is behind a link, which servers refuse as a warm-up file; name the file itself")
    if path.exists() and not path.is_file():
        raise CliError(f"{path} is no plain file")
    return path


def records_of(path: Path) -> Iterator[bytes]:
    """The records of a file, none if there is no file. The errors of ``read_records``, with the file's name."""
    if not path.exists():
        return
    with path.open("rb") as file:
        try:
            yield from read_records(file, MAX_LOG_BYTES)
        except ServingError as error:
            raise ServingError(error.code, f"{path}: {error}") from None


def count_records(path: Path, room_for: int) -> int:
    """How many records the file has. CliError if there is no room for so many more, the errors of ``read_records`` if
    it cannot be read."""
    count = sum(1 for _ in records_of(path))
    if count + room_for > MAX_WARMUP_RECORDS:
        raise CliError(
            f"{path} has {count} records and {room_for} more were given; servers take at most {MAX_WARMUP_RECORDS}"
        )
    return count


def append(path: Path, added: Iterable[bytes]) -> int:
    """Adds records to the file, all of them or, when anything is raised, none; returns how many there were. With none
    to add, nothing is touched. ``assets.extra`` is made if it is missing."""
    if _in_assets(path):
        path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    count = 0
    try:
        with temporary.open("xb") as file:
            for data in records_of(path):
                write_record(file, data)
            for data in added:
                write_record(file, data)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        if count:
            temporary.replace(path)
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _in_assets(path: Path) -> bool:
    return path.parent.name == WARMUP_DIRECTORY


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
