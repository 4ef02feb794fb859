"""The shield of a request on a version under trial: how it has ended there, and whether the old version is asked.

    how it ends on the new version -> ending_of -> well, late, load, nothing: it stays as it is ----> Trial.on_end
                                             \\---> failed: the same runs on the old version -> -----^

A request is tried once more at most, and its deadline stays. If the old version fails too, or is gone, the client gets
what the new one has given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
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
            if array.dtype.kind in FLOATS and array.size and not _is_finite(array):
                return False
    return True


def _is_finite(array: Array) -> bool:
    head = array.reshape(-1)
    if array.nbytes > LOOKED_AT:
        head = head[: LOOKED_AT // array.itemsize]
    return 0 not in np.isfinite(head).tobytes()  # quicker than all(), which matters for each request


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
            trial = trials.get(name, _NO_VERSIONS).get(number)
            if trial is not None and version is None:
                found.on_trial[name] = number, trial
        return found


_NO_VERSIONS: Mapping[int, Trial] = {}


@dataclass(slots=True, eq=False)
class Shield:
    """One request on a version under trial. On the event loop. The trial is told once how it has ended.

    ``id`` is the version on trial. ``ref`` is asked instead, with ``options``, those of the request. ``repeat``:
    whether the request may run a second time, sooner or later; ``asks``: whether the old version may answer it.
    ``asked``: the ensemble that was asked, where the version on trial is that of a model of its steps; ``instead``: the
    versions that its second try takes of such models."""

    id: ServableId
    trial: Trial
    record: RequestRecord
    ref: ModelRef
    options: Any
    repeat: bool
    asks: bool
    asked: ServableId | None = None
    instead: Mapping[str, int] | None = None
    first: ServingError | None = field(default=None, init=False)
    """The failure of the new version, which the client gets if the old one fails, too."""
    _begun: float = field(default_factory=monotonic, init=False)
    _ending: Ending = field(default=Ending.NOTHING, init=False)
    _calls: Sequence[ServableCall] = field(default=(), init=False)
    _runs: Sequence[Run] = field(default=(), init=False)
    _run_seconds: float = field(default=0.0, init=False)
    _told: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.repeat = self.repeat and self.trial.may_shield
        self.asks = self.asks and self.repeat

    # How it has ended on the new version. True: ask the old one.

    def answered(
        self, outputs: Sequence[Mapping[str, Array]], runs: Sequence[Run], calls: Sequence[ServableCall]
    ) -> bool:
        self._calls = calls
        if all_finite(outputs):
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
            if is_late(self.record.deadline, self._begun, monotonic()):
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
            record.version = self.ref.version
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
        ending, calls = self._ending, self._calls
        try:
            run_seconds, cached = 0.0, bool(calls)
            for call in calls:
                run_seconds += call.run_seconds
                cached = cached and isinstance(call, PredictCall) and call.cached
            if ending is Ending.WELL:
                self.trial.on_end(TrialEnding(ending, cached=cached, run_seconds=run_seconds))
                return
            record = self.record
            self.trial.on_end(
                TrialEnding(
                    ending,
                    OK if self.first is None else self.first.status,
                    shielded,
                    old_failed,
                    record.context.request_id if isinstance(record, RecordedRequest) else record.sent_id,
                    [replace(run, fits=None) for run in self._runs] if self.repeat else (),
                    cached,
                    run_seconds,
                    sum(call.run_seconds for call in old_calls),
                    self.asked,
                )
            )
        except Exception:
            logger.exception("the end of a request on %s could not be counted", self.id)


_LATE = ServingError(StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the request was answered")
