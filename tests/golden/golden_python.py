"""The Python API: ``save``, ``Server`` and ``Client``, what they take, return and raise, and what plugs in by name."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import typing
from collections.abc import Iterator
from typing import Any

from golden_code import find, modules

import tfs_lite
from tfs_lite.core import status


def listing() -> Iterator[str]:
    yield from (f"tfs_lite.{name}" for name in tfs_lite.__all__)
    yield f"save{inspect.signature(tfs_lite.save)}"
    returned = {found: None for name, method in _methods(tfs_lite.Client) for found in _returned(name, method)}
    errors = (status.StatusCode, status.ServingError, status.Status, status.Reason)
    known = dict.fromkeys((tfs_lite.Server, tfs_lite.Client, type(tfs_lite.Server().options), *errors, *returned))
    for each in _with_fields(known):
        yield from _class(each)
    context = find("ModelContext")
    yield from (f"Model.__init__(context): context.{field.name}" for field in dataclasses.fields(context))
    yield from _entry_points()


def _class(kind: type) -> Iterator[str]:
    name = kind.__name__
    yield f"class {name}({', '.join(base.__name__ for base in kind.__bases__ if base is not object)})"
    if issubclass(kind, enum.Enum):
        yield from (f"{name}.{member.name} = {member.value!r}" for member in kind)
    elif dataclasses.is_dataclass(kind):
        yield from (f"{name}.{field.name}: {field.type}{_default(field)}" for field in dataclasses.fields(kind))
    elif "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False):
        yield f"{name}{_signature(kind.__init__)}"
    for member, value in vars(kind).items():
        if isinstance(value, property) and not member.startswith("_"):
            yield f"{name}.{member} (property) -> {value.fget.__annotations__.get('return')}"
    for member, method in _methods(kind):
        yield f"{name}.{member}{_signature(method)}"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return " = (made)"
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}"


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function) and (not name.startswith("_") or name in ("__enter__", "__exit__")):
            yield name, function


def _signature(function: Any) -> str:
    return str(inspect.signature(function))


def _returned(name: str, method: Any) -> Iterator[type]:
    hint = {} if name.startswith("__") else typing.get_type_hints(method)
    yield from _ours(hint.get("return"))


def _ours(hint: Any) -> Iterator[type]:
    """The package's own classes in a type."""
    if isinstance(hint, type) and hint.__module__.startswith("tfs_lite."):
        yield hint
    for inner in typing.get_args(hint):
        yield from _ours(inner)


def _with_fields(known: dict[type, None]) -> list[type]:
    """The classes, and those of their fields."""
    waiting = list(known)
    while waiting:
        kind = waiting.pop()
        hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        for found in (found for hint in hints.values() for found in _ours(hint) if found not in known):
            known[found] = None
            waiting.append(found)
    return list(known)


def _entry_points() -> Iterator[str]:
    """The groups that the product asks for."""
    for module in modules("tfs_lite", "entry_points("):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("entry_points"):
                for keyword in node.keywords:
                    group = keyword.value
                    known = group.value if isinstance(group, ast.Constant) else vars(module)[ast.unparse(group)]
                    yield f"entry points of the group {known!r}"
