"""Causes of versions that are on trial, or that must not answer although they are there."""

from __future__ import annotations

from datetime import UTC, datetime

from tfs_lite.core.status import Reason, Status
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.explanation import Link, Verdict
from tfs_lite.operations.guard.stage import GuardView
from tfs_lite.operations.guard.trial import By, Rejection

PAGE = "guarded-versions.md"
ROLL_BACK_PAGE = "roll-back.md"
HELD = "held back: "
"""What precedes the reason in the status of a version that was held back, behind the version's name."""


def goes_back(case: Case) -> Link | None:
    """An operator wants an older version, which is being loaded."""
    view = _view(case)
    if view is None or view.going_back is None or case.version is None or case.version <= view.going_back:
        return None
    text = f"version {view.going_back} is to answer in its place, by an operator, as soon as it has loaded"
    fix = f"wait; to stay with version {case.version}: tfs-lite rollback {case.model.name} --undo"
    return Link("ROLLED_BACK", text, fix, doc=ROLL_BACK_PAGE)


def on_trial(case: Case) -> Link | None:
    trial, name = case.model.trial, case.model.name
    if trial is None or trial.new != case.version or not case.found.answers or case.model.guard is None:
        return None
    view, counts = case.model.guard
    judgement = view.judgement
    text = f"it is on trial until {_minute(view.until)}: "
    if view.since is not None and view.until is not None and case.server.taken > view.until:
        latest = _minute(view.since + trial.settings.longest(judgement))
        text = f"it is on trial, undecided after its bake, until {latest} at the latest: "
    if counts.failed:
        answered = "them" if counts.shielded == counts.failed else f"{counts.shielded or 'none'} of them"
        text += f"{counts.failed:,} of {counts.requests:,} requests failed, version {trial.old} answered {answered}"
    else:
        text += f"none of {counts.requests:,} requests failed, version {trial.old} stays ready"
    if judgement.against or judgement.votes_for:
        text += f"; {judgement.against} of {judgement.needed} votes against it"
    if trial.told:
        text += "; it would have been taken back, but guard.bake_verdict is tell"
    if counts.failures:
        text += f"; the first failure: {counts.failures[0].error}"
    fix = f"wait: the trial ends by itself; to go back to version {trial.old} now: tfs-lite guard undo {name}"
    if not counts.failed:
        fix += f"; to end the trial now: tfs-lite guard accept {name}"
    return Link("ON_TRIAL", text, fix, view.since, PAGE)


def taken_back(case: Case) -> Link | None:
    rejection = _rejection(case)
    if rejection is None:
        return None
    name, version = case.model.name, rejection.version
    fix = (
        f"publish a mended one as version {case.next_version}: tfs-lite publish SRC --base BASE; if it is to answer as "
        f"it is: tfs-lite guard accept {name}@{version}; to try it once more: tfs-lite guard retry {name}@{version}"
    )
    if rejection.by is By.OPERATOR:
        fix = f"to have it answer again: tfs-lite guard accept {name}@{version}; or publish version {case.next_version}"
    return Link("TAKEN_BACK", rejection.why, fix, rejection.at, PAGE)


def rolled_back(case: Case) -> Link | None:
    rejection = _rejection(case)
    if rejection is None or not rejection.rolled_back:
        return None
    name, call = case.model.name, case.server.by_calls
    then = f"and load it: POST /v2/repository/models/{name}/load" if call else "and it answers"
    fix = (
        f"to have version {rejection.version} answer again: tfs-lite rollback {name} --undo; or publish a good one as "
        f"version {case.next_version}, {then}"
    )
    return Link("ROLLED_BACK", rejection.why, fix, rejection.at, ROLL_BACK_PAGE)


def held_back(case: Case) -> Link | None:
    """Its load was stopped before any request; or that of its changed files, while it answers with those of before."""
    status = _held(case)
    if status is None:
        return None
    what = f"{case.model.name}@{case.version}"
    fix = (
        f"publish a mended one as version {case.next_version}: tfs-lite publish SRC --base BASE; if the change is "
        f"meant: tfs-lite guard accept {what}, or record new answers (tfs-lite record)"
    )
    return Link("HELD_BACK", status.message.split(HELD, 1)[-1], fix, case.found.since, PAGE)


def label_stays(case: Case) -> Link | None:
    """A label on a version that must not answer means another one."""
    model, label = case.model, case.label
    if label is None or case.version not in model.rejected or case.verdict is not Verdict.REJECTED:
        return None
    if (means := model.meaning(label)) is None:
        return None
    text = f'label "{label}" points to version {case.version}, which must not answer: version {means} answers for it'
    fix = f"point the label to version {means} and reload: tfs-lite reload FILE; what follows is about version"
    return Link("LABEL_TO_MISSING", text, f"{fix} {case.version}")


def _view(case: Case) -> GuardView | None:
    return case.model.guard[0] if case.model.guard is not None else None


def _rejection(case: Case) -> Rejection | None:
    if case.version is None or case.verdict not in (Verdict.REJECTED, Verdict.NOT_ON_DISK):
        return None
    return case.model.rejected.get(case.version)


def _held(case: Case) -> Status | None:
    failure = case.failure
    held = case.verdict is Verdict.HELD_BACK and failure.reason is Reason.HELD_BACK
    return failure if held else None


def _minute(seconds: float | None) -> str:
    """The time of day in UTC; of another day with its date."""
    if seconds is None:
        return "its end"
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")
