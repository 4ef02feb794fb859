"""The words of each cause: what is the case, and what to do. Plain sentences for people who read them at night.

A text says what was found, with numbers; a fix says what, carried out, makes the version serve. Paths of the server are
named only to clients who may see them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tfs_lite.adapters.opening import CHANGED as CHANGED_SINCE
from tfs_lite.adapters.opening import GONE
from tfs_lite.config.model_server import ModelConfig
from tfs_lite.config.text import YAML_ENDINGS
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES
from tfs_lite.core.publish import HIDDEN_PREFIX
from tfs_lite.core.resources import GPU, MAIN, Resource
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, Status, StatusCode, listed
from tfs_lite.managers.harness import LEAVING, HarnessState
from tfs_lite.managers.survey import LoadStage, LoadView
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.operations.explain.explanation import CauseCode, Link, Verdict
from tfs_lite.operations.explain.snapshot import (
    Failing,
    Incomplete,
    ModelSnapshot,
    Pace,
    ServerSnapshot,
    VersionSnapshot,
)
from tfs_lite.operations.explain.verdicts import verdict_of_version
from tfs_lite.operations.failed_requests.ring import FailedRequest
from tfs_lite.serving.model_states import FILES_OF_BEFORE
from tfs_lite.serving.standing import StandingRefusal
from tfs_lite.serving.version_follower import CHANGED, CHANGED_FILES
from tfs_lite.serving.view import Burden
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy
from tfs_lite.workers.supervisor import FORK_SERVER_DIED

_REPOSITORY = "the model repository"
_FROM_REPOSITORY = "--model_repository"
_PIP = re.compile(r"pip install '[^']+'")
SHORT = {
    Verdict.FAILED: "has failed",
    Verdict.REFUSED: "is refused",
    Verdict.NOT_CONFIGURED: "is not served under this name",
    Verdict.NOT_ON_DISK: "is not on disk",
    Verdict.REJECTED: "was rejected by a rollout",
    Verdict.HELD_BACK: "is held back by a rollout",
    Verdict.WAITING: "waits",
    Verdict.LOADING: "is being loaded",
    Verdict.SERVING_OTHER: "does not answer",
    Verdict.LEAVING: "is being withdrawn",
    Verdict.NOT_WANTED: "is not wanted",
    Verdict.ENDED: "was withdrawn",
    Verdict.SERVING: "answers",
}
"""Short words for the state of a version."""


def sentence(
    model: ModelSnapshot,
    version: int | None,
    label: str | None,
    verdict: Verdict,
    of_version: Verdict,
    because: Sequence[Link],
) -> str:
    """The first line: what is the case, and the nearest cause. ``of_version`` is the verdict of the version that the
    sentence is about, where that is not the whole ``verdict``."""
    what = f"version {version}" if version is not None else f"model {model.name}"
    if label is not None:
        what = f'label "{label}"' + (f" (version {version})" if version is not None else "")
    reason = f": {because[0].text}" if because else ""
    first = f"{what} {'is not known' if label is not None and version is None else SHORT[of_version]}"
    answering = model.answering
    if verdict is Verdict.SERVING and because:
        return f"{first}, but {because[0].text}"
    if verdict is Verdict.SERVING or not answering or version in answering:
        return first + reason
    serving = [each for each in answering if verdict_of_version(model, each) is Verdict.SERVING]
    if not serving:
        return f"{first}{reason}; version {max(answering)} is loaded, but does not answer"
    return f"{first}{reason}; version {max(serving)} answers instead"


# What serves, and how it fares.


def worker_down(model: ModelSnapshot, found: VersionSnapshot, down: Sequence[WorkerState]) -> Link:
    total = len(found.burden.workers) if found.burden is not None else 0
    if found.replicas and (not down or down[0].kind == "ray"):
        text = f"its replicas in the cluster: {found.replicas}"
        fix = "they are placed again by themselves; if that fails, give the cluster a node that has room for them"
        cause = CauseCode.WORKER_RESTARTING if down and not down[0].failure else CauseCode.WORKER_DOWN
        return Link(cause, text, fix)
    first = down[0]
    count = "its process" if total == 1 else f"{len(down)} of its {total} processes"
    text = f"{count} ended ({first.cause or 'the cause is not known yet'}), {counted(first.restarts, 'restart')} before"
    when = model.server.wall(first.retry_at) if first.retry_at is not None else None
    if first.failure:
        text += f"; the last attempt to start it again failed: {first.failure}"
        fix = f"it is tried again by itself: the next attempt is at {clock(when)}; "
        if FORK_SERVER_DIED in first.failure:
            fix += "if it has not come back within a minute, restart the server"
        elif CHANGED_SINCE in first.failure or GONE in first.failure:
            fix = (
                "one version gives the answers of one model, so no process is started from other files. Once they are "
                "complete the version is loaded anew from them, and swapped, by itself; with --model_control_mode="
                "explicit after another load call, with none after a restart. Or put the files of before back"
            )
        else:
            fix += "mend what the message says before then, or publish a version without the fault"
        return Link(CauseCode.WORKER_DOWN, text, fix)
    fix = "it is started again by itself; if it ends again and again, publish a version whose model does not end"
    if first.cause == "signal 9":
        fix += ", or give the machine more memory: the system ends processes with signal 9 when it has none left"
    return Link(CauseCode.WORKER_RESTARTING, text, fix)


def queue_full(model: ModelSnapshot, burden: Burden) -> Link:
    message = burden.refusal.message if burden.refusal is not None else ""
    text = f"{counted(burden.pending, 'call')} waiting, and one more is refused: {message}"
    fix = (
        "send less at a time, or let it run more: raise instance_group count or max_batch_size in the model's config; "
        "--max_queued_requests is the length of the queue"
    )
    return Link(CauseCode.QUEUE_FULL, text, fix, doc="operating.md")


def slow(pace: Pace, burden: Burden) -> Link:
    text = (
        f"its calls wait longer than they run: {duration(pace.wait_seconds)} for a run of "
        f"{duration(pace.run_seconds)}, on average in the last minute; {counted(burden.pending, 'call')} waiting now"
    )
    fix = (
        "let it run more at a time: raise instance_group count or max_batch_size in the model's config, or give it "
        "another server; a wait of about batch_timeout_micros is what that field asks for"
    )
    return Link(CauseCode.SLOW, text, fix, doc="batching.md")


def files_not_loaded(remark: Status) -> Link:
    if remark == CHANGED_FILES or remark.waits:
        fix = "wait: they are loaded beside what serves, and swapped, by themselves"
    elif remark.code is StatusCode.RESOURCE_EXHAUSTED:
        fix = (
            "make room for a second load beside it (unload another version), then touch a file of the version; or use "
            "--aspired_version_policy=resource, which unloads the old one first"
        )
    else:
        fix = (
            "finish the copy or mend the files: once they are complete and quiet they are loaded beside what serves, "
            "and swapped. Or publish a new version: tfs-lite publish DIR --base BASE"
        )
    return Link(CauseCode.FILES_NOT_LOADED, remark.message, fix, doc="serving.md")


def failing(model: ModelSnapshot, what: Failing) -> Link:
    share, worst = f"{what.failures / what.requests:.0%}", what.worst
    text = f"{share} of its requests in the last five minutes failed ({what.failures} of {what.requests})"
    each = f"tfs-lite explain {model.name} --failed lists the last ones"
    if worst is None:
        return Link(CauseCode.FAILING, text, each)
    ago = duration(max(model.server.taken - worst.time, 0.0))
    text += f", most of them {worst.code} in {worst.stage}, the last {ago} ago: {worst.message}"
    return Link(CauseCode.FAILING, text, f"{_against(worst)}; {each}")


def _against(worst: FailedRequest) -> str:
    match worst.code, worst.stage:
        case "INVALID_ARGUMENT" | "NOT_FOUND" | "OUT_OF_RANGE", _:
            return "mend the requests as the message says"
        case "UNAVAILABLE" | "DEADLINE_EXCEEDED" | "RESOURCE_EXHAUSTED", "queue" | "check":
            return (
                "send less at a time, or let it run more: raise instance_group count or max_batch_size in the model's "
                "config, or give it another server"
            )
        case _, "run":
            return "the server's log has the stack of each cause: publish a version without the fault"
    return "mend what the message says"


def config_not_applied(model: ModelSnapshot, found: VersionSnapshot) -> Link:
    remark = found.remark
    if remark == CHANGED_FILES or remark.message.startswith(FILES_OF_BEFORE):
        return files_not_loaded(remark)
    if remark == CHANGED or remark.waits:
        fix = "wait: it is loaded anew by itself"
    elif remark.code is StatusCode.INVALID_ARGUMENT:
        fix = "correct the model's config file; what it says is followed as soon as it can be"
    elif remark.code is StatusCode.RESOURCE_EXHAUSTED:
        fix = (
            "make room for a second load beside it (unload another version), then save the model's config file again; "
            "or use --aspired_version_policy=resource, which unloads the old one first"
        )
    else:
        fix = "mend what the message says, then save the model's config file again; or put the config of before back"
    return Link(CauseCode.CONFIG_NOT_APPLIED, remark.message, fix)


def policy_not_read(problem: Status) -> Link:
    """The words for a model in a repository; versions with a config of their own do not mind."""
    text = f"its version policy stays as it was, for the config beside its versions is wrong: {problem.message}"
    fix = "correct that config file: it is read again by itself"
    return Link(CauseCode.CONFIG_NOT_APPLIED, text, fix, doc="model-config.md")


def config_refused(refused: StandingRefusal, paths: bool) -> Link:
    """The words for all models: nothing of the file is in force."""
    return Link(CauseCode.CONFIG_NOT_APPLIED, *refused.in_words(paths), refused.since, "model-config.md")


def place(model: ModelSnapshot, found: VersionSnapshot, what: str) -> Link:
    """``what``: the words for the version."""
    text = f"{what} {found.place}"
    if found.version in model.report.stand_ins:
        other = max((*model.versions, found.version)) + 1
        fix = f"mend what has failed, remove its directory, or publish a good one as version {other}; it goes then"
        return Link(CauseCode.STANDS_IN, text, fix)
    fix = "bring what is wanted to SERVING, and it goes; if nothing is to answer, take the model out of the config"
    if found.version not in model.report.on_disk and found.version in model.report.waiting:
        fix = "put its directory back before the next restart, or change the policy to a version that is there"
    return Link(CauseCode.STAYS, text, fix)


def names_passed_over(model: ModelSnapshot) -> Iterator[Link]:
    for name, why in model.report.passed_over.items():
        text = f"{name} beside the versions is passed over: {why}"
        fix = "give it the number that it is to have, or move it away"
        if name.startswith(HIDDEN_PREFIX):
            fix = "publish again, or remove the directory"
        yield Link(CauseCode.NAME_PASSED_OVER, text, fix)


# What is on its way.


def load_hangs(model: ModelSnapshot, version: int, load: LoadView) -> Link:
    server = model.server
    seconds = max(server.monotonic - load.since, 0.0)
    text = f"version {version} has been loading for {seconds:.0f} s, longer than --slow_load_seconds; others go on"
    fix = (
        "wait if its files are large or its disk is slow; else publish a version that does not hang in its load. What "
        "hangs keeps its thread and its memory until the server is started again"
    )
    return Link(CauseCode.LOAD_HANGS, text, fix, server.wall(load.since))


def unload_hangs(found: VersionSnapshot) -> Link:
    text = f"version {found.version} is being unloaded for longer than --slow_unload_seconds; others go on"
    fix = (
        "mend what the model does in close(), and start the server again: until then it keeps its thread and its "
        "memory, which counts as used"
    )
    return Link(CauseCode.UNLOAD_HANGS, text, fix, found.state.time if found.state is not None else None)


def loading(model: ModelSnapshot, version: int, load: LoadView) -> Link:
    server = model.server
    seconds = max(server.monotonic - load.since, 0.0)
    attempt = f", attempt {load.failures + 1} of {load.max_attempts}" if load.failures else ""
    text = f"version {version} has been loading for {seconds:.1f} s{attempt}"
    return Link(CauseCode.LOADING, text, "wait: it serves when it has loaded and warmed up", server.wall(load.since))


def waits_for_load_thread(model: ModelSnapshot, version: int, load: LoadView) -> Link:
    server = model.server
    busy = [
        f"{name_of(servable_id)} for {max(server.monotonic - at_work.since, 0):.0f} s"
        for servable_id, at_work in server.overview.at_work.items()
    ]
    text = f"{counted(load.ahead, 'load')} before it in the queue of {counted(server.manager.load_threads, 'thread')}"
    text += f"; loading now: {listed(busy)}" if busy else ""
    fix = "wait until those have loaded, or start the server with a higher --num_load_threads"
    return Link(CauseCode.WAITS_FOR_LOAD_THREAD, text, fix, server.wall(load.since))


def waits_for_memory(model: ModelSnapshot, found: VersionSnapshot, load: LoadView | None, failure: Status) -> Link:
    server, needs = model.server, found.view.estimate.entries if found.view is not None else {}
    if not needs:
        fix = "make room: unload another version, or serve it where there is more memory"
        return Link(CauseCode.WAITS_FOR_MEMORY, failure.message, fix)
    figures = [_Memory.of(server, resource, wanted) for resource, wanted in needs.items()]
    text = "; ".join(map(str, figures))
    if server.beside_models and _main_only(needs):
        text += f"; {server.beside_models}"
    leaving = list(map(name_of, server.overview.leaving))
    if leaving:
        text += f"; memory comes free when these have gone: {listed(leaving)}"
    elif load is None and all(each.free >= each.wanted for each in figures):
        text += ": there is room now"
    own = any(view.answers for view in server.overview.by_model.get(model.name, {}).values())
    limit = "the container's limit" if server.beside_models else "--total_model_memory_limit_bytes"
    flag = f"raise {limit} if the machine has more" if _main_only(needs) else "use a larger GPU"
    beside = ", or use --aspired_version_policy=resource, which unloads the old version first" if own else ""
    again = "it is tried again by itself then" if can_be_renewed(found) else "publish it anew then"
    fix = f"take another model or version out of the config ({again}), or {flag}{beside}"
    if _never_fits(figures):
        fix = f"{flag}, or publish a smaller model: nothing that is unloaded makes enough room"
    return Link(CauseCode.WAITS_FOR_MEMORY, text, fix, server.wall(load.since) if load is not None else _ended(found))


def can_be_renewed(found: VersionSnapshot) -> bool:
    """Whether the manager tries a version that had no memory once more when some comes free, and that may help."""
    return found.view is not None and (found.view.load is not None or found.view.state.has_loader)


def never_fits(server: ServerSnapshot, found: VersionSnapshot) -> bool:
    """Whether it needs more memory than there is."""
    needs = found.view.estimate.entries if found.view is not None else {}
    return _never_fits([_Memory.of(server, resource, wanted) for resource, wanted in needs.items()])


def _never_fits(figures: Sequence[_Memory]) -> bool:
    return any(each.wanted > each.total for each in figures)


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of one kind: how much is wanted, free and there, and the versions that hold it, the largest first."""

    resource: Resource
    wanted: int
    free: int
    total: int
    holders: tuple[str, ...]

    @classmethod
    def of(cls, server: ServerSnapshot, resource: Resource, wanted: int) -> _Memory:
        kind = resource.device, resource.kind
        total = sum(count for each, count in server.memory.entries.items() if (each.device, each.kind) == kind)
        held = server.overview.holders.get(kind, ())
        holders = tuple(f"{name_of(servable_id)} {size(count)}" for count, servable_id in held)
        return cls(resource, wanted, max(total - sum(count for count, _ in held), 0), total, holders)

    def __str__(self) -> str:
        where = "main memory" if self.resource.device == MAIN else f"memory of {self.resource.device}"
        text = f"it needs {size(self.wanted)} of {where}; {size(self.free)} of {size(self.total)} is free"
        return text + (f"; held by {listed(self.holders)}" if self.holders else "")


