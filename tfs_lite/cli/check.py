"""``tfs-lite check PATH|CONFIG``: what a server would serve, and why not the rest, without running any model.

PATH is a model's base path (a directory or a URL) or a model repository; CONFIG is a ModelServerConfig, validated with
line and column first, and may also be given as ``--model_config_file``. Files that were written a moment ago are waited
for, as a server waits for them. What is at a URL is listed and not fetched; of what the cache has, the files are
checked. A server's files for TLS, monitoring and batching are checked by its flags. ``--against`` asks a running
server, in addition, what it would change; it changes nothing.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfs_lite.cli.arguments import Parser, add_token, ask
from tfs_lite.cli.output import DONE, FAILED, CliError, UsageError, console, print_json, table
from tfs_lite.cli.views.what_if import ANSWER_TIMEOUT, PATH, of_config, show
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import ServingError
from tfs_lite.storage.url import StorageUrl, is_url

if TYPE_CHECKING:
    from tfs_lite.config.model_server import ModelServerConfig
    from tfs_lite.operations.what_if.check_models import ModelCheck, VersionCheck

FILE_FLAGS: Mapping[str, str] = {
    "ssl_config_file": "TLS settings, as for serve",
    "monitoring_config_file": "monitoring settings, as for serve",
    "batching_parameters_file": "batching parameters, as for serve",
}
SETTLE_SECONDS = 1.0
"""The seconds past the quiet period for which files that were just written may go on changing."""
_STYLES = {"served": "green", "waiting": "yellow", "refused": "red", "not wanted": "dim"}


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file; ``problem`` is empty if a server would accept it."""

    flag: str
    path: str
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


def run(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    files = check_files(args)
    if files and not args.json:
        _print_files(files)
    config = _config(args) if args.path or args.model_config_file else None
    checks = _check(config, args) if config is not None else []
    against = None
    if args.against and config is not None:
        server = Namespace(server=args.against, token_file=args.token_file)
        against = of_config(
            config,
            lambda asked: ask(
                server, lambda http: http.json(PATH, asked), lambda client: client.what_if(asked), ANSWER_TIMEOUT
            ),
        )
    bad_files = [f"--{file.flag}" for file in files if not file.ok]
    bad_models = [check.name for check in checks if not check.ok]
    if args.json:
        models = [_as_json(check) for check in checks]
        ok = not bad_files and not bad_models and (against is None or against["ok"])
        beside = {} if against is None else {"against": against}
        print_json({"ok": ok, "models": models, "files": _files_as_json(files), **beside})
    elif checks or not files:
        _print_table(checks)
    if against is not None and not args.json:
        print(f"\n{args.against} would change:")
        show(against)
    if not bad_files and not bad_models:
        return DONE if against is None or against["ok"] else FAILED
    if not args.json:
        kinds = (("refused", bad_files), ("not served as wanted", bad_models))
        words = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds if names)
        print(f"tfs-lite: {words}; the table says why", file=sys.stderr)
    return FAILED


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser("check", "Says what a server would serve, and why it would not serve the rest. Runs nothing.")
    text = "a base path (a directory or a URL), a model repository, or a config file"
    parser.add_argument("path", nargs="?", default="", metavar="PATH|CONFIG", help=text)
    _add_option(parser, "model_config_file", "FILE", "a config file, as for serve; in place of CONFIG")
    for flag, text in (
        ("trusted_model_base_paths", "comma-separated globs, as for serve"),
        ("allowed_model_base_paths", "comma-separated directories and URLs, as for serve"),
    ):
        _add_option(parser, flag, "A,B", text)
    _add_option(parser, "model_cache_dir", "DIR", "where servers keep what they have fetched of URLs, as for serve")
    for flag, text in FILE_FLAGS.items():
        _add_option(parser, flag, "FILE", text)
    per_model = "enable_per_model_batching_parameters"
    text = "read each version's batching_params.pbtxt, as serve does with this flag"
    parser.add_argument(f"--{per_model}", f"--{per_model.replace('_', '-')}", action="store_true", help=text)
    _add_option(parser, "against", "HOST:PORT", "a running server: what would it change?")
    add_token(parser)
    args = parser.parse(argv)
    if args.against and not (args.path or args.model_config_file):
        raise UsageError("--against compares a config with a running server: give PATH or CONFIG")
    if args.path and args.model_config_file:
        raise UsageError("PATH and --model_config_file both say what is served; give one of them")
    if not any((args.path, args.model_config_file, *(getattr(args, flag) for flag in FILE_FLAGS))):
        raise UsageError(f"nothing to check; {parser.prog} --help shows what it takes")
    return args


def _add_option(parser: Parser, flag: str, metavar: str, text: str) -> None:
    """Adds a flag of serve, in both spellings; its default is empty."""
    parser.add_argument(f"--{flag}", f"--{flag.replace('_', '-')}", default="", metavar=metavar, help=text)


def _path(args: Namespace) -> Path:
    given = args.path or args.model_config_file
    if not Path(given).exists():
        raise CliError(f"{given}: there is no such file or directory", "NOT_FOUND")
    if args.model_config_file and Path(given).is_dir():
        raise CliError(f"{given}: --model_config_file names a directory", "FAILED_PRECONDITION")
    return Path(given)


