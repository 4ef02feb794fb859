"""Reads the command line and the environment of ``serve`` by the table in ``flags.py``.

``--name=value`` or ``--name value``, underscores or hyphens; booleans also bare. ``TFS_LITE_<NAME>`` sets a default,
unless it is empty; the command line overrides it, and a later flag an earlier one. Every mistake is a
:class:`UsageError` of one line that names the flag or variable and says what was expected.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfs_lite.cli.flags import FLAGS, Flag, FlagType, Support
from tfs_lite.cli.output import UsageError, nearest

ENVIRONMENT_PREFIX = "TFS_LITE_"
_BY_NAME = {flag.name: flag for flag in FLAGS}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class FlagValues:
    """The value of every flag; ``given`` has those that the user set: name -> as it was spelled."""

    values: Mapping[str, Any]
    given: Mapping[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def parse_flags(argv: Sequence[str], environ: Mapping[str, str]) -> FlagValues:
    """The settings of one command line. Raises UsageError."""
    values, given = _from_environment(environ)
    from_argv: dict[str, Any] = {}
    words = deque(argv)
    while words:
        word = words.popleft()
        flag, text = _split(word, words)
        value = _value(flag, text, f"--{flag.name}")
        if flag.kind is FlagType.LIST:
            value = from_argv.get(flag.name, ()) + value
        from_argv[flag.name] = value
        given[flag.name] = f"--{flag.name}"
    values |= from_argv
    for name, value in values.items():
        _refuse_unsupported(_BY_NAME[name], value, given[name])
    return FlagValues({flag.name: flag.default for flag in FLAGS} | values, given)


def _from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for flag in FLAGS:
        variable = ENVIRONMENT_PREFIX + flag.name.upper()
        if flag.in_environment and environ.get(variable):
            values[flag.name] = _value(flag, environ[variable], variable)
            given[flag.name] = variable
    return values, given


def _split(word: str, rest: deque[str]) -> tuple[Flag, str]:
    """The flag that a word names, and the text of its value, which may be the next word."""
    if not word.startswith("--") or word == "--":
        raise UsageError(f"unexpected argument {word!r}: flags are written --name=value")
    name, equals, text = word[2:].partition("=")
    flag = _find(name.replace("-", "_"))
    if equals:
        return flag, text
    if flag.kind is FlagType.BOOL:
        return flag, rest.popleft() if rest and rest[0] in ("true", "false") else "true"
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"--{flag.name} needs a value: expected {flag.expected}")
    return flag, rest.popleft()


def _find(name: str) -> Flag:
    if name in _BY_NAME:
        return _BY_NAME[name]
    positive = _BY_NAME.get(name.removeprefix("no").removeprefix("_"))
    if name.startswith("no") and positive is not None and positive.kind is FlagType.BOOL:
        raise UsageError(f"unknown flag --{name}: write --{positive.name}=false")
    raise UsageError(f"unknown flag --{name}{nearest(name, _BY_NAME, '--')}")


def _value(flag: Flag, text: str, spelled: str) -> Any:
    """The typed value; the error names the flag or variable as the user spelled it."""
    value = _PARSERS[flag.kind](text)
    in_range = value is not None and _in_range(flag, value)
    if not in_range or (flag.pattern and not re.fullmatch(flag.pattern, text)):
        raise UsageError(f"{spelled}: expected {flag.expected}, got {text!r}")
    return value


def _in_range(flag: Flag, value: Any) -> bool:
    if flag.kind not in (FlagType.INT, FlagType.FLOAT):
        return True
    low = -math.inf if flag.minimum is None else flag.minimum
    high = math.inf if flag.maximum is None else flag.maximum
    return bool(low <= value <= high)


def _parse_bool(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text)


def _parse_int(text: str) -> int | None:
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else None


def _parse_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: Mapping[FlagType, Any] = {
    FlagType.BOOL: _parse_bool,
    FlagType.INT: _parse_int,
    FlagType.FLOAT: _parse_float,
    FlagType.STRING: str,
    FlagType.LIST: _parse_list,
}


def _refuse_unsupported(flag: Flag, value: Any, spelled: str) -> None:
    if flag.accepts(value):
        return
    shown = str(value).lower() if flag.kind is FlagType.BOOL else value
    is_what = "has no meaning for PyTorch" if flag.support is Support.NO_MEANING else "is not supported yet"
    raise UsageError(f"{spelled}={shown} {is_what}: {flag.reason}; leave it out")