def _main_only(needs: Iterable[Resource]) -> bool:
    return all(resource.device != GPU for resource in needs)


def waits_for_models(model: ModelSnapshot, since: float | None, verdicts: Mapping[str, Verdict]) -> Link:
    """``since`` when its load waits; None: it is loaded, and cannot answer without them."""
    shown = [f"{name} ({verdict.name})" for name, verdict in verdicts.items()]
    text = f"the models of its steps have to be available first: {listed(shown)}"
    missing = [name for name, verdict in verdicts.items() if verdict is Verdict.NOT_CONFIGURED]
    fix = f"bring these to SERVING; it follows by itself: {listed(list(verdicts))}"
    if missing:
        fix = f"serve {listed(missing)} too: add it to the config or the repository; this model follows by itself"
    return Link(CauseCode.WAITS_FOR_MODELS, text, fix, model.server.wall(since) if since is not None else None)


def waits_for_place(model: ModelSnapshot, load: LoadView) -> Link:
    text = load.failure.message if load.failure is not None else "the cluster has no room for its replicas"
    fix = "add a node that has the room, or ask for less in the model's config (replicas, their CPUs and GPUs)"
    return Link(CauseCode.WAITS_FOR_PLACE, text, fix, model.server.wall(load.since), "cluster.md")


