"""The shield of a request on a version under trial: how it has ended there, and whether the old version is asked.

    how it ends on the new version -> ending_of -> well, late, load, nothing: it stays as it is ----> Trial.on_end
                                             \\---> failed: the same runs on the old version -> -----^

A request is tried once more at most, and its deadline stays. If the old version fails too, or is gone, the client gets
what the new one has given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from types import MappingProxyType
from typing import Any

import numpy as np

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import ModelAndVersion, PredictCall, ServableCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import OK, Reason, ServingError, Status, StatusCode
from tfs_lite.core.trial import SHIELDED, Ending, Trial, TrialEnding, Trials
from tfs_lite.metrics.request_records import RecordedRequest, RequestRecord, is_late
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.runs import Run

logger = logging.getLogger(__name__)

LOOKED_AT = 64 << 10
"""Bytes of each output in which NaN and inf are looked for."""
FLOATS = "fcV"
"""The kinds of their dtypes; V: bfloat16 and float8."""
LOAD = frozenset({Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.JOB_EXPIRED})
FAULTS = frozenset(
    {
        *(StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.DATA_LOSS, StatusCode.UNIMPLEMENTED, StatusCode.ABORTED),
        *(StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED),
    }
)
NOT_OF_THE_VERSION = frozenset({StatusCode.CANCELLED, StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED})


NO_VERSIONS: Mapping[int, Trial] = MappingProxyType({})


def ending_of(status: Status) -> Ending:
    """What the status of a request says about the version that has given it."""
    code = status.code
    if code is StatusCode.OK:
        return Ending.WELL
    if status.reason in LOAD:
        return Ending.LOAD
    if code is StatusCode.DEADLINE_EXCEEDED:
        return Ending.LATE
    if code in NOT_OF_THE_VERSION:
        return Ending.NOTHING
    return Ending.FAULT if code in FAULTS else Ending.REFUSAL


def all_finite(outputs: Iterable[Mapping[str, Array]]) -> bool:
    """Whether there is neither NaN nor inf in the first :data:`LOOKED_AT` bytes of every output of floats."""
    for each in outputs:
        for array in each.values():
            if array.dtype.kind in FLOATS:
                if array.nbytes > LOOKED_AT:
                    array = array.reshape(-1)[: LOOKED_AT // array.itemsize]
                if 0 in np.isfinite(array).tobytes():  # quicker than all(), which matters for each request
                    return False
    return True


def may_repeat(traits: Traits) -> bool:
    """Whether a request to such a servable may run a second time, on another version."""
    return not (traits.generates or traits.decoupled or traits.keeps_sequences or traits.runs_once)


@dataclass(slots=True)
class Steps:
    """The models of an ensemble's steps, nested ones too, that answer in a version on trial: each with that version and
    its trial. ``repeat``: whether every one of them may run a second time."""

    on_trial: dict[str, tuple[int, Trial]]
    repeat: bool = True

    @classmethod
    def of(
        cls, composing: Sequence[ModelAndVersion], trials: Trials, lookup: Callable[[ModelRef], ServableHandle]
    ) -> Steps:
        """A step that names its version keeps that, whatever is on trial."""
        found, seen, waiting = cls({}), set[ModelAndVersion](), list(composing)
        while waiting:
            wanted = name, version = waiting.pop()
            if wanted in seen:
                continue
            seen.add(wanted)
            try:
                with lookup(ModelRef(name, version)) as handle:
                    number, traits = handle.id.version, handle.servable.traits
            except ServingError:
                continue  # the request will say so
            found.repeat = found.repeat and may_repeat(traits)
            waiting += traits.composing
            trial = trials.get(name, NO_VERSIONS).get(number)
            if trial is not None and version is None:
                found.on_trial[name] = number, trial
        return found


class Shield:
    """One request on a version under trial. The trial is told once how it has ended. There is one for each such
    request: what is usual stands in the class. On the event loop."""

    first: ServingError | None = None
    """The failure of the new version, which the client gets if the old one fails, too."""
    asked: ServableId | None = None
    """The ensemble that was asked, where the version on trial is that of a model of its steps."""
    instead: Mapping[str, int] | None = None
    """The versions of such models in its second try."""
    _ending = Ending.NOTHING
    _calls: Sequence[ServableCall] = ()
    _runs: Sequence[Run] = ()
    _run_seconds = 0.0
    _told = False

    def __init__(
        self, id: ServableId, trial: Trial, record: RequestRecord, options: Any, repeat: bool, asks: bool
    ) -> None:
        """``id`` is the version on trial. ``options``: those of the request, for its second try. ``repeat``: whether
        the request may run a second time, sooner or later; ``asks``: whether the old version may answer it."""
        self.id = id
        self.trial = trial
        self.record = record
        self.options = options
        self.repeat = repeat and trial.may_shield
        self.asks = asks and self.repeat
        self.old = id.name, trial.old
        """What is asked instead."""

    # How it has ended on the new version, and whether the old one is to be asked.

    def answered(
        self, outputs: Sequence[Mapping[str, Array]], runs: Sequence[Run], calls: Sequence[ServableCall]
    ) -> bool:
        self._calls = calls
        if all_finite(outputs) or not self.trial.nonfinite_fails():
            self._ending = Ending.WELL
            self._tell()
            return False
        self._ending = Ending.NONFINITE
        return self._asks(runs)

    def failed(self, error: ServingError, runs: Sequence[Run], calls: Sequence[ServableCall]) -> bool:
        self._calls, self.first = calls, error
        self._ending = ending_of(error.status)
        return self._asks(runs)

    def dropped(self, runs: Sequence[Run], calls: Sequence[ServableCall]) -> None:
        """The caller does not wait any more."""
        if self._told:
            return
        if self._ending is Ending.NOTHING:
            self._calls, self._runs = calls, runs
            if calls and is_late(self.record.deadline, calls[0].arrived, monotonic()):
                self._ending, self.first = Ending.LATE, _LATE
        self._tell()

    def _asks(self, runs: Sequence[Run]) -> bool:
        self._runs, record = runs, self.record
        if not (self.asks and self._ending in SHIELDED):
            self._tell()
            return False
        self._run_seconds, record.run_seconds = record.run_seconds, 0.0
        return True

    # How it has ended on the old one.

    def gone(self) -> None:
        """The old version cannot be asked."""
        self._back(())

    def takes(self, outputs: Sequence[Mapping[str, Array]], failure: ServingError | None) -> bool:
        """Whether the old version's answer is the answer."""
        record = self.record
        calls = record.calls
        if failure is not None or (self._ending is Ending.NONFINITE and not all_finite(outputs)):
            self._back(calls)
            return False
        record.shielded_from = f"{self.id.name}@{self.id.version}"
        if self.asked is None:
            record.version = self.old[1]
        self._tell(calls, shielded=True)
        return True

    def _back(self, calls: Sequence[ServableCall]) -> None:
        record = self.record
        record.calls, record.run_seconds = self._calls, self._run_seconds
        record.answered = self.first is None
        self._tell(calls, old_failed=True)

    def _tell(
        self, old_calls: Sequence[ServableCall] = (), *, shielded: bool = False, old_failed: bool = False
    ) -> None:
        if self._told:
            return
        self._told = True
        ending, calls, self._calls = self._ending, self._calls, ()  # calls refer to the request, and so to this
        try:
            cached, seconds = _are_cached(calls), 0.0
            for call in calls:
                seconds += call.run_seconds
            if ending is Ending.WELL:
                self.trial.on_end(TrialEnding(ending, OK, False, False, "", (), cached, seconds))
                return
            request_id = _request_id(self.record)
            runs = _kept(self._runs) if self.repeat else ()
            status = OK if self.first is None else self.first.status
            old_seconds = sum(call.run_seconds for call in old_calls)
            self.trial.on_end(
                TrialEnding(
                    ending, status, shielded, old_failed, request_id, runs, cached, seconds, old_seconds, self.asked
                )
            )
        except Exception:
            logger.exception("the end of a request on %s could not be counted", self.id)


def _kept(runs: Sequence[Run]) -> list[Run]:
    """The runs for another version."""
    return [replace(run, fits=None) for run in runs]


def _are_cached(calls: Sequence[ServableCall]) -> bool:
    """Whether every answer came from the response cache."""
    for call in calls:
        if not (isinstance(call, PredictCall) and call.cached):
            return False
    return bool(calls)


def _request_id(record: RequestRecord) -> str:
    """Before the record ends."""
    return record.context.request_id if isinstance(record, RecordedRequest) else record.sent_id


_LATE = ServingError(StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the request was answered")
