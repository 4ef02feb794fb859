"""The causes of a version's or a model's verdict, and the explanation as a whole. Pure functions of a snapshot.

:data:`TABLE` is the table of causes, from the nearest to the root. Each row looks at one case and says nothing, or what
the cause is about and what to do, in the words of :mod:`words`. The rows that apply are the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import OK, Reason, Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.survey import LoadStage, LoadView
from tfs_lite.operations.explain import words
from tfs_lite.operations.explain.explanation import (
    MAX_CHAIN,
    AnswersNow,
    CauseCode,
    Explanation,
    Link,
    ModelVerdict,
    Next,
    Verdict,
    VersionLine,
)
from tfs_lite.operations.explain.snapshot import ModelSnapshot, VersionSnapshot, waited_for
from tfs_lite.operations.explain.verdicts import (
    failure_of,
    newest_wanted,
    verdict_of_model,
    verdict_of_newest,
    verdict_of_version,
    wanted_in_vain,
)

MOST_IN_VAIN = 3
"""The most other versions of a model whose causes are told in addition to those of the version that it is about; the
others are only named."""
SLOW_WAIT = 0.05
"""Seconds. Calls that wait longer than this, and longer than they run, are worth a word: the model has more to do than
it can. Shorter waits are normal: where there is room, waiting for the next batch costs one run at most."""


@dataclass(frozen=True, slots=True)
class Case:
    """The case that a row of the table looks at. ``version`` is None for a model of which no version is meant; then
    ``found`` is too. ``paths``: whether texts may name paths of the server. ``depth`` is 0 for what was asked about."""

    model: ModelSnapshot
    verdict: Verdict
    version: int | None = None
    found: VersionSnapshot | None = None
    label: str | None = None
    paths: bool = False
    depth: int = 0

    @property
    def load(self) -> LoadView | None:
        return self.found.view.load if self.found is not None and self.found.view is not None else None

    @property
    def hangs(self) -> bool:
        """Whether its load or unload takes longer than the bound."""
        return self.found is not None and self.found.view is not None and self.found.view.state.is_overdue

    @property
    def failure(self) -> Status:
        """The status with which the last attempt has failed or the version has ended; OK if neither is so."""
        return failure_of(self.found) if self.found is not None else OK

    @property
    def remark(self) -> Status:
        """The remark in its status while it answers; OK if there is none."""
        return self.found.remark if self.found is not None else OK


# The table.


def _label_unknown(case: Case) -> Link | None:
    if case.label is None or case.label in case.model.labels or not case.model.configured:
        return None
    return words.label_unknown(case.model, case.label)


def _label_to_missing(case: Case) -> Link | None:
    if case.label is None or case.label not in case.model.labels or case.verdict is Verdict.SERVING:
        return None
    return words.label_to_missing(case.model, case.label, case.verdict)


def _loading(case: Case) -> Link | None:
    load = case.load
    if load is None or load.stage is not LoadStage.AT_WORK or case.version is None:
        return None
    if case.hangs:
        return words.load_hangs(case.model, case.version, load)
    return words.loading(case.model, case.version, load)


def _queue_for_thread(case: Case) -> Link | None:
    load = case.load
    if load is None or load.stage is not LoadStage.QUEUED or case.version is None:
        return None
    return words.waits_for_load_thread(case.model, case.version, load)


def _memory(case: Case) -> Link | None:
    found, load = case.found, case.load
    parked = load is not None and load.stage is LoadStage.NEEDS_MEMORY
    refused = case.failure.code is StatusCode.RESOURCE_EXHAUSTED and case.verdict is not Verdict.SERVING
    if found is None or not (parked or refused):
        return None
    return words.waits_for_memory(case.model, found, load if parked else None, case.failure)


def _room(case: Case) -> Link | None:
    load = case.load
    if load is None or load.stage is not LoadStage.NEEDS_OTHERS or load.waits is not Reason.WAITS_FOR_PLACE:
        return None
    return words.waits_for_place(case.model, load)


def _retrying(case: Case) -> Link | None:
    load = case.load
    if load is None or load.failure is None or not load.failures or load.failure.waits or case.found is None:
        return None
    return words.retrying(case.model, case.found, load)


def _turn(case: Case) -> Link | None:
    if case.found is None or not _is_idle(case) or not _is_taken_on(case.found):
        return None
    return words.waits_for_turn(case.model, case.found.version)


def _is_taken_on(found: VersionSnapshot) -> bool:
    """Whether it is wanted, and what comes next is the manager's."""
    return found.aspired or (found.view is not None and found.view.state.state is HarnessState.NEW)


