"""Which records of request logs go into a warm-up file.

A log holds what clients sent, the same request many times, perhaps for several models. Each request is taken once,
without the metadata that says when and by whom it was logged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfs_lite.cli.warmup_file import records_of
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.prediction_log import MAX_WARMUP_RECORDS, LoggedRequest, logged_request, parse_log


class LogCopy:
    """Chooses records for ``path``, and counts what it leaves out. ``before`` is the number of records there now.

    Errors while reading: those of ``read_records`` and ``parse_log``, with the name of the file.
    """

    def __init__(self, path: Path, model: str, limit: int | None) -> None:
        """``model`` empty: requests to all models. ``limit`` None: as many as a warm-up file may hold."""
        self._model = model
        here = [_digest(_request(log)) for log in _logs(path)]
        self._seen = set(here)
        self.before = len(here)
        room = MAX_WARMUP_RECORDS - self.before
        self._room = room if limit is None else min(room, limit)
        self.duplicates = self.other_models = self.unsupported = 0
        self.more = False

    def records(self, files: Iterable[Path]) -> Iterator[bytes]:
        """Records to add, each when it is asked for; ends early, with ``more``, when the limit is reached."""
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


def _logs(path: Path) -> Iterator[Message]:
    for number, data in enumerate(records_of(path), 1):
        try:
            yield parse_log(data)
        except ServingError as error:
            raise ServingError(error.code, f"{path}: record {number}: {error}") from None


def _request(log: Message) -> LoggedRequest | None:
    """None for what warm-up cannot run: streams, sessions, nothing at all."""
    try:
        return logged_request(log)
    except ServingError:
        return None


def _digest(request: LoggedRequest | None) -> bytes:
    """Equal for equal requests; empty for none."""
    if request is None:
        return b""
    text = request.message.SerializeToString(deterministic=True)
    return hashlib.sha256(request.method.value.encode() + b"\0" + text).digest()
