"""The first requests of a version, run before clients can send any: they select kernels, fill caches, find mistakes.

Requests come from the file ``assets.extra/tf_serving_warmup_requests`` of the version (TFRecords of ``PredictionLog``)
and from the ``warmup`` rows of the model's config, in this order. They run one after the other as the last step of a
load, on its thread; a request that is refused or fails makes the load fail.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.replay import Replay, replay_of_body, replay_of_log
from tfs_lite.config.signatures import WarmupRequest
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import OK, ServingError, Status, StatusCode, invalid_argument, status_of
from tfs_lite.protocols.tensorflow.prediction_log import (
    MAX_LOG_BYTES,
    MAX_WARMUP_RECORDS,
    WARMUP_DIRECTORY,
    WARMUP_FILE,
    logged_request,
    parse_log,
)
from tfs_lite.protocols.tfrecord import read_records

MAX_FILE_BYTES = 4 << 30
SECONDS_PER_RUN = 600.0
"""How long one run of the model may take: long, because a first run may compile."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """How the warm-up of a version went. ``records`` counts the records of the file and rows of the config that were
    run, including one that failed; ``directory`` is the version's."""

    id: ServableId
    seconds: float
    records: int
    status: Status
    directory: str


class Warmup:
    """Warms up servables; any number of threads may call it, each with a servable of its own.

    Every warm-up is reported, also one that fails, except for versions without file and rows. Errors, which name the
    record or row: DATA_LOSS (no TFRecord file, damaged), INVALID_ARGUMENT (no ``PredictionLog``, no plain file, more
    than 1000 records or 4 GiB), UNIMPLEMENTED (logs of sessions and streams), UNAVAILABLE (the file cannot be read),
    DEADLINE_EXCEEDED, and the errors of the requests.
    """

    def __init__(
        self,
        iterations: int = 1,
        on_report: Callable[[WarmupReport], None] | None = None,
        *,
        check_method_names: bool = False,
        seconds_per_run: float = SECONDS_PER_RUN,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Every request runs ``iterations`` times in a row on every instance; 0 counts as 1. ``on_report`` is called on
        the thread of the load."""
        self._iterations = max(iterations, 1)
        self._on_report = on_report
        self._check_method_names = check_method_names
        self._seconds_per_run = seconds_per_run
        self._monotonic = monotonic

    def __call__(self, servable: Servable, request: OpenRequest) -> None:
        """Returns when every request was answered. Raises ServingError."""
        progress = _Progress()
        started = self._monotonic()
        status = OK
        try:
            self._run_file(servable, request.files.directory, progress)
            self._run_rows(servable, request.settings.warmup, progress)
        except BaseException as error:
            progress.found = True
            status = status_of(error)
            raise
        finally:
            if progress.found:
                seconds = self._monotonic() - started
                self._report(WarmupReport(request.id, seconds, progress.records, status, request.files.directory))

    def _run_file(self, servable: Servable, directory: str, progress: _Progress) -> None:
        file = open_file(directory)
        if file is None:
            return
        progress.found = True
        with file:
            for number, data in enumerate(_records(file), 1):
                progress.records += 1
                with _named(f"{WARMUP_FILE}: record {number}"):
                    self._run_record(servable, data)
                    if number > MAX_WARMUP_RECORDS:
                        raise invalid_argument(f"Number of warmup records exceeds the maximum ({MAX_WARMUP_RECORDS})")

    def _run_record(self, servable: Servable, data: bytes) -> None:
        request = logged_request(parse_log(data))
        if request is not None:
            self._repeat(servable, replay_of_log(servable.signatures, request, self._check_method_names), 1)

    def _run_rows(self, servable: Servable, rows: Sequence[WarmupRequest], progress: _Progress) -> None:
        for index, row in enumerate(rows):
            progress.found = True
            progress.records += 1
            with _named(f"warmup[{index}] of the config"):
                self._repeat(servable, replay_of_body(servable.signatures, row.body), row.count)

    def _repeat(self, servable: Servable, replay: Replay, times: int) -> None:
        for _ in range(self._iterations * times * len(servable.models)):
            replay.once(servable, self._seconds_per_run)  # on the instance that was idle longest: each in its turn

    def _report(self, report: WarmupReport) -> None:
        try:
            if self._on_report is not None:
                self._on_report(report)
        except Exception:
            logger.exception("the warm-up of %s could not be reported", report.id)


@dataclass(slots=True)
class _Progress:
    """The progress of a warm-up; ``found`` means that there is a file or a row."""

    found: bool = False
    records: int = 0


def open_file(directory: str) -> BinaryIO | None:
    """The warm-up file of a version, opened; None if it has none. INVALID_ARGUMENT for a link, anything but a plain
    file, or a file that is too large; UNAVAILABLE if it cannot be read."""
    path = os.path.join(directory, WARMUP_FILE)
    try:
        if os.path.islink(os.path.dirname(path)):
            raise _unfit(f"{WARMUP_DIRECTORY} is a link")
        _check(os.lstat(path))
        file = open(path, "rb", opener=_open_plain)  # noqa: SIM115 - the caller closes it
        try:
            _check(os.fstat(file.fileno()))
        except BaseException:
            file.close()
            raise
        return file
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(error) from None


def _open_plain(path: str, flags: int) -> int:
    """Opens a file; neither follows a link nor blocks, in case the file has been replaced since it was checked."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _check(status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _unfit("it is a link")
    if not stat.S_ISREG(status.st_mode):
        raise _unfit("it is no file but something else")
    if status.st_size > MAX_FILE_BYTES:
        raise _unfit(f"it has {status.st_size} bytes, at most {MAX_FILE_BYTES} are allowed")


def _records(file: BinaryIO) -> Iterator[bytes]:
    try:
        yield from read_records(file, MAX_LOG_BYTES)
    except ServingError as error:
        hint = ". Please verify your warmup data is in TFRecord format" if error.code is StatusCode.DATA_LOSS else ""
        raise ServingError(error.code, f"{WARMUP_FILE}: {error}{hint}") from None
    except OSError as error:
        raise _unreadable(error) from None


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Puts ``what`` failed in front of an error's message."""
    try:
        yield
    except ServingError as error:
        raise ServingError(error.code, f"{what}: {error}") from None


def _unfit(reason: str) -> ServingError:
    return invalid_argument(f"{WARMUP_FILE} has to be a plain file of the version: {reason}")


def _unreadable(error: OSError) -> ServingError:
    return ServingError(StatusCode.UNAVAILABLE, f"{WARMUP_FILE} cannot be read: {error.strerror}")
