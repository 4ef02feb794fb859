"""The output and the failures of commands: JSON or tables on standard output; for failures one sentence, without a
stack, and an exit code.

Exit codes: 0 done, 1 it failed (the sentence names the next step), 2 wrong usage, 3 a server has stopped, and something
that hangs had to be left behind.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STATE_STYLES = {"AVAILABLE": "green", "LOADING": "yellow", "START": "cyan", "UNLOADING": "yellow", "END": "dim"}
_WIDTH_WITHOUT_TERMINAL = 200


def print_json(value: Any) -> None:
    """One line of JSON."""
    print(json.dumps(value), flush=True)


def console() -> Console:
    """The terminal, or a wide plain page if standard output is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table of plain text (nothing in a cell is read as markup) or of rich texts."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        result.add_column(column, overflow="fold")
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return result


def state_text(state: str, failed: bool = False) -> Any:
    """A state in its colour; red if the version failed."""
    from rich.text import Text

    return Text(state, style="red" if failed else STATE_STYLES.get(state, ""))


DONE = 0
FAILED = 1
WRONG_USAGE = 2
LEFT_BEHIND = 3


class CliError(Exception):
    """The command failed. ``code`` is a canonical status name for ``--json``."""

    exit_code = FAILED

    def __init__(self, message: str, code: str = "FAILED_PRECONDITION") -> None:
        super().__init__(message)
        self.code = code


class UsageError(CliError):
    """The command line is wrong; the command has done nothing."""

    exit_code = WRONG_USAGE

    def __init__(self, message: str) -> None:
        super().__init__(message, "INVALID_ARGUMENT")


TOKEN_VARIABLE = "TFS_LITE_TOKEN_FILE"


def told(error: Exception) -> str:
    """The sentence of an error, and how a command is given a token where a server wants one."""
    code = getattr(error, "code", None)
    if getattr(code, "name", code) != "UNAUTHENTICATED":
        return str(error)
    return f"{error}; give this command --token_file FILE, or set {TOKEN_VARIABLE} in the environment"


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """``" (did you mean --port?)"`` if a known word is similar, to append to a message; otherwise an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
