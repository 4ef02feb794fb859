"""``tfs-lite explain [MODEL[@VERSION|@LABEL]]``: why a model is in its state, and what to do about it; why a request
has failed (``--request``), and the last that have (``--failed``); what a config or a new version would change
(``--config``, ``--if-published``).

Without a model it shows one line for each, worst first. The exit code is 0 if what was asked for serves, 1 if not, 2
for wrong usage, so that a script can ask.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from tfs_lite.cli.arguments import Parser, add_server, ask, positive_seconds
from tfs_lite.cli.output import DONE, FAILED, CliError, UsageError, print_json, told
from tfs_lite.cli.views.failures import print_failed_requests, print_last_failed
from tfs_lite.cli.views.what_if import ANSWER_TIMEOUT, PATH, of_config_file, of_published, show
from tfs_lite.core.history import parse_time
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import ServingError

if TYPE_CHECKING:
    from argparse import Namespace

Tree: TypeAlias = dict[str, Any]
SERVING = "SERVING"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Question:
    """The question to a server: what is asked about; no name means every model."""

    model: str = ""
    version: int | None = None
    label: str | None = None

    @property
    def path(self) -> str:
        """The path of the HTTP route."""
        if not self.model:
            return "/v1/models:explain"
        which = ""
        if self.version is not None:
            which = f"/versions/{self.version}"
        elif self.label is not None:
            which = f"/labels/{quote(self.label, safe='')}"
        return f"/v1/models/{quote(self.model, safe='')}{which}:explain"

    @property
    def name(self) -> str:
        if self.version is not None:
            return f"{self.model}@{self.version}"
        return self.model if self.label is None else f"{self.model}@{self.label}"


def run(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    question = read_question(args.model or "")
    if args.request or args.failed or args.config or args.if_published:
        return _ask_once(question, args)

    def explained() -> Tree:
        answer = ask(
            args,
            lambda server: server.json(question.path),
            lambda client: client.explain(question.model, version=question.version, label=question.label),
        )
        return _since(answer, args.since)

    if not args.follow:
        answer = explained()
        _show(question, answer, args.json)
        return exit_code(answer)
    return _follow(explained, question, args)


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser("explain", "Says why a model or a version is in its state, and what to do about it.")
    parser.add_argument(
        "model", nargs="?", metavar="MODEL[@VERSION|@LABEL]", help="only this one; else all, worst first"
    )
    add_server(parser)
    parser.add_argument("--request", metavar="ID", help="why this request has failed, by its id or its trace id")
    parser.add_argument("--failed", action="store_true", help="the last requests that have failed, of MODEL or of all")
    parser.add_argument("--config", metavar="FILE", help="what a reload of this config would change; changes nothing")
    text = "what MODEL[@VERSION] would do if these files, on the server's machine, were published; changes nothing"
    parser.add_argument("--if-published", "--if_published", metavar="DIR", help=text)
    parser.add_argument("--since", type=duration, metavar="TIME", help="events of so long only, such as 90s, 15m, 1h")
    parser.add_argument("--follow", action="store_true", help="go on, and show each change, until Ctrl-C")
    parser.add_argument("--interval", type=positive_seconds, default=1.0, help="seconds between looks (%(default)s)")
    args = parser.parse(argv)
    asked = [name for name in ("request", "failed", "config", "if_published") if getattr(args, name)]
    if len(asked) > 1 or (asked and args.follow) or (asked and asked != ["failed"] and args.since):
        raise UsageError("--request, --failed, --config and --if-published are questions of their own: ask one of them")
    if args.model and asked in (["request"], ["config"]):
        raise UsageError(f"--{asked[0]} asks about no model: leave it out")
    return args


def _ask_once(question: Question, args: Namespace) -> int:
    """About a failed request, a config, or files that are not published yet."""
    if args.request:
        print_failed_requests(_failed_requests(args), args.json)
        return DONE
    if args.failed:
        print_last_failed(_since(_last_failed(question.model, args), args.since, "requests"), args.json)
        return DONE
    if args.config:
        return show(of_config_file(args.config, lambda asked: _what_if(asked, args)), args.json)
    if not question.model or question.label is not None:
        raise UsageError("--if-published needs the model: MODEL or MODEL@VERSION")
    answer = of_published(question.model, question.version, args.if_published, lambda asked: _what_if(asked, args))
    return show(answer, args.json)


def _failed_requests(args: Namespace) -> Any:
    path = f"/v1/requests/{quote(args.request, safe='')}"
    return ask(args, lambda server: server.json(path), lambda client: client.failed_requests(args.request))


def _last_failed(model: str, args: Namespace) -> Tree:
    path = f"/v1/models/{quote(model, safe='')}:failures" if model else "/v1/requests"
    return dict(ask(args, lambda server: server.json(path), lambda client: client.failed_requests(model=model)))


def _what_if(asked: Tree, args: Namespace) -> Any:
    over_http, over_grpc = lambda server: server.json(PATH, asked), lambda client: client.what_if(asked)
    return ask(args, over_http, over_grpc, ANSWER_TIMEOUT)


def duration(text: str) -> float:
    """An argparse type: seconds, from a number with a unit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 15m, 1h or 2d, got {text!r}")
    return float(found[1]) * _UNITS[found[2] or "s"]


