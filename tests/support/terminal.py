"""The other side of a terminal, for tests of what a command draws."""

from __future__ import annotations

import os
from collections.abc import Callable


def read_terminal(descriptor: int, until: Callable[[str], bool] = lambda seen: False) -> str:
    """What the command has written when ``until`` is true of it, or when it has closed the terminal. Control sequences
    are left in."""
    seen = b""
    while not until(seen.decode(errors="replace")):
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        seen += piece
    return seen.decode(errors="replace")
