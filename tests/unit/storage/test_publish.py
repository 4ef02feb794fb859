"""Publishing into a bucket: whole, in order, never over a version, and nothing left of what has failed."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.errors import refusal, refuses
from tests.support.storage import MemoryStorage, unavailable
from tfs_lite.core.manifest import MANIFEST_NAME, MAX_FILES, Manifest, parse_manifest
from tfs_lite.core.publish import Published
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import StatusCode
from tfs_lite.storage.fetch import CLAIM_NAME
from tfs_lite.storage.publish import ATTEMPTS, publish_to_url
from tfs_lite.storage.store import StorageError
from tfs_lite.storage.url import StorageUrl

BASE = StorageUrl.parse("s3://models/digits")
DENIED = StorageError(StatusCode.PERMISSION_DENIED, "the storage refuses (403 AccessDenied)")


class Bucket(MemoryStorage):
    """Keeps the order in which objects came and went: ``+path``, ``-path``."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.slept: list[float] = []

    def put(self, path, source, *, create=False):
        super().put(path, source, create=create)
        self.log.append(f"+{path}")

    def delete(self, path):
        super().delete(path)
        self.log.append(f"-{path}")

    def publish(self, source: Path, version: int | None = None, **rest: object) -> Published:
        return publish_to_url(str(source), BASE, self, version, sleep=self.slept.append, **rest)  # type: ignore[arg-type]

    def fail(self, operation: str, name: str, times: float, error: Callable[[], StorageError] = unavailable) -> None:
        """The next requests of this kind for paths that end so fail."""
        left = [times]

        def fault(asked: str, path: str) -> StorageError | None:
            if asked != operation or not path.endswith(name) or not left[0]:
                return None
            left[0] -= 1
            return error()

        self.fault = fault


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "assets").mkdir(parents=True)
    (directory / "model.py").write_bytes(b"class Model: ...")
    (directory / "assets" / "wörter [1].txt").write_bytes(b"eins zwei")
    return directory


FILES = ("assets/wörter [1].txt", "model.py")


def test_the_claim_comes_first_the_manifest_last_and_then_the_claim_goes(bucket: Bucket, source: Path) -> None:
    assert bucket.publish(source) == Published(1, "s3://models/digits/1")
    names = (CLAIM_NAME, *FILES, MANIFEST_NAME)
    assert bucket.log == [*(f"+digits/1/{name}" for name in names), f"-digits/1/{CLAIM_NAME}"]
    manifest = parse_manifest(bucket.objects[f"digits/1/{MANIFEST_NAME}"][0])
    assert set(manifest.files) == set(FILES)
    for name, listed in manifest.files.items():
        data = (source / name).read_bytes()
        assert bucket.objects[f"digits/1/{name}"][0] == data
        assert (listed.size, listed.sha256, listed.stamp) == (len(data), hashlib.sha256(data).hexdigest(), "")
    assert bucket.requests == {"list": 3, "put": 5, "delete": 1}  # the fifth shows that the storage has conditions


def test_a_version_stands_at_the_top_of_a_bucket_too(bucket: Bucket, source: Path) -> None:
    top = StorageUrl.parse("gs://models")
    assert publish_to_url(str(source), top, bucket).path == "gs://models/1"
    assert sorted(bucket.objects) == [f"1/{name}" for name in (*FILES, MANIFEST_NAME)]


def test_the_number_is_the_next_of_all_spellings_and_of_claims(bucket: Bucket, source: Path) -> None:
    for path in ("digits/0041/model.py", "digits/7", "digits/v99/x", "digits/config.pbtxt", "digits2/99/model.py"):
        bucket.set(path, b"x")
    assert bucket.publish(source).version == 42
    bucket.set(f"digits/50/{CLAIM_NAME}", b"{}")
    assert bucket.publish(source).version == 51
    assert bucket.publish(source, 45).version == 45


