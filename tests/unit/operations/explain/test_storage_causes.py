"""Causes of models whose base path is a URL, over snapshots that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.operations.explain.test_causes import ask, model, serving
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.operations.explain.answers import explain, line_of_model
from tfs_lite.operations.explain.explanation import Verdict
from tfs_lite.operations.explain.snapshot import Incomplete, ModelSnapshot, VersionSnapshot
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.storage import object_errors
from tfs_lite.storage.fetch import FetchProgress
from tfs_lite.storage.store import StorageCondition

AT = 1e9 - 100
"""01:45:00 UTC."""
GOOD = StorageCondition(last_good=AT)
CANNOT_READ = "model m: its base path cannot be read"


def remote(*versions: VersionSnapshot, condition: StorageCondition = GOOD, **rest: object) -> ModelSnapshot:
    return model(*versions, base_path="s3://bucket/m", storage=condition, **rest)


def waiting(reason: str, version: int = 2, fetch: FetchProgress | None = None) -> VersionSnapshot:
    return VersionSnapshot(version, on_disk=True, incomplete=Incomplete(reason, AT, fetch=fetch))


def with_problem(code: StatusCode, message: str, *versions: VersionSnapshot, tries: int = 14) -> ModelSnapshot:
    bad = replace(GOOD, since=AT + 60, tries=tries, sentence=message.removeprefix(f"{CANNOT_READ}: "))
    return remote(*versions, condition=bad, report=SourceReport("m", Status(code, message)))


def test_a_fetch_tells_bytes_pace_and_the_time_that_is_left() -> None:
    """The pace is that of the storage: half a GiB was here before."""
    fetch = FetchProgress(3 << 30, 1 << 30, 1 << 29, seconds=5.0, attempt=1)
    answer = ask(remote(serving(1), waiting("fetching 3.0 GiB", fetch=fetch)), 2)
    (link,) = answer.because
    assert (answer.verdict, link.cause, link.doc) == (Verdict.WAITING, "FETCHING", "remote.md")
    assert link.text == "its files are fetched: 1.0 GiB of 3.0 GiB, 102.4 MiB/s, about 20 s"
    assert answer.next.what == "it is loaded when its files are on this machine"
    assert answer.sentence.endswith("version 1 answers instead")


def test_a_fetch_that_is_tried_again_says_why_and_keeps_what_has_come() -> None:
    fetch = FetchProgress(3 << 30, attempt=3, sentence="the storage answers 503 SlowDown", failed_at=AT)
    (link,) = ask(remote(waiting("fetching 3.0 GiB", fetch=fetch)), 2).because
    assert link.text == (
        "its files are fetched: 0 bytes of 3.0 GiB; attempt 3, the one before failed at 01:45:00 UTC: "
        "the storage answers 503 SlowDown"
    )
    assert "what has come is kept" in link.fix


def test_a_fetch_that_another_process_does_says_so() -> None:
    (link,) = ask(remote(waiting("fetching 5 bytes", fetch=FetchProgress(5, waits=True))), 2).because
    assert link.text == "another process of this machine fetches its files"


def test_a_fetch_that_has_not_begun_waits_for_others() -> None:
    found = remote(waiting("fetching 5 bytes"), report=SourceReport("m", fetching=frozenset({2})))
    (link,) = ask(found, 2).because
    assert (link.cause, link.text) == ("FETCHING", "its fetch waits for those of other versions there")


@pytest.mark.parametrize(
    ("reason", "fix", "then"),
    [
        (
            "its files cannot be fetched: the storage answers 503 SlowDown; tried 8 times, again with the next poll",
            "see to the storage",
            "it is tried again with the next poll",
        ),
        ("model.pt2 was changed while it was fetched", "files of a version are not changed", "tried again"),
        (
            "model.pt2 does not have the sha256 digest that the manifest lists",
            "--version 3",
            "nothing happens before its files change",
        ),
        ("model_cache_bytes is 10: 4 are left, and the files have 5", "raise --model_cache_bytes", "tried again"),
        ("model_cache_dir: its disk does not keep locks", "a disk of this machine that keeps locks", "tried again"),
        ("the disk of the cache is full", "--model_cache_dir", "tried again"),
        ("the disk of the cache has about 1.0 MiB free, and the files need 2.0 MiB", "make room", "tried again"),
    ],
)
def test_a_fetch_that_has_failed_says_what_helps_and_what_comes_next(reason: str, fix: str, then: str) -> None:
    answer = ask(remote(serving(1), waiting(reason)), 2)
    (link,) = answer.because
    assert (answer.verdict, link.cause, link.text) == (Verdict.WAITING, "FETCH_FAILED", reason)
    assert fix in link.fix
    assert then in answer.next.what


def test_a_version_that_stands_in_ends_when_the_objects_of_the_failed_one_are_deleted() -> None:
    good = replace(serving(2), place="stands in for version 3, whose load failed")
    (link,) = ask(remote(good, report=SourceReport("m", failed=frozenset({3}), stand_ins=frozenset({2}))), 2).because
    assert "delete its objects" in link.fix
    assert "directory" not in link.fix


def test_a_wrong_digest_on_a_disk_is_no_failed_fetch() -> None:
    reason = "model.pt2 does not have the sha256 digest that the manifest lists"
    assert ask(model(waiting(reason)), 2).because[0].cause == "INCOMPLETE"


def test_a_publication_that_was_killed_says_what_to_delete_to_those_who_may_see_paths() -> None:
    found = remote(waiting("being published since 2026-11-28 03:12:09 by host-7", 9))
    (link,) = explain(found, ModelRef("m", 9), paths=True).because
    assert link.cause == "INCOMPLETE"
    assert "delete everything below s3://bucket/m/9/ and publish again" in link.fix
    assert "s3://" not in ask(found, 9).because[0].fix


@pytest.mark.parametrize(
    ("code", "what", "cause", "fix"),
    [
        ("UNAVAILABLE", "the storage answers 503 SlowDown", "STORAGE_UNREACHABLE", "with each poll"),
        ("UNAVAILABLE", object_errors.NO_ANSWER, "STORAGE_UNREACHABLE", "the network"),
        ("UNAVAILABLE", object_errors.NO_CREDENTIALS, "STORAGE_UNREACHABLE", "the metadata service"),
        ("PERMISSION_DENIED", "the storage refuses (403 AccessDenied)", "STORAGE_REFUSES", "the right to list"),
        ("FAILED_PRECONDITION", object_errors.OTHER_REGION, "STORAGE_REFUSES", "set AWS_REGION to the region"),
        ("FAILED_PRECONDITION", object_errors.OddKey("/x").error.sentence, "STORAGE_ODD_KEY", "rename or delete"),
        (
            "FAILED_PRECONDITION",
            "the storage answers 400 BadRequest",
            "STORAGE_REFUSES",
            "the environment of the server",
        ),
        ("UNAVAILABLE", object_errors.CERTIFICATE, "STORAGE_UNREACHABLE", "the environment of the server"),
        ("NOT_FOUND", "there is no such bucket", "STORAGE_REFUSES", "correct base_path"),
        ("NOT_FOUND", "the hub has no such repository or revision", "STORAGE_REFUSES", "correct base_path"),
    ],
)
def test_a_storage_that_gives_nothing_says_since_when_and_what_serves_goes_on(
    code: str, what: str, cause: str, fix: str
) -> None:
    found = with_problem(StatusCode[code], f"{CANNOT_READ}: {what}", serving(1))
    answer = ask(found)
    (link,) = answer.because
    assert (answer.verdict, link.cause, link.since) == (Verdict.SERVING, cause, AT + 60)
    assert link.text == f"{CANNOT_READ}: {what}; since 01:46:00 UTC, tried 14 times, listed last at 01:45:00 UTC"
    assert fix in link.fix
    line = line_of_model(found)
    assert (line.verdict, line.cause) == (Verdict.SERVING, cause)


def test_a_bucket_without_versions_is_told_like_a_directory_without_any() -> None:
    message = "model m: its base path holds no version (objects below a prefix whose name is a number)"
    found = remote(report=SourceReport("m", Status(StatusCode.NOT_FOUND, message)))
    (link,) = ask(found).because
    assert (link.cause, link.text) == ("NO_VERSIONS", message)


@pytest.mark.parametrize(
    ("sentence", "fix"),
    [("the storage does not answer", "see to the network"), ("the storage refuses (403 ExpiredToken)", "credentials")],
)
def test_a_start_without_the_storage_says_from_when_its_versions_are(sentence: str, fix: str) -> None:
    condition = StorageCondition(AT, AT + 90, 1, sentence, from_cache=True)
    answer = ask(remote(serving(1), condition=condition))
    (link,) = answer.because
    assert (answer.verdict, link.cause) == (Verdict.SERVING, "FROM_CACHE")
    assert link.text == (
        f"its versions are those of the listing of 01:45:00 UTC that this machine has kept: {sentence}; "
        "since 01:46:30 UTC, tried 1 time"
    )
    assert fix in link.fix


def test_a_storage_that_is_well_needs_no_word() -> None:
    assert not ask(remote(serving(1))).because
