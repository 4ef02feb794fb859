"""How a model stands with the guard, as JSON for every way of asking; what the guard does, as events and counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfs_lite.core.history import Cause, EventKind, Origin, iso_time, time_text
from tfs_lite.core.servable import ServableId, VersionState
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.operations.guard.evidence import TrialCounts
from tfs_lite.operations.guard.metrics import GuardMetrics
from tfs_lite.operations.guard.stage import GuardView
from tfs_lite.operations.guard.trial import (
    BakeBegun,
    BakeEnded,
    By,
    Effect,
    Lifted,
    Outcome,
    Rejection,
    Renewed,
    Stage,
    TakenBack,
    WayBackFailed,
    WouldTakeBack,
    bad_version,
    next_below,
)
from tfs_lite.serving.lifecycle_events import LifecycleEvent, LoadAttempted, ModelGone

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore

SHIELDED_EVERY = 60.0
"""Seconds between two events about shielded requests of one version, at least."""
NO_COUNTS = TrialCounts()
NO_DIRECTORY = "it has no --state_directory"
"""Why a server forgets. The words follow on "because"."""
COUNTED = ("requests", "failed", "shielded", "lost", "nonfinite", "refused", "late", "load")
"""The counts that people see."""
GUARD = Origin(Cause.GUARD)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a model stands. ``counts`` are those of the trial. ``answers``: the version that answers requests without a
    version. ``back_to``: the version that a rollback without a version would go to, None if there is none.
    ``old_run_ms``: the mean time of a run of the old version of the trial, in milliseconds, since it was loaded.
    ``forgets``: why a restart of the server forgets what was rejected; empty: it keeps that."""

    view: GuardView
    counts: TrialCounts = NO_COUNTS
    answers: int | None = None
    back_to: int | None = None
    old_run_ms: float | None = None
    forgets: str = NO_DIRECTORY

    @property
    def as_json(self) -> dict[str, Any]:
        """The member ``rollout`` of an explanation, and the answer to every command."""
        view, counts, trial, ended = self.view, self.counts, self.view.trial, self.view.ended
        judgement = view.judgement
        return {
            "state": "NONE" if trial is None else trial.stage.value,
            "version": None if trial is None else trial.new,
            "over": None if trial is None else trial.old,
            "since": time_text(view.since),
            "until": time_text(view.until),
            **{name: getattr(counts, name) for name in COUNTED},
            "votes": {"against": judgement.against, "for": judgement.votes_for, "needed": judgement.needed},
            "run_ms": {"new": _milliseconds(counts.run_ms), "old": _milliseconds(self.old_run_ms)},
            "failures": [{"request_id": each.request_id, "error": each.error} for each in counts.failures],
            "rejected": [_rejected(each) for each in view.rejected],
            "answers": self.answers,
            "back_to": self.back_to,
            "going_back": view.going_back,
            "ended": None
            if ended is None
            else {
                "version": ended.version,
                "outcome": ended.outcome.value,
                "text": ended.text,
                "at": iso_time(ended.at),
            },
            "remembered": not self.forgets,
            "forgets": self.forgets,
        }


def _rejected(rejection: Rejection) -> dict[str, Any]:
    return {
        "version": rejection.version,
        "why": rejection.why,
        "at": iso_time(rejection.at),
        "by": rejection.by.value,
        "rolled_back": rejection.rolled_back,
    }


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