def retrying(model: ModelSnapshot, found: VersionSnapshot, load: LoadView) -> Link:
    message = load.failure.message if load.failure is not None else ""
    text = f"attempt {load.failures} of {load.max_attempts} failed: {message}"
    when = f", at {clock(model.server.wall(load.retry_at))}" if load.retry_at is not None else ""
    return Link(CauseCode.RETRYING, text, f"mend that before the next attempt{when}", model.server.wall(load.since))


def waits_for_turn(model: ModelSnapshot, version: int) -> Link:
    others = model.server.overview.by_model.get(model.name, {})
    leaving = [v for v, view in others.items() if v != version and view.state.state in LEAVING]
    surplus = [v for v, view in others.items() if v != version and view.answers and not view.state.is_aspired]
    new = [v for v, view in others.items() if v > version and view.state.state is HarnessState.NEW]
    if leaving or surplus:
        shown = listed([str(each) for each in leaving or surplus])
        text = f"version {shown} has to be gone first (--aspired_version_policy={model.server.version_policy})"
        fix = f"wait until the requests of version {shown} have been answered"
    elif new:
        text = f"version {max(new)} goes first"
        fix = "wait: versions of a model are loaded one after the other, the highest first"
    else:
        text, fix = "it is taken on with the next look of the manager", "wait a moment"
    return Link(CauseCode.WAITS_FOR_TURN, text, fix)


