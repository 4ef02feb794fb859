"""``tfs-lite events [MODEL]``: what happened on a running server, when, and who wanted it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from tfs_lite.cli.arguments import Parser, add_server, http_questions, positive_int
from tfs_lite.cli.http import AskedServer
from tfs_lite.cli.output import DONE, CliError, console, print_json
from tfs_lite.core.history import parse_time

WAIT_SECONDS = 5.0
"""The seconds that one question waits; shorter than the time limit of an answer."""
RETRY_SECONDS = 1.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_STYLES = {
    "AVAILABLE": "green",
    "LOAD_ATTEMPT_FAILED": "red",
    "CONFIG_REFUSED": "red",
    "WORKER_LOST": "red",
    "LEAK": "red",
    "ACCESS_DENIED": "red",
    "PARKED": "yellow",
    "OVERDUE": "yellow",
}


def run(argv: Sequence[str]) -> int:
    parser = Parser("events", "Shows what happened on a running server, and who wanted it, the latest last.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="of this model only")
    add_server(parser)
    parser.add_argument("--kind", default="", metavar="A,B", help="of these kinds only, such as ENDED,AVAILABLE")
    parser.add_argument("--since", type=_seconds, metavar="TIME", help="of so long ago at most: 90s, 15m, 2h, 1d")
    parser.add_argument("--limit", type=positive_int, default=1000, metavar="N", help="at most (%(default)s)")
    parser.add_argument("--follow", action="store_true", help="go on with those that come, until interrupted")
    args = parser.parse(argv)
    server = http_questions(args, "events")
    page = _ask(server, args, {"limit": min(args.limit, 1000)})
    events = page["events"]
    if args.since is not None:
        oldest = time.time() - args.since
        events = [found for found in events if parse_time(found.get("last", found["time"])) >= oldest]
    _show(events, args)
    if args.follow:
        _follow(server, args, page["next"])
    return DONE


def _follow(server: AskedServer, args: argparse.Namespace, after: int) -> None:
    """Goes on over a restart of the server: its numbers go on, too."""
    away = False
    while True:
        try:
            page = _ask(server, args, {"after": after, "wait": WAIT_SECONDS})
        except CliError:
            if not away and not args.json:
                console().print("the server does not answer; trying again", style="dim")
            away = True
            time.sleep(RETRY_SECONDS)
            continue
        away, after = False, page["next"]
        _show(page["events"], args)


def _ask(server: AskedServer, args: argparse.Namespace, fields: Mapping[str, Any]) -> dict[str, Any]:
    asked = {**fields, **({"kind": args.kind.upper()} if args.kind else {})}
    if args.model is not None:
        asked["model"] = args.model
    page: dict[str, Any] = server.json(f"/v1/events?{urlencode(asked)}")
    if not isinstance(page, dict) or "events" not in page:
        raise CliError(f"{server.url('/v1/events')} gave no events; is it a tfs_lite server?", "UNAVAILABLE")
    return page


def _show(events: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> None:
    if args.json:
        for found in events:
            print_json(found)
        return
    from rich.text import Text

    page = console()
    for found in events:
        at = datetime.fromtimestamp(parse_time(found.get("last", found["time"]))).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        subject = found["model"] or "server"
        version = f"@{found['version']}" if found["version"] is not None else ""
        times = f" ({found['count']} times)" if found.get("count", 1) > 1 else ""
        failed = found["status"] is not None
        style = "red" if failed else _STYLES.get(found["kind"], "")
        line = Text.assemble(f"{at}  {subject}{version}  ", (f"{found['text']}{times}", style))
        page.print(line, soft_wrap=True)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 90s, 15m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]
