"""From the flags of ``serve`` to what a server takes: its options, torch's threads, and the help text."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfs_lite.cli.errors import UsageError
from tfs_lite.cli.flag_parser import ENVIRONMENT_PREFIX, Settings
from tfs_lite.cli.flags import FLAGS, Flag, Kind
from tfs_lite.core.status import ServingError
from tfs_lite.server.options import ServerOptions

_OFF_AT_ZERO = ("port", "rest_api_port")
_UNSET_WHEN_EMPTY = ("model_config_list_root_dir",)
_SESSION, _INTRA, _INTER = (f"tensorflow_{kind}_parallelism" for kind in ("session", "intra_op", "inter_op"))
_FLAG_COLUMN = 42

OWN_FLAGS = frozenset(
    {"log_level", "json", "version", "help", "enable_grpc_healthcheck_service", _SESSION, _INTRA, _INTER}
)
"""Flags that this command uses itself; the server has an option for every other one that is honoured."""


def server_options(settings: Settings) -> ServerOptions:
    """The checked options. Raises UsageError for settings that contradict one another or serve nothing."""
    if not (settings["model_base_path"] or settings["model_config_file"] or settings["model_repository"]):
        raise UsageError("nothing to serve: give --model_base_path, --model_repository or --model_config_file")
    values = {field.name: settings[field.name] for field in dataclasses.fields(ServerOptions)}
    values |= {name: settings[name] or None for name in (*_OFF_AT_ZERO, *_UNSET_WHEN_EMPTY)}
    try:
        return ServerOptions(**values)
    except ServingError as error:
        raise UsageError(str(error)) from None


def torch_threads(settings: Settings) -> tuple[int, int]:
    """Threads inside an operator and between operators; 0 leaves the choice to torch."""
    session, intra, inter = settings[_SESSION], settings[_INTRA], settings[_INTER]
    if session and intra and inter:
        raise UsageError(f"--{_SESSION} sets both --{_INTRA} and --{_INTER}: give it or the two, not all three")
    return intra or session, inter or session


def help_text() -> str:
    """Every flag, by group."""
    lines = [
        "usage: tfs-lite serve [--name=value | --name value] ...",
        "",
        "Serves models. Takes tensorflow_model_server's flags; names may be written with hyphens, booleans bare.",
        f"{ENVIRONMENT_PREFIX}<FLAG> in the environment sets a default; a later flag wins over an earlier one.",
    ]
    for group in dict.fromkeys(flag.group for flag in FLAGS):
        lines += ["", f"{group}:"]
        lines += [_help_line(flag) for flag in FLAGS if flag.group == group]
    return "\n".join(lines)


def _help_line(flag: Flag) -> str:
    name = f"--{flag.name}" + ("" if flag.kind is Kind.BOOL else f"={_word(flag)}")
    default = f" [{_shown(flag.default)}]" if flag.in_environment and _shown(flag.default) else ""
    gap = name.ljust(_FLAG_COLUMN) if len(name) < _FLAG_COLUMN else f"{name}\n  {'':{_FLAG_COLUMN}}"
    return f"  {gap}{flag.help}{default}"


def _word(flag: Flag) -> str:
    if flag.pattern:
        return flag.expects.replace(" or ", "|").replace(", ", "|")
    return {Kind.INT: "N", Kind.FLOAT: "X", Kind.LIST: "A,B"}.get(flag.kind, "TEXT")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
