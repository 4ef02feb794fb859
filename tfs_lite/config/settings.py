"""The base of all settings: they are strict, frozen, and say where a mistake is.

Text of any syntax is first read into a :class:`Document`: plain dicts and lists, and the line and column of every
field. :func:`build` validates it; each problem is looked up in the document by the path of its field.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from tfs_lite.core.status import ServingError, invalid_argument

FieldPath = tuple[str | int, ...]
"""The place of a value: names of fields, keys of maps, indices of lists."""

SHOWN_PROBLEMS = 5
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
"""The beginning of a path that is none of this machine's."""
_KEY_OF_MAP = "[key]"
"""pydantic's last part of the path to a map's key; ours ends at the entry."""


class Settings(BaseModel):
    """Base of every settings class: unknown fields are refused, values never change."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def _flag(value: object) -> object:
    return {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower(), value)


S = TypeVar("S", bound=Settings)
Flag = Annotated[bool, BeforeValidator(_flag)]
"""A boolean of a parameter, whose value is a text."""


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and where it came from. ``name`` is empty when there is no file; positions are 1-based."""

    data: object
    name: str = ""
    positions: Mapping[FieldPath, tuple[int, int]] = field(default_factory=dict)

    def where(self, path: FieldPath) -> str:
        """``file:line:column: `` of the field, or of the nearest field around it; empty without a file."""
        if not self.name:
            return ""
        for length in range(len(path), -1, -1):
            if path[:length] in self.positions:
                line, column = self.positions[path[:length]]
                return f"{self.name}:{line}:{column}: "
        return f"{self.name}: "


def problem(message: str, *path: str | int) -> PydanticCustomError:
    """The error that a validator raises. ``path`` leads from the validated value to the culprit inside it."""
    return PydanticCustomError("settings", "{text}", {"text": message, "path": path})


def config_error(name: str, line: int, column: int, message: str) -> ServingError:
    """A mistake in the syntax of a file."""
    return invalid_argument(f"{name}:{line}:{column}: {message}")


def build(
    settings: type[S],
    document: Document,
    working_directory: Path | None = None,
    platforms: Collection[str] | None = None,
) -> S:
    """The settings in ``document``. All problems (the first few in full) raise one INVALID_ARGUMENT.

    Relative paths are resolved against ``working_directory``; without one they are refused. With ``platforms``, every
    other platform is refused.
    """
    context = {"working_directory": working_directory, "platforms": platforms}
    try:
        return settings.model_validate(document.data, context=context)
    except ValidationError as error:
        details = error.errors(include_url=False)
        shown = [_sentence(settings, document, detail) for detail in details[:SHOWN_PROBLEMS]]
        if len(details) > len(shown):
            shown.append(f"and {len(details) - len(shown)} more")
        raise invalid_argument("; ".join(shown)) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean "x"?``, or the known names if none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known: {', '.join(names)}" if names else ""


def format_path(path: FieldPath) -> str:
    """``model_config_list.config[0].name``"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _sentence(settings: type[Settings], document: Document, detail: ErrorDetails) -> str:
    location = (part for part in detail["loc"] if part != _KEY_OF_MAP)
    path = (*location, *detail.get("ctx", {}).get("path", ()))
    if detail["type"] == "extra_forbidden":
        message = f"unknown field{nearest(str(path[-1]), _fields_at(settings, path[:-1]))}"
    elif detail["type"] == "missing":
        message = "is required"
    elif detail["type"] == "settings":
        message = detail["msg"]
    else:
        message = f"{detail['msg']}, got {detail['input']!r:.80}"
    return f"{document.where(path)}{format_path(path)}{': ' if path else ''}{message}"


def _fields_at(settings: type[Settings], path: FieldPath) -> Iterable[str]:
    """The field names of the settings class that ``path`` leads to."""
    for name in (part for part in path if isinstance(part, str)):
        if name in settings.model_fields:
            settings = _settings_in(settings.model_fields[name].annotation) or settings
    return settings.model_fields


def _settings_in(annotation: Any) -> type[Settings] | None:
    """The settings class inside ``tuple[X, ...]``, ``X | None`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return next((found for arg in typing.get_args(annotation) if (found := _settings_in(arg))), None)
