"""``tfs-lite status [MODEL]``: the models of a running server, their versions, states and reasons.

It asks the REST list, which knows every model; with ``--server`` it asks gRPC, which answers for one named model.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tfs_lite.cli.arguments import Parser, add_tls, grpc_client, positive_seconds
from tfs_lite.cli.errors import DONE, CliError, UsageError, nearest
from tfs_lite.cli.model_view import Model, ask_grpc, models_table, print_models, read_rest
from tfs_lite.cli.output import console, print_json
from tfs_lite.core.status import ServingError

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

_ANSWER_TIMEOUT = 10.0
_LARGEST_ANSWER = 64 * 2**20

Fetch = Callable[[], list[Model]]


def run(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    if args.server and not args.model:
        raise UsageError("--server asks over gRPC, which answers for one model: name it, or use --rest for all")

    def fetch() -> list[Model]:
        return over_grpc(args.server, args.model, args) if args.server else over_rest(args.rest, args.model)

    if not args.watch:
        print_models(fetch(), args.json)
        return DONE
    try:
        _watch(fetch, args.interval, args.json)
    except KeyboardInterrupt:
        return DONE


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser("status", "Shows the models of a running server, their versions, states and reasons.")
    parser.add_argument("model", nargs="?", help="only this model")
    parser.add_argument("--rest", default="127.0.0.1:8501", metavar="HOST:PORT", help="HTTP address (%(default)s)")
    parser.add_argument("--server", metavar="HOST:PORT", help="ask over gRPC instead; needs MODEL")
    add_tls(parser)
    parser.add_argument("--watch", action="store_true", help="go on showing it, until Ctrl-C")
    parser.add_argument("--interval", type=positive_seconds, default=1.0, help="seconds between looks (%(default)s)")
    return parser.parse(argv)


def over_grpc(address: str, name: str, tls: Namespace) -> list[Model]:
    """The one model that gRPC was asked for."""
    with grpc_client(address, _ANSWER_TIMEOUT, tls) as client:
        return [ask_grpc(client, name)]


def over_rest(address: str, name: str | None) -> list[Model]:
    """Every model, or the one of that name. Raises CliError."""
    models = [read_rest(item) for item in _get(f"http://{address}/v1/models")["models"]]
    if name is None:
        return models
    found = [model for model in models if model.name == name]
    if not found:
        hint = nearest(name, [model.name for model in models])
        raise CliError(f"the server has no model {name!r}{hint}; tfs-lite status lists them all", "NOT_FOUND")
    return found


def _get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_TIMEOUT) as answer:
            return json.loads(answer.read(_LARGEST_ANSWER))
    except urllib.error.HTTPError as error:
        with error:
            raise CliError(f"{url} answered {error.code}; is it a tfs_lite server?", "UNAVAILABLE") from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        raise CliError(
            f"no server answers at {url} ({cause}); start one with tfs-lite serve, or give its address with --rest",
            "UNAVAILABLE",
        ) from None


def _watch(fetch: Fetch, interval: float, as_json: bool) -> NoReturn:
    """Looks again and again: in place on a terminal, elsewhere a new block for every change."""
    page = console()
    if page.is_terminal and not as_json:
        _watch_in_place(fetch, interval, page)
    shown: object = None
    while True:
        seen = _look(fetch)
        if seen != shown:
            _print_look(seen, as_json)
        shown = seen
        time.sleep(interval)


def _watch_in_place(fetch: Fetch, interval: float, page: Console) -> NoReturn:
    from rich.live import Live

    with Live(console=page, auto_refresh=False) as live:
        while True:
            seen = _look(fetch)
            live.update(seen if isinstance(seen, str) else models_table(seen), refresh=True)
            time.sleep(interval)


def _look(fetch: Fetch) -> list[Model] | str:
    """The models, or why there are none to see: a server that restarts does not end the watching."""
    try:
        return fetch()
    except (CliError, ServingError) as error:
        return str(error)


def _print_look(seen: list[Model] | str, as_json: bool) -> None:
    if not isinstance(seen, str):
        print_models(seen, as_json)
    elif as_json:
        print_json({"error": {"code": "UNAVAILABLE", "message": seen}})
    else:
        print(seen, flush=True)
