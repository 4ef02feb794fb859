"""The callback that does nothing."""

from __future__ import annotations


def ignore(*values: object) -> None:
    """Takes the place of an observer where there is none."""
