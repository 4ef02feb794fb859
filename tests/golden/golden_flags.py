"""The command line: every flag of ``serve``, every argument of the other commands, and the help of ``tfs-lite``."""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import io
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

from golden_code import find, one_line

from tfs_lite.cli.main import COMMANDS, main
from tfs_lite.core.threads import usable_cpus

CLI = "tfs_lite.cli"
OF_THE_MACHINE = ("rest_api_num_threads", "num_tflite_pools")
"""Flags whose defaults are multiples of the number of CPUs."""


class _Caught(Exception):
    """Carries the parser out of the command that was about to use it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def listing() -> Iterator[str]:
    yield from _serve()
    yield from _environment()
    for command in COMMANDS:
        if command != "serve":
            yield from _command(command)
    yield from (f"tfs-lite --help | {line.strip()}" for line in _printed("--help") if line)
    yield from (f"serve --help | {_without_cpus(line)}" for line in _printed("serve", "--help") if line)


def _serve() -> Iterator[str]:
    for flag in find("FLAGS", CLI):
        facts = {name: getattr(flag, name) for name in flag.__dataclass_fields__ if name != "name"}
        facts["default"] = _default(flag.name, flag.default)
        facts["expected"] = flag.expected
        yield from _facts(f"serve --{flag.name}", facts)


def _facts(name: str, facts: dict[str, Any]) -> Iterator[str]:
    """Apart from defaults, nothing is said of what there is not."""
    for fact, value in facts.items():
        if fact == "default" or value not in (None, "", ()):
            yield f"{name} {fact} = {_shown(value)}"


def _environment() -> Iterator[str]:
    prefix = find("ENVIRONMENT_PREFIX", CLI)
    yield from (f"environment {prefix}{flag.name.upper()}" for flag in find("FLAGS", CLI) if flag.in_environment)


def _default(name: str, value: Any) -> Any:
    return f"{value / usable_cpus():g} x CPUs" if name in OF_THE_MACHINE else value


def _without_cpus(line: str) -> str:
    if any(f"--{name}=" in line for name in OF_THE_MACHINE):
        line = re.sub(r"\[\d+\]$", "[N x CPUs]", line)
    return " ".join(line.split())


def _shown(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{value.name} ({value.value})"
    return one_line(value) if isinstance(value, str) else repr(value)


def _printed(*words: str) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0
    return out.getvalue().splitlines()


def _command(command: str) -> Iterator[str]:
    parser = _parser(command)
    yield f"{command}: {parser.description}"
    for action in parser._actions:
        name = ", ".join(sorted(action.option_strings)) or action.dest
        facts = {
            "action": type(action).__name__.strip("_").removesuffix("Action").lower(),
            "default": action.default,
            "help": parser._get_formatter()._expand_help(action) if action.help else "",
            "metavar": action.metavar,
            "nargs": action.nargs,
            "required": action.required,
            "choices": action.choices,
            "type": getattr(action.type, "__name__", None),
        }
        yield from _facts(f"{command} {name}", facts)
    for group in parser._mutually_exclusive_groups:
        names = sorted(name for action in group._group_actions for name in action.option_strings)
        yield f"{command}: one of {', '.join(names)} (required: {group.required})"


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser that the command makes for itself."""

    def catch(parser: argparse.ArgumentParser, *args: Any, **rest: Any) -> Any:
        raise _Caught(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", catch):
        try:
            importlib.import_module(f"{CLI}.{command}").run([])
        except _Caught as caught:
            return caught.parser
    raise LookupError(f"tfs-lite {command} reads no arguments")
