"""Causes of versions that are on their way in or out."""

from __future__ import annotations

from collections.abc import Sequence

from tfs_lite.core.status import Reason, listed
from tfs_lite.managers.harness import LEAVING, HarnessState, Overdue
from tfs_lite.managers.survey import LoadStage
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.causes.phrases import clock, counted, name_of, numbers
from tfs_lite.operations.explain.explanation import Link, Verdict
from tfs_lite.operations.explain.snapshot import VersionSnapshot
from tfs_lite.operations.explain.verdicts import verdict_of_model
from tfs_lite.workers.process_connection import START_SECONDS

SILENT_SECONDS = 5.0
"""A process that has not been started for longer than this is worth a word."""
_WAIT_FOR_LOAD = (
    "wait if its files are large or its disk is slow; else publish a version that does not hang in its load. What "
    "hangs keeps its thread and its memory until the server is started again"
)
_MEND_CLOSE = (
    "mend what the model does in close(), and start the server again: until then it keeps its thread and its "
    "memory, which counts as used"
)


def load_hangs(case: Case) -> Link | None:
    load, server = case.load_in(LoadStage.AT_WORK), case.server
    if load is None or not case.found.is_overdue:
        return None
    seconds = max(server.monotonic - load.since, 0.0)
    text = f"version {case.version} has been loading for {seconds:.0f} s, longer than --slow_load_seconds; others go on"
    return Link("LOAD_HANGS", text, _WAIT_FOR_LOAD, server.wall(load.since))


def loading(case: Case) -> Link | None:
    load, server = case.load_in(LoadStage.AT_WORK), case.server
    if load is None:
        return None
    seconds = max(server.monotonic - load.since, 0.0)
    attempt = f", attempt {load.failures + 1} of {load.max_attempts}" if load.failures else ""
    text = f"version {case.version} has been loading for {seconds:.1f} s{attempt}"
    return Link("LOADING", text, "wait: it serves when it has loaded and warmed up", server.wall(load.since))


def process_not_started(case: Case) -> Link | None:
    """The process that forks those of models does not answer: it is stopped, or imports for long."""
    asked, server = case.found.unanswered, case.server
    if asked is None or server.monotonic - asked.since < SILENT_SECONDS:
        return None
    text = (
        f"the process that starts those of models (pid {asked.pid}) was asked for one of version {case.version} "
        f"{server.monotonic - asked.since:.0f} s ago, and has not answered: it imports libraries, or does not run"
    )
    fix = (
        f"wait if it imports; each attempt ends after {START_SECONDS:.0f} s, and the next one follows. If it is "
        f"stopped (ps shows T), kill -CONT {asked.pid}; if it hangs, kill -9 {asked.pid}: it and every process of a "
        "model are started again"
    )
    return Link("PROCESS_NOT_STARTED", text, fix, server.wall(asked.since))


def waits_for_load_thread(case: Case) -> Link | None:
    load, server = case.load_in(LoadStage.QUEUED), case.server
    if load is None:
        return None
    busy = [
        f"{name_of(servable_id)} for {max(server.monotonic - at_work.since, 0):.0f} s"
        for servable_id, at_work in server.overview.at_work.items()
    ]
    text = f"{counted(load.ahead, 'load')} before it in the queue of {counted(server.manager.load_threads, 'thread')}"
    text += f"; loading now: {listed(busy)}" if busy else ""
    fix = "wait until those have loaded, or start the server with a higher --num_load_threads"
    return Link("WAITS_FOR_LOAD_THREAD", text, fix, server.wall(load.since))


