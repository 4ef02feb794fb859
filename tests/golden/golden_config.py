"""Config files: every field by its path in the file, with type, bounds and default; the options of a server.

A path begins with the settings of a whole file or text and goes on as it is written: ``ModelSettings.dynamic_batching
.preserve_ordering``. ``[]`` are the entries of a list, ``{}`` those of a map. Classes in between have no say.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from golden_code import modules
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import tfs_lite

BOUNDS = ("strict", "gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "allow_inf_nan")
_ENUMS: dict[str, type[enum.Enum]] = {}


def listing() -> Iterator[str]:
    known = _settings()
    inner = {found for each in known for field in each.model_fields.values() for found in _models(field.annotation)}
    for root in known:
        if root not in inner and root.model_fields:
            yield from _fields(root, root.__name__)
    for name, kind in _ENUMS.items():
        yield from (f"enum {name}.{member.name} = {_enum_value(member)}" for member in kind)
    yield from _options()


def _settings() -> list[type[BaseModel]]:
    """Every class of settings below ``tfs_lite.config``."""
    found = {
        value: None
        for module in modules("tfs_lite.config")
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__.startswith("tfs_lite.")
    }
    return list(found)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models(inner)


def _fields(settings: type[BaseModel], path: str) -> Iterator[str]:
    yield f"{path} (unknown fields: {settings.model_config.get('extra', 'ignore')})"
    for name, field in settings.model_fields.items():
        at = f"{path}.{field.alias or name}"
        also = f" (or {name})" if field.alias and settings.model_config.get("populate_by_name") else ""
        yield f"{at}: {_type(field.annotation, field.metadata)}{_default(field)}{also}"
        for ending, inner in _inside(field.annotation):
            yield from _fields(inner, at + ending)


def _inside(annotation: Any, ending: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The settings in a field's type, and how a path goes on to them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield ending, annotation
        return
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        yield from _inside(args[0], ending)
    elif origin is tuple:
        yield from _inside(args[0], f"{ending}[]")
    elif _is_mapping(origin):
        yield from _inside(args[1], f"{ending}{{}}")
    else:
        for inner in args:
            yield from _inside(inner, ending)


def _type(annotation: Any, metadata: typing.Sequence[Any] = ()) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _type(args[0], (*args[1:], *metadata))
    return f"{_plain(annotation, origin, args)}{_bounds(metadata)}"


def _plain(annotation: Any, origin: Any, args: tuple[Any, ...]) -> str:
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type(inner) for inner in args)
    if origin is Literal:
        return " or ".join(repr(value) for value in args)
    if origin is tuple:
        return f"list of {_type(args[0])}"
    if _is_mapping(origin):
        return f"map of {_type(args[0])} to {_type(args[1])}"
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "settings"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        _ENUMS[annotation.__name__] = annotation
    return str(getattr(annotation, "__name__", annotation))


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _bounds(metadata: typing.Sequence[Any]) -> str:
    """What validators check is in their messages, not here."""
    flat = [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
    found = {
        name: getattr(part, name)
        for part in flat
        for name in BOUNDS
        if getattr(part, name, None) is not None and not callable(getattr(part, name))
    }
    return f" ({', '.join(f'{name} {value}' for name, value in sorted(found.items()))})" if found else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ", required"
    if field.default_factory is not None:
        return " = (computed)"
    return f" = {_value(field.default)}"


def _value(value: Any) -> str:
    if isinstance(value, BaseModel):
        return f"settings {value.model_dump(mode='json', exclude_unset=True)}"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


def _enum_value(member: enum.Enum) -> str:
    return repr(member.value) if isinstance(member.value, int | str) else "(object)"


def _options() -> Iterator[str]:
    for field in dataclasses.fields(tfs_lite.Server().options):
        yield f"ServerOptions.{field.name}: {field.type} = {field.default!r}"