def _is_idle(case: Case) -> bool:
    """Whether it waits, and nothing is known that it waits for."""
    found = case.found
    is_incomplete = found is not None and found.incomplete is not None and found.on_disk is not False
    nothing = found is None or not (found.answers or is_incomplete)
    return case.verdict is Verdict.WAITING and case.load is None and nothing


def _draining(case: Case) -> Link | None:
    if case.found is None or case.verdict is not Verdict.LEAVING:
        return None
    view = case.found.view
    if case.hangs and view is not None and view.state.state is not HarnessState.QUIESCING:
        return words.unload_hangs(case.found)
    return words.draining(case.model, case.found)


def _worker(case: Case) -> Link | None:
    if case.found is None or not case.found.answers:
        return None
    workers = case.found.burden.workers if case.found.burden is not None else ()
    down = [worker for worker in workers if not worker.up]
    if not down and (case.found.silence.ok or not case.found.replicas):
        return None
    return words.worker_down(case.model, case.found, down)


def _queue_full(case: Case) -> Link | None:
    burden = case.found.burden if case.found is not None else None
    if burden is None or burden.refusal is None or burden.refusal.reason is not Reason.QUEUE_FULL:
        return None
    return words.queue_full(case.model, burden)


def _slow(case: Case) -> Link | None:
    """A queue that is full says the same, and more."""
    found = case.found
    if found is None or found.burden is None or found.burden.refusal is not None or found.pace is None:
        return None
    if found.pace.wait_seconds <= max(found.pace.run_seconds, SLOW_WAIT):
        return None
    return words.slow(found.pace, found.burden)


def _failing(case: Case) -> Link | None:
    found = case.found
    if found is None or not found.answers or found.failing is None:
        return None
    return words.failing(case.model, found.failing)


def _config_not_applied(case: Case) -> Link | None:
    if case.found is None or case.remark.ok or not case.found.answers:
        return None
    return words.config_not_applied(case.model, case.found)


def _place(case: Case) -> Link | None:
    found = case.found
    return words.place(case.model, found, "it") if found is not None and found.place and found.answers else None


def _incomplete(case: Case) -> Link | None:
    found = case.found
    if found is None or found.incomplete is None or not found.on_disk:
        return None
    return words.incomplete(case.model, found.version, found.incomplete)


def _failed(case: Case) -> Link | None:
    """The files are refused, nothing can load them, or every attempt has failed."""
    found, failure = case.found, case.failure
    if found is None and case.version is not None and case.version in case.model.refused:
        failure = case.model.refused[case.version]
    elif found is not None and found.version in case.model.refused and failure.ok:
        failure = case.model.refused[found.version]
    if failure.ok or case.verdict not in (Verdict.FAILED, Verdict.REFUSED):
        return None
    if failure.code is StatusCode.RESOURCE_EXHAUSTED:
        return None
    return words.failed(case.model, case.version or 0, found, failure, paths=case.paths)


def _unloaded(case: Case) -> Link | None:
    if case.verdict is not Verdict.ENDED:
        return None
    return words.unloaded(case.model, case.version, case.found)


def _passed_over(case: Case) -> Link | None:
    found = case.found
    if case.version is None or case.verdict not in (Verdict.NOT_WANTED, Verdict.LEAVING):
        return None
    if case.model.server.by_calls or not case.model.configured:
        return None
    if found is not None and (found.aspired or found.on_disk is False):
        return None
    return words.passed_over(case.model, case.version)


def _not_on_disk(case: Case) -> Link | None:
    found, version = case.found, case.version
    gone = found is not None and found.on_disk is False and case.verdict in (Verdict.NOT_ON_DISK, Verdict.LEAVING)
    unknown = found is None and case.verdict is Verdict.NOT_ON_DISK
    if version is None or not (gone or unknown) or not case.model.problem.ok:
        return None
    return words.not_on_disk(case.model, version, found)


def _seen_soon(case: Case) -> Link | None:
    if not _is_idle(case) or (case.found is not None and _is_taken_on(case.found)):
        return None
    return words.seen_soon(case.model)


def _base_path(case: Case) -> Link | None:
    model = case.model
    if model.problem.ok or not model.configured or model.wants_unknown:
        return None
    return words.base_path_problem(model, case.paths)


def _not_configured(case: Case) -> Link | None:
    if case.model.configured:
        return None
    return words.not_configured(case.model, case.paths)


def _config_refused(case: Case) -> Link | None:
    """Said once, of what was asked for."""
    refused = case.model.server.refused_config
    if refused is None or case.depth:
        return None
    return words.config_refused(refused, case.paths)


