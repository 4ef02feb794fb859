"""``tfs-lite reload FILE``: gives a running server a new model config (text proto or YAML) and shows its models.

The file replaces the whole config: models that it does not list are unloaded. It is checked first, so that a mistake is
reported with its line and column. The exit code is 0 if every model of the config then has a version that answers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfs_lite.cli.arguments import Parser, add_server, grpc_questions, positive_seconds
from tfs_lite.cli.output import DONE, FAILED
from tfs_lite.cli.views.models import ModelRow, print_models, read_grpc
from tfs_lite.core.status import ServingError, StatusCode

if TYPE_CHECKING:
    from tfs_lite.client import Client


def run(argv: Sequence[str]) -> int:
    parser = Parser("reload", "Replaces the model config of a running server; waits until its new models answer.")
    parser.add_argument("file", metavar="FILE", help="ModelServerConfig as text proto or YAML")
    add_server(parser)
    parser.add_argument("--timeout", type=positive_seconds, default=180.0, help="seconds (%(default)s)")
    args = parser.parse(argv)
    from tfs_lite.config.text import read_model_server_config

    config = read_model_server_config(args.file, Path.cwd())
    with grpc_questions(args, args.timeout) as client:
        applied = client.reload(config)
        models = [_ask(client, model.name) for model in config.models]
    if not args.json:
        change = f" ({applied})" if applied else ""
        print(f"reloaded: the server has {len(models)} model{'s' if len(models) != 1 else ''}{change}")
    print_models(models, args.json)
    silent = [model.name for model in models if not model.answers]
    if not silent:
        return DONE
    if not args.json:
        print(f"tfs-lite: no version answers of: {', '.join(silent)}; the table says why", file=sys.stderr)
    return FAILED


def _ask(client: Client, name: str) -> ModelRow:
    """The model's versions; none if the server has not seen any yet."""
    try:
        return read_grpc(client, name)
    except ServingError as error:
        if error.code is StatusCode.NOT_FOUND:
            return ModelRow(name)
        raise
