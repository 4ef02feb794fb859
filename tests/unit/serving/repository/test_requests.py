"""Load calls: what they may bring, and where it is written."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.errors import refusal
from tfs_lite.core.status import StatusCode
from tfs_lite.serving.repository.requests import MAX_DEPTH, UploadedModels, load_request

MAX_BYTES = 1 << 20


@pytest.fixture
def uploads() -> Iterator[UploadedModels]:
    found = UploadedModels()
    yield found
    found.close()


def deep(depth: int) -> str:
    """A path of so many parts."""
    return "/".join(["1", *"a" * (depth - 2), "x"])


def test_files_are_written_below_a_directory_of_their_own(uploads: UploadedModels) -> None:
    files = {"file:1/model.py": b"one", f"file:{deep(MAX_DEPTH)}": b"two"}
    base = uploads.write(load_request("m", {"config": "{}", **files}, MAX_BYTES))
    for path, content in files.items():
        with open(os.path.join(base, path.removeprefix("file:")), "rb") as file:
            assert file.read() == content
    uploads.remove(base)
    assert not os.path.exists(base)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5000])
def test_deep_paths_are_refused(depth: int) -> None:
    message = refusal(
        load_request, "m", {"config": "{}", f"file:{deep(depth)}": b""}, MAX_BYTES, code=StatusCode.INTERNAL
    )
    assert "at most 32 parts" in message
    assert "failed to load 'm', failed to poll from model repository" in message


def test_an_error_does_not_repeat_a_name_of_any_length() -> None:
    message = refusal(load_request, "x" * 100_000, {"file:1/x": b""}, MAX_BYTES, code=StatusCode.INTERNAL)
    assert "failed to load 'xxx" in message
    assert len(message) < 1000
    message = refusal(load_request, "x" * 100_000, {"other": 1}, MAX_BYTES)
    assert "load of model 'xxx" in message
    assert len(message) < 1000