def _control_mode(case: Case) -> Link | None:
    if case.model.server.by_calls and case.verdict in (Verdict.NOT_WANTED, Verdict.ENDED, Verdict.NOT_CONFIGURED):
        return words.control_mode(case.model, case.version)
    unseen = case.version is not None and case.model.exists and case.found is None
    if case.verdict is Verdict.NOT_ON_DISK and unseen and not case.model.server.looks_again:
        return words.control_mode(case.model, case.version)
    return None


def _server_stops(case: Case) -> Link | None:
    return words.draining_server(case.model) if case.model.server.draining else None


TABLE = (
    _label_unknown,
    _label_to_missing,
    _worker,
    _queue_full,
    _slow,
    _failing,
    _config_not_applied,
    _place,
    _loading,
    _queue_for_thread,
    _memory,
    _room,
    _retrying,
    _turn,
    _draining,
    _incomplete,
    _failed,
    _unloaded,
    _passed_over,
    _not_on_disk,
    _seen_soon,
    _base_path,
    _not_configured,
    _config_refused,
    _control_mode,
    _server_stops,
)
"""The rows for every case; the chain has them in this order. The models that a version waits for come between."""


def chain(case: Case) -> list[Link]:
    """The chain of at most ``MAX_CHAIN`` links, from the nearest to the root."""
    links = [link for row in TABLE if (link := row(case)) is not None]
    at = 1 if links and case.label is not None else 0
    links[at:at] = _waits_for_models(case)
    return links[:MAX_CHAIN]


def _waits_for_models(case: Case) -> Iterator[Link]:
    """The models that it waits for, with their own verdicts and causes."""
    load = case.load
    names = case.found.silence.models if case.found is not None else ()
    if load is not None and load.waits is Reason.WAITS_FOR_MODELS and load.failure is not None:
        names = load.failure.models
    if not names:
        return
    since = load.since if load is not None else None
    yield words.waits_for_models(case.model, since, {name: _verdict_of(case, name) for name in names})
    for name in names:
        other = case.model.others.get(name)
        if other is not None and case.depth < MAX_CHAIN:
            newest = newest_wanted(other)
            found = other.versions.get(newest) if newest is not None else None
            verdict = verdict_of_model(other)
            if verdict is not Verdict.SERVING:
                below = Case(other, verdict_of_newest(other), newest, found, None, case.paths, case.depth + 1)
                yield from chain(below)


def _verdict_of(case: Case, name: str) -> Verdict:
    other = case.model.others.get(name)
    return verdict_of_model(other) if other is not None else Verdict.NOT_CONFIGURED


# Explanations.


def explain(model: ModelSnapshot, ref: ModelRef, *, paths: bool = False) -> Explanation:
    """Explains the state of the reference. ``paths``: whether the texts may name paths of the server."""
    version = model.labels.get(ref.label) if ref.label is not None else ref.version
    if ref.label is not None and version is None:
        case = Case(model, Verdict.NOT_CONFIGURED, None, None, ref.label, paths)
        verdict = Verdict.NOT_CONFIGURED
    elif version is not None:
        verdict = verdict_of_version(model, version)
        case = Case(model, verdict, version, model.versions.get(version), ref.label, paths)
    else:
        case = case_of_model(model, paths)
        verdict = verdict_of_model(model)
    because = tuple(chain(case))
    sentence = words.sentence(model, case.version, ref.label, verdict, case.verdict, because)
    if ref.version is None and ref.label is None:
        others = [*_in_vain(model, case), *_answering_too(model, case), *_draining_too(model, case)]
        because = (*because, *_of_model(model, case, others))[:MAX_CHAIN]
    return Explanation(
        ref.name,
        version,
        ref.label,
        verdict,
        sentence,
        because,
        tuple(waited_for([case.found])) if case.found is not None else (),
        _next(case, because),
        tuple(_answers(model)),
        tuple(_line(model, found) for found in model.versions.values()),
    )


def _of_model(model: ModelSnapshot, case: Case, others: Sequence[Link]) -> Iterator[Link]:
    """The causes of a model in addition to those of the version that it is about. ``others``: the causes of its other
    versions."""
    newest = max(model.answering, default=None)
    if newest is not None and newest != case.version and model.versions[newest].place:
        yield words.place(model, model.versions[newest], f"version {newest}")
    unread = model.unread_policy
    if not (
        unread.ok or model.wants_unknown or any(unread.message in said.message for said in (case.failure, case.remark))
    ):
        yield words.policy_not_read(unread)
    yield from others
    yield from _left_out(model, case)
    yield from words.names_passed_over(model)


