"""The replay gate: a version that clients could not go on with, or that answers otherwise, is held back at its load.

    signatures of the version that answers now ─┐
    replay.tfrecord beside the versions ────────┼─> ReplayGate, after the warm-up ─> the load goes on, or fails
    assets.extra/replay.tfrecord of the version ┘

Nothing was at risk then: no request has met the version, and the old one goes on.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.replay.compatible import breaks
from tfs_lite.adapters.replay.files import naming, open_records, records_of
from tfs_lite.adapters.replay.requests import replay_of_log
from tfs_lite.config.guard import GuardSettings
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.manifest import REPLAY_FILE, REPLAY_NAME
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.protocols.answers import Comparison, Likeness, compare, nonfinite
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.tensorflow.prediction_log import (
    LoggedMethod,
    LoggedRequest,
    logged_request,
    parse_log,
    recorded_answer,
)

MAX_RECORDS = 1000
MAX_SECONDS = 120.0
"""For all records of a version together."""
SECONDS_PER_RUN = 60.0
"""A run that takes longer has failed, unless the time for all was up."""
MAX_BREAKS = 3
logger = logging.getLogger(__name__)

Current = Callable[[str], AbstractContextManager[ServableHandle]]
"""A handle to the version of a model that answers now. Raises NOT_FOUND if there is none."""


class ReplayGate:
    """Called by loaders, as the last step of a load and on its thread; any number of threads may call it, each with a
    servable of its own.

    FAILED_PRECONDITION with ``HELD_BACK``, whose message names what is gone or the first record that failed; also for
    a file that is no recording. UNAVAILABLE if the file cannot be read.
    """

    def __init__(
        self,
        current: Current,
        accepted: Callable[[ServableId], bool] = lambda id: False,
        *,
        bake_seconds: int = 0,
        check_method_names: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        seconds: float = MAX_SECONDS,
        seconds_per_run: float = SECONDS_PER_RUN,
    ) -> None:
        """``accepted`` versions are not looked at. ``bake_seconds`` is the length of a trial where the model's config
        says nothing: with a trial, signatures are compared without recorded answers as well."""
        self._current = current
        self._accepted = accepted
        self._bake_seconds = bake_seconds
        self._check_method_names = check_method_names
        self._monotonic = monotonic
        self._seconds = seconds
        self._seconds_per_run = seconds_per_run

    def __call__(self, servable: Servable, request: OpenRequest) -> None:
        """Returns if the version may answer. Raises ServingError."""
        guard = request.settings.guard
        if self._accepted(request.id):
            return
        files = recordings(request.files.directory) if guard.replay else []
        bake = self._bake_seconds if guard.bake_seconds is None else guard.bake_seconds
        if guard.signature == "same":
            self._compare_signatures(servable, request.id, holds_back=bool(bake or files))
        if not files:
            return
        traits = servable.traits
        if traits.keeps_sequences or (traits.decoupled and not traits.generates):
            logger.info("%s: recorded answers are not compared: its requests are no single calls", label_of(request.id))
            return
        try:
            self._replay(servable, request, files)
        except ServingError as error:
            if error.status.reason is Reason.HELD_BACK or error.code is StatusCode.UNAVAILABLE:
                raise
            raise _held_back(str(error)) from None  # a file that is no recording

    def _compare_signatures(self, servable: Servable, id: ServableId, holds_back: bool) -> None:
        """``holds_back``: a version that clients could not go on with is held back; else the log has a warning."""
        try:
            with self._current(id.name) as handle:
                old, signatures = handle.id.version, handle.servable.signatures
        except ServingError:
            return  # no version answers
        found = breaks(signatures, servable.signatures, f"version {old}") if old <= id.version else []
        if found:
            more = [f"and {len(found) - MAX_BREAKS} more"] if found[MAX_BREAKS:] else []
            text = "; ".join([*found[:MAX_BREAKS], *more])
            if holds_back:
                raise _held_back(text)
            back = f"; tfs-lite rollback {id.name} goes back to version {old}" if old < id.version else ""
            warning = "%s: requests that version %d answers may fail: %s%s"
            logger.warning(warning, label_of(id), old, text, back)

    def _replay(self, servable: Servable, request: OpenRequest, files: list[tuple[str, str]]) -> None:
        started, guard, tally = self._monotonic(), request.settings.guard, _Tally()
        for record in _records(files):
            left = started + self._seconds - self._monotonic()
            if left <= 0 or tally.records >= MAX_RECORDS:
                tally.left += 1
                continue
            try:
                found = _run(servable, record, guard, min(left, self._seconds_per_run), self._check_method_names)
            except ServingError as error:
                if error.code is StatusCode.DEADLINE_EXCEEDED and left < self._seconds_per_run:
                    tally.left += 1
                    continue
                found = Comparison(Likeness.FAILED, "", f"{error.code.name}: {error}")
            tally.add(record, found)
        self._log(request.id, tally, self._monotonic() - started)
        why = tally.why_held_back(guard.max_changed)
        if why:
            raise _held_back(why)

    def _log(self, id: ServableId, tally: _Tally, seconds: float) -> None:
        is_news = tally.counts[Likeness.SAME] < tally.records or not tally.records
        logger.log(logging.WARNING if is_news else logging.INFO, "%s: %s (%.1f s)", label_of(id), tally, seconds)


def recordings(directory: str) -> list[tuple[str, str]]:
    """The files of recorded answers for the version in ``directory``, each as a directory and a path in it."""
    places = (os.path.dirname(directory), REPLAY_NAME), (directory, REPLAY_FILE)
    return [(place, path) for place, path in places if os.path.lexists(os.path.join(place, path))]


@dataclass(frozen=True, slots=True)
class _Record:
    """A record of the file at ``path``; numbers count from 1. ``version`` has given the ``recorded`` answer; None if it
    does not say. ``recorded`` is empty where there is none to compare with."""

    path: str
    number: int
    request: LoggedRequest
    recorded: Mapping[str, Array]
    version: int | None

    @property
    def signature(self) -> str:
        """The key of its signature, of a MultiInference those of its tasks."""
        message = self.request.message
        tasks = message.tasks if self.request.method is LoggedMethod.MULTI_INFERENCE else [message]
        return "+".join([task.model_spec.signature_name or DEFAULT_SIGNATURE for task in tasks])

    def __str__(self) -> str:
        by = "" if self.version is None else f", answered by version {self.version}"
        return f"record {self.number} ({self.signature}{by})"


def _records(files: Iterable[tuple[str, str]]) -> Iterator[_Record]:
    """The records that are requests to run. ServingError, with the name of the file, for what is no recording."""
    for place, path in files:
        file = open_records(place, path)
        if file is None:
            continue
        with file:
            for number, data in enumerate(records_of(file, path), 1):
                with naming(f"{path}: record {number}"):
                    log = parse_log(data)
                    request = logged_request(log)
                    if request is None:
                        continue
                    recorded, version = recorded_answer(log)
                yield _Record(path, number, request, recorded, version)


def _run(servable: Servable, record: _Record, guard: GuardSettings, seconds: float, check_names: bool) -> Comparison:
    """Raises what a client would get."""
    got = replay_of_log(servable.signatures, record.request, check_names).once(servable, seconds)
    if not record.recorded:
        return nonfinite(got)
    outputs = servable.signatures[record.signature].outputs
    return compare(record.recorded, got, outputs, guard.rtol, guard.atol)


@dataclass(slots=True)
class _Tally:
    """The records of a version so far. ``left``: those that were not run. ``firsts``: the first that failed, and of
    those that have changed the one that differs most."""

    counts: Counter[Likeness] = field(default_factory=Counter)
    compared: int = 0
    left: int = 0
    firsts: dict[Likeness, tuple[_Record, Comparison]] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return self.counts.total()

    def add(self, record: _Record, found: Comparison) -> None:
        self.counts[found.likeness] += 1
        self.compared += bool(record.recorded)
        known = self.firsts.get(found.likeness)
        if known is None or (found.likeness is not Likeness.FAILED and found.difference > known[1].difference):
            self.firsts[found.likeness] = record, found

    def why_held_back(self, max_changed: float | None) -> str:
        """Empty if nothing does."""
        failed, changed = self.counts[Likeness.FAILED], self.counts[Likeness.CHANGED]
        if failed:
            record, found = self.firsts[Likeness.FAILED]
            return f"{record.path}: {record}: {found}; {failed} of {self.records} records failed"
        if max_changed is None or not changed or changed <= max_changed * self.compared:
            return ""
        record, found = self.firsts[Likeness.CHANGED]
        most = f"at most {max_changed:.4g} of them may (guard.max_changed)"
        return f"{changed} of {self.compared} recorded answers changed, {most}; {record.path}: {record}: {found}"

    def __str__(self) -> str:
        text = f"{self.records} recorded requests were run: "
        text += ", ".join(f"{self.counts[likeness]} {likeness.value}" for likeness in Likeness)
        if self.left:
            text += f", and {self.left} more were not (at most {MAX_RECORDS} run, for {MAX_SECONDS:g} s)"
        told = self.firsts.get(Likeness.CHANGED)
        return text + (f"; the largest change: {told[0].path}: {told[0]}: {told[1]}" if told else "")


def _held_back(why: str) -> ServingError:
    return ServingError(StatusCode.FAILED_PRECONDITION, f"held back: {why}", Reason.HELD_BACK)
