"""The verdict on a version or a model: exactly one at every moment. Pure functions of a snapshot."""

from __future__ import annotations

from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import OK, Reason, Status, StatusCode
from tfs_lite.managers.harness import LEAVING, HarnessState
from tfs_lite.managers.survey import LoadStage
from tfs_lite.operations.explain.explanation import Verdict
from tfs_lite.operations.explain.snapshot import ModelSnapshot, VersionSnapshot
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy

REFUSED = frozenset({StatusCode.PERMISSION_DENIED, StatusCode.INVALID_ARGUMENT, StatusCode.DATA_LOSS})
"""Codes of files that another attempt would refuse again."""


def verdict_of_version(model: ModelSnapshot, version: int) -> Verdict:
    """Exactly one, and SERVING if and only if a request that names the version is answered by it."""
    found = model.versions.get(version)
    if found is None:
        return _verdict_of_unknown(model)
    if found.answers:
        return Verdict.SERVING if found.silence.ok and not _is_down(found) else Verdict.WAITING
    if version in model.rejected and found.on_disk is not False:
        return Verdict.REJECTED
    if found.view is not None:
        managed = _verdict_of_managed(found)
        if managed is not None:
            return managed
    return _verdict_of_unmanaged(model, found)


def _verdict_of_unknown(model: ModelSnapshot) -> Verdict:
    if not model.configured:
        return Verdict.NOT_CONFIGURED
    if model.server.by_calls:
        return Verdict.NOT_WANTED
    unseen = model.exists or not model.looked
    return Verdict.WAITING if unseen and model.server.looks_again else Verdict.NOT_ON_DISK


def _verdict_of_managed(found: VersionSnapshot) -> Verdict | None:
    """None for a version that the manager has done with."""
    assert found.view is not None
    state = found.view.state.state
    if state in LEAVING:
        return Verdict.LEAVING
    if state in (HarnessState.DISABLED, HarnessState.ERROR):
        return None
    if state is HarnessState.NEW and not found.view.state.is_aspired:
        return None
    at_work = found.load is None or found.load.stage is LoadStage.AT_WORK
    return Verdict.LOADING if state is not HarnessState.NEW and at_work else Verdict.WAITING


def _verdict_of_unmanaged(model: ModelSnapshot, found: VersionSnapshot) -> Verdict:
    """The verdict on a version with which nothing is done now: it is not there, not complete, not wanted, has failed or
    has ended."""
    if not model.configured:
        return Verdict.NOT_CONFIGURED
    if found.on_disk is False and (not found.aspired or model.report.keeps):
        return Verdict.NOT_ON_DISK
    if found.incomplete is not None:
        return Verdict.WAITING
    failure = failure_of(found)
    if not failure.ok and (found.aspired or found.on_disk is None):
        return _verdict_of_failure(failure)
    if found.version in model.refused:
        return _verdict_of_failure(model.refused[found.version])
    if found.aspired:
        return Verdict.WAITING
    if model.server.draining or found.on_disk is None:
        return Verdict.ENDED
    return Verdict.WAITING if takes(model, found.version) and model.server.looks_again else Verdict.NOT_WANTED


def _verdict_of_failure(status: Status) -> Verdict:
    if status.code is StatusCode.CANCELLED:
        return Verdict.ENDED
    if status.reason is Reason.NEEDS_EXTRA:
        return Verdict.FAILED  # its files are fine
    if status.reason is Reason.HELD_BACK:
        return Verdict.HELD_BACK
    refused = status.reason is Reason.FILES_REFUSED or status.code in REFUSED
    return Verdict.REFUSED if refused else Verdict.FAILED


def verdict_of_model(model: ModelSnapshot) -> Verdict:
    """The verdict on the newest version that is wanted, unless another one answers meanwhile."""
    newest = newest_wanted(model)
    if newest is None:
        verdict = Verdict.ENDED if model.configured and model.server.by_calls else _verdict_of_unknown(model)
    else:
        verdict = verdict_of_version(model, newest)
    others = [version for version in model.answering if verdict_of_version(model, version) is Verdict.SERVING]
    return Verdict.SERVING_OTHER if others and verdict is not Verdict.SERVING else verdict


def verdict_of_newest(model: ModelSnapshot) -> Verdict:
    newest = newest_wanted(model)
    return verdict_of_model(model) if newest is None else verdict_of_version(model, newest)


def newest_wanted(model: ModelSnapshot) -> int | None:
    """The version that the model is about: the highest that is wanted, whether it is there or not, and also where it
    was taken back; else the highest of which anything is known."""
    wanted = [
        version
        for version, found in model.versions.items()
        if found.incomplete is not None or (found.aspired and not model.report.keeps) or _was_wanted(model, version)
    ]
    managed = [version for version, found in model.versions.items() if found.view is not None]
    return max(wanted or managed or list(model.versions), default=None)


def _was_wanted(model: ModelSnapshot, version: int) -> bool:
    """Whether the policy would take the version, if it had not been taken back."""
    return version in model.rejected and model.configured and takes(model, version)


def wanted_in_vain(model: ModelSnapshot) -> list[int]:
    """The versions that the policy takes and that do not come to answer by themselves, the highest first: their files
    are refused, not complete or not there, or every attempt so far has failed."""
    if not model.configured or not model.problem.ok:
        return []
    wanted = {
        version
        for version, found in model.versions.items()
        if found.aspired or (found.on_disk and takes(model, version) and not model.server.by_calls)
    }
    if isinstance(model.policy, SpecificPolicy) and not model.server.by_calls:
        wanted |= set(model.policy.versions)
    return sorted((version for version in wanted if _is_in_vain(model, version)), reverse=True)


def _is_in_vain(model: ModelSnapshot, version: int) -> bool:
    verdict, found = verdict_of_version(model, version), model.versions.get(version)
    if verdict is Verdict.WAITING and found is not None and not found.answers:
        return found.incomplete is not None or not failure_of(found).ok
    return verdict in (*(Verdict.FAILED, Verdict.REFUSED, Verdict.NOT_ON_DISK), *(Verdict.REJECTED, Verdict.HELD_BACK))


def failure_of(found: VersionSnapshot) -> Status:
    """The status with which the last attempt has failed or the version has ended in error; OK if neither is so."""
    view = found.view
    if view is not None:
        if found.load is not None and found.load.failure is not None:
            return found.load.failure
        if view.state.state is HarnessState.ERROR:
            return view.state.status
        if view.state.state is not HarnessState.DISABLED:
            return OK
    if found.state is not None and found.state.state.state is ManagerState.END:
        return found.state.state.health
    return OK


def _is_down(found: VersionSnapshot) -> bool:
    workers = found.burden.workers
    return bool(workers) and not any(worker.up for worker in workers)


def takes(model: ModelSnapshot, version: int) -> bool:
    """Whether the version policy would take the version, if it is complete."""
    match model.policy:
        case AllPolicy():
            return True
        case SpecificPolicy(versions):
            return version in versions
        case LatestPolicy(count):
            higher = [other for other, found in model.versions.items() if other > version and found.on_disk]
            return len(higher) < max(count, 1)