def _config(args: Namespace) -> ModelServerConfig:
    """The config that a server would get. Raises CliError or ServingError."""
    from tfs_lite.config.model_server import one_model
    from tfs_lite.serving.config_sources import read_config_file

    if is_url(args.path):
        url = StorageUrl.parse(args.path)
        return one_model(url.text.rpartition("/")[2], url.text, Path.cwd())
    path = _path(args)
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
    from tfs_lite.serving.config_sources import RepositoryPolicies
    from tfs_lite.sources.disk import RealDisk
    from tfs_lite.sources.repository import ModelRepository

    found: dict[str, str] = {}
    clock = SystemClock()
    known = RepositoryPolicies(clock)
    repository = ModelRepository(
        str(path), RealDisk(), clock, found.update, poll_interval=None, watch=False, on_look=known.look
    )
    repository.poll()
    repository.close()
    clock.close()
    if not found:
        return one_model(path.resolve().name, str(path), Path.cwd())
    policies = known.of(found)
    models = []
    for name, base_path in sorted(found.items()):
        (model,) = one_model(name, base_path, Path.cwd()).models
        if name not in known.wrong:  # else its versions are refused, for the reason that the policy is not known
            model = model.model_copy(update={"model_version_policy": policies[name]})
        models.append(model)
    return ModelServerConfig.model_validate({"model_config_list": {"config": models}})


def _check(config: ModelServerConfig, args: Namespace) -> list[ModelCheck]:
    """Checks the models as a server with these flags would."""
    from tfs_lite.adapters.trust import TrustedPaths
    from tfs_lite.operations.what_if.check_models import check_model
    from tfs_lite.operations.what_if.first_looks import FirstLooks
    from tfs_lite.serving.config_checks import check_models, remote_config, source_config
    from tfs_lite.serving.options import ServerOptions
    from tfs_lite.serving.source_chain import served_platforms

    check_models(config, served_platforms(), _split(args.allowed_model_base_paths))
    sources = [find(config, ServerOptions()) for find in (source_config, remote_config)]
    found = {item.name: (item, source.quiet_period) for source in sources for item in source.servables}
    models = {model.name: model for model in config.models}
    wanted = {name: found[name] for name in models}
    with FirstLooks(args.model_cache_dir) as looks:
        trusted = replace(TrustedPaths.of(_split(args.trusted_model_base_paths)), origin_of=looks.origin_of)

        def check_all(names: Collection[str]) -> dict[str, ModelCheck]:
            return {
                name: check_model(
                    looks,
                    item,
                    models[name].platform or "",
                    trusted,
                    quiet_period,
                    models[name].version_labels,
                    args.enable_per_model_batching_parameters,
                )
                for name, (item, quiet_period) in wanted.items()
                if name in names
            }

        return _settled(check_all, models, max((quiet for _, quiet in wanted.values()), default=0.0) + SETTLE_SECONDS)


def _settled(
    check_all: Callable[[Collection[str]], dict[str, ModelCheck]], names: Collection[str], patience: float
) -> list[ModelCheck]:
    """The checks of these models, in the order of the config. Waits for at most ``patience`` seconds, and only for
    verdicts that change by themselves: files that are quiet by then are complete, others are still being written."""
    checks = check_all(names)
    while settling := {name: check.settles_in for name, check in checks.items() if check.settles_in is not None}:
        delay = min(max(settling.values()), patience)
        if delay <= 0:
            break
        patience -= delay
        time.sleep(delay)
        checks |= check_all(settling.keys())
    return list(checks.values())


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _as_json(check: ModelCheck) -> dict[str, Any]:
    return {
        "name": check.name,
        "base_path": check.base_path,
        "ok": check.ok,
        "problem": check.problem,
        "label_problems": list(check.label_problems),
        "remarks": list(check.remarks),
        "versions": [_version_as_json(item) for item in check.versions],
    }


def _version_as_json(check: VersionCheck) -> dict[str, Any]:
    found = {**asdict(check), "verdict": check.verdict.value}
    return found if check.remote else {name: value for name, value in found.items() if name != "remote"}


def _print_table(checks: Sequence[ModelCheck]) -> None:
    from rich.text import Text

    rows: list[tuple[Any, ...]] = []
    for check in checks:
        problems = [check.problem] if check.problem else []
        rows += [(check.name, "-", "-", "", problem) for problem in (*problems, *check.label_problems, *check.remarks)]
        for item in check.versions:
            verdict = Text(item.verdict.value, style=_STYLES[item.verdict.value])
            about = "; ".join(filter(None, (item.reason, item.remote.text if item.remote else "")))
            rows.append((check.name, item.version, verdict, item.platform, about))
    if not rows:
        print("no models")
        return
    console().print(table(("model", "version", "would be", "platform", "why not"), rows))
    calls = [
        (check.name, item.version, entry.name, entry.method, _tensors(entry.inputs), _tensors(entry.outputs))
        for check in checks
        for item in check.versions
        for entry in item.signatures
    ]
    if calls:
        console().print()
        console().print(table(("model", "version", "signature", "method", "takes", "gives"), calls))


def _tensors(texts: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name} {text}".rstrip() for name, text in texts.items()) if texts else "-"


def check_files(args: Namespace) -> tuple[FileCheck, ...]:
    """The files that ``args`` names, in the order of the flags."""
    return tuple(_check_file(flag, getattr(args, flag)) for flag in FILE_FLAGS if getattr(args, flag))


def _files_as_json(checks: Sequence[FileCheck]) -> list[dict[str, Any]]:
    return [{"flag": check.flag, "path": check.path, "ok": check.ok, "problem": check.problem} for check in checks]


def _print_files(checks: Sequence[FileCheck]) -> None:
    from rich.text import Text

    words = {True: Text("taken", style="green"), False: Text("refused", style="red")}
    rows = [(check.path, f"--{check.flag}", words[check.ok], check.problem) for check in checks]
    console().print(table(("file", "flag", "would be", "why not"), rows))


def _check_file(flag: str, path: str) -> FileCheck:
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
