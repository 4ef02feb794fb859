"""Finds what is in the package without knowing which of its modules has it: modules move, what users see does not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import tfs_lite

PACKAGE = Path(tfs_lite.__file__).parent


def sources() -> Iterator[Path]:
    """Every module of the product; public fakes are for tests."""
    yield from (path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "testing")


def modules(package: str, holding: str = "") -> Iterator[ModuleType]:
    """The modules of the package, imported, those only whose text holds some words."""
    for path in sources():
        name = ".".join(("tfs_lite", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        if f"{name}.".startswith(f"{package}.") and holding in path.read_text(encoding="utf-8"):
            yield importlib.import_module(name)


@cache
def find(name: str, package: str = "tfs_lite") -> Any:
    """The value of a public name, whichever module below the package has it."""
    for module in modules(package, name):
        if name in vars(module):
            return vars(module)[name]
    raise LookupError(f"nothing below {package} is called {name}")


def one_line(text: str) -> str:
    """Texts of several lines stand in one."""
    plain = text.replace("\\", "\\\\")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in plain)
