"""``tfs-lite rollback MODEL [--to VERSION] [--undo]``: makes an older version of a model the one that answers, now.

Every newer version on disk is kept from answering, until the next push (any higher number) or ``--undo``. Without
``--to`` it is the version before the one that answers. The command ends when the older version answers, and says so.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence

from tfs_lite.cli.arguments import Parser, add_server, positive_seconds, version_number
from tfs_lite.cli.explain import read_question
from tfs_lite.cli.guard import UNREAD, Tree, command, explained, looks, may_not_read
from tfs_lite.cli.output import DONE, CliError, UsageError, print_json

SETTLED_SECONDS = 2.0
"""The seconds for which a version must have failed before the command gives up: it may be loaded again."""
LINE_SECONDS = 2.0
"""Seconds before the first line about what is waited for, and between two of them, at least."""
_IN_VAIN = ("FAILED", "REFUSED", "REJECTED", "HELD_BACK", "NOT_ON_DISK", "NOT_CONFIGURED", "NOT_WANTED", "ENDED")


def run(argv: Sequence[str]) -> int:
    parser = Parser("rollback", "Makes an older version of a model the one that answers, until the next push.")
    parser.add_argument("model", metavar="MODEL", help="the model; MODEL@VERSION is MODEL --to VERSION")
    parser.add_argument("--to", type=version_number, metavar="VERSION", help="this one; else the one before")
    parser.add_argument("--undo", action="store_true", help="take it back: the newer versions may answer again")
    add_server(parser)
    parser.add_argument("--timeout", type=positive_seconds, default=180.0, help="seconds to wait (%(default)s)")
    args = parser.parse(argv)
    asked = read_question(args.model)
    to = asked.version if args.to is None else args.to
    if asked.label is not None or (args.to is not None and asked.version is not None):
        raise UsageError(f"expected MODEL or MODEL --to VERSION, got {args.model!r}")
    if args.undo and to is not None:
        raise UsageError("--undo takes every rollback of the model back, and names no version")
    return _undo(args, asked.model) if args.undo else _go_back(args, asked.model, to)


def _go_back(args: Namespace, model: str, to: int | None) -> int:
    begun, before = time.monotonic(), _read(args, model)
    rollout = _command(args, model, "rollback", to)
    if to is None:
        to = rollout["going_back"] if rollout["going_back"] is not None else rollout["answers"]
    if to is None:
        raise CliError(f"model {model}: no version answers; {_why(args, model) if before is not None else UNREAD}")
    if before is None:
        return _say(args, f"model {model}: version {to} is to answer; {UNREAD}", rollout)
    answer = _wait(args, model, to, begun)
    rollout = answer["rollout"]
    back = [each["version"] for each in rollout["rejected"] if each["version"] > to]
    text = f"model {model}: version {to} answers now, after {time.monotonic() - begun:.2f} s"
    if (answered := _answers(before)) is not None:
        text += ", as before" if answered == to else f", in place of version {answered}"
    if back:
        text += f"; {numbers(back)} must not, until the next push or tfs-lite rollback {model} --undo"
    if not rollout["remembered"]:
        text += f". A restart of the server forgets this, because {rollout['forgets']}"
    return _say(args, text, rollout)


def _undo(args: Namespace, model: str) -> int:
    begun, before = time.monotonic(), _read(args, model)
    rollout = _command(args, model, "undo_rollback", None)
    if before is None:
        return _say(args, f"model {model}: the rollback is undone; {UNREAD}", rollout)
    lifted = [each["version"] for each in (before["rollout"] or {}).get("rejected", ()) if each["rolled_back"]]
    newest = max(lifted, default=None)
    if newest is None:
        return _say(args, f"model {model}: the way back was given up; {_why(args, model)}", rollout)
    answer = _wait(args, model, newest, begun)
    after = f"after {time.monotonic() - begun:.2f} s"
    text = f"model {model}: the rollback is undone; version {newest} answers now, {after}"
    return _say(args, text, answer["rollout"])


def _read(args: Namespace, model: str) -> Tree | None:
    """How the model stands; None where the caller may only give orders."""
    try:
        return explained(args, model)
    except CliError as error:
        if may_not_read(error):
            return None
        raise


def _command(args: Namespace, model: str, action: str, version: int | None) -> Tree:
    """Adds to a refusal which version answers, which there are, and what helps."""
    try:
        return command(args, model, action, version)
    except CliError as error:
        if error.code not in ("FAILED_PRECONDITION", "NOT_FOUND", "INVALID_ARGUMENT"):
            raise
        is_missing = error.code == "NOT_FOUND" or "to go back to" in str(error)
        try:
            why = _why(args, model, is_missing)
        except CliError as unread:
            if may_not_read(unread):
                raise error from None
            raise
        raise CliError(f"{error}; {why}", error.code) from None


def _why(args: Namespace, model: str, is_missing: bool = False) -> str:
    """Which version answers, and which there are; where an older one ``is_missing``, how it comes back."""
    answer = explained(args, model)
    if answer["verdict"] == "NOT_CONFIGURED":
        return str(answer["sentence"])
    text = f"{_now(answer)} answers now; there are versions {versions_text(answer)}"
    if is_missing:
        text += ". One that is not there: publish its files again: tfs-lite publish SRC --base BASE"
    return text


def _answers(answer: Tree) -> int | None:
    """The version that answers requests which name none."""
    return next((each["version"] for each in answer["answers_now"] if each["reference"] == "unversioned"), None)


def _wait(args: Namespace, model: str, version: int, begun: float) -> Tree:
    """Until the version answers requests that name none; tells on the way what it waits for. Raises CliError if it
    cannot, or not in time."""
    failed_since: float | None = None
    answer: Tree = {}
    told, tell_at = "", begun + LINE_SECONDS
    for _ in looks(args.timeout):
        answer = explained(args, model)
        if _answers(answer) == version:
            return answer
        line = next((line for line in answer["versions"] if line["version"] == version), None)
        if line is not None and line["sentence"] != told and time.monotonic() >= tell_at:
            told, tell_at = line["sentence"], time.monotonic() + LINE_SECONDS
            print(f"model {model}: {told}", file=sys.stderr, flush=True)
        waits = answer["rollout"] is not None and answer["rollout"]["going_back"] == version
        if waits or line is None or line["verdict"] not in _IN_VAIN:
            failed_since = None
            continue
        failed_since = failed_since or time.monotonic()
        failed = [each for each in answer["events"] if each["version"] == version][-1:]
        if failed and failed[0]["kind"] == "WAY_BACK_FAILED":
            why = f"version {version} {failed[0]['text']}"
        elif time.monotonic() - failed_since >= SETTLED_SECONDS:
            why = line["sentence"]
        else:
            continue
        raise CliError(
            f"model {model}: {why}; {_now(answer)} answers now. There are versions {versions_text(answer)}: go back to "
            f"another one with tfs-lite rollback {model} --to VERSION"
        )
    sentence = next((line["sentence"] for line in answer["versions"] if line["version"] == version), answer["sentence"])
    raise CliError(
        f"model {model}: version {version} does not answer after {time.monotonic() - begun:.0f} s, and is still on its "
        f"way: {sentence}. tfs-lite explain {model}@{version} says what it waits for",
        "DEADLINE_EXCEEDED",
    )


def _now(answer: Tree) -> str:
    """The version that answers requests which name none: ``version 7``, ``no version``."""
    answers = _answers(answer)
    return "no version" if answers is None else f"version {answers}"


def _say(args: Namespace, text: str, rollout: Tree) -> int:
    if args.json:
        print_json({"message": text, "rollout": rollout})
    else:
        print(text, flush=True)
    return DONE


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