def draining(model: ModelSnapshot, found: VersionSnapshot) -> Link:
    """The words for a version that was withdrawn, or of the load before the one that answers."""
    view = found.view
    assert view is not None
    inside, pids = view.leaving, [str(worker.pid) for worker in found.leaving if worker.pid is not None]
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
    elif view.state.is_overdue:
        text += "; they take longer than --slow_unload_seconds and --sequence_drain_seconds together; others go on"
    else:
        text += "; it is unloaded after the last of them"
    fix = "wait for its requests to end" if inside else "wait"
    if inside and view.state.is_overdue:
        fix = _end_requests(pids)
    if view.state.is_aspired and not found.answers:
        fix += "; it is wanted again and is loaded anew then"
    since = found.state.time if found.state is not None and not found.answers else None
    return Link(
        CauseCode.DRAIN_HANGS if inside and view.state.is_overdue else CauseCode.DRAINING,
        text,
        fix,
        since,
        "serving.md#what-hangs",
    )


def _end_requests(pids: Sequence[str]) -> str:
    """``pids`` of the processes that they are in; none: they are in threads of the server."""
    fix = "wait if they may take so long; else end them: stop their clients, "
    if pids:
        return f"{fix}or kill -9 {' '.join(pids)}, and what is started in its place, which fails them with UNAVAILABLE"
    return f'{fix}or, if the model hangs, start the server again (and give it worker: "process", which can be killed)'