def waits_for_models(case: Case) -> Link | None:
    """The models' own causes follow in the chain."""
    load, verdicts = case.load, models_waited_for(case)
    if not verdicts:
        return None
    shown = [f"{name} ({verdict.name})" for name, verdict in verdicts.items()]
    text = f"the models of its steps have to be available first: {listed(shown)}"
    missing = [name for name, verdict in verdicts.items() if verdict is Verdict.NOT_CONFIGURED]
    fix = f"bring these to SERVING; it follows by itself: {listed(list(verdicts))}"
    if missing:
        fix = f"serve {listed(missing)} too: add it to the config or the repository; this model follows by itself"
    return Link("WAITS_FOR_MODELS", text, fix, case.server.wall(load.since) if load is not None else None)


def models_waited_for(case: Case) -> dict[str, Verdict]:
    """The verdict of each model that it waits for, by name."""
    load, names, others = case.load, case.found.silence.models, case.model.others
    if load is not None and load.waits is Reason.WAITS_FOR_MODELS and load.failure is not None:
        names = load.failure.models
    return {name: verdict_of_model(others[name]) if name in others else Verdict.NOT_CONFIGURED for name in names}


def waits_for_place(case: Case) -> Link | None:
    load = case.load_in(LoadStage.NEEDS_OTHERS)
    if load is None or load.waits is not Reason.WAITS_FOR_PLACE:
        return None
    text = load.failure.message if load.failure is not None else "the cluster has no room for its replicas"
    fix = "add a node that has the room, or ask for less in the model's config (replicas, their CPUs and GPUs)"
    return Link("WAITS_FOR_PLACE", text, fix, case.server.wall(load.since), "cluster.md")


def retrying(case: Case) -> Link | None:
    load, server = case.load, case.server
    if load is None or load.failure is None or not load.failures or load.failure.waits:
        return None
    text = f"attempt {load.failures} of {load.max_attempts} failed: {load.failure.message}"
    when = f" at {clock(server.wall(load.retry_at))}" if load.retry_at is not None else ""
    fix = f"mend that before the next attempt{when}"
    if server.looks_again and load.failure.reason is Reason.FILES_CHANGED:
        fix = "wait: its files are loaded as they are now, as soon as they are complete and quiet"
    elif server.looks_again:
        fix = f"{fix}; a change of its files is noticed and tried at once"
    return Link("RETRYING", text, fix, server.wall(load.since))


def waits_for_turn(case: Case) -> Link | None:
    if not _is_idle(case) or not _is_taken_on(case.found):
        return None
    version, server = case.found.version, case.server
    others = {v: view for v, view in server.overview.by_model.get(case.model.name, {}).items() if v != version}
    leaving = [v for v, view in others.items() if view.state.state in LEAVING]
    surplus = [v for v, view in others.items() if view.answers and not view.state.is_aspired]
    new = [v for v, view in others.items() if v > version and view.state.state is HarnessState.NEW]
    if leaving or surplus:
        shown = numbers(leaving or surplus)
        text = f"version {shown} has to be gone first (--aspired_version_policy={server.version_policy})"
        fix = f"wait until the requests of version {shown} have been answered"
    elif new:
        text = f"version {max(new)} goes first"
        fix = "wait: versions of a model are loaded one after the other, the highest first"
    else:
        text, fix = "it is taken on with the next look of the manager", "wait a moment"
    return Link("WAITS_FOR_TURN", text, fix)


def seen_soon(case: Case) -> Link | None:
    """It waits for its turn to be looked at."""
    if not _is_idle(case) or _is_taken_on(case.found):
        return None
    text = "its directory is there, and the next look at the disk takes it up"
    if case.model.storage is not None:
        text = "its objects are there, and the next poll takes it up"
    if not case.model.looked:
        text = "its base path has not been looked at yet"
    return Link("WAITS_FOR_TURN", text, "wait a moment")


def _is_taken_on(found: VersionSnapshot) -> bool:
    """Whether it is wanted, and what comes next is the manager's."""
    return found.aspired or (found.view is not None and found.view.state.state is HarnessState.NEW)


def _is_idle(case: Case) -> bool:
    """Whether it waits, and nothing is known that it waits for."""
    found = case.found
    is_incomplete = found.incomplete is not None and found.on_disk is not False
    return case.verdict is Verdict.WAITING and case.load is None and not (found.answers or is_incomplete)


