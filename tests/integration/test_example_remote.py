"""``examples/remote``: the script of docs/remote.md serves an empty bucket, which its variables lead to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.remote.moto import forget_clouds
from tfs_lite.storage.objects import open_storage
from tfs_lite.storage.url import StorageUrl

SCRIPT = Path(__file__).parents[2] / "examples" / "remote" / "serve_bucket.py"
VARIABLES = 5


def test_the_script_serves_an_empty_bucket_until_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_clouds(monkeypatch)
    with subprocess.Popen([sys.executable, SCRIPT, "models"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(VARIABLES):
            name, value = process.stdout.readline().removeprefix("export ").rstrip().split("=")
            monkeypatch.setenv(name, value)
        storage = open_storage(StorageUrl.parse("s3://models/digits"))
        assert storage.files("").files == ()
        storage.put("digits/1/model.pt2", b"model")
        assert [file.path for file in storage.files("digits").files] == ["digits/1/model.pt2"]
        process.terminate()
        assert process.wait() == 0
