"""``tfs-lite record``: makes the file of requests that warm up a version before it becomes available.

Requests come from files with the JSON body of a ``:predict`` request (or from ``--input``, as ``tfs-lite predict``
takes them): each is sent to a running server, and recorded if it was answered. With ``--from_log`` they come from
request logs. Records are added to the file if there is one.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from tfs_lite.cli.arguments import Parser, add_server, grpc_questions, positive_int, positive_seconds
from tfs_lite.cli.output import DONE, FAILED, CliError, UsageError, print_json

_DEFAULT_TIMEOUT = 60.0
_OF_LIVE_REQUESTS = {
    "bodies": "BODY.json",
    "input": "--input",
    "server": "--server",
    "signature_name": "--signature_name",
    "timeout": "--timeout",
}


def run(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    return _copy_logs(args) if args.from_log else _record_answered(args)


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser("record", "Makes a file of warm-up requests, from live requests or from request logs.")
    add = parser.add_argument
    add("bodies", nargs="*", metavar="BODY.json", help="the JSON body of a :predict request")
    add("--out", required=True, metavar="PATH", help="a version's directory, or the file itself")
    add("--model_name", "--model-name", default="", metavar="NAME", help="the model; of logs: only its records")
    add("--signature_name", "--signature-name", default="", metavar="S", help="for requests that name none")
    add("--input", action="append", default=[], metavar="NAME=VALUE", help="an input of one more request; repeat it")
    add_server(parser)
    add("--timeout", type=positive_seconds, metavar="S", help=f"seconds for each request ({_DEFAULT_TIMEOUT:g})")
    add("--from_log", "--from-log", action="append", nargs="+", default=[], metavar="FILE", help="request logs to copy")
    add("--limit", type=positive_int, metavar="N", help="copy at most N records of the logs")
    args = parser.parse(argv)
    args.from_log = [name for names in args.from_log for name in names]
    _check(args)
    return args


def _check(args: Namespace) -> None:
    if args.from_log:
        for field, shown in _OF_LIVE_REQUESTS.items():
            if getattr(args, field):
                raise UsageError(f"{shown} does not go with --from_log, which copies and sends nothing")
    elif args.limit is not None:
        raise UsageError("--limit counts records of --from_log")
    elif not args.model_name:
        raise UsageError("--model_name is missing; only with --from_log it may be")
    elif not args.bodies and not args.input:
        raise UsageError("name files with :predict bodies, or --input, or --from_log")


def _record_answered(args: Namespace) -> int:
    from tfs_lite.cli.record_live import LiveRecorder, find_sources
    from tfs_lite.cli.warmup_file import append, count_records, locate

    path = locate(args.out)
    sources = find_sources(args.bodies, args.input)
    before = count_records(path, room_for=len(sources))
    with grpc_questions(args, args.timeout or _DEFAULT_TIMEOUT) as client:
        recorder = LiveRecorder(client, args.model_name, args.signature_name)
        added = append(path, recorder.logs(sources))
    refused = [{"source": one.source, "code": one.code, "message": one.message} for one in recorder.refused]
    _report(args, path, before, added, {"refused": refused})
    if not recorder.refused:
        return DONE
    first, more = recorder.refused[0], len(refused) - 1
    line = f"{first.source} was not recorded: {first.code}: {first.message}" + (f" (and {more} more)" if more else "")
    print(f"tfs-lite: {' '.join(line.split())}", file=sys.stderr)
    return FAILED


def _copy_logs(args: Namespace) -> int:
    from tfs_lite.cli.warmup_file import LogCopy, append, locate

    path = locate(args.out)
    copy = LogCopy(path, args.model_name, args.limit)
    added = append(path, copy.records([Path(name) for name in args.from_log]))
    skipped = {"duplicates": copy.duplicates, "other_models": copy.other_models, "unsupported": copy.unsupported}
    if not copy.before + added:
        found = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in skipped.items())
        raise CliError(f"nothing was recorded: the logs hold no request that warm-up can run ({found})", "NOT_FOUND")
    _report(args, path, copy.before, added, {"skipped": skipped, "more": copy.more})
    return DONE


def _report(args: Namespace, path: Path, before: int, added: int, rest: dict[str, object]) -> None:
    total = before + added
    if args.json:
        print_json({"path": str(path), "records": total, "added": added, **rest})
        return
    print(f"recorded {added} request{'' if added == 1 else 's'}: {path} has {total}")
    skipped = rest.get("skipped")
    if isinstance(skipped, dict) and any(skipped.values()):
        print("left out: " + ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in skipped.items() if count))
    if rest.get("more"):
        print("there are more in the logs: the limit is reached")