def _in_vain(model: ModelSnapshot, case: Case) -> Iterator[Link]:
    """The versions that the policy wants as well, and that do not come to answer by themselves."""
    versions = [version for version in wanted_in_vain(model) if version != case.version]
    causes = [(version, cause) for version in versions if (cause := _cause_of(model, version, case.paths)) is not None]
    for version, cause in causes[:MOST_IN_VAIN]:
        yield words.in_vain(version, verdict_of_version(model, version), cause)
    if more := [version for version, _ in causes[MOST_IN_VAIN:]]:
        yield words.more_in_vain(model, more, causes[MOST_IN_VAIN][1])


def _answering_too(model: ModelSnapshot, case: Case) -> Iterator[Link]:
    """The causes of the other versions that answer: new files that are not served, failing requests, and so on."""
    others = [version for version in reversed(model.answering) if version != case.version]
    causes = [(version, cause) for version in others if (cause := _cause_of(model, version, case.paths)) is not None]
    said = [(version, cause) for version, cause in causes if cause.cause not in (CauseCode.STAYS, CauseCode.STANDS_IN)]
    for version, cause in said[:MOST_IN_VAIN]:
        yield words.answering_too(version, cause)


def _draining_too(model: ModelSnapshot, case: Case) -> Iterator[Link]:
    """The other versions that wait for their last requests, and loads of those that answer that were replaced."""
    for version, found in model.versions.items():
        if found.view is not None and found.view.leaving and (found.answers or version != case.version):
            link = words.draining(model, found)
            yield words.answering_too(version, link)


def _cause_of(model: ModelSnapshot, version: int, paths: bool) -> Link | None:
    """The nearest one."""
    verdict, found = verdict_of_version(model, version), model.versions.get(version)
    return next(iter(chain(Case(model, verdict, version, found, None, paths, depth=1))), None)


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
                yield words.left_out(model, version, is_newer=version > about)
            return


def case_of_model(model: ModelSnapshot, paths: bool = False) -> Case:
    """About the newest version that is wanted."""
    newest = newest_wanted(model)
    if newest is None:
        return Case(model, verdict_of_model(model), paths=paths)
    return Case(model, verdict_of_version(model, newest), newest, model.versions.get(newest), None, paths)


def line_of_model(model: ModelSnapshot) -> ModelVerdict:
    """One line of a list."""
    case, verdict = case_of_model(model), verdict_of_model(model)
    because = chain(case)
    text = words.sentence(model, case.version, None, verdict, case.verdict, because)
    hanging = [link for link in _draining_too(model, case) if link.cause is CauseCode.DRAIN_HANGS]
    others = [*_in_vain(model, case), *_answering_too(model, case), *hanging]
    more = list(_of_model(model, case, others))
    nearest = next(iter((*because, *more)), None)
    return ModelVerdict(
        model.name,
        verdict,
        "; ".join((text, *(link.text for link in more))),
        max(model.answering, default=None),
        nearest.cause if nearest else None,
        next((link.fix for link in (*because, *others)), ""),
    )


def _line(model: ModelSnapshot, found: VersionSnapshot) -> VersionLine:
    verdict = verdict_of_version(model, found.version)
    because = chain(Case(model, verdict, found.version, found, depth=1))
    text = words.sentence(model, found.version, None, verdict, verdict, because)
    return VersionLine(found.version, verdict, text, found.state.time if found.state is not None else None)


def _answers(model: ModelSnapshot) -> list[AnswersNow]:
    """A lookup may find a version whose process is down: that one answers nothing."""
    newest = max(model.answering, default=None)
    asked = [("unversioned", newest)] if newest is not None else []
    asked += [(label, at) for label, at in sorted(model.labels.items()) if at in model.answering]
    return [AnswersNow(what, at) for what, at in asked if verdict_of_version(model, at) is Verdict.SERVING]


def _next(case: Case, because: Sequence[Link]) -> Next:
    load, found, server = case.load, case.found, case.model.server
    if server.draining:
        return Next("the server stops")
    if load is not None:
        at = server.wall(load.retry_at) if load.retry_at is not None else None
        return Next(words.next_of_load(load), at)
    if found is not None and found.incomplete is not None:
        return Next(words.next_of_files(found.incomplete), found.incomplete.retry_at)
    return Next(words.next_of(case.verdict, waits_for_room=_waits_for_room(case)))


def _waits_for_room(case: Case) -> bool:
    found, server = case.found, case.model.server
    if found is None or case.failure.code is not StatusCode.RESOURCE_EXHAUSTED or not words.can_be_renewed(found):
        return False
    return bool(server.beside_models) or not words.never_fits(server, found)
