"""``tfs-lite guard [accept|retry|undo] MODEL[@VERSION]``: a version on trial, or one that was taken back.

tfs-lite guard ranker              how its trial stands, and which versions must not answer
tfs-lite guard undo ranker         take the version on trial back now
tfs-lite guard accept ranker@8     version 8 stays, or answers although it was taken or held back
tfs-lite guard retry ranker@8      version 8 is loaded again, as if it had been pushed
tfs-lite guard ranker --wait 900   ends with the trial: 0 the version stays, 1 it was taken or held back
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from tfs_lite.cli.arguments import Parser, add_server, ask, positive_seconds
from tfs_lite.cli.explain import Question, read_question
from tfs_lite.cli.output import DONE, FAILED, CliError, UsageError, print_json
from tfs_lite.core.status import ServingError

if TYPE_CHECKING:
    from tfs_lite.cli.http import AskedServer
    from tfs_lite.client import Client

Tree: TypeAlias = dict[str, Any]
ANSWER_TIMEOUT = 30.0
"""Seconds for an answer: a command looks at the disk."""
LOOK_SECONDS = 0.1
"""Seconds between two looks."""
UNREAD = "this token may not read how it stands"
VERBS = ("accept", "retry", "undo")
_STAYS = ("PASSED", "ACCEPTED", "SUPERSEDED", "MEMORY", "OLD_GONE")
"""The outcomes of trials after which the version stays."""
_IN_VAIN = ("REJECTED", "HELD_BACK", "FAILED", "REFUSED")
_CAUSES = ("ON_TRIAL", "TAKEN_BACK", "HELD_BACK", "ROLLED_BACK")
SETTLED_SECONDS = 2.0
"""The seconds for which a version must have failed, or have answered without a trial, before that is the end."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a trial: the exit code, and a sentence. It counts once it has held for ``seconds``: what comes next
    may be on its way."""

    code: int
    text: str
    seconds: float = 0.0


def run(argv: Sequence[str]) -> int:
    parser = Parser("guard", "Shows a version on trial, or one that was taken back; accepts it, retries it, undoes it.")
    metavar = "[accept|retry|undo] MODEL[@VERSION]"
    parser.add_argument("words", nargs="+", metavar=metavar, help="without a verb it shows")
    add_server(parser)
    parser.add_argument("--wait", type=positive_seconds, metavar="SECONDS", help="wait so long for the trial to end")
    args = parser.parse(argv)
    verb, question = _read(args.words)
    rollout = command(args, question.model, verb, question.version) if verb else None
    try:
        if args.wait is not None:
            return _wait(args, question)
        answer = explained(args, question.model, question.version)
    except CliError as error:
        if rollout is None or not may_not_read(error):
            raise
        return _end_unread(args, f"model {question.model}: {verb} is done; {_answers(rollout)}", rollout, error)
    if answer["rollout"] is None:
        raise CliError(str(answer["sentence"]), "NOT_FOUND")
    if args.json:
        print_json(rollout if rollout is not None else answer["rollout"])
    else:
        print("\n".join(lines_of(question, answer)), flush=True)
    return DONE


def _read(words: Sequence[str]) -> tuple[str, Question]:
    verb, model = ("", words[0]) if len(words) == 1 else (words[0], words[1])
    if len(words) > 2 or (verb and verb not in VERBS):
        raise UsageError(f"expected [accept|retry|undo] MODEL[@VERSION], got {' '.join(words)!r}")
    question = read_question(model)
    if not question.model or question.label is not None:
        raise UsageError(f"expected MODEL or MODEL@VERSION, got {model!r}")
    return verb, question


def lines_of(question: Question, answer: Tree) -> list[str]:
    """How the model stands, on a terminal: which version answers, which is on trial or must not answer, and why."""
    rollout = answer["rollout"]
    lines = [f"{question.name} ({answer['verdict']}): {answer['sentence']}"]
    lines += [f"  do: {link['fix']}" for link in answer["because"] if link["cause"] in _CAUSES]
    lines.append(f"  {_answers(rollout)}")
    if rollout["version"] is not None:
        lines.append(f"  {_trial(rollout)}")
        lines += [f"  failed: {error}" for error in dict.fromkeys(each["error"] for each in rollout["failures"])]
    lines += [
        f"  version {each['version']} must not answer: {each['why']}"
        for each in rollout["rejected"]
        if each["why"] not in lines[0]
    ]
    ended = rollout["ended"]
    if rollout["version"] is None and ended is not None and ended["outcome"] != "TAKEN_BACK":
        lines.append(f"  the last trial, of version {ended['version']}, ended at {ended['at'][11:19]}: {ended['text']}")
    return lines


def _answers(rollout: Tree) -> str:
    text = _answering(rollout["answers"])
    if rollout["going_back"] is not None:
        return f"{text}, until version {rollout['going_back']} has loaded"
    if rollout["back_to"] is not None:
        what = "stays with" if rollout["back_to"] == rollout["answers"] else "goes back to"
        text += f"; tfs-lite rollback {what} version {rollout['back_to']}"
    return text


def _answering(version: int | None) -> str:
    return "no version answers" if version is None else f"version {version} answers"


def _trial(rollout: Tree) -> str:
    votes, run_ms = rollout["votes"], rollout["run_ms"]
    text = (
        f"version {rollout['version']} over version {rollout['over']}: {rollout['requests']} requests, "
        f"{rollout['failed']} failed, {rollout['shielded']} of them answered by version {rollout['over']}, "
        f"{rollout['lost']} lost; {votes['against']} votes against it, {votes['for']} for it, {votes['needed']} needed"
    )
    if run_ms["new"] is not None:
        text += f"; a run takes {run_ms['new']:.3g} ms"
        if run_ms["old"]:
            times = run_ms["new"] / run_ms["old"]
            text += f", {times:.2g} times the {run_ms['old']:.3g} ms of version {rollout['over']}"
    return text


def _wait(args: Namespace, question: Question) -> int:
    """Until the trial of the version is over; the newest one, if none is named."""
    version, code, since = question.version, None, time.monotonic()
    answer: Tree = {}
    for _ in looks(args.wait):
        answer = explained(args, question.model)
        if answer["rollout"] is None and answer["verdict"] == "NOT_CONFIGURED":
            raise CliError(str(answer["sentence"]), "NOT_FOUND")
        if version is None:
            version = newest(answer)
        if version is None:
            continue
        end = judged(answer, version)
        if end is None or end.code != code:
            code, since = end.code if end else None, time.monotonic()
        if end is not None and time.monotonic() - since >= end.seconds:
            return _end(args, question.model, end.code, end.text, answer)
    what = f"version {version}" if version is not None else "a version"
    text = f"{what} is not decided after {args.wait:g} s: {answer['sentence']}"
    return _end(args, question.model, FAILED, text, answer)


def newest(answer: Tree) -> int | None:
    """The version on trial, else the highest of the model."""
    rollout = answer["rollout"]
    if rollout is not None and rollout["version"] is not None:
        return int(rollout["version"])
    return max((int(line["version"]) for line in answer["versions"]), default=None)


def judged(answer: Tree, version: int) -> End | None:
    """The end of the trial of the version; None while it goes on."""
    rollout = answer["rollout"] or {}
    rejected = next((each for each in rollout.get("rejected", ()) if each["version"] == version), None)
    now = _answering(rollout.get("answers"))
    if rejected is not None:
        return End(FAILED, f"version {version} must not answer: {rejected['why']}; {now}")
    line = next((line for line in answer["versions"] if line["version"] == version), None)
    if rollout.get("version") == version or line is None:
        return None
    if line["verdict"] in _IN_VAIN:
        return End(FAILED, f"{line['sentence']}; {now}", SETTLED_SECONDS)
    ended = rollout.get("ended") or {}
    outcome = ended.get("outcome", "") if ended.get("version") == version else ""
    over = f"the trial of version {version} is over: {ended.get('text')}; {now}"
    if line["verdict"] != "SERVING":
        return End(FAILED, over) if outcome == "GONE" else None
    if outcome in _STAYS:
        return End(DONE, over)
    return End(DONE, f"version {version} answers, and is not on trial", SETTLED_SECONDS)


def _end_unread(args: Namespace, done: str, rollout: Tree, error: CliError) -> int:
    """The end of a verb that was carried out for a caller who may not read. Raises CliError where it was to wait."""
    if args.wait is not None:
        raise CliError(f"{done}; it cannot be waited for: {error}", error.code) from None
    if args.json:
        print_json(rollout)
    else:
        print(f"{done}; {UNREAD}", flush=True)
    return DONE


def _end(args: Namespace, model: str, code: int, text: str, answer: Tree) -> int:
    if args.json:
        print_json({"accepted": code == DONE, "message": text, "rollout": answer["rollout"]})
    else:
        print(f"model {model}: {text}", flush=True)
    return code


# What ``rollback`` has in common with it.


def command(args: Namespace, model: str, action: str, version: int | None = None) -> Tree:
    """Has the server carry an action out; returns how the model stands then. Raises CliError."""
    asked = {"action": action} if version is None else {"action": action, "version": version}
    path = f"/v1/models/{quote(model, safe='')}:guard"
    return _ask(args, lambda server: server.json(path, asked), lambda client: client.guard(model, **asked))


def explained(args: Namespace, model: str, version: int | None = None) -> Tree:
    """The explanation of the model or its version. Raises CliError."""
    path = Question(model, version).path
    return _ask(args, lambda server: server.json(path), lambda client: client.explain(model, version=version))


def may_not_read(error: CliError) -> bool:
    """Whether the caller's token, or lack of one, is for commands only."""
    return error.code in ("PERMISSION_DENIED", "UNAUTHENTICATED")


def _ask(args: Namespace, over_http: Callable[[AskedServer], Tree], over_grpc: Callable[[Client], Tree]) -> Tree:
    try:
        return ask(args, over_http, over_grpc, ANSWER_TIMEOUT)
    except ServingError as error:
        raise CliError(str(error), error.code.name) from None


def looks(seconds: float) -> Iterator[None]:
    """Yields at once, and then again and again for so many seconds."""
    ends = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() >= ends:
            return
        time.sleep(LOOK_SECONDS)
