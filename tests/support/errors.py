"""Errors that a test expects, or brings about."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tfs_lite.core.status import ServingError, StatusCode


def refusal(
    call: Callable[..., object], *arguments: Any, code: StatusCode = StatusCode.INVALID_ARGUMENT, **rest: Any
) -> str:
    """The message of the ServingError that the call raises. AssertionError without one, or with another code."""
    try:
        call(*arguments, **rest)
    except ServingError as error:
        found = error
    else:
        raise AssertionError("the call did not fail")
    assert found.code is code, f"{found.code.name}: {found}"
    return str(found)


@contextmanager
def refuses(code: StatusCode, words: str) -> Iterator[None]:
    """The block has to raise a ServingError of this code; ``words``, a pattern, are in its message."""
    try:
        yield
    except ServingError as error:
        found = error
    else:
        raise AssertionError("the block did not fail")
    assert found.code is code, f"{found.code.name}: {found}"
    assert re.search(words, str(found)), str(found)


def fail_syncs(monkeypatch: pytest.MonkeyPatch, number: int, *, of_files: bool) -> None:
    """Lets ``fsync`` of all directories, or of all files, fail with this ``errno``."""
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}") is not of_files:
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