# What cannot be loaded.


def incomplete(model: ModelSnapshot, version: int, what: Incomplete) -> Link:
    text = f"its files are not complete: {what.reason}"
    other = max((*model.versions, version)) + 1
    fix = f"finish the copy, or publish it whole as version {other}: tfs-lite publish SRC --base BASE --version {other}"
    if what.hashed is not None:
        text += f" ({size(what.hashed[0])} of {size(what.hashed[1])} done)"
        fix = "wait until the digests have been checked"
    elif what.retry_at is not None:
        text += f"; {max(what.retry_at - model.server.taken, 0):.1f} s of quiet are left"
        fix = "wait until nothing writes there any more, or publish with tfs-lite publish, which needs no wait"
    return Link(CauseCode.INCOMPLETE, text, fix, what.since)


def failed(model: ModelSnapshot, version: int, found: VersionSnapshot | None, failure: Status, *, paths: bool) -> Link:
    since = _ended(found)
    again = "a change of its files is noticed and tried at once"
    if model.server.control_mode != "poll":
        again = "then load it again"
    other = f"publish a good one as version {max((*model.versions, version)) + 1}"
    if failure.reason is Reason.NO_PLATFORM:
        fix = f"put in what one of them needs, or set platform in {_config_name(model)}; {again}"
        return Link(CauseCode.PLATFORM_UNKNOWN, failure.message, fix, since, "serving.md")
    if failure.reason is Reason.NEEDS_EXTRA:
        command = _PIP.search(failure.message)
        what = command[0] if command else "install it"
        fix = f"{what} in the environment of the server, then start the server again"
        return Link(CauseCode.EXTRA_MISSING, failure.message, fix, since, "serving.md")
    if failure.reason is Reason.NEEDS_TRUST:
        text = failure.message
        if paths:
            trusted = listed(list(model.server.trusted)) or "none"
            text += f"; trusted are: {trusted}"
        where = model.base_path if paths and model.base_path else "GLOB"
        fix = f"if you trust who writes there, start the server with --trusted_model_base_paths={where}"
        return Link(CauseCode.TRUST_MISSING, text, fix, since, "serving.md")
    if any(f"{name}:" in failure.message for name in MODEL_SETTINGS_FILES):
        return Link(
            CauseCode.ARTEFACT_REFUSED, failure.message, f"correct that config file: {again}", since, "serving.md"
        )
    refused = failure.reason is Reason.FILES_REFUSED
    if refused or failure.code in (StatusCode.PERMISSION_DENIED, StatusCode.DATA_LOSS, StatusCode.INVALID_ARGUMENT):
        fix = f"export it anew and {other}, or mend it in place: {again}"
        return Link(CauseCode.ARTEFACT_REFUSED, failure.message, fix, since, "serving.md")
    tries = (
        f"{counted(found.view.attempts, 'attempt')} failed: " if found and found.view and found.view.attempts else ""
    )
    fix = f"mend what the message says ({again}), or {other}"
    return Link(CauseCode.LOAD_FAILED, f"{tries}{failure.message}", fix, since)


