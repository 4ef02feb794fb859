"""Errors that a test expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
