"""Causes of files that cannot be loaded, and of base paths."""

from __future__ import annotations

import re

from tfs_lite.core.manifest import MODEL_SETTINGS_FILES
from tfs_lite.core.publish import HIDDEN_PREFIX
from tfs_lite.core.status import Reason, StatusCode, listed
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.causes.phrases import config_name, counted, not_as_published, numbers, size, specific
from tfs_lite.operations.explain.explanation import Link, Verdict
from tfs_lite.operations.explain.snapshot import ModelSnapshot
from tfs_lite.sources.version_scan import NO_DIRECTORY

_PIP = re.compile(r"pip install '[^']+'")
_MODULE = re.compile(r"No module named '([^'.]+)")
_UNACCEPTABLE = (StatusCode.PERMISSION_DENIED, StatusCode.DATA_LOSS, StatusCode.INVALID_ARGUMENT)


def incomplete(case: Case) -> Link | None:
    what, other = case.found.incomplete, case.next_version
    if what is None or not case.found.on_disk:
        return None
    text = f"its files are not complete: {what.reason}"
    fix = f"finish the copy, or publish it whole as version {other}: tfs-lite publish SRC --base BASE --version {other}"
    if what.hashed is not None:
        text += f" ({size(what.hashed[0])} of {size(what.hashed[1])} done)"
        fix = "wait until the digests have been checked"
    elif what.retry_at is not None:
        text += f"; {max(what.retry_at - case.server.taken, 0):.1f} s of quiet are left"
        fix = "wait until nothing writes there any more, or publish with tfs-lite publish, which needs no wait"
    elif "manifest" in what.reason:
        fix = f"finish the copy; if the files were changed: {not_as_published(other)}"
    return Link("INCOMPLETE", text, fix, what.since)


def platform_unknown(case: Case) -> Link | None:
    refusal = case.refusal
    if refusal.reason is not Reason.NO_PLATFORM:
        return None
    fix = f"put in what one of them needs, or set platform in {config_name(case.model)}; {_again(case)}"
    return Link("PLATFORM_UNKNOWN", refusal.message, fix, case.found.since, "serving.md")


def extra_missing(case: Case) -> Link | None:
    refusal = case.refusal
    if refusal.reason is not Reason.NEEDS_EXTRA:
        return None
    command, module = _PIP.search(refusal.message), _MODULE.search(refusal.message)
    what = command[0] if command else f"install what has the module {module[1]}" if module else "install it"
    fix = f"{what} in the environment of the server, then start the server again"
    return Link("EXTRA_MISSING", refusal.message, fix, case.found.since, "serving.md")


def trust_missing(case: Case) -> Link | None:
    refusal, base_path = case.refusal, case.model.base_path
    if refusal.reason is not Reason.NEEDS_TRUST:
        return None
    text = refusal.message
    if case.paths:
        trusted = listed(list(case.server.trusted)) or "none"
        text += f"; trusted are: {trusted}"
    where = base_path if case.paths and base_path else "GLOB"
    fix = f"if you trust who writes there, start the server with --trusted_model_base_paths={where}"
    return Link("TRUST_MISSING", text, fix, case.found.since, "serving.md")


def artefact_refused(case: Case) -> Link | None:
    refusal = case.refusal
    is_config = any(f"{name}:" in refusal.message for name in MODEL_SETTINGS_FILES)
    if not is_config and refusal.reason is not Reason.FILES_REFUSED and refusal.code not in _UNACCEPTABLE:
        return None
    fix = f"export it anew and {_publish(case)}, or mend it in place: {_again(case)}"
    if is_config:
        fix = f"correct {config_to_mend(case) or 'that config file'}: {_again(case)}"
    return Link("ARTEFACT_REFUSED", refusal.message, fix, case.found.since, "serving.md")


