"""Causes of base paths that are URLs: what is being fetched, what cannot be, and a storage that does not give it."""

from __future__ import annotations

from tfs_lite.core.loader import MEASURED_SECONDS
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.causes.phrases import clock, counted, not_as_published, size
from tfs_lite.operations.explain.explanation import Link
from tfs_lite.storage.fetch import FetchProgress
from tfs_lite.storage.object_errors import NO_NAME
from tfs_lite.storage.store import StorageCondition

DOC = "remote.md"
PUBLISHING = "being published"
CHANGED, DIGEST = "changed while it was fetched", "sha256 digest that"
NO_ROOM, FULL, NO_CACHE = (
    "model_cache_bytes is",
    "the disk of the cache",
    ("model_cache_dir:", "directory of the cache"),
)
FAILED = ("cannot be fetched", CHANGED, DIGEST, NO_ROOM, FULL, *NO_CACHE)
"""Words by which the reason of a version that waits is that of a fetch which has ended."""
_REFUSES = (StatusCode.PERMISSION_DENIED, StatusCode.FAILED_PRECONDITION)
_RIGHTS = (
    "give the server credentials that are in force, with the right to list and to read there; those in its environment "
    "are read once, at the start. Restart it then: what this machine has fetched serves at once"
)


# Versions.


def fetching(case: Case) -> Link | None:
    what = case.found.incomplete
    if what is None:
        return None
    fetch, fix = what.fetch, "wait: it is loaded when its files are on this machine; what serves goes on"
    if fetch is None:
        if case.model.storage is None or case.version not in case.model.report.fetching:
            return None
        return Link("FETCHING", "its fetch waits for those of other versions there", fix, what.since, DOC)
    text = (
        "another process of this machine fetches its files" if fetch.waits else f"its files are fetched: {_pace(fetch)}"
    )
    if fetch.sentence:
        text += f"; attempt {fetch.attempt}, the one before failed at {clock(fetch.failed_at)}: {fetch.sentence}"
        fix = "wait: what has come is kept, and the rest is tried again, after longer and longer waits"
    return Link("FETCHING", text, fix, what.since, DOC)


def _pace(fetch: FetchProgress) -> str:
    """``1.2 GiB of 3.4 GiB, 118.0 MiB/s, about 19 s``. The pace is without what was here before."""
    text = f"{size(fetch.done)} of {size(fetch.size)}"
    if not fetch.fetched or fetch.seconds < MEASURED_SECONDS:
        return text
    pace = fetch.fetched / fetch.seconds
    return f"{text}, {size(pace)}/s, about {max(fetch.size - fetch.done, 0) / pace:.0f} s"


def fetch_failed(case: Case) -> Link | None:
    what, other = case.found.incomplete, case.next_version
    if case.model.storage is None or what is None or not any(words in what.reason for words in FAILED):
        return None
    fix = (
        "it is fetched again with the next poll, from where it has stopped; see to the storage, the network, and the "
        "right to read its objects"
    )
    if DIGEST in what.reason:
        fix = not_as_published(other)
    elif CHANGED in what.reason:
        fix = f"it is fetched again with the next poll; files of a version are not changed, a new one is: {_new(other)}"
    elif NO_ROOM in what.reason:
        fix = (
            "raise --model_cache_bytes and start the server again, or take models out of the config: what is loaded "
            "and what is to be loaded have to be there at the same time"
        )
    elif FULL in what.reason:
        fix = "make room on the disk of --model_cache_dir: the first poll that finds enough of it fetches the version"
    elif any(words in what.reason for words in NO_CACHE):
        fix = "give the server a directory of its own for --model_cache_dir, on a disk of this machine that keeps locks"
    return Link("FETCH_FAILED", what.reason, fix, what.since, DOC)


def _new(number: int) -> str:
    return f"tfs-lite publish SRC --base BASE --version {number}"


def being_published(case: Case) -> Link | None:
    """Somebody has claimed the number, and has not put the manifest there yet."""
    what = case.found.incomplete
    if what is None or PUBLISHING not in what.reason:
        return None
    base = case.model.base_path if case.paths else "BASE"
    prefix = f"{base.rstrip('/')}/{case.version}/"
    fix = f"wait until the publication has ended. If it was killed, delete everything below {prefix} and publish again"
    return Link("INCOMPLETE", f"its files are not complete: {what.reason}", fix, what.since, DOC)