def unloaded(model: ModelSnapshot, version: int | None, found: VersionSnapshot | None) -> Link:
    text = "it was withdrawn" if version is not None else "its last version was withdrawn"
    if not model.configured:
        text += " when the model left the config"
    return Link(CauseCode.UNLOADED, text, _load_it(model), _ended(found))


def passed_over(model: ModelSnapshot, version: int) -> Link:
    on_disk = sorted((v for v, found in model.versions.items() if found.on_disk), reverse=True)
    match model.policy:
        case LatestPolicy(count):
            count = max(count, 1)
            taken = [v for v, found in model.versions.items() if found.aspired] or on_disk[:count]
            text = (
                f"the version policy latest {{num_versions: {count}}} takes {listed([str(v) for v in sorted(taken)])}"
            )
            place = on_disk.index(version) + 1 if version in on_disk else count + 1
            fix = f"{_latest(model, place)} or {_specific(model, [version])}"
        case SpecificPolicy(versions):
            text = f"the version policy specific takes {listed([str(v) for v in versions]) or 'none'}"
            fix = _specific(model, [*versions, version])
        case AllPolicy():
            text, fix = "the version policy all takes it again", "nothing"
    where = "in the model's config"
    if model.server.source == _FROM_REPOSITORY:
        how = f"set {fix} {where} ({_config_name(model)} beside the versions)"
    elif model.server.source == "--model_config_file":
        how = f"set {fix} {where} and reload it: tfs-lite reload FILE"
    else:
        how = f"reload a config with {fix}: tfs-lite reload FILE"
    return Link(CauseCode.POLICY_PASSES_OVER, text, how)


def _latest(model: ModelSnapshot, count: int) -> str:
    """The field of the config that the model has, in its syntax."""
    if _is_yaml(model):
        return f"{_policy_field(model)}: {{latest: {{num_versions: {count}}}}}"
    return f"{_policy_field(model)} {{ latest {{num_versions: {count}}} }}"


def _specific(model: ModelSnapshot, versions: Sequence[int]) -> str:
    if _is_yaml(model):
        return f"{_policy_field(model)}: {{specific: {{versions: [{', '.join(map(str, versions))}]}}}}"
    return f"{_policy_field(model)} {{ specific {{ {' '.join(f'versions: {v}' for v in versions)} }} }}"


def _policy_field(model: ModelSnapshot) -> str:
    return "version_policy" if model.server.source == _FROM_REPOSITORY else "model_version_policy"


def _is_yaml(model: ModelSnapshot) -> bool:
    if model.server.source == _FROM_REPOSITORY:
        return _config_name(model).endswith(YAML_ENDINGS)
    return model.server.has_yaml


def _config_name(model: ModelSnapshot) -> str:
    """The name of the config beside the versions, or of the one that there could be."""
    return model.config_name or MODEL_SETTINGS_FILES[0]


def left_out(model: ModelSnapshot, version: int, *, is_newer: bool) -> Link:
    """``is_newer``: the version is newer than the one that the model is about; else its directory came last."""
    link = passed_over(model, version)
    if is_newer:
        return replace(link, text=f"version {version} is on disk and newer, but {link.text}")
    fix = f"{link.fix}; or publish it under a higher number: tfs-lite publish SRC --base BASE"
    return replace(link, text=f"version {version} came last, but {link.text}", fix=fix)


def in_vain(version: int, verdict: Verdict, cause: Link) -> Link:
    """The words for another wanted version of a model, which does not answer."""
    return replace(cause, text=f"version {version} is wanted too, but {SHORT[verdict]}: {cause.text}")


