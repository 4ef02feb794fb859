"""Causes of versions that serve, and how they fare."""

from __future__ import annotations

from collections.abc import Sequence

from tfs_lite.adapters.opening import CHANGED as CHANGED_SINCE
from tfs_lite.adapters.opening import GONE
from tfs_lite.core.model import SharedRuns
from tfs_lite.core.status import Reason, StatusCode
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.causes.files import config_to_mend
from tfs_lite.operations.explain.causes.phrases import (
    clock,
    config_name,
    counted,
    duration,
    dynamic_batching,
    not_as_published,
)
from tfs_lite.operations.explain.explanation import MOSTLY, Link
from tfs_lite.operations.explain.snapshot import Failing
from tfs_lite.operations.failed_requests.ring import FailedRequest
from tfs_lite.schedulers.calls import LOST_PROCESS
from tfs_lite.serving.model_states import FILES_OF_BEFORE
from tfs_lite.serving.version_follower import CHANGED, CHANGED_FILES
from tfs_lite.workers.process_connection import OPENING_LOST
from tfs_lite.workers.supervisor import FORK_SERVER_DIED

LEAST_SLOW = 10
"""Requests. The wait of a few says nothing: a process may have been started again meanwhile."""
SLOW_WAIT = 0.05
"""Seconds. Calls that wait longer than this, and longer than they run, are worth a word: the model has more to do than
it can. Shorter waits are normal: where there is room, waiting for the next batch costs one run at most."""


def replicas_down(case: Case) -> Link | None:
    found, down = case.found, _down(case)
    if not found.answers or not found.replicas or not (down or not found.silence.ok):
        return None
    if down and down[0].kind != "ray":
        return None
    fix = "they are placed again by themselves; if that fails, give the cluster a node that has room for them"
    starts = down and not down[0].failure
    return Link("WORKER_RESTARTING" if starts else "WORKER_DOWN", f"its replicas in the cluster: {found.replicas}", fix)


def worker_down(case: Case) -> Link | None:
    """It cannot be started again."""
    down = _down(case)
    if not down or not down[0].failure:
        return None
    failure, retry_at = down[0].failure, down[0].retry_at
    when = case.server.wall(retry_at) if retry_at is not None else None
    fix = f"it is tried again by itself: the next attempt is at {clock(when)}; "
    if FORK_SERVER_DIED in failure:
        fix += "if it has not come back within a minute, restart the server"
    elif CHANGED_SINCE in failure or GONE in failure:
        fix = (
            "one version gives the answers of one model, so no process is started from other files. Once they are "
            "complete the version is loaded anew from them, and swapped, by itself; with --model_control_mode="
            "explicit after another load call, with none after a restart. Or put the files of before back"
        )
    else:
        fix += "mend what the message says before then, or publish a version without the fault"
    text = _ended(case, down) + f"; the last attempt to start it again failed: {failure}"
    return Link("WORKER_DOWN", text, fix)


def worker_restarting(case: Case) -> Link | None:
    down = _down(case)
    if not down:
        return None
    fix = "it is started again by itself; if it ends again and again, publish a version whose model does not end"
    if down[0].cause == "signal 9":
        fix += ", or give the machine more memory: the system ends processes with signal 9 when it has none left"
    return Link("WORKER_RESTARTING", _ended(case, down), fix)


def _down(case: Case) -> Sequence[WorkerState]:
    """Its workers that have ended, if it is to answer."""
    return [worker for worker in case.found.burden.workers if not worker.up] if case.found.answers else []


def _ended(case: Case, down: Sequence[WorkerState]) -> str:
    first, total = down[0], len(case.found.burden.workers)
    count = "its process" if total == 1 else f"{len(down)} of its {total} processes"
    return f"{count} ended ({first.cause or 'the cause is not known yet'}), {counted(first.restarts, 'restart')} before"


def queue_full(case: Case) -> Link | None:
    burden = case.found.burden
    if burden.refusal is None or burden.refusal.reason is not Reason.QUEUE_FULL:
        return None
    text = f"{counted(burden.pending, 'call')} waiting, and one more is refused: {burden.refusal.message}"
    fix = f"{_relief(case)}; --max_queued_requests is the length of the queue"
    return Link("QUEUE_FULL", text, fix, doc="operating.md")


def _relief(case: Case) -> str:
    """The remedies for a version that has more to do than it can. Where a setting would let its calls share runs, that
    comes first: the sizes of batches do nothing before."""
    match case.found.burden.shared_runs:
        case SharedRuns.OFF:
            return (
                "batching is off for this version, and each call runs alone (max_batch_size alone does not change "
                f"that): add {dynamic_batching(case.model)} to {config_name(case.model)} beside the versions, or start "
                "the server with --enable_batching, which batches all models; then send less at a time, or raise "
                "instance_group count in the model's config"
            )
        case SharedRuns.NEVER:
            return "send less at a time, or let it run more: raise instance_group count in the model's config"
    return "send less at a time, or let it run more: raise instance_group count or max_batch_size in the model's config"


def slow(case: Case) -> Link | None:
    pace, burden = case.found.pace, case.found.burden
    if pace is None or burden.refusal is not None or pace.requests < LEAST_SLOW:
        return None
    if pace.wait_seconds <= max(pace.run_seconds, SLOW_WAIT):
        return None
    text = (
        f"its calls wait longer than they run: {duration(pace.wait_seconds)} for a run of "
        f"{duration(pace.run_seconds)}, on average in the last minute; {counted(burden.pending, 'call')} waiting now"
    )
    fix = f"{_relief(case)}, or give it another server"
    if burden.shared_runs is SharedRuns.BY_CONFIG:
        fix += "; a wait of about batch_timeout_micros is what that field asks for"
    return Link("SLOW", text, fix, doc="batching.md")


