"""``tfs-lite check`` of base paths in a bucket: what a server would serve of them, without fetching anything."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.remote.moto import Bucket
from tests.support.remote.proxy import FaultProxy
from tests.support.servers.models import TaggedArchives, write_python_version
from tfs_lite.cli.main import main
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.manifest import MANIFEST_NAME, parse_manifest
from tfs_lite.sources.object_disk import ObjectDisk
from tfs_lite.storage.fetch import CLAIM_NAME, Fetcher, has_all_files
from tfs_lite.storage.files_cache import FilesCache, never
from tfs_lite.storage.objects import open_storage
from tfs_lite.storage.publish import publish_to_url
from tfs_lite.storage.url import StorageUrl

CODE = """
class Model:
    def predict(self, inputs):
        return {"y": inputs["x"]}
"""
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def check(path: str | Path, cache: Path, capsys: Captured, *flags: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["check", str(path), "--json", f"--model_cache_dir={cache}", *flags])
    return code, json.loads(capsys.readouterr().out)["models"]


def publish(bucket: Bucket, source: Path, model: str = "m") -> str:
    """The URL of the version."""
    url = StorageUrl.parse(f"{bucket.url}/{model}")
    return publish_to_url(str(source), url, open_storage(url)).path


def fetch(bucket: Bucket, cache: Path, path: str) -> None:
    """Fetches a version into the cache as a server does."""
    base = StorageUrl.parse(path.rpartition("/")[0])
    storage = open_storage(base)
    kept = FilesCache(str(cache), 1 << 30, has_all_files)
    disk = ObjectDisk(storage, base.place, kept, Fetcher(storage, kept, threading.Event()), SystemClock())
    disk.set_bases({base.text})
    with disk.open(f"{path}/{MANIFEST_NAME}") as file:
        manifest = parse_manifest(file.read())
    assert disk.verify(path, disk.stat_tree(path), manifest, never, ignore) == ""


def state(directory: Path) -> dict[str, tuple[int, int]]:
    """Everything in the directory with size and time."""
    found = {str(path.relative_to(directory)): path.lstat() for path in directory.rglob("*")}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()}


@pytest.fixture
def archive(archives: TaggedArchives, tmp_path: Path) -> Path:
    return archives.write(1, tmp_path / "model.pt2")


def test_a_version_that_is_not_cached_is_listed_and_not_fetched(
    bucket: Bucket, archive: Path, cache: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        publish(bucket, archive)
    with FaultProxy(bucket.moto.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        code, (model,) = check(f"{bucket.url}/m", cache, capsys)
        assert (proxy.count("list"), proxy.count("get", "model.pt2")) == (1, 0)
    assert (code, model["name"], model["base_path"]) == (0, "m", f"{bucket.url}/m")
    newest, older = model["versions"]
    size = archive.stat().st_size + len(bucket.read(f"m/2/{MANIFEST_NAME}"))
    assert newest["verdict"] == "served"
    assert newest["remote"] == {"bytes": size, "files": 2, "manifest": True, "cached": False}
    assert (older["version"], older["verdict"], "remote" in older) == (1, "not wanted", False)
    assert not cache.exists()


def test_the_artefacts_of_a_cached_version_are_checked_and_the_cache_is_left_as_it_is(
    bucket: Bucket, archive: Path, cache: Path, capsys: Captured
) -> None:
    fetch(bucket, cache, publish(bucket, archive))
    bucket.set("m/config.pbtxt", b"no_such_field: 1")
    before = state(cache)
    code, (model,) = check(f"{bucket.url}/m", cache, capsys)
    assert state(cache) == before
    (version,) = model["versions"]
    assert (code, version["verdict"], version["remote"]["cached"]) == (1, "refused", True)
    assert "no_such_field" in version["reason"]  # of the config that is beside it now
    bucket.delete("m/config.pbtxt")
    code, (model,) = check(f"{bucket.url}/m", cache, capsys)
    (version,) = model["versions"]
    assert (code, version["verdict"], version["platform"], version["reason"]) == (0, "served", "pytorch_export", "")
    assert [signature["name"] for signature in version["signatures"]] == ["serving_default"]


def test_code_from_a_bucket_is_trusted_by_its_url_alone(
    bucket: Bucket, tmp_path: Path, cache: Path, capsys: Captured
) -> None:
    fetch(bucket, cache, publish(bucket, write_python_version(tmp_path / "source", 1, CODE)))
    for flags, verdict in (
        ((), "refused"),
        ((f"--trusted_model_base_paths={cache}/*,{tmp_path}/*",), "refused"),
        ((f"--trusted_model_base_paths={bucket.url}/other",), "refused"),
        ((f"--trusted_model_base_paths={bucket.url}/*",), "served"),
    ):
        _, (model,) = check(f"{bucket.url}/m", cache, capsys, *flags)
        assert model["versions"][0]["verdict"] == verdict, (flags, model)


def test_what_is_being_published_and_what_lacks_files_waits(
    bucket: Bucket, archive: Path, cache: Path, capsys: Captured
) -> None:
    publish(bucket, archive)
    bucket.set(f"m/2/{CLAIM_NAME}", b'{"host": "build7", "time": "2026-01-02T03:04:05Z", "token": "t"}')
    bucket.set(f"m/3/{MANIFEST_NAME}", bucket.read(f"m/1/{MANIFEST_NAME}"))
    code, (model,) = check(f"{bucket.url}/m", cache, capsys)
    three, two, one = model["versions"]
    assert code == 1
    assert (three["verdict"], two["verdict"], one["verdict"]) == ("waiting", "waiting", "served")
    assert "found no such file" in three["reason"]
    assert two["reason"] == "being published since 2026-01-02T03:04:05Z by build7"


def test_a_bucket_that_cannot_be_listed_is_told(
    bucket: Bucket, cache: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, (model,) = check(f"{bucket.url}/nothing", cache, capsys)
    assert (code, model["versions"]) == (1, [])
    assert "it holds no version" in model["problem"]
    with FaultProxy(bucket.moto.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        proxy.fail("status", status=403, code="AccessDenied")
        code, (model,) = check(f"{bucket.url}/m", cache, capsys)
    assert (code, model["versions"]) == (1, [])
    assert "the storage refuses (403 AccessDenied)" in model["problem"]


def test_a_config_has_directories_and_urls_and_the_table_says_what_is_known(
    bucket: Bucket, archive: Path, archives: TaggedArchives, tmp_path: Path, cache: Path, capsys: Captured
) -> None:
    publish(bucket, archive, "remote")
    (tmp_path / "here" / "1").mkdir(parents=True)
    archives.write(1, tmp_path / "here" / "1" / "model.pt2")
    bases = {"far": f"{bucket.url}/remote/", "near": str(tmp_path / "here")}
    entries = "".join(f'config {{ name: "{name}" base_path: "{base}" }}' for name, base in bases.items())
    (tmp_path / "models.config").write_text(f"model_config_list {{ {entries} }}")
    code, (far, near) = check(tmp_path / "models.config", cache, capsys)
    assert (code, far["name"], near["name"]) == (0, "far", "near")
    assert "remote" not in near["versions"][0]
    assert main(["check", str(tmp_path / "models.config"), f"--model_cache_dir={cache}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "in 2 files, with a manifest, not in the cache: its files are not checked" in shown
    code, (far, near) = check(
        tmp_path / "models.config", cache, capsys, f"--allowed_model_base_paths={bucket.url},{tmp_path}"
    )
    assert code == 0
    assert main(["check", f"{bucket.url}/remote", "--allowed_model_base_paths=s3://other"]) == 1
    assert "outside the allowed roots" in capsys.readouterr().err


def test_a_url_that_is_wrong_is_one_line(cache: Path, capsys: Captured) -> None:
    assert main(["check", "ftp://host/m"]) == 1
    assert "the URL has another scheme" in capsys.readouterr().err