def test_a_number_that_is_there_is_refused_before_anything_is_read(bucket: Bucket, source: Path) -> None:
    bucket.set("digits/005/model.py", b"x")
    told: list[str] = []
    with refuses(StatusCode.ALREADY_EXISTS, "version 5 exists and is never overwritten"):
        bucket.publish(source, 5, on_progress=lambda phase, *numbers: told.append(phase))
    assert not told
    assert bucket.log == []
    bucket.set(f"digits/{MAX_VERSION}/model.py", b"x")
    refusal(bucket.publish, source, code=StatusCode.FAILED_PRECONDITION)
    refusal(bucket.publish, source, -1, code=StatusCode.INVALID_ARGUMENT)


def test_the_claim_says_who_publishes_since_when(bucket: Bucket, source: Path) -> None:
    bucket.fail("put", "model.py", 1, lambda: pytest.fail("not this far"))
    claims = []
    put = bucket.put

    def look(path, data, **rest):
        claims.append(json.loads(data))
        put(path, data, **rest)
        raise KeyboardInterrupt

    bucket.put = look  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bucket.publish(source)
    ((claim),) = claims
    assert set(claim) == {"host", "time", "token"}
    assert claim["time"].endswith("Z")
    assert not bucket.objects


def test_progress_is_that_of_hashing_and_then_of_uploading(bucket: Bucket, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.mkdir()
    (source / "a").write_bytes(b"x" * ((1 << 20) + 5))
    (source / "b").write_bytes(b"yyy")
    told: list[tuple[str, int, int]] = []
    bucket.fail("put", "/b", 2)
    bucket.publish(source, on_progress=lambda *what: told.append(what))
    total = (1 << 20) + 8
    assert [phase for phase, done, _ in told if not done] == ["hashing", "uploading"]
    assert {phase: done for phase, done, _ in told} == {"hashing": total, "uploading": total}
    assert max(done for _, done, _ in told) == total


# Others who publish at the same time.


def test_publishers_at_the_same_time_get_different_numbers(bucket: Bucket, source: Path) -> None:
    numbers: list[int] = []
    barrier = threading.Barrier(6)

    def run() -> None:
        barrier.wait(30)
        numbers.extend(bucket.publish(source).version for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(numbers) == list(range(1, 31))
    for number in numbers:
        files = {name: len(data) for name, (data, _) in bucket.objects.items() if name.startswith(f"digits/{number}/")}
        assert len(files) == len(FILES) + 1


def take_first(bucket: Bucket, taken: Callable[[int], bytes | None], finished: bool = False) -> None:
    """Somebody else is faster: just before a claim comes, theirs does, or their whole version."""
    put = bucket.put

    def slow(path, data, *, create=False):
        if create and path.endswith(CLAIM_NAME) and path not in bucket.objects:
            theirs = taken(int(path.split("/")[1]))
            if theirs is not None:
                bucket.set(path.replace(CLAIM_NAME, "model.py") if finished else path, theirs)
        put(path, data, create=create)

    bucket.put = slow  # type: ignore[method-assign]


def test_a_number_that_others_have_claimed_meanwhile_is_left_to_them(bucket: Bucket, source: Path) -> None:
    take_first(bucket, lambda number: b"theirs" if number < 4 else None)
    assert bucket.publish(source).version == 4
    assert [bucket.objects[f"digits/{number}/{CLAIM_NAME}"][0] for number in (1, 2, 3)] == [b"theirs"] * 3


def test_a_version_that_was_finished_since_the_listing_is_not_written_into(bucket: Bucket, source: Path) -> None:
    take_first(bucket, lambda number: b"theirs" if number < 3 else None, finished=True)
    assert bucket.publish(source).version == 3
    assert [name for name in bucket.objects if not name.startswith("digits/3/")] == [
        "digits/1/model.py",
        "digits/2/model.py",
    ]


@pytest.mark.parametrize("finished", [False, True])
def test_a_given_number_that_others_have_taken_meanwhile_is_refused(bucket, source, finished: bool) -> None:
    take_first(bucket, lambda number: b"theirs", finished)
    refusal(bucket.publish, source, 7, code=StatusCode.ALREADY_EXISTS)
    assert list(bucket.objects.values()) == [(b"theirs", 1)]


def test_after_a_hundred_races_it_gives_up(bucket: Bucket, source: Path) -> None:
    take_first(bucket, lambda number: b"theirs")
    assert "100 version numbers in a row" in refusal(bucket.publish, source, code=StatusCode.ABORTED)
    assert len(bucket.objects) == 100


def test_a_storage_that_ignores_conditions_is_named(bucket: Bucket, source: Path, caplog) -> None:
    put = bucket.put
    bucket.put = lambda path, data, *, create=False: put(path, data)  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert bucket.publish(source).version == 1
    assert caplog.messages == ["this storage ignores conditions: do not publish twice at the same time"]


# Storages that fail.


def test_what_is_unavailable_is_asked_again_with_growing_waits(bucket: Bucket, source: Path) -> None:
    bucket.fail("put", "model.py", ATTEMPTS - 1)
    bucket.publish(source)
    assert len(bucket.slept) == ATTEMPTS - 1
    for number, seconds in enumerate(bucket.slept):
        assert 0.5 * 2**number <= seconds <= 0.5 * 2**number + 1
    assert sum(bucket.slept) <= 12
    assert bucket.objects["digits/1/model.py"][0] == b"class Model: ..."


@pytest.mark.parametrize("operation", ["list", "put", "delete"])
@pytest.mark.parametrize("name", ["", CLAIM_NAME, "model.py", MANIFEST_NAME])
def test_one_failure_anywhere_is_not_felt(bucket: Bucket, source: Path, operation: str, name: str) -> None:
    bucket.fail(operation, name, 1)
    assert bucket.publish(source).version == 1
    assert set(bucket.objects) == {f"digits/1/{name}" for name in (*FILES, MANIFEST_NAME)}


def test_a_storage_that_stays_unavailable_ends_it_and_nothing_is_left(bucket: Bucket, source: Path) -> None:
    bucket.fail("put", "model.py", ATTEMPTS)
    told = refusal(bucket.publish, source, code=StatusCode.UNAVAILABLE)
    assert told == "publishing to s3://models/digits failed: the storage answers 503 SlowDown"
    assert not bucket.objects
    assert bucket.log[-1] == f"-digits/1/{CLAIM_NAME}"


def test_a_refusal_is_told_at_once_with_the_rights_that_are_needed(bucket: Bucket, source: Path) -> None:
    bucket.fail("put", "", 1, lambda: DENIED)
    told = refusal(bucket.publish, source, code=StatusCode.PERMISSION_DENIED)
    assert told.endswith("(403 AccessDenied); publishing needs the rights to list, read, write and delete there")
    assert not bucket.slept
    assert not bucket.objects


def test_a_manifest_that_cannot_be_put_leaves_no_version(bucket: Bucket, source: Path) -> None:
    bucket.fail("put", MANIFEST_NAME, ATTEMPTS)
    refusal(bucket.publish, source, code=StatusCode.UNAVAILABLE)
    assert not bucket.objects


@pytest.mark.parametrize("name", [CLAIM_NAME, MANIFEST_NAME])
@pytest.mark.parametrize("told", ["exists", "nothing"])
def test_a_request_whose_answer_was_lost_is_known_again(bucket: Bucket, source: Path, name: str, told: str) -> None:
    put, lost = bucket.put, []

    def lose(path, data, *, create=False):
        put(path, data, create=create)
        if path.endswith(name) and not lost:
            lost.append(path)
            raise StorageError(StatusCode.ALREADY_EXISTS, "it exists") if told == "exists" else unavailable()

    bucket.put = lose  # type: ignore[method-assign]
    assert bucket.publish(source).version == 1
    assert set(bucket.objects) == {f"digits/1/{name}" for name in (*FILES, MANIFEST_NAME)}


def test_what_cannot_be_deleted_stays_claimed_and_is_named(bucket: Bucket, source: Path, caplog) -> None:
    broken = [False]

    def fault(operation: str, path: str) -> StorageError | None:
        broken[0] |= operation == "put" and path.endswith("model.py")
        return unavailable() if broken[0] else None

    bucket.fault = fault
    refusal(bucket.publish, source, code=StatusCode.UNAVAILABLE)
    assert f"digits/1/{CLAIM_NAME}" in bucket.objects
    assert "files of a failed publication may be left in s3://models/digits/1 (the storage answers 503" in caplog.text


def test_a_publisher_without_the_right_to_delete_has_published(bucket: Bucket, source: Path, caplog) -> None:
    bucket.fail("delete", "", float("inf"), lambda: DENIED)
    assert bucket.publish(source).version == 1
    assert f"digits/1/{MANIFEST_NAME}" in bucket.objects
    assert f"s3://models/digits/1/{CLAIM_NAME} stays, which does no harm" in caplog.text


def test_a_claim_of_somebody_else_is_never_deleted(bucket: Bucket, source: Path, caplog) -> None:
    """Whether the claim of a publisher that got no answer is there can be told by its content only."""

    def fault(operation: str, path: str) -> StorageError | None:
        if operation != "put":
            return None
        bucket.set(path, b"theirs")
        return unavailable()

    bucket.fault = fault
    refusal(bucket.publish, source, code=StatusCode.UNAVAILABLE)
    assert [data for data, _ in bucket.objects.values()] == [b"theirs"]


# Sources that cannot be published.


@pytest.mark.parametrize("phase", ["hashing", "uploading"])
def test_a_source_that_changes_meanwhile_is_not_published(bucket: Bucket, source: Path, phase: str) -> None:
    def change(now: str, done: int, expected: int) -> None:
        if now == phase:
            for file in source.rglob("*"):
                if file.is_file():
                    file.write_bytes(b"other")

    told = refusal(bucket.publish, source, on_progress=change, code=StatusCode.ABORTED)
    assert "changed while it was" in told
    assert not bucket.objects
    assert not bucket.slept


def test_a_file_that_is_gone_meanwhile_is_named(bucket: Bucket, source: Path) -> None:
    def remove(now: str, done: int, expected: int) -> None:
        if now == "uploading" and not done:
            (source / "model.py").unlink()

    assert "model.py" in refusal(bucket.publish, source, on_progress=remove, code=StatusCode.ABORTED)
    assert not bucket.objects


def test_an_error_of_who_watches_the_progress_ends_it(bucket: Bucket, source: Path) -> None:
    def gone(now: str, done: int, expected: int) -> None:
        if now == "uploading" and done:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        bucket.publish(source, on_progress=gone)
    assert not bucket.objects


@pytest.mark.parametrize("name", ["a\nb", os.fsdecode(b"w\xf6rter"), "a\x7fb"])
def test_names_that_no_object_can_have_are_refused(bucket: Bucket, source: Path, name: str) -> None:
    (source / name).write_bytes(b"x")
    assert "an object cannot have such a name" in refusal(bucket.publish, source, code=StatusCode.FAILED_PRECONDITION)
    assert bucket.requests == {}


def test_too_many_files_and_none_are_refused(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / CLAIM_NAME).write_bytes(b"")
    assert "it is empty" in refusal(bucket.publish, empty, code=StatusCode.FAILED_PRECONDITION)
    refusal(bucket.publish, tmp_path / "missing", code=StatusCode.NOT_FOUND)
    for number in range(MAX_FILES):
        (empty / str(number)).touch()
    assert "too many files: 10000" in refusal(bucket.publish, empty, code=StatusCode.FAILED_PRECONDITION)
    assert bucket.requests == {}


def test_a_copy_of_a_version_that_was_being_published_has_neither_its_claim_nor_its_manifest(bucket, source) -> None:
    (source / CLAIM_NAME).write_bytes(b"theirs")
    (source / MANIFEST_NAME).write_bytes(Manifest({}).to_bytes())
    bucket.publish(source)
    assert set(bucket.objects) == {f"digits/1/{name}" for name in (*FILES, MANIFEST_NAME)}
    assert set(parse_manifest(bucket.objects[f"digits/1/{MANIFEST_NAME}"][0]).files) == set(FILES)


def test_the_hub_is_read_only(bucket: Bucket, source: Path) -> None:
    hub = StorageUrl.parse("hf://org/name")
    assert refusal(publish_to_url, str(source), hub, bucket).startswith("hf:// is read only")
