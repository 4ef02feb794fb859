"""The decisions: which verdict a model or a version has, and why. Pure functions of a snapshot."""

from __future__ import annotations

from tfs_lite.core.servable import ModelRef, VersionState
from tfs_lite.core.status import Reason
from tfs_lite.server.explain.explanation import AnswersNow, Explanation, ModelVerdict, Verdict, VersionLine
from tfs_lite.server.explain.snapshot import ModelSnapshot, VersionSnapshot


def explain(snapshot: ModelSnapshot, ref: ModelRef, *, paths: bool = False) -> Explanation:
    """What is the case with the reference. ``paths``: whether the texts may name paths of the server."""
    version = snapshot.labels.get(ref.label) if ref.label is not None else ref.version
    lines = tuple(_line(snapshot, found) for found in sorted(snapshot.versions.values(), key=lambda v: -v.version))
    if version is None:
        model = verdict_of_model(snapshot)
        verdict, sentence = model.verdict, model.sentence
    else:
        verdict = verdict_of_version(snapshot, version)
        sentence = f"version {version}: {verdict.value}"
    return Explanation(
        ref.name, version, ref.label, verdict, sentence, answers_now=tuple(_answers(snapshot)), versions=lines
    )


def verdict_of_version(snapshot: ModelSnapshot, version: int) -> Verdict:
    found = snapshot.versions.get(version)
    if found is None:
        return Verdict.NOT_ON_DISK if snapshot.configured else Verdict.NOT_CONFIGURED
    if found.answers:
        return Verdict.SERVING
    match found.status.state:
        case VersionState.UNLOADING:
            return Verdict.LEAVING
        case VersionState.LOADING:
            return Verdict.WAITING if found.status.status.waits else Verdict.LOADING
        case VersionState.START:
            return Verdict.WAITING
    return _verdict_of_ended(found)


def verdict_of_model(snapshot: ModelSnapshot) -> ModelVerdict:
    """Of the newest version that is wanted, unless another one answers meanwhile."""
    answering = [version for version, found in snapshot.versions.items() if found.answers]
    wanted = [version for version, found in snapshot.versions.items() if found.aspired] or list(snapshot.versions)
    newest = max(wanted, default=None)
    if newest is None:
        verdict = Verdict.NOT_ON_DISK if snapshot.configured else Verdict.NOT_CONFIGURED
    else:
        verdict = verdict_of_version(snapshot, newest)
    if answering and verdict is not Verdict.SERVING:
        verdict = Verdict.SERVING_OTHER
    return ModelVerdict(snapshot.name, verdict, verdict.value, max(answering, default=None))


def _verdict_of_ended(found: VersionSnapshot) -> Verdict:
    status = found.status.status
    if status.ok:
        return Verdict.ENDED
    return Verdict.REFUSED if status.reason is Reason.FILES_REFUSED else Verdict.FAILED


def _line(snapshot: ModelSnapshot, found: VersionSnapshot) -> VersionLine:
    verdict = verdict_of_version(snapshot, found.version)
    return VersionLine(found.version, verdict, found.status.status.message or verdict.value, found.since)


def _answers(snapshot: ModelSnapshot) -> list[AnswersNow]:
    answering = {version for version, found in snapshot.versions.items() if found.answers}
    found = [AnswersNow("unversioned", max(answering))] if answering else []
    return found + [AnswersNow(label, at) for label, at in sorted(snapshot.labels.items()) if at in answering]
