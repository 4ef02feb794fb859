"""How a command fails: an exit code and one sentence, never a stack.

Exit codes: 0 done, 1 it failed (the sentence names the next step), 2 wrong usage.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DONE = 0
FAILED = 1
WRONG_USAGE = 2


class CliError(Exception):
    """The command failed. ``code`` is a canonical status name for ``--json``."""

    exit_code = FAILED

    def __init__(self, message: str, code: str = "FAILED_PRECONDITION") -> None:
        super().__init__(message)
        self.code = code


class UsageError(CliError):
    """The command line itself is wrong; nothing was tried."""

    exit_code = WRONG_USAGE

    def __init__(self, message: str) -> None:
        super().__init__(message, "INVALID_ARGUMENT")


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """``" (did you mean --port?)"`` when a known word is close, else nothing; to be appended to a message."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