def unload_hangs(case: Case) -> Link | None:
    found = case.found
    if case.verdict is not Verdict.LEAVING or not found.is_overdue or _is_quiescing(found):
        return None
    text = f"version {found.version} is being unloaded for longer than --slow_unload_seconds; others go on"
    return Link("UNLOAD_HANGS", text, _MEND_CLOSE, found.since)


def _is_quiescing(found: VersionSnapshot) -> bool:
    return found.view is not None and found.view.state.state is HarnessState.QUIESCING


def draining(case: Case) -> Link | None:
    found = case.found
    leaves = case.verdict is Verdict.REJECTED and found.view is not None and found.view.state.state in LEAVING
    return requests_inside(case) if leaves or case.verdict is Verdict.LEAVING else None


def beside(case: Case) -> Link | None:
    """Another load of the version that answers: the one before it, which requests keep or whose unload takes too long,
    or the next one, which takes too long."""
    view, server = case.found.view, case.server
    if view is None or not case.found.answers:
        return None
    if view.leaving:
        return requests_inside(case)
    since = {step: server.wall(begun) for step, begun in view.hangs_beside}
    if Overdue.UNLOAD in since:
        text = "its load from before it was loaded anew is being unloaded for longer than --slow_unload_seconds"
        return Link("UNLOAD_HANGS", f"{text}; others go on", _MEND_CLOSE, since[Overdue.UNLOAD])
    if Overdue.LOAD in since:
        seconds = max(server.taken - since[Overdue.LOAD], 0.0)
        text = f"it has been loading anew for {seconds:.0f} s, longer than --slow_load_seconds; others go on"
        return Link("LOAD_HANGS", text, _WAIT_FOR_LOAD, since[Overdue.LOAD])
    return None


def requests_inside(case: Case) -> Link:
    """The link for a version that was withdrawn, or for the load before the one that answers."""
    found = case.found
    view = found.view
    assert view is not None
    inside, pids = view.leaving, [str(worker.pid) for worker in found.leaving if worker.pid is not None]
    drain_since = dict(view.hangs_beside).get(Overdue.DRAIN)
    hangs = bool(inside) and (drain_since is not None if found.answers else view.state.is_overdue)
    text = f"{counted(inside, 'request')} inside"
    if found.answers:
        text = f"{text} from before it was loaded anew"
    if pids:
        text += f", in process{'es' if len(pids) > 1 else ''} {listed(pids)}"
    if found.sequences is not None and found.sequences[0]:
        count, until = found.sequences
        text += f", of these {counted(count, 'sequence')}, which may go on until {clock(until)}"
    if not inside:
        text = "it is being unloaded"
        if view.unloads_ahead is not None:
            text = f"its unload is queued, {counted(view.unloads_ahead, 'unload')} before it"
    elif hangs:
        text += "; they take longer than --slow_unload_seconds and --sequence_drain_seconds together; others go on"
    else:
        text += "; it is unloaded after the last of them"
    fix = _end_requests(pids) if hangs else "wait for its requests to end" if inside else "wait"
    if view.state.is_aspired and not found.answers:
        fix += "; it is wanted again and is loaded anew then"
    since = case.server.wall(drain_since) if drain_since is not None else None if found.answers else found.since
    return Link("DRAIN_HANGS" if hangs else "DRAINING", text, fix, since, "serving.md#what-hangs")


def _end_requests(pids: Sequence[str]) -> str:
    """``pids`` of the processes that they are in; none: they are in threads of the server."""
    fix = "wait if they may take so long; else end them: stop their clients, "
    if pids:
        return f"{fix}or kill -9 {' '.join(pids)}, and what is started in its place, which fails them with UNAVAILABLE"
    return f'{fix}or, if the model hangs, start the server again (and give it worker: "process", which can be killed)'
