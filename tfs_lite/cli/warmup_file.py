"""The warm-up file that ``tfs-lite record`` writes, and the records of request logs that go into it.

The file is replaced as a whole: a reader sees either the old records or all of the new ones. A request log has what
clients sent, perhaps for several models, and the same request many times. Each request is copied once, without the
metadata of its logging.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfs_lite.cli.output import CliError
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.publish import sync_directory, sync_file
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.prediction_log import (
    MAX_LOG_BYTES,
    MAX_WARMUP_RECORDS,
    WARMUP_DIRECTORY,
    WARMUP_FILE,
    LoggedRequest,
    logged_request,
    parse_log,
)
from tfs_lite.protocols.tfrecord import read_records, write_record


def locate(out: str) -> Path:
    """The file ``out``, or the warm-up file of the version if it is a directory.

    CliError for files of a published version, which a manifest describes, links, and other things than files.
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
    """The records of a file; none if it is missing. Errors as those of ``read_records``, with the file's name."""
    if not path.exists():
        return
    with path.open("rb") as file:
        try:
            yield from read_records(file, MAX_LOG_BYTES)
        except ServingError as error:
            raise ServingError(error.code, f"{path}: {error}") from None


def count_records(path: Path, room_for: int) -> int:
    """The number of records in the file. CliError if there is no room for so many more; otherwise errors as those of
    ``read_records``."""
    count = sum(1 for _ in records_of(path))
    if count + room_for > MAX_WARMUP_RECORDS:
        raise CliError(
            f"{path} has {count} records and {room_for} more were given; servers take at most {MAX_WARMUP_RECORDS}"
        )
    return count


def append(path: Path, added: Iterable[bytes]) -> int:
    """Adds all records to the file, or none if anything is raised; returns their number. Without records the file is
    not changed. Makes ``assets.extra`` if it is missing."""
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
            sync_file(file)
        if count:
            temporary.replace(path)
            sync_directory(str(path.parent))
    finally:
        temporary.unlink(missing_ok=True)
    return count


class LogCopy:
    """Selects records of request logs for the file ``path``, and counts those it skips. ``before`` is the number of
    records that the file has now. Errors as those of ``read_records`` and ``parse_log``, with the name of the file."""

    def __init__(self, path: Path, model: str, limit: int | None) -> None:
        """An empty ``model`` means all models; without ``limit`` the file is filled up to the limit of servers."""
        self._model = model
        here = [_digest(_request(log)) for log in _logs(path)]
        self._seen = set(here)
        self.before = len(here)
        room = MAX_WARMUP_RECORDS - self.before
        self._room = room if limit is None else min(room, limit)
        self.duplicates = self.other_models = self.unsupported = 0
        self.more = False

    def records(self, files: Iterable[Path]) -> Iterator[bytes]:
        """The records to add, read one by one. Sets ``more`` and ends early when the limit is reached."""
        for file in files:
            if not file.is_file():
                raise ServingError(StatusCode.NOT_FOUND, f"{file}: there is no such file")
            for log in _logs(file):
                if not self._wanted(_request(log)):
                    continue
                if self._room <= 0:
                    self.more = True
                    return
                self._room -= 1
                log.ClearField("log_metadata")
                yield log.SerializeToString()

    def _wanted(self, request: LoggedRequest | None) -> bool:
        if request is None:
            self.unsupported += 1
        elif self._model and request.model_names != {self._model}:
            self.other_models += 1
        elif (digest := _digest(request)) in self._seen:
            self.duplicates += 1
        else:
            self._seen.add(digest)
            return True
        return False


def _in_assets(path: Path) -> bool:
    return path.parent.name == WARMUP_DIRECTORY


def _logs(path: Path) -> Iterator[Message]:
    for number, data in enumerate(records_of(path), 1):
        try:
            yield parse_log(data)
        except ServingError as error:
            raise ServingError(error.code, f"{path}: record {number}: {error}") from None


def _request(log: Message) -> LoggedRequest | None:
    """The logged request; None if warm-up cannot run it: a stream, a session, or no request."""
    try:
        return logged_request(log)
    except ServingError:
        return None


def _digest(request: LoggedRequest | None) -> bytes:
    """A digest that is equal for equal requests; empty for None."""
    if request is None:
        return b""
    text = request.message.SerializeToString(deterministic=True)
    return hashlib.sha256(request.method.value.encode() + b"\0" + text).digest()
