"""The answers: an explanation of one reference, and a line of each model in a list. Pure functions of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tfs_lite.core.servable import ModelRef
from tfs_lite.managers.survey import LoadStage, LoadView
from tfs_lite.operations.explain.causes import files, serving, storage, wanted
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.causes.loading import beside, requests_inside
from tfs_lite.operations.explain.causes.memory import waits_for_room
from tfs_lite.operations.explain.causes.phrases import SHORT, numbers
from tfs_lite.operations.explain.chain import chain
from tfs_lite.operations.explain.explanation import (
    MAX_CHAIN,
    AnswersNow,
    Explanation,
    Link,
    ModelVerdict,
    Next,
    Verdict,
    VersionLine,
)
from tfs_lite.operations.explain.snapshot import ModelSnapshot, VersionSnapshot, waited_for
from tfs_lite.operations.explain.verdicts import verdict_of_model, verdict_of_version, wanted_in_vain

HANGS = ("LOAD_HANGS", "DRAIN_HANGS", "UNLOAD_HANGS")
MOST_IN_VAIN = 3
"""The most other versions of a model whose causes are told in addition to those of the version that it is about; the
others are only named."""


def explain(model: ModelSnapshot, ref: ModelRef, *, paths: bool = False) -> Explanation:
    """Explains the state of the reference. ``paths``: whether the texts may name paths of the server."""
    version = model.labels.get(ref.label) if ref.label is not None else ref.version
    if ref.label is not None and version is None:
        verdict = Verdict.NOT_CONFIGURED
        case = Case(model, verdict, None, ref.label, paths)
    elif version is not None:
        verdict = verdict_of_version(model, version)
        case = Case(model, verdict, version, ref.label, paths)
        if ref.label is not None and verdict is Verdict.REJECTED and model.latest is not None:
            verdict = Verdict.SERVING_OTHER
    else:
        verdict, case = verdict_of_model(model), Case.of_model(model, paths)
    because = tuple(chain(case))
    sentence = _sentence(case, verdict, because)
    if ref.version is None and ref.label is None:
        others = [*_in_vain(model, case), *_answering_too(model, case), *_draining_too(model, case)]
        because = (*because, *_of_model(model, case, others))[:MAX_CHAIN]
    elif (link := beside(case)) is not None:
        because = (*because, link)[:MAX_CHAIN]
    return Explanation(
        ref.name,
        version,
        ref.label,
        verdict,
        sentence,
        because,
        tuple(waited_for([case.found])),
        _next(case),
        tuple(_answers(model)),
        tuple(_line(model, found) for found in model.versions.values()),
    )


def _of_model(model: ModelSnapshot, case: Case, others: Sequence[Link]) -> Iterator[Link]:
    """The links about a model in addition to those of the version that it is about. ``others``: the links about its
    other versions."""
    newest = max(model.answering, default=None)
    if newest is not None and newest != case.version:
        other, what = Case.of(model, newest), f"version {newest}"
        if (link := serving.stands_in(other, what) or serving.stays(other, what)) is not None:
            yield link
    unread = model.unread_policy
    is_said = any(unread.message in said.message for said in (case.failure, case.found.remark))
    if not (unread.ok or model.wants_unknown or is_said):
        yield wanted.policy_not_read(unread)
    yield from others
    yield from _left_out(model, case)
    named, said = map(partial(files.name_passed_over, model), model.report.passed_over), chain(case)
    yield from (link for link in named if link not in said)


def _in_vain(model: ModelSnapshot, case: Case) -> Iterator[Link]:
    """The versions that the policy wants as well, and that do not come to answer by themselves."""
    versions = [version for version in wanted_in_vain(model) if version != case.version]
    causes = [(version, cause) for version in versions if (cause := _cause_of(model, version, case.paths)) is not None]
    for version, cause in causes[:MOST_IN_VAIN]:
        said = SHORT[verdict_of_version(model, version)]
        yield replace(cause, text=f"version {version} is wanted too, but {said}: {cause.text}")
    if more := [version for version, _ in causes[MOST_IN_VAIN:]]:
        text = f"these are wanted too, but do not answer: versions {numbers(more)}"
        fix = f"tfs-lite explain {model.name}@{more[0]} says why, and so on"
        yield replace(causes[MOST_IN_VAIN][1], text=text, fix=fix, since=None)


def _answering_too(model: ModelSnapshot, case: Case) -> Iterator[Link]:
    """The links about the other versions that answer: new files that are not served, failing requests, and so
    on."""
    others = [version for version in reversed(model.answering) if version != case.version]
    causes = [(version, cause) for version in others if (cause := _cause_of(model, version, case.paths)) is not None]
    said = [(version, cause) for version, cause in causes if cause.cause not in ("STAYS", "STANDS_IN")]
    for version, cause in said[:MOST_IN_VAIN]:
        yield _of_version(version, cause)


def _draining_too(model: ModelSnapshot, case: Case) -> Iterator[Link]:
    """The other versions that wait for their last requests, and the other loads of those that answer."""
    for version, found in model.versions.items():
        of_version = Case.of(model, version, case.paths)
        if (link := beside(of_version)) is not None:
            yield _of_version(version, link)
        elif found.view is not None and found.view.leaving and version != case.version:
            yield _of_version(version, requests_inside(of_version))


def _of_version(version: int, link: Link) -> Link:
    return replace(link, text=f"version {version}: {link.text}")


def _cause_of(model: ModelSnapshot, version: int, paths: bool) -> Link | None:
    """The nearest one."""
    return next(iter(chain(Case.of(model, version, paths))), None)


def _left_out(model: ModelSnapshot, case: Case) -> Iterator[Link]:
    """A version that was published and does not answer, because the policy takes others. It is newer than the version
    that the case is about, or its directory came last."""
    on_disk = [found for found in model.versions.values() if found.on_disk]
    if all(found.aspired for found in on_disk) or model.server.by_calls:
        return
    about, came = case.version or 0, max(found.arrived or 0.0 for found in on_disk)
    newest = max(found.version for found in on_disk)
    last = [found.version for found in on_disk if (found.arrived or 0.0) == came]
    for candidates in ([newest] if newest > about else [], last):
        if candidates and all(verdict_of_version(model, each) is Verdict.NOT_WANTED for each in candidates):
            version = max(candidates)
            if version != about:
                yield wanted.left_out(model, version, is_newer=version > about)
            return


def line_of_model(model: ModelSnapshot) -> ModelVerdict:
    """One line of a list."""
    case, verdict = Case.of_model(model), verdict_of_model(model)
    because = chain(case)
    text = _sentence(case, verdict, because)
    hanging = [link for link in _draining_too(model, case) if link.cause in HANGS]
    others = [*_in_vain(model, case), *_answering_too(model, case), *hanging]
    more = list(_of_model(model, case, others))
    nearest = next(iter((*because, *more)), None)
    return ModelVerdict(
        model.name,
        verdict,
        "; ".join((text, *(link.text for link in more))),
        model.latest,
        nearest.cause if nearest else None,
        next((link.fix for link in (*because, *others)), ""),
        _failed_share(model),
    )


def _failed_share(model: ModelSnapshot) -> float:
    """The share of failed requests among those to its versions that answer, where it is worth a word."""
    answering = [model.versions[version] for version in model.answering]
    paces = [found.pace for found in answering if found.pace is not None]
    if not any(found.failing for found in answering):
        return 0.0
    return sum(pace.failures for pace in paces) / max(sum(pace.requests for pace in paces), 1)


def _line(model: ModelSnapshot, found: VersionSnapshot) -> VersionLine:
    case = Case.of(model, found.version)
    return VersionLine(found.version, case.verdict, _sentence(case, case.verdict, chain(case)), found.since)


def _answers(model: ModelSnapshot) -> list[AnswersNow]:
    """A lookup may find a version whose process is down: that one answers nothing."""
    newest = model.latest
    asked = [("unversioned", newest)] if newest is not None else []
    for label in sorted(model.labels):
        means = model.meaning(label)
        asked += [(label, means)] if means is not None and means in model.answering else []
    return [AnswersNow(what, at) for what, at in asked if verdict_of_version(model, at) is Verdict.SERVING]


def _next(case: Case) -> Next:
    load, incomplete, server = case.load, case.found.incomplete, case.server
    if server.draining:
        return Next("the server stops")
    if load is not None:
        return Next(_next_of_load(load), server.wall(load.retry_at) if load.retry_at is not None else None)
    if incomplete is not None and (what := storage.next_of_fetch(case)):
        return Next(what)
    if incomplete is not None:
        at = incomplete.retry_at
        return Next("it is looked at again" if at is not None else "nothing happens before its files change", at)
    return Next(_next_of_verdict(case))


def _sentence(case: Case, verdict: Verdict, because: Sequence[Link]) -> str:
    """The first line: what is the case, and the nearest cause. ``verdict`` is the whole one, of the model if that was
    asked for."""
    model, version, label = case.model, case.version, case.label
    what = f"version {version}" if version is not None else f"model {model.name}"
    if label is not None:
        what = f'label "{label}"' + (f" (version {version})" if version is not None else "")
    reason = f": {because[0].text}" if because else ""
    first = f"{what} {'is not known' if label is not None and version is None else SHORT[case.verdict]}"
    answering = model.answering
    if verdict is Verdict.SERVING and because:
        return f"{first}, but {because[0].text}"
    if verdict is Verdict.SERVING or not answering or version in answering:
        return first + reason
    serving = [each for each in answering if verdict_of_version(model, each) is Verdict.SERVING]
    if not serving:
        return f"{first}{reason}; version {max(answering)} is loaded, but does not answer"
    means = model.meaning(label) if label is not None and label in model.labels else None
    return f"{first}{reason}; version {means if means in serving else max(serving)} answers instead"


def _next_of_load(load: LoadView) -> str:
    match load.stage:
        case LoadStage.BETWEEN_ATTEMPTS:
            return f"attempt {load.failures + 1} of {load.max_attempts}"
        case LoadStage.NEEDS_MEMORY:
            return "it is loaded when memory comes free"
        case LoadStage.NEEDS_OTHERS:
            return "it is loaded when these have come"
        case LoadStage.QUEUED:
            return "it is loaded when a thread is free"
    return "it serves when it has loaded"


def _next_of_verdict(case: Case) -> str:
    match case.verdict:
        case Verdict.FAILED if waits_for_room(case):
            return "it is tried again when memory comes free, or its files change"
        case Verdict.SERVING if case.model.trial is not None and case.model.trial.new == case.version:
            return "its trial ends by itself: it stays, or it is taken back"
        case Verdict.SERVING:
            return "it goes on serving"
        case Verdict.REJECTED | Verdict.HELD_BACK:
            return "it does not answer before its files change, or an operator says so"
        case Verdict.FAILED | Verdict.REFUSED:
            return "nothing happens before its files change"
        case Verdict.LEAVING:
            return "it is unloaded after its last request"
        case Verdict.WAITING | Verdict.LOADING:
            return "it goes on by itself"
    return "nothing happens by itself"
