"""``tfs-lite status [MODEL]``: the models of a running server, their versions, states and reasons.

It reads the REST list; where ``--server`` is a gRPC port it asks for each model. ``--verbose`` also reads the metrics
page, which only the HTTP port has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from tfs_lite.cli.arguments import Parser, add_server, ask, http_questions, positive_seconds
from tfs_lite.cli.http import AskedServer
from tfs_lite.cli.output import DONE, CliError, console, nearest, print_json, told
from tfs_lite.cli.views.batches import NumbersByVersion, read_numbers, verbose_json, verbose_table
from tfs_lite.cli.views.models import ModelRow, answering, models_json, models_table, read_grpc, read_rest
from tfs_lite.cli.views.replicas import ReplicasByVersion, read_replicas, replicas_table
from tfs_lite.core.status import ServingError, StatusCode

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console, RenderableType

    from tfs_lite.client import Client

_METRICS = "/metrics"
_LARGEST_PAGE = 32 * 2**20


@dataclass(frozen=True, slots=True)
class ServerView:
    """The answer of a server. ``known`` is None without ``--verbose``. ``refused``: why a config is not in force.
    ``is_whole``: it has all models of the server. ``past``: the versions that the table leaves out because newer ones
    answer, and how many of them have failed."""

    models: list[ModelRow]
    known: NumbersByVersion | None = None
    replicas: ReplicasByVersion = field(default_factory=dict)
    refused: Mapping[str, str] | None = None
    is_whole: bool = False
    past: tuple[int, int] = (0, 0)

    @property
    def remarks(self) -> list[str]:
        """Remarks on what the table does not say: which models do not answer, and that a config is not in force."""
        found = []
        silent = [model.name for model in self.models if not model.answers]
        if self.is_whole and silent:
            found.append(f"{answering(len(self.models) - len(silent), len(self.models))}; not: {', '.join(silent)}")
        ended, failed = self.past
        if ended:
            how = f", {failed} of them with an error" if failed else ""
            what = "1 older version that has" if ended == 1 else f"{ended} older versions that have"
            found.append(f"not shown: {what} ended{how} (--all shows {'it' if ended == 1 else 'them'})")
        if self.refused is not None:
            since = f" (since {self.refused['since']})" if self.refused["since"] else ""
            found += [f"{self.refused['text']}{since}", f"  do: {self.refused['fix']}"]
        return found

    @property
    def without_history(self) -> ServerView:
        """The same without versions that have ended and are older than one that answers."""
        models = [model.without_history for model in self.models]
        every = {(model.name, version) for model in self.models for version in model.versions}
        left_out = every - {(model.name, version) for model in models for version in model.versions}
        return replace(self, models=models, past=(len(left_out), sum(version.failed for _, version in left_out)))


Fetch = Callable[[], ServerView]


def run(argv: Sequence[str]) -> int:
    args = _arguments(argv)

    def fetch() -> ServerView:
        view = read()
        return view if args.all or args.json else view.without_history

    def read() -> ServerView:
        if args.verbose:
            server = http_questions(args, "status --verbose")
            return replace(over_rest(server, args.model), known=numbers(server))
        view = ask(args, lambda server: over_rest(server, args.model), lambda client: over_grpc(client, args.model))
        return replace(view, replicas={})

    if not args.watch:
        _print(fetch(), args.json)
        return DONE
    try:
        _watch(fetch, args.interval, args.json)
    except KeyboardInterrupt:
        return DONE


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser("status", "Shows the models of a running server, their versions, states and reasons.")
    parser.add_argument("model", nargs="?", help="only this model")
    add_server(parser)
    parser.add_argument("--verbose", action="store_true", help="requests, batches, times and workers of each version")
    parser.add_argument("--all", action="store_true", help="also older versions that have ended, as the JSON has them")
    parser.add_argument("--watch", action="store_true", help="go on showing it, until Ctrl-C")
    parser.add_argument("--interval", type=positive_seconds, default=1.0, help="seconds between looks (%(default)s)")
    return parser.parse(argv)


def over_grpc(client: Client, name: str | None) -> ServerView:
    """The same over gRPC. ``explain`` lists the models, as TensorFlow Serving's calls cannot. Raises ServingError, and
    CliError where the server cannot list them."""
    if name is not None:
        return ServerView([read_grpc(client, name)])
    try:
        listed = client.explain()["models"]
    except ServingError as error:
        if error.code is not StatusCode.UNIMPLEMENTED:
            raise
        raise CliError(
            "this server cannot list its models over gRPC: name one, or give --server its HTTP port"
        ) from None
    rows = [_row(client, line) for line in sorted(listed, key=lambda line: str(line["model"]))]
    return ServerView(rows, is_whole=True)


def _row(client: Client, line: Mapping[str, Any]) -> ModelRow:
    """One model of the list; a model of which no version was seen yet is not found, and has its reason."""
    try:
        return read_grpc(client, line["model"])
    except ServingError as error:
        if error.code is not StatusCode.NOT_FOUND:
            raise
        return ModelRow(line["model"], reason=line["sentence"])


def over_rest(server: AskedServer, name: str | None) -> ServerView:
    """Every model, or the one of that name, over REST, with its replicas. Raises CliError."""
    answer = server.json("/v1/models")
    items = answer["models"]
    found = [item for item in items if name in (None, item["name"])]
    if not found and name is not None:
        hint = nearest(name, [item["name"] for item in items])
        raise CliError(f"the server has no model {name!r}{hint}; tfs-lite status lists them all", "NOT_FOUND")
    replicas = {key: of_version for item in found for key, of_version in read_replicas(item).items()}
    models, refused = [read_rest(item) for item in found], answer.get("config_refused")
    return ServerView(models, replicas=replicas, refused=refused, is_whole=name is None)


def numbers(server: AskedServer) -> NumbersByVersion:
    """The numbers of each version on the metrics page; none if there is no such page. Raises CliError."""
    url = server.url(_METRICS)
    page = server.read(_METRICS, _LARGEST_PAGE, or_nothing=True)
    if len(page) > _LARGEST_PAGE:
        raise CliError(f"{url} is larger than {_LARGEST_PAGE} bytes; ask without --verbose", "RESOURCE_EXHAUSTED")
    try:
        return read_numbers(page.decode())
    except ValueError as error:
        raise CliError(f"{url} is no page of metrics ({error}); is it a tfs_lite server?", "UNAVAILABLE") from None


def _watch(fetch: Fetch, interval: float, as_json: bool) -> NoReturn:
    """Shows the models repeatedly: in place on a terminal, elsewhere a new block for every change."""
    page = console()
    if page.is_terminal and not as_json:
        _watch_in_place(fetch, interval, page)
    shown: object = None
    while True:
        seen = _fetch(fetch)
        if seen != shown:
            _print_view(seen, as_json)
        shown = seen
        time.sleep(interval)


def _watch_in_place(fetch: Fetch, interval: float, page: Console) -> NoReturn:
    from rich.live import Live

    with Live(console=page, auto_refresh=False) as live:
        while True:
            seen = _fetch(fetch)
            live.update(seen if isinstance(seen, str) else _tables(seen), refresh=True)
            time.sleep(interval)


def _fetch(fetch: Fetch) -> ServerView | str:
    """The models, or why they cannot be read: watching goes on while a server restarts."""
    try:
        return fetch()
    except (CliError, ServingError) as error:
        return told(error)


def _tables(view: ServerView) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if view.known is None:
        return Group(models_table(view.models), *map(Text, view.remarks))
    parts = [verbose_table(view.models, view.known, view.replicas)]
    if view.replicas:
        parts.append(replicas_table(view.replicas.values(), time.time()))
    return Group(*parts, *map(Text, view.remarks))


def _print(view: ServerView, as_json: bool) -> None:
    if as_json:
        answer = models_json(view.models)
        if view.known is not None:
            answer = verbose_json(view.models, view.known, view.replicas)
        print_json({**answer, "config_refused": dict(view.refused)} if view.refused is not None else answer)
    elif view.models:
        console().print(_tables(view))
    else:
        print("\n".join(("the server has no models", *view.remarks)), flush=True)


def _print_view(seen: ServerView | str, as_json: bool) -> None:
    if not isinstance(seen, str):
        _print(seen, as_json)
    elif as_json:
        print_json({"error": {"code": "UNAVAILABLE", "message": seen}})
    else:
        print(seen, flush=True)
