"""``tfs-lite check PATH|CONFIG``: what would be served, and why the rest would not. A dry run: nothing is served, no
code of a model is run.

PATH is a model's base path or a model repository; CONFIG is a ModelServerConfig, validated with line and column first.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfs_lite.cli.arguments import Parser
from tfs_lite.cli.errors import DONE, FAILED, CliError
from tfs_lite.cli.output import console, print_json, table
from tfs_lite.core.manifest import parse_version

if TYPE_CHECKING:
    from tfs_lite.cli.check_models import ModelCheck
    from tfs_lite.config.model_server import ModelServerConfig

_STYLES = {"served": "green", "waiting": "yellow", "refused": "red", "not wanted": "dim"}


def run(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    path = Path(args.path)
    if not path.exists():
        raise CliError(f"{args.path}: there is no such file or directory", "NOT_FOUND")
    checks = _check(_config(path), args)
    if args.json:
        print_json({"ok": all(check.ok for check in checks), "models": [_as_json(check) for check in checks]})
    else:
        _print_table(checks)
    bad = [check.name for check in checks if not check.ok]
    if not bad:
        return DONE
    if not args.json:
        print(f"tfs-lite: not served as wanted: {', '.join(bad)}; the table says why", file=sys.stderr)
    return FAILED


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser("check", "Says what a server would serve, and why it would not serve the rest. Runs nothing.")
    parser.add_argument("path", metavar="PATH|CONFIG", help="a base path, a model repository, or a config file")
    for flag, text in (
        ("trusted_model_base_paths", "comma-separated globs, as for serve"),
        ("allowed_model_base_paths", "comma-separated directories, as for serve"),
    ):
        parser.add_argument(f"--{flag}", f"--{flag.replace('_', '-')}", default="", metavar="A,B", help=text)
    return parser.parse(argv)


def _config(path: Path) -> ModelServerConfig:
    """What a server would be told to serve. Raises CliError or ServingError."""
    from tfs_lite.config.model_server import one_model
    from tfs_lite.server.first_config import read_config_file

    if not path.is_dir():
        return read_config_file(str(path), Path.cwd())
    if _holds_versions(path):
        return one_model(path.resolve().name, str(path), Path.cwd())
    if parse_version(path.resolve().name) is not None:
        parent = path.resolve().parent
        raise CliError(f"{path} is one version; check its base path: tfs-lite check {parent}", "INVALID_ARGUMENT")
    return _repository(path)


def _holds_versions(path: Path) -> bool:
    return any(parse_version(child.name) is not None and child.is_dir() for child in path.iterdir())


def _repository(path: Path) -> ModelServerConfig:
    """Every model of a repository; a directory without models counts as a base path without versions."""
    from tfs_lite.config.model_server import ModelServerConfig, one_model
    from tfs_lite.core.clock import SystemClock
    from tfs_lite.sources.disk import RealDisk
    from tfs_lite.sources.repository import ModelRepository

    found: dict[str, str] = {}
    ModelRepository(str(path), RealDisk(), SystemClock(), found.update, poll_interval=None, watch=False).poll()
    if not found:
        return one_model(path.resolve().name, str(path), Path.cwd())
    models = [one_model(name, base_path, Path.cwd()).models[0] for name, base_path in sorted(found.items())]
    return ModelServerConfig.model_validate({"model_config_list": {"config": models}})


def _check(config: ModelServerConfig, args: Namespace) -> list[ModelCheck]:
    """As a server with these flags would see it."""
    from tfs_lite.adapters.trust import TrustedPaths
    from tfs_lite.cli.check_models import check_model
    from tfs_lite.server.options import ServerOptions
    from tfs_lite.server.plan import check_models, source_config
    from tfs_lite.server.topology import Platforms

    check_models(config, Platforms.known().named, _split(args.allowed_model_base_paths))
    source, trusted = source_config(config, ServerOptions()), TrustedPaths.of(_split(args.trusted_model_base_paths))
    models = {model.name: model for model in config.models}
    return [
        check_model(
            item,
            models[item.name].platform or "",
            trusted,
            source.quiet_period,
            models[item.name].version_labels,
        )
        for item in source.servables
    ]


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _as_json(check: ModelCheck) -> dict[str, Any]:
    return {
        "name": check.name,
        "base_path": check.base_path,
        "ok": check.ok,
        "problem": check.problem,
        "label_problems": list(check.label_problems),
        "versions": [
            {"version": item.version, "verdict": item.verdict.value, "platform": item.platform, "reason": item.reason}
            for item in check.versions
        ],
    }


def _print_table(checks: Sequence[ModelCheck]) -> None:
    from rich.text import Text

    rows: list[tuple[Any, ...]] = []
    for check in checks:
        problems = [check.problem] if check.problem else []
        rows += [(check.name, "-", "-", "", problem) for problem in (*problems, *check.label_problems)]
        for item in check.versions:
            verdict = Text(item.verdict.value, style=_STYLES[item.verdict.value])
            rows.append((check.name, item.version, verdict, item.platform, item.reason))
    if rows:
        console().print(table(("model", "version", "would be", "platform", "why not"), rows))
    else:
        print("no models")