def answering_too(version: int, cause: Link) -> Link:
    """The words for another version of a model, which answers."""
    return replace(cause, text=f"version {version}: {cause.text}")


def more_in_vain(model: ModelSnapshot, versions: Sequence[int], cause: Link) -> Link:
    text = f"these are wanted too, but do not answer: versions {listed([str(version) for version in versions])}"
    return replace(cause, text=text, fix=f"tfs-lite explain {model.name}@{versions[0]} says why, and so on", since=None)


def not_on_disk(model: ModelSnapshot, version: int, found: VersionSnapshot | None) -> Link:
    there = [str(v) for v, each in model.versions.items() if each.on_disk]
    text = f"there is no directory {version}; there are: {listed(there) or 'none'}"
    since = None
    if found is not None and found.state is not None:
        since = found.state.time
        text += "; it was there before and its directory has gone"
    fix = f"publish it (tfs-lite publish SRC --base BASE --version {version}), or ask for another version"
    return Link(CauseCode.NOT_ON_DISK, text, fix, since)


def seen_soon(model: ModelSnapshot) -> Link:
    text = "its directory is there, and the next look at the disk takes it up"
    if not model.looked:
        text = "its base path has not been looked at yet"
    return Link(CauseCode.WAITS_FOR_TURN, text, "wait a moment")


def base_path_problem(model: ModelSnapshot, paths: bool) -> Link:
    shown = f" ({model.base_path})" if paths and model.base_path else ""
    text, since = f"{model.problem.message}{shown}", model.problem_since
    if model.problem.reason is Reason.DISK_HANGS:
        fix = (
            "make the disk answer (a mount that hangs, its server, its network): it is looked at again by itself then; "
            "or correct base_path and reload. Versions that are loaded go on, and new ones are not seen until then"
        )
        return Link(CauseCode.DISK_HANGS, text, fix, since)
    if "another directory" in text:
        fix = (
            "bring the volume or directory of before back, or publish a version here; if nothing is to answer, take "
            "the model out of the config"
        )
        return Link(CauseCode.BASE_PATH_PROBLEM, text, fix, since)
    if "holds no version" in text:
        fix = "publish a version: tfs-lite publish SRC --base BASE"
        return Link(CauseCode.NO_VERSIONS, text, fix, since)
    if "lists no version" in text:
        return Link(CauseCode.NO_VERSIONS, text, f"name versions: {_specific(model, [1])}, and reload", since)
    fix = "bring the directory back (a mount that is missing, a name, its rights), or correct base_path and reload"
    return Link(CauseCode.BASE_PATH_PROBLEM, text, fix, since)


# What is not asked for rightly.


def label_unknown(model: ModelSnapshot, label: str) -> Link:
    known = listed(sorted(model.labels)) or "none"
    newest = max(model.answering, default=None)
    text = f'the model has no label "{label}"; it has: {known}'
    example = f'version_labels {{ key: "{label}" value: {newest if newest is not None else "N"} }}'
    if model.server.has_yaml:
        example = f'version_labels: {{"{label}": {newest if newest is not None else "N"}}}'
    fix = f"ask for one of these, or add {example} to the model's config and reload: tfs-lite reload FILE"
    said = _said_by_refused_file(model)
    if said is not None and label in said.version_labels:
        text += f"; the config file gives it to version {said.version_labels[label]}, but was refused"
        fix = "correct the config file: it is read again by itself"
    return Link(CauseCode.LABEL_UNKNOWN, text, fix)


def _said_by_refused_file(model: ModelSnapshot) -> ModelConfig | None:
    refused = model.server.refused_config
    return refused.config.named(model.name) if refused is not None else None


def label_to_missing(model: ModelSnapshot, label: str, verdict: Verdict) -> Link:
    version = model.labels[label]
    text = f'label "{label}" points to version {version}, which {SHORT[verdict]}'
    newest = max(model.answering, default=None)
    fix = f"make version {version} available"
    if newest is not None:
        fix += f", or point the label to version {newest}, which answers, and reload: tfs-lite reload FILE"
    return Link(CauseCode.LABEL_TO_MISSING, text, fix)


