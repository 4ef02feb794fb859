"""Values of a V2 body in JSON: members that have to be of one kind, each with the message that V2's clients know.

A tree comes from ``json_text``. Every error is INVALID_ARGUMENT and holds no more of the body than a name.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols import json_text
from tfs_lite.protocols.json_tree import MAX_DEPTH
from tfs_lite.protocols.rest_values import shorten, type_name

Members: TypeAlias = dict[str, Any]

MAX_INT64 = 2**63 - 1
_DEEP = "levels of nesting"
TOO_DEEP = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"


def read_object(text: bytes, what: str = "request") -> Members:
    """The members of a body that is an object."""
    try:
        tree = json_text.loads(text)
    except ServingError as error:
        deep = f"{TOO_DEEP}: " if _DEEP in str(error) else ""
        raise invalid_argument(f"failed to parse the {what} JSON buffer: {deep}{error}") from None
    if not isinstance(tree, dict):
        raise invalid_argument(f"failed to parse the {what} JSON buffer: expected an object, got {type_name(tree)}")
    return tree


def read_text(members: Members, key: str, of: str = "") -> str:
    """A member that has to be there and to be a string. ``of``: whose it is, for the message."""
    return _require(members, key, of, isinstance(members.get(key), str), "a string")  # type: ignore[no-any-return]


def read_list(members: Members, key: str, of: str = "") -> list[Any]:
    value = members.get(key)
    if hasattr(value, "tolist"):  # a large array of numbers
        return value.tolist()  # type: ignore[no-any-return, union-attr]
    return _require(members, key, of, isinstance(value, list), "an array")  # type: ignore[no-any-return]


def read_parameters(members: Members, of: str = "") -> Members:
    """The member ``parameters``, empty if it is not there."""
    value = members.get("parameters", {})
    if not isinstance(value, dict):
        where = f" of {of}" if of else ""
        raise invalid_argument(f"Expected JSON object for keyword: 'parameters'{where}, got {type_name(value)}")
    return value


def read_size(members: Members, key: str, of: str = "", default: int | None = None) -> int:
    """A whole number of 64 bits from 0. Without ``default`` it has to be there."""
    if key not in members and default is not None:
        return default
    value = members.get(key)
    fits = type(value) is int and 0 <= value <= MAX_INT64
    return _require(members, key, of, fits, "a whole number from 0")  # type: ignore[no-any-return]


def read_flag(members: Members, key: str, of: str = "", default: bool | None = None) -> bool | None:
    """A member that is ``true`` or ``false``; ``default`` if it is not there."""
    if key not in members:
        return default
    return _require(members, key, of, isinstance(members[key], bool), "a boolean")  # type: ignore[no-any-return]


def read_shape(members: Members, of: str) -> tuple[int, ...]:
    """Whole numbers of 64 bits from 0."""
    shape = read_list(members, "shape", of)
    for index, size in enumerate(shape):
        if type(size) is not int or not 0 <= size <= MAX_INT64:
            where = f" of {shorten(of)}" if of else ""
            shown = str(size)[:40] if isinstance(size, int | float) else type_name(size)
            text = f"element {index} is {shown}, expected a whole number from 0"
            raise invalid_argument(f"Unable to parse 'shape'{where}: {text}")
    return tuple(shape)


def _require(members: Members, key: str, of: str, fits: bool, expected: str) -> Any:
    if fits:
        return members[key]
    where = f" of {shorten(of)}" if of else ""
    got = type_name(members[key]) if key in members else "nothing"
    raise invalid_argument(f"Unable to parse '{key}'{where}: expected {expected}, got {got}")