def mostly_failing(case: Case) -> Link | None:
    """More requests fail than not. That comes before what else is wrong with the version, which may be why."""
    what = case.found.failing
    return _failing(case, what) if what is not None and case.found.answers and what.share > MOSTLY else None


def failing(case: Case) -> Link | None:
    """Some requests fail, and most do not."""
    what = case.found.failing
    return _failing(case, what) if what is not None and case.found.answers and what.share <= MOSTLY else None


def _failing(case: Case, what: Failing) -> Link:
    share, worst = f"{what.share:.0%}", what.worst
    text = f"{share} of its requests in the last five minutes failed ({what.failures} of {what.requests})"
    each = f"tfs-lite explain {case.model.name} --failed lists the last ones"
    if worst is None:
        return Link("FAILING", text, each)
    fix, ago = _against(case, worst), duration(max(case.server.taken - worst.time, 0.0))
    if what.before is not None:
        at = f" at {clock(case.found.since)}" if case.found.since is not None else ""
        text += f", since version {case.version} became available{at} (version {what.before} answered its requests)"
        if case.version == case.model.latest:
            fix = f"go back to the version before: tfs-lite rollback {case.model.name}; or {fix}"
    text += f", most of them {worst.code} in {worst.stage}, the last {ago} ago: {worst.message}"
    return Link("FAILING", text, f"{fix}; {each}")


def _against(case: Case, worst: FailedRequest) -> str:
    match worst.code, worst.stage:
        case "INVALID_ARGUMENT" | "NOT_FOUND" | "OUT_OF_RANGE", _:
            return "mend the requests as the message says"
        case "UNAVAILABLE", _ if LOST_PROCESS in worst.message:
            return "tfs-lite status --verbose says what became of its process"
        case "DEADLINE_EXCEEDED", "run":
            return (
                'its runs take longer than callers wait. If one hangs: with worker "process", end the process that '
                "tfs-lite status --verbose shows, and it is started again; publish a version without the fault"
            )
        case "UNAVAILABLE" | "DEADLINE_EXCEEDED" | "RESOURCE_EXHAUSTED", "queue" | "check":
            return f"{_relief(case)}, or give it another server"
        case _, "run":
            return "the server's log has the stack of each cause: publish a version without the fault"
    return "mend what the message says"


def new_process_lost(case: Case) -> Link | None:
    """The process that loads the changed files has ended, which says nothing of the files."""
    remark = case.found.remark
    if not case.found.answers or not remark.message.startswith(FILES_OF_BEFORE) or OPENING_LOST not in remark.message:
        return None
    fix = "it is tried again a few times, and when its files change; publish a version whose model does not end so"
    if "signal 9" in remark.message:
        fix += ", or give the machine more memory: the system ends processes with signal 9 when it has none left"
    return Link("WORKER_DOWN", remark.message, fix)


def files_not_loaded(case: Case) -> Link | None:
    remark, other, workers = case.found.remark, case.next_version, case.found.burden.workers
    if not case.found.answers or not (remark == CHANGED_FILES or remark.message.startswith(FILES_OF_BEFORE)):
        return None
    text = remark.message
    if workers and not any(worker.up for worker in workers):  # nothing goes on
        text = text.replace(FILES_OF_BEFORE, "its new files are not loaded")
        text = "its files have changed; they are not loaded yet" if remark == CHANGED_FILES else text
    if remark == CHANGED_FILES or remark.waits:
        fix = "wait: they are loaded beside what serves, and swapped, by themselves"
    elif "manifest" in text:
        fix = not_as_published(other)
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
    return Link("FILES_NOT_LOADED", text, fix, doc="serving.md")


def config_not_applied(case: Case) -> Link | None:
    remark = case.found.remark
    if not case.found.answers or remark.ok:
        return None
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
    return Link("CONFIG_NOT_APPLIED", remark.message, fix)


def stands_in(case: Case, what: str = "it") -> Link | None:
    """``what``: the words for the version."""
    found = case.found
    if not found.place or not found.answers or found.version not in case.model.report.stand_ins or _is_told(case):
        return None
    other = case.next_version
    gone = "delete its objects" if case.model.storage is not None else "remove its directory"
    fix = f"mend what has failed, {gone}, or publish a good one as version {other}; it goes then"
    if (config := config_to_mend(case)) is not None:  # the next push would fail on it as well
        fix = f"correct the config file {config}, which every version is loaded with; it goes then"
    return Link("STANDS_IN", f"{what} {found.place}", fix)


def stays(case: Case, what: str = "it") -> Link | None:
    """``what``: the words for the version."""
    found, report = case.found, case.model.report
    if not found.place or not found.answers or _is_told(case):
        return None
    fix = "bring what is wanted to SERVING, and it goes; if nothing is to answer, take the model out of the config"
    if found.version not in report.on_disk and found.version in report.waiting:
        what_back = "its objects" if case.model.storage is not None else "its directory"
        fix = f"put {what_back} back before the next restart, or change the policy to a version that is there"
    return Link("STAYS", f"{what} {found.place}", fix)


def _is_told(case: Case) -> bool:
    """Whether a newer version was taken back: its own cause says so, and what helps."""
    return any(version > case.found.version for version in case.model.rejected)