def not_configured(model: ModelSnapshot, paths: bool) -> Link:
    server = model.server
    near = difflib.get_close_matches(model.name, server.known, n=3, cutoff=0.5)
    served = (
        f"; did you mean {' or '.join(near)}?" if near else f"; served are: {listed(sorted(server.known)) or 'none'}"
    )
    text = f"no model {model.name!r} is served{served} (models come from {_origin(model)})"
    if server.refused_config is not None:
        refused = server.refused_config.config
        what = _REPOSITORY if refused.is_repository else "the config file"
        fix = f"correct {what}: it is read again by itself"
        if refused.named(model.name) is not None:
            return Link(CauseCode.NOT_CONFIGURED, f"{what} names model {model.name!r}, but was refused", fix)
        if refused.config is None:
            text = f"no model {model.name!r} is served; {what} may name it, but cannot be read"
            return Link(CauseCode.NOT_CONFIGURED, text, fix)
    if model.name in server.refused_models:
        text = f"the repository has it, but it is refused: {server.refused_models[model.name].message}"
        fix = "correct what the message says (a wrong name: rename its directory); it is looked at again by itself"
        return Link(CauseCode.NOT_CONFIGURED, text, fix, doc="model-config.md")
    if model.unmarked:
        text = "the repository has a directory of this name without a version: those are directories named by a number"
        fix = f"move its files into {model.name}/1; {_looked_at(model)}"
        return Link(CauseCode.NOT_CONFIGURED, text, fix, doc="serving.md")
    return Link(CauseCode.NOT_CONFIGURED, text, _load_it(model))


def _looked_at(model: ModelSnapshot) -> str:
    if model.server.by_calls:
        return f"then load it: POST /v2/repository/models/{model.name}/load"
    return "it is seen by itself" if model.server.polls else "then start the server again"


def _origin(model: ModelSnapshot) -> str:
    return "load calls" if model.server.by_calls else model.server.source


def _load_it(model: ModelSnapshot) -> str:
    """The way in which a model comes to be served."""
    if model.server.by_calls:
        if model.server.offered and model.name not in model.server.offered:
            there = listed(sorted(model.server.offered))
            return f"put it into the repository or the config file (there are: {there}), and load it by a call"
        return f"load it: POST /v2/repository/models/{model.name}/load"
    if model.server.source == _FROM_REPOSITORY:
        return f"make a directory {model.name} with a version in it below the repository"
    entry = f'config {{ name: "{model.name}" base_path: "..." }}'
    if model.server.has_yaml:
        entry = f'- {{name: "{model.name}", base_path: "..."}} below config:'
    return f"add {entry} to the model config and reload: tfs-lite reload FILE"


def control_mode(model: ModelSnapshot, version: int | None) -> Link:
    mode = model.server.control_mode
    if mode == "explicit":
        text = "--model_control_mode=explicit: only load and unload calls change what is served"
        fix = f"load it: POST /v2/repository/models/{model.name}/load"
        if version is not None and model.configured:
            config = json.dumps({"version_policy": {"specific": {"versions": [version]}}})
            fix += f" with the body {json.dumps({'parameters': {'config': config}})}"
        return Link(CauseCode.CONTROL_MODE, text, fix)
    flag = "--model_control_mode=none" if mode == "none" else "--file_system_poll_wait_seconds=0"
    text = f"version {version} is on disk now; {flag}: the disk is not looked at again"
    fix = "start the server again, with --model_control_mode=poll if versions are to be taken up as they come"
    return Link(CauseCode.CONTROL_MODE, text, fix)


def draining_server(model: ModelSnapshot) -> Link:
    text = "the server is being stopped: it answers what is inside and takes nothing new"
    return Link(CauseCode.DRAINING_SERVER, text, "ask another server, or start it again")


# What happens next.


def next_of_load(load: LoadView) -> str:
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


def next_of_files(what: Incomplete) -> str:
    return "it is looked at again" if what.retry_at is not None else "nothing happens before its files change"


def next_of(verdict: Verdict, *, waits_for_room: bool) -> str:
    """``waits_for_room``: it has failed for want of memory, and is tried again when some comes free."""
    match verdict:
        case Verdict.FAILED if waits_for_room:
            return "it is tried again when memory comes free, or its files change"
        case Verdict.SERVING:
            return "it goes on serving"
        case Verdict.FAILED | Verdict.REFUSED:
            return "nothing happens before its files change"
        case Verdict.LEAVING:
            return "it is unloaded after its last request"
        case Verdict.WAITING | Verdict.LOADING:
            return "it goes on by itself"
    return "nothing happens by itself"


# Figures.


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def name_of(servable_id: ServableId) -> str:
    return f"{servable_id.name}@{servable_id.version}"


def size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def clock(seconds: float | None) -> str:
    """The time of day in UTC."""
    return "once" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def _ended(found: VersionSnapshot | None) -> float | None:
    return found.state.time if found is not None and found.state is not None else None
