"""The small files of a server, checked as the server would read them: TLS, monitoring, batching."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfs_lite.cli.output import console, table
from tfs_lite.core.status import ServingError

FILE_FLAGS: Mapping[str, str] = {
    "ssl_config_file": "TLS settings, as for serve",
    "monitoring_config_file": "monitoring settings, as for serve",
    "batching_parameters_file": "batching parameters, as for serve",
}


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file; ``problem`` is empty if a server would take it."""

    flag: str
    path: str
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


def check_files(args: Namespace) -> tuple[FileCheck, ...]:
    """The files that ``args`` names, in the order of the flags."""
    return tuple(_check(flag, getattr(args, flag)) for flag in FILE_FLAGS if getattr(args, flag))


def files_as_json(checks: Sequence[FileCheck]) -> list[dict[str, Any]]:
    return [{"flag": check.flag, "path": check.path, "ok": check.ok, "problem": check.problem} for check in checks]


def print_files(checks: Sequence[FileCheck]) -> None:
    from rich.text import Text

    words = {True: Text("taken", style="green"), False: Text("refused", style="red")}
    rows = [(check.path, f"--{check.flag}", words[check.ok], check.problem) for check in checks]
    console().print(table(("file", "flag", "would be", "why not"), rows))


def _check(flag: str, path: str) -> FileCheck:
    try:
        _reader(flag)(path, Path.cwd())
    except ServingError as error:
        return FileCheck(flag, path, str(error))
    return FileCheck(flag, path)


def _reader(flag: str) -> Callable[[str, Path], object]:
    from tfs_lite.config import server_files

    readers: Mapping[str, Callable[[str, Path], object]] = {
        "ssl_config_file": server_files.read_ssl_config,
        "monitoring_config_file": server_files.read_monitoring_config,
        "batching_parameters_file": server_files.read_batching_parameters,
    }
    return readers[flag]