def next_of_fetch(case: Case) -> str:
    """What happens next to a version that is fetched or could not be; empty for every other."""
    if fetching(case) is not None:
        return "it is loaded when its files are on this machine"
    failed = fetch_failed(case)
    if failed is None:
        return ""
    return (
        "nothing happens before its files change" if DIGEST in failed.text else "it is tried again with the next poll"
    )


# Base paths.


def from_cache(case: Case) -> Link | None:
    """This process has not seen the storage yet, and serves what an earlier one has left."""
    condition = case.model.storage
    if condition is None or not condition.from_cache or not case.model.configured:
        return None
    text = f"its versions are those of the listing of {clock(condition.last_good)} that this machine has kept"
    if condition.sentence:
        text += f": {condition.sentence}"
    code = StatusCode.PERMISSION_DENIED if "refuses" in condition.sentence else StatusCode.UNAVAILABLE
    fix = f"no new version is seen until the storage can be listed: {_fix_of(Status(code, condition.sentence))}"
    return Link("FROM_CACHE", f"{text}{_tries(condition)}", fix, condition.since, DOC)


def refuses(case: Case) -> Link | None:
    problem, condition = case.problem, case.model.storage
    if condition is None or NO_NAME in problem.message or not (problem.code in _REFUSES or _has_gone(problem)):
        return None
    return Link("STORAGE_REFUSES", f"{case.problem_text}{_tries(condition)}", _fix_of(problem), condition.since, DOC)


def odd_key(case: Case) -> Link | None:
    """The storage answers, and one of its keys can be that of no file."""
    problem, condition = case.problem, case.model.storage
    if condition is None or NO_NAME not in problem.message:
        return None
    return Link("STORAGE_ODD_KEY", f"{case.problem_text}{_tries(condition)}", _fix_of(problem), condition.since, DOC)


def unreachable(case: Case) -> Link | None:
    problem, condition = case.problem, case.model.storage
    if condition is None or problem.code is not StatusCode.UNAVAILABLE:
        return None
    return Link(
        "STORAGE_UNREACHABLE", f"{case.problem_text}{_tries(condition)}", _fix_of(problem), condition.since, DOC
    )


def _has_gone(problem: Status) -> bool:
    return "no such bucket" in problem.message or "no such repository" in problem.message


def _tries(condition: StorageCondition) -> str:
    """``; since 03:12:09 UTC, tried 14 times``."""
    if condition.since is None:
        return ""
    text = f"; since {clock(condition.since)}, tried {counted(condition.tries, 'time')}"
    if condition.last_good is not None and not condition.from_cache:
        text += f", listed last at {clock(condition.last_good)}"
    return text


def _fix_of(problem: Status) -> str:
    if _has_gone(problem):
        return "correct base_path and reload, or bring it back; what is loaded goes on until then"
    if "AWS_REGION" in problem.message:
        return "set AWS_REGION to the region of the bucket, and start the server again"
    if "something between answers" in problem.message:
        return (
            "publish a version, or take the model out of the config, which alone takes it out of service; if versions "
            "are there, see to proxies and pages to sign in between this machine and the storage"
        )
    if NO_NAME in problem.message:
        return (
            "rename or delete the object with this key, exactly as it is written: a client of the storage's API does "
            "(aws s3api delete-object --bucket BUCKET --key PREFIX/KEY). It is listed again with the next poll, and "
            "what is loaded goes on"
        )
    if problem.code is StatusCode.FAILED_PRECONDITION or "SSL_CERT_FILE" in problem.message:
        return "correct base_path, or what the message names in the environment of the server, and start it again"
    if problem.code is StatusCode.PERMISSION_DENIED:
        return _RIGHTS
    if "credentials" in problem.message:
        return (
            "see to what gives the server its credentials (the metadata service, the identity of the pod); it is asked "
            "again with each poll, and what is loaded goes on"
        )
    return (
        "wait, or see to the network, its names and proxies, and *_ENDPOINT_URL: the storage is listed again with each "
        "poll, and what is loaded goes on"
    )