def config_to_mend(case: Case) -> str | None:
    """The config beside the versions, if a version has failed on it: its path where texts may name paths, else its
    name."""
    model = case.model
    failures = [case.failure, *(Case.of(model, version).failure for version in model.report.failed)]
    if not model.config_name or not any(f"{model.config_name}:" in failure.message for failure in failures):
        return None
    return f"{model.base_path}/{model.config_name}" if case.paths and model.base_path else model.config_name


def load_failed(case: Case) -> Link | None:
    refusal, view = case.refusal, case.found.view
    if refusal.ok:
        return None
    tries = f"{counted(view.attempts, 'attempt')} failed: " if view is not None and view.attempts else ""
    fix = f"mend what the message says ({_again(case)}), or {_publish(case)}"
    return Link("LOAD_FAILED", f"{tries}{refusal.message}", fix, case.found.since)


def _again(case: Case) -> str:
    if case.server.control_mode != "poll":
        return "then load it again"
    return "a change of its files is noticed and tried at once"


def _publish(case: Case) -> str:
    return f"publish a good one as version {case.next_version}"


def no_directory(case: Case) -> Link | None:
    """Something that is no directory has the version's name."""
    passed_over, version = case.model.report.passed_over, case.version
    if version is None or case.verdict is not Verdict.NOT_ON_DISK:
        return None
    name = next((each for each, why in passed_over.items() if why == NO_DIRECTORY and int(each) == version), None)
    return name_passed_over(case.model, name) if name is not None else None


def name_passed_over(model: ModelSnapshot, name: str) -> Link:
    why = model.report.passed_over[name]
    fix = "give it the number that it is to have, or move it away"
    if why == NO_DIRECTORY:
        fix = f"move it away, and publish a directory: tfs-lite publish SRC --base BASE --version {int(name)}"
    elif name.startswith(HIDDEN_PREFIX):
        fix = "publish again, or remove the directory"
    return Link("NAME_PASSED_OVER", f"{name} beside the versions is passed over: {why}", fix)


def not_on_disk(case: Case) -> Link | None:
    gone = case.verdict is Verdict.LEAVING and case.found.on_disk is False
    if case.version is None or not (gone or case.verdict is Verdict.NOT_ON_DISK) or not case.model.problem.ok:
        return None
    there = [v for v, each in case.model.versions.items() if each.on_disk]
    text = f"there is no directory {case.version}; there are: {numbers(there) or 'none'}"
    if case.found.state is not None:
        text += "; it was there before and its directory has gone"
    fix = f"publish it (tfs-lite publish SRC --base BASE --version {case.version}), or ask for another version"
    return Link("NOT_ON_DISK", text, fix, case.found.since)


def disk_hangs(case: Case) -> Link | None:
    if case.problem.reason is not Reason.DISK_HANGS:
        return None
    fix = (
        "make the disk answer (a mount that hangs, its server, its network): it is looked at again by itself then; "
        "or correct base_path and reload. Versions that are loaded go on, and new ones are not seen until then"
    )
    return Link("DISK_HANGS", case.problem_text, fix, case.model.problem_since)


def base_path_replaced(case: Case) -> Link | None:
    if "another directory" not in case.problem.message:
        return None
    fix = (
        "bring the volume or directory of before back, or publish a version here; if nothing is to answer, take "
        "the model out of the config"
    )
    return Link("BASE_PATH_PROBLEM", case.problem_text, fix, case.model.problem_since)


def no_versions(case: Case) -> Link | None:
    message = case.problem.message
    if "holds no version" in message:
        fix = "publish a version: tfs-lite publish SRC --base BASE"
    elif "lists no version" in message:
        fix = f"name versions: {specific(case.model, [1])}, and reload"
    else:
        return None
    return Link("NO_VERSIONS", case.problem_text, fix, case.model.problem_since)


def base_path_problem(case: Case) -> Link | None:
    if case.problem.ok:
        return None
    fix = "bring the directory back (a mount that is missing, a name, its rights), or correct base_path and reload"
    return Link("BASE_PATH_PROBLEM", case.problem_text, fix, case.model.problem_since)
