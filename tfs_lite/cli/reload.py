"""``tfs-lite reload FILE``: gives a running server a new model config (text proto or YAML) and shows its models.

The file replaces the whole config: models that it does not list are unloaded. It is checked first, so that a mistake is
reported with its line and column. The server waits for the models that are new; the command, for ``--timeout``, also
for those that the config changes. The exit code is 0 if every model of the config then has a version that answers, and
none that the config changes is still answered by what served before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfs_lite.cli.arguments import Parser, add_server, grpc_questions, positive_seconds
from tfs_lite.cli.guard import looks
from tfs_lite.cli.output import DONE, FAILED
from tfs_lite.cli.views.models import ModelRow, print_models, read_grpc
from tfs_lite.core.status import ServingError, StatusCode

if TYPE_CHECKING:
    from tfs_lite.client import Client

_LOOK_HOLDS = 1.0
"""Seconds for which a model must look settled: the server looks at a new base path after it has answered."""


def run(argv: Sequence[str]) -> int:
    parser = Parser("reload", "Replaces the model config of a running server; waits until its models answer.")
    parser.add_argument("file", metavar="FILE", help="ModelServerConfig as text proto or YAML")
    add_server(parser)
    parser.add_argument("--timeout", type=positive_seconds, default=180.0, help="seconds (%(default)s)")
    args = parser.parse(argv)
    from tfs_lite.config.text import read_model_server_config

    config = read_model_server_config(args.file, Path.cwd())
    with grpc_questions(args, args.timeout) as client:
        names, ends = [model.name for model in config.models], time.monotonic() + args.timeout
        before = {name: _ask(client, name) for name in names}
        applied = client.reload(config)
        models = _wait(client, before, ends, 0.0 if "changed []" in applied else _LOOK_HOLDS)
    if not args.json:
        change = f" ({applied})" if applied else ""
        print(f"reloaded: the server has {len(models)} model{'s' if len(models) != 1 else ''}{change}")
    print_models(models, args.json)
    silent = [model.name for model in models if not model.answers]
    problems = [f"no version answers of: {', '.join(silent)}; the table says why"] if silent else []
    problems += [_behind_text(model) for model in models if _is_behind(model, before)]
    if not args.json:
        for problem in problems:
            print(f"tfs-lite: {problem}", file=sys.stderr)
    return FAILED if problems else DONE


def _wait(client: Client, before: Mapping[str, ModelRow], ends: float, holds: float) -> list[ModelRow]:
    """The models, once nothing that the config wants is on its way where only what served ``before`` answers, or at
    ``ends``. That must be so for ``holds`` seconds."""
    settled_at: float | None = None
    for _ in looks(ends - time.monotonic()):
        models = [_ask(client, name) for name in before]
        if any(_is_behind(model, before) and model.coming for model in models):
            settled_at = None
            continue
        settled_at = settled_at or time.monotonic()
        if time.monotonic() - settled_at >= holds:
            break
    return models


def _is_behind(model: ModelRow, before: Mapping[str, ModelRow]) -> bool:
    """Whether only what served before answers. A push that was on its way before is no matter of the config."""
    return model.of_before is not None and before[model.name].of_before is None


def _behind_text(model: ModelRow) -> str:
    """``b: version 8 is still loading; version 7 of the config before answers meanwhile``."""
    answering = model.of_before
    assert answering is not None
    if not model.coming:
        return f"{model.name}: version {answering.version} of the config before answers: {answering.reason}"
    is_one = len(model.coming) == 1
    what = f"version{'' if is_one else 's'} {', '.join(map(str, model.coming))} {'is' if is_one else 'are'}"
    return f"{model.name}: {what} still loading; version {answering.version} of the config before answers meanwhile"


def _ask(client: Client, name: str) -> ModelRow:
    """The model's versions; none if the server has not seen any yet."""
    try:
        return read_grpc(client, name)
    except ServingError as error:
        if error.code is StatusCode.NOT_FOUND:
            return ModelRow(name)
        raise
