"""What ``guard`` and ``rollback`` have in common: how they ask a server, over HTTP or gRPC, and wait for it."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.parse import quote

from tfs_lite.cli.arguments import Parser, add_credentials, add_waiting, grpc_client, http_server
from tfs_lite.cli.explain import Question
from tfs_lite.cli.output import CliError
from tfs_lite.core.status import ServingError

Tree: TypeAlias = dict[str, Any]
ANSWER_TIMEOUT = 30.0
"""Seconds for an answer: a command looks at the disk."""
LOOK_SECONDS = 0.1
"""Seconds between two looks."""


def add_server(parser: Parser) -> None:
    """Adds the options that say which server is asked, and how."""
    parser.add_argument("--rest", default="127.0.0.1:8501", metavar="HOST:PORT", help="HTTP address (%(default)s)")
    parser.add_argument("--server", metavar="HOST:PORT", help="ask over gRPC instead")
    add_credentials(parser)
    add_waiting(parser)


def command(args: Namespace, model: str, action: str, version: int | None = None) -> Tree:
    """Has the server carry an action out; returns how the model stands then. Raises CliError."""
    if args.server:
        with grpc_client(args.server, ANSWER_TIMEOUT, args) as client:
            return _plainly(lambda: client.guard(model, action, version=version))
    asked = {"action": action} if version is None else {"action": action, "version": version}
    server = http_server(args.rest, args, ANSWER_TIMEOUT)
    return dict(server.json(f"/v1/models/{quote(model, safe='')}:guard", asked))


def explained(args: Namespace, model: str, version: int | None = None) -> Tree:
    """The explanation of the model or its version. Raises CliError."""
    if args.server:
        with grpc_client(args.server, ANSWER_TIMEOUT, args) as client:
            return _plainly(lambda: client.explain(model, version=version))
    return dict(http_server(args.rest, args, ANSWER_TIMEOUT).json(Question(model, version).path))


def _plainly(ask: Callable[[], Tree]) -> Tree:
    try:
        return ask()
    except ServingError as error:
        raise CliError(str(error), error.code.name) from None


def looks(seconds: float) -> Any:
    """Yields at once, and then again and again for so many seconds."""
    ends = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() >= ends:
            return
        time.sleep(LOOK_SECONDS)


def versions_text(answer: Tree) -> str:
    """The versions of an explanation, each with its verdict."""
    shown = [f"{line['version']} ({line['verdict']})" for line in answer["versions"]]
    return ", ".join(shown) or "none"


def numbers(versions: list[int]) -> str:
    """``version 8``, ``versions 8 and 9``."""
    shown = [str(version) for version in sorted(versions)]
    if len(shown) == 1:
        return f"version {shown[0]}"
    return f"versions {', '.join(shown[:-1])} and {shown[-1]}"
