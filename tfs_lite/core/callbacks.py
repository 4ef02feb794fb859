"""Callbacks: none, and several as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec

P = ParamSpec("P")


def name_of(callback: Callable[..., object]) -> str:
    """The name of a function for the log: that of the method and its class where it has one."""
    return getattr(callback, "__qualname__", None) or repr(callback)


def ignore(*values: object) -> None:
    """Takes the place of an observer where there is none."""


def together(observers: Sequence[Callable[P, None] | None]) -> Callable[P, None]:
    """One observer that tells all of these, in their order; what is None is left out."""
    found = [observer for observer in observers if observer is not None]
    if len(found) == 1:
        return found[0]

    def tell_all(*arguments: P.args, **named: P.kwargs) -> None:
        for observer in found:
            observer(*arguments, **named)

    return tell_all