class GuardReports:
    """Tells how models stand and what the guard does. Any thread may ask and tell, but for the event loop's.

    Four functions are the guard's own. ``view``: how a model stands. ``counts``: how the requests of the trial of this
    version have ended, None without a trial. ``on_disk``: the versions that could be offered, None where the disk does
    not tell. ``unsaved``: why the last write to the state directory has failed, empty if it has not."""

    def __init__(
        self,
        core: ServerCore,
        view: Callable[[str], GuardView | None],
        counts: Callable[[ServableId], TrialCounts | None],
        on_disk: Callable[[str], Mapping[int, Any] | None],
        unsaved: Callable[[], str] = lambda: "",
    ) -> None:
        self._core = core
        self._on_disk = on_disk
        self._view = view
        self._counts = counts
        self._unsaved = unsaved
        self._shielded: dict[ServableId, tuple[float, int]] = {}  # when it was told last, and of how many
        self.metrics = GuardMetrics(core.registry, lambda: core.states.configured, view, core.view.latest)

    # How models stand.

    def trial(self, name: str) -> tuple[GuardView, TrialCounts] | None:
        """The view of a model, and the counts of its trial; None for one that the guard does not know."""
        view = self._view(name)
        if view is None:
            return None
        counts = None if view.trial is None else self._counts(ServableId(name, view.trial.new))
        return view, counts or NO_COUNTS

    def standing(self, name: str) -> Standing | None:
        """None for a model that the guard does not know."""
        found = self.trial(name)
        if found is None:
            return None
        view, counts = found
        answers = self._core.view.latest(name)
        old_run_ms = counts.old_run_ms
        if view.trial is not None and (ran := self.run_ms(ServableId(name, view.trial.old))) is not None:
            old_run_ms = ran
        forgets = self._unsaved() if self._core.options.state_directory else NO_DIRECTORY
        return Standing(view, counts, answers, self._back_to(name, view, answers), old_run_ms, forgets)

    def run_ms(self, id: ServableId) -> float | None:
        """The mean of all its runs that did not fail; None if there are none."""
        totals = self._core.metrics.batches.totals().get((id.name, str(id.version)))
        return totals.run_seconds * 1e3 / totals.timed_runs if totals is not None and totals.timed_runs else None

    def _back_to(self, name: str, view: GuardView, answers: int | None) -> int | None:
        if view.trial is not None and view.trial.stage is not Stage.ARMED:
            return view.trial.old
        found, known = self._core.sources.found(name), self._core.states.report(name).versions
        there = {each.version for each in known if each.state is VersionState.AVAILABLE}
        there |= found.versions if found is not None else (self._on_disk(name) or {}).keys()
        failed = {each.version for each in known if each.state is VersionState.END and not each.status.ok}
        rejected = {rejection.version for rejection in view.rejected}
        return next_below(bad_version(there, rejected, failed, answers), there, rejected, failed)

    # What happens.

    def on_event(self, event: LifecycleEvent) -> None:
        """Short; takes no lock of the guard."""
        match event:
            case LoadAttempted(attempt) if attempt.status.reason is Reason.HELD_BACK:
                self.metrics.held_back(attempt.id.name)
            case ModelGone(name):
                self.metrics.model_gone(name)
                for id in [id for id in self._shielded if id.name == name]:
                    del self._shielded[id]

    def on_counts(self, id: ServableId, counts: TrialCounts) -> None:
        """Takes how the requests of a trial have ended until now: each second while it goes on, on one thread."""
        now = self._core.clock.monotonic()
        at, told = self._shielded.get(id, (-SHIELDED_EVERY, 0))
        if counts.shielded > told and now - at >= SHIELDED_EVERY:
            self._shielded[id] = now, counts.shielded
            details: dict[str, Any] = {
                "shielded": counts.shielded,
                "failed": counts.failed,
                "requests": counts.requests,
            }
            if counts.failures:
                details["why"] = counts.failures[0].error
            self._append(EventKind.SHIELDED, id.name, id.version, details)
            self._core.changes.notify(id.name)

    def on_effect(self, name: str, effect: Effect) -> None:
        """Tells what has happened: the log, the events, the counters, and the threads that wait for a change."""
        details: dict[str, Any]
        match effect:
            case BakeBegun(trial):
                text = "%s version %d is on trial: version %d answers what fails on it"
                logger.info(text, name, trial.new, trial.old)
                details = {"over": trial.old, "bake_seconds": trial.settings.bake_seconds}
                self._append(EventKind.BAKE_BEGUN, name, trial.new, details)
            case BakeEnded(trial, outcome, text):
                level = logging.INFO if outcome in (Outcome.PASSED, Outcome.ACCEPTED) else logging.WARNING
                logger.log(level, "%s: the trial of version %d is over: %s", name, trial.new, text)
                if trial.stage is not Stage.ARMED:
                    details = {"over": trial.old, "outcome": outcome.value, "why": text}
                    self._append(EventKind.BAKE_ENDED, name, trial.new, details)
            case TakenBack(rejection, to, _, who):
                version, why, by_guard = rejection.version, rejection.why, rejection.by is By.GUARD
                verb = "must not answer:" if rejection.rolled_back else "was"  # it may never have been loaded
                logger.warning("%s version %d %s %s; version %d answers", name, version, verb, why, to)
                if by_guard:
                    self.metrics.taken_back(name)
                origin = GUARD if by_guard else Origin(Cause.OPERATOR, who)
                status = Status(StatusCode.ABORTED, why)
                self._append(EventKind.TAKEN_BACK, name, version, {"to": to}, origin, status)
            case WouldTakeBack(trial, text):
                logger.warning("%s version %d %s", name, trial.new, text)
                self._append(EventKind.WOULD_TAKE_BACK, name, trial.new, {"why": text, "over": trial.old})
            case Lifted(version, text, forced, who):
                level = logging.WARNING if forced else logging.INFO
                logger.log(level, "%s version %d may answer again: %s", name, version, text)
                origin = Origin(Cause.OPERATOR, who) if who else GUARD
                self._append(EventKind.LIFTED, name, version, {"why": text, "forced": forced}, origin)
            case Renewed(version):
                logger.info("%s version %d is loaded again", name, version)
            case WayBackFailed(to, text):
                logger.error("%s does not go back to version %d: %s", name, to, text)
                self._append(EventKind.WAY_BACK_FAILED, name, to, {"why": text})
        self._core.changes.notify(name)

    def _append(
        self,
        kind: EventKind,
        name: str,
        version: int,
        details: Mapping[str, Any],
        origin: Origin = GUARD,
        status: Status | None = None,
    ) -> None:
        status = status or Status()
        self._core.history.append(kind, name, version, origin=origin, status=status, details=details)