def read_question(text: str) -> Question:
    """``MODEL``, ``MODEL@8`` or ``MODEL@stable``. UsageError without a name or after an @ without anything."""
    model, at, which = text.partition("@")
    if at and not (model and which):
        raise UsageError(f"expected MODEL, MODEL@VERSION or MODEL@LABEL, got {text!r}")
    version = parse_version(which) if at else None
    return Question(model, version, which if at and version is None else None)


def exit_code(answer: Tree) -> int:
    """0 if what was asked for serves: one model, or all of them."""
    verdicts = [line["verdict"] for line in answer["models"]] if "models" in answer else [answer["verdict"]]
    return DONE if all(verdict == SERVING for verdict in verdicts) else FAILED


def _since(answer: Tree, seconds: float | None, what: str = "events") -> Tree:
    """The answer with the events, or the requests, of the last ``seconds`` only."""
    if seconds is None or what not in answer:
        return answer
    oldest = time.time() - seconds
    return {**answer, what: [each for each in answer[what] if parse_time(each.get("last", each["time"])) >= oldest]}


def _follow(ask: Callable[[], Tree], question: Question, args: Namespace) -> int:
    """Shows every change until Ctrl-C, and waits for a server that is away."""
    code, shown = FAILED, ""
    try:
        while True:
            try:
                answer = ask()
                code, seen = exit_code(answer), _signature(answer)
                if seen != shown:
                    _show(question, answer, args.json)
            except (CliError, ServingError) as error:
                code, seen = FAILED, told(error)
                if seen != shown:
                    print(seen, flush=True)
            shown = seen
            time.sleep(args.interval)
    except KeyboardInterrupt:
        return code


def _signature(answer: Tree) -> str:
    """Equal for answers that say the same; figures in texts change with every look."""
    if "models" in answer:
        return json.dumps([(line["model"], line["verdict"], line["cause"]) for line in answer["models"]])
    causes = [(link["cause"], link["since"]) for link in answer["because"]]
    versions = [(line["version"], line["verdict"]) for line in answer["versions"]]
    return json.dumps([answer["verdict"], causes, versions, len(answer["events"])])


def _show(question: Question, answer: Tree, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    elif "models" in answer:
        print("\n".join(_list_lines(answer["models"])) or "the server has no models", flush=True)
    else:
        print("\n".join(lines_of(question, answer)), flush=True)


def _list_lines(models: Sequence[Tree]) -> list[str]:
    """The verdict, the model, and what is the case; what to do below, where there is something to do."""
    lines: list[str] = []
    width = max((len(line["verdict"]) for line in models), default=0)
    for line in models:
        lines.append(f"{line['verdict']:{width}}  {line['model']}: {line['sentence']}")
        remedy = f"{'':{width}}  do: {line['fix']}"
        if line["fix"] and remedy not in lines:
            lines.append(remedy)
    return lines


def lines_of(question: Question, answer: Tree) -> list[str]:
    """The lines of an explanation on a terminal."""
    lines = [f"{question.name} ({answer['verdict']}): {answer['sentence']}"]
    for link in answer["because"]:
        since = f" (since {_clock(link['since'])})" if link["since"] else ""
        lines.append(f"  {link['cause']}: {link['text']}{since}")
        if link["fix"]:
            lines.append(f"    do: {link['fix']}")
    then = answer["next"]
    if then["what"] and answer["verdict"] != SERVING:
        lines.append(f"  next: {then['what']}" + (f" at {_clock(then['at'])}" if then["at"] else ""))
    if answer["answers_now"]:
        shown = [f"version {each['version']} answers {_reference(each)}" for each in answer["answers_now"]]
        lines.append(f"  meanwhile: {', '.join(shown)}" if answer["verdict"] != SERVING else f"  {', '.join(shown)}")
    lines += _processes(answer["processes"])
    lines += [f"  {note}" for note in answer.get("notes", ())]
    lines += [f"  {_event(event)}" for event in answer["events"]]
    return lines


def _processes(processes: Sequence[Tree]) -> list[str]:
    """The bounds of each version's processes; those that are bounded alike share a line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for process in processes:
        pid = str(process["pid"]) if process["up"] and process["pid"] else "down"
        which = f"{process['version']}, which drains" if process.get("drains") else str(process["version"])
        alike.setdefault((which, _sandbox(process["sandbox"])), []).append(pid)
    return [
        f"  process{'es' if len(pids) > 1 else ''} {', '.join(pids)} of version {version}: {sandbox}"
        for (version, sandbox), pids in alike.items()
    ]


def _sandbox(sandbox: Tree | None) -> str:
    if sandbox is None:
        return "in no sandbox"
    lacks = f"; the kernel has none for {', '.join(sandbox['lacks'])}" if sandbox["lacks"] else ""
    return f"the sandbox holds {', '.join(sandbox['holds'])}{lacks}"


def _reference(answers: Tree) -> str:
    name = answers["reference"]
    what = "requests that name no version" if name == "unversioned" else f'the label "{name}"'
    return what if answers["weight"] == 1.0 else f"{what} ({answers['weight']:.0%})"


def _event(event: Tree) -> str:
    version = f" version {event['version']}" if event["version"] is not None else ""
    times = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
    return f"{_clock(event.get('last', event['time']))}{version}: {event['text']}{times}"


def _clock(when: Any) -> str:
    """The time of day in UTC, of an RFC 3339 text."""
    return str(when)[11:19]
