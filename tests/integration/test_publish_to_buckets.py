"""``tfs-lite publish`` into an S3 server, over a proxy that breaks, by processes that compete or are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.errors import refusal
from tests.support.remote.moto import KEY_ID, Bucket
from tests.support.remote.proxy import FaultProxy
from tests.support.servers.process import wait_until
from tfs_lite.cli.main import main
from tfs_lite.core.loader import bytes_text
from tfs_lite.core.manifest import MANIFEST_NAME, parse_manifest
from tfs_lite.core.publish import OnProgress, Published
from tfs_lite.core.status import StatusCode
from tfs_lite.storage.fetch import CLAIM_NAME
from tfs_lite.storage.objects import open_storage
from tfs_lite.storage.publish import publish_to_url
from tfs_lite.storage.url import StorageUrl

NAMES = ("assets/a b [1] 100%.txt", "model.bin")
LARGE = 20 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "assets").mkdir(parents=True)
    (directory / NAMES[0]).write_bytes(b"words")
    (directory / NAMES[1]).write_bytes(b"weights")
    return directory


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Between everything and the server."""
    with FaultProxy(bucket.moto.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def start(source: Path, bucket: Bucket) -> subprocess.Popen[str]:
    """``tfs-lite publish`` as a process."""
    command = [sys.executable, "-m", "tfs_lite.cli.main", "publish", str(source), "--base", f"{bucket.url}/m", "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def publish(source: Path, bucket: Bucket, **rest: OnProgress) -> Published:
    """In this process, without waiting between attempts."""
    url = StorageUrl.parse(f"{bucket.url}/m")
    return publish_to_url(str(source), url, open_storage(url), sleep=lambda seconds: None, **rest)  # type: ignore[arg-type]


def check_whole(bucket: Bucket, source: Path, number: int) -> None:
    """The version is there with every file of the source, and nothing else."""
    paths = {path for path in bucket.paths() if path.startswith(f"m/{number}/")}
    assert paths == {f"m/{number}/{name}" for name in (*NAMES, MANIFEST_NAME)}
    listed = parse_manifest(bucket.read(f"m/{number}/{MANIFEST_NAME}")).files
    for name in NAMES:
        data = bucket.read(f"m/{number}/{name}")
        assert data == (source / name).read_bytes()
        assert listed[name].size == len(data)


def test_the_command_publishes_and_says_where(bucket: Bucket, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", str(source), "--base", f"{bucket.url}/m/"]) == 0
    assert capsys.readouterr().out == f"published version 1: {bucket.url}/m/1\n"
    assert main(["publish", str(source), "--base", f"{bucket.url}/m", "--version", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 7, "path": f"{bucket.url}/m/7"}
    assert main(["publish", str(source), "--base", f"{bucket.url}/m", "--version", "7"]) == 1
    assert "version 7 exists" in capsys.readouterr().err
    for number in (1, 7):
        check_whole(bucket, source, number)


def test_a_large_file_is_uploaded_in_parts_with_progress(bucket: Bucket, source: Path, capsys) -> None:
    (source / "model.bin").write_bytes(os.urandom(LARGE))
    assert main(["publish", str(source), "--base", f"{bucket.url}/m", "--progress"]) == 0
    check_whole(bucket, source, 1)
    lines = capsys.readouterr().err.splitlines()
    phases = [line.split(":")[0] for line in lines]
    assert phases == sorted(phases, key=["hashing", "uploading"].index)
    assert [lines[phases.index("uploading") - 1], lines[-1]] == [
        f"hashing: {bytes_text(LARGE + 5, LARGE + 5)}",
        f"uploading: {bytes_text(LARGE + 5, LARGE + 5)}",
    ]


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("hf://org/name", "hf:// is read only"),
        ("s3://no-such-bucket-here/m", "there is no such bucket"),
        ("https://host/m?sig=canary", "another scheme"),
        ("s3://b/../m", "the URL has an empty part"),
    ],
)
def test_bases_that_cannot_be_are_refused_in_one_line(bucket: Bucket, source: Path, capsys, base, told) -> None:
    assert main(["publish", str(source), "--base", base]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert "canary" not in error


def test_commands_that_publish_at_the_same_time_get_different_numbers(bucket: Bucket, source: Path) -> None:
    processes = [start(source, bucket) for _ in range(3)]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], answers
    assert sorted(json.loads(out)["version"] for out, _ in answers) == [1, 2, 3]
    assert [error for _, error in answers] == ["", "", ""]
    for number in (1, 2, 3):
        check_whole(bucket, source, number)


def test_a_killed_publisher_leaves_its_claim_and_the_next_one_takes_the_next_number(
    bucket: Bucket, proxy: FaultProxy, source: Path
) -> None:
    proxy.fail("hang", operation="put", path="model.bin")
    with start(source, bucket) as process:
        wait_until(lambda: proxy.count("put", "model.bin"), "the upload has begun")
        process.kill()
        process.communicate()
    proxy.heal()
    assert bucket.paths() == [f"m/1/{NAMES[0]}", f"m/1/{CLAIM_NAME}"]
    assert publish(source, bucket).version == 2
    check_whole(bucket, source, 2)
    assert bucket.paths()[:2] == [f"m/1/{NAMES[0]}", f"m/1/{CLAIM_NAME}"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_publisher_that_a_signal_ends_leaves_nothing_behind(
    bucket: Bucket, proxy: FaultProxy, source: Path, number: signal.Signals, code: int
) -> None:
    proxy.fail("hang", operation="put", path="model.bin")
    with start(source, bucket) as process:
        wait_until(lambda: proxy.count("put", "model.bin"), "the upload has begun")
        process.send_signal(number)
        proxy.heal()  # a signal is heard when the storage has answered
        process.communicate(timeout=60)
    assert process.returncode == code
    assert bucket.paths() == []


def test_a_storage_that_refuses_for_a_while_is_asked_again(bucket: Bucket, proxy: FaultProxy, source: Path) -> None:
    fault = proxy.fail("status", times=6)
    done: dict[str, int] = {}
    publish(source, bucket, on_progress=lambda phase, now, expected: done.update({phase: now}))
    assert fault.broken == 6
    assert done == {"hashing": 12, "uploading": 12}
    check_whole(bucket, source, 1)


@pytest.mark.parametrize("name", [CLAIM_NAME, "model.bin", MANIFEST_NAME])
def test_an_answer_that_is_lost_makes_no_second_version(bucket, proxy: FaultProxy, source: Path, name: str) -> None:
    proxy.fail("lose", times=1, operation="put", path=name)
    assert publish(source, bucket).version == 1
    check_whole(bucket, source, 1)


def test_a_storage_that_stays_away_is_told_and_the_rest_deleted(bucket, proxy: FaultProxy, source: Path) -> None:
    proxy.fail("status", operation="put", path="model.bin")
    told = refusal(publish, source, bucket, code=StatusCode.UNAVAILABLE)
    assert told == f"publishing to {bucket.url}/m failed: the storage answers 503 SlowDown"
    assert bucket.paths() == []


def test_a_refusal_names_the_rights_and_no_secret(bucket: Bucket, proxy: FaultProxy, source: Path) -> None:
    proxy.fail("status", operation="put", status=403, code="AccessDenied")
    told = refusal(publish, source, bucket, code=StatusCode.PERMISSION_DENIED)
    assert told.endswith("publishing needs the rights to list, read, write and delete there")
    assert "403 AccessDenied" in told
    assert KEY_ID not in told
