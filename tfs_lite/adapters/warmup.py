"""The first requests of a version, run before clients can send any: they select kernels, fill caches, find mistakes.

Requests come from the file ``assets.extra/tf_serving_warmup_requests`` of the version (TFRecords of ``PredictionLog``)
and from the ``warmup`` rows of the model's config, in this order. They run one after the other as the last step of a
load, on its thread; a request that is refused or fails makes the load fail.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.replay.files import naming, open_records, records_of
from tfs_lite.adapters.replay.requests import Replay, replay_of_body, replay_of_log
from tfs_lite.config.signatures import WarmupRequest
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import OK, Status, invalid_argument, status_of
from tfs_lite.protocols.tensorflow.prediction_log import MAX_WARMUP_RECORDS, WARMUP_FILE, logged_request, parse_log

SECONDS_PER_RUN = 600.0
"""How long one run of the model may take: long, because a first run may compile."""

_HINT = ". Please verify your warmup data is in TFRecord format"
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
        file = open_records(directory, WARMUP_FILE)
        if file is None:
            return
        progress.found = True
        with file:
            for number, data in enumerate(records_of(file, WARMUP_FILE, _HINT), 1):
                progress.records += 1
                with naming(f"{WARMUP_FILE}: record {number}"):
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
            with naming(f"warmup[{index}] of the config"):
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
