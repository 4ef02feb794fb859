"""``tfs-lite rollout FILE --servers=A,B,...``: gives several servers a new model config; their labels move together.

    look   each server says which versions it has and where its labels point; nothing has changed yet
    load   each server gets FILE with the versions that it has and those of FILE, and its labels where they are;
           this step ends when one look finds every version that FILE names available on every server
    move   each server gets FILE itself, which moves its labels and withdraws what FILE no longer wants

If a server fails in the first two steps, no label has moved on any server. What was loaded stays loaded, and the
command goes on from there when it is run again. The move is not atomic: the report says how far apart the servers can
have been.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tfs_lite.cli.arguments import Parser, add_credentials, add_waiting, positive_seconds, unconnected_client
from tfs_lite.cli.output import DONE, FAILED, CliError, UsageError, console, print_json, table, told
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError, StatusCode

if TYPE_CHECKING:
    from tfs_lite.client import Client
    from tfs_lite.config.model_server import ModelConfig, ModelServerConfig

T = TypeVar("T")

MAX_SERVERS_AT_ONCE = 32
MAX_SERVERS = 1000
_ANSWER_SECONDS = 10.0
"""The seconds for an answer that waits for no model."""
_LOOK_INTERVAL = 0.2
_FAILURE_HOLDS = 1.0
"""Seconds for which a version must have failed: right after a reload its status may still be about the load before."""
_DNS = "dns:///"
_STATE_STYLES = {"moved": "green", "failed": "red"}


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The report on how far one server came. ``state`` is ``unchanged``, ``loading`` or ``loaded`` (its labels are
    where they were), ``moved`` or ``failed``; ``reason`` says why it failed."""

    server: str
    state: str = "unchanged"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Before:
    """The state of one server before the rollout: its available versions, and the versions of those labels that the new
    config names too."""

    versions: Mapping[str, frozenset[int]]
    labels: Mapping[str, Mapping[str, int]]


class Rollout:
    """``look``, ``load`` and ``move``, in this order, once each. Every step asks all servers,
    ``MAX_SERVERS_AT_ONCE`` at a time, takes at most ``timeout`` seconds, and raises CliError if a server fails.
    ``reports`` says how far each server came. One thread."""

    def __init__(self, config: ModelServerConfig, clients: Mapping[str, Client], timeout: float) -> None:
        self._config = config
        self._clients = clients
        self._timeout = timeout
        self._wanted = {model.name: versions for model in config.models if (versions := named_versions(model))}
        self._before: dict[str, Before] = {}
        self.reports = {server: ServerReport(server) for server in clients}
        self.skew_seconds: float | None = None

    def look(self) -> None:
        self._before = self._on_all(self._look_at)
        self._raise_if_failed("nothing was sent to any server")

    def load(self) -> None:
        ends = time.monotonic() + self._timeout

        def load(server: str) -> None:
            beside = beside_config(self._config, self._before[server])
            self._clients[server].reload(beside, timeout=max(ends - time.monotonic(), 0.1))

        self._on_all(load, "loading")
        stays = (
            "no label has moved; what was loaded stays beside the old versions: mend what has failed and run this again"
        )
        self._raise_if_failed(stays)
        self._wait_until_loaded(ends, stays)

    def move(self) -> None:
        begun = time.monotonic()
        self._on_all(lambda server: self._clients[server].reload(self._config, timeout=self._timeout), "moved")
        self.skew_seconds = time.monotonic() - begun
        moved = sum(report.state == "moved" for report in self.reports.values())
        self._raise_if_failed(f"the labels have moved on {moved} of {len(self.reports)} servers; run this again")

    def _wait_until_loaded(self, ends: float, stays: str) -> None:
        failed_since: dict[tuple[str, str], float] = {}
        while True:
            missing = self._on_all(self._missing)
            self._raise_if_failed(stays)
            now = time.monotonic()
            failures = {(server, what) for server, found in missing.items() for what, over in found.items() if over}
            failed_since = {each: failed_since.get(each, now) for each in failures}
            for server, found in missing.items():
                held = [what for what in found if failed_since.get((server, what), now) <= now - _FAILURE_HOLDS]
                if held or (found and now >= ends):
                    late = "" if held else f"not available within {self._timeout:g} s: "
                    self._report(server, "failed", late + "; ".join(held or found))
                elif not found:
                    self._report(server, "loaded")
            self._raise_if_failed(stays)
            if not any(missing.values()):
                return
            time.sleep(_LOOK_INTERVAL)

    def _look_at(self, server: str) -> Before:
        client = self._clients[server]
        client.connect()
        return Before(
            {model.name: _available_versions(client, model.name) for model in self._config.models},
            {model.name: dict(_current_labels(client, model)) for model in self._config.models},
        )

    def _missing(self, server: str) -> dict[str, bool]:
        """Each version that is not available there, with its state and reason; True for one that has failed."""
        found = {}
        for name, wanted in self._wanted.items():
            known = {item.version: item for item in _status(self._clients[server], name)}
            for version in sorted(wanted):
                item = known.get(version)
                if item is None:
                    found[f"{name} {version}: not found"] = False
                elif item.state is not VersionState.AVAILABLE:
                    over = item.state is VersionState.END and not item.status.ok
                    reason = "" if item.status.ok else f", {item.status}"
                    found[f"{name} {version}: {item.state.name}{reason}"] = over
        return found

    def _on_all(self, act: Callable[[str], T], reached: str = "") -> dict[str, T]:
        """The results of the servers on which ``act`` succeeded, which are in the state ``reached`` now. The others
        have failed."""
        results: dict[str, T] = {}
        with ThreadPoolExecutor(min(MAX_SERVERS_AT_ONCE, len(self._clients)), "tfs-rollout") as pool:
            begun = {server: pool.submit(act, server) for server in self._clients}
            for server, answer in begun.items():
                try:
                    results[server] = answer.result()
                except ServingError as error:
                    self._report(server, "failed", f"{error.code.name}: {told(error)}")
                else:
                    if reached:
                        self._report(server, reached)
        return results

    def _report(self, server: str, state: str, reason: str = "") -> None:
        self.reports[server] = ServerReport(server, state, reason)

    def _raise_if_failed(self, then: str) -> None:
        failed = [report.server for report in self.reports.values() if report.state == "failed"]
        if failed:
            raise CliError(f"failed on {', '.join(failed)}: {then}", "ABORTED")


def run(argv: Sequence[str]) -> int:
    from tfs_lite.config.text import read_model_server_config

    text = "Loads the versions of a new model config on several servers, then moves the labels of all of them."
    parser = Parser("rollout", text)
    parser.add_argument("file", metavar="FILE", help="ModelServerConfig as text proto or YAML; base paths absolute")
    where = f"gRPC addresses HOST:PORT,...; {_DNS}NAME:PORT stands for every address of the name"
    parser.add_argument("--servers", required=True, metavar="A,B", help=where)
    add_credentials(parser)
    add_waiting(parser)
    parser.add_argument("--timeout", type=positive_seconds, default=180.0, help="seconds for each step (%(default)s)")
    args = parser.parse(argv)
    servers = server_addresses(args.servers)
    config = read_model_server_config(args.file)
    with ExitStack() as clients:
        rollout = Rollout(
            config,
            {server: clients.enter_context(unconnected_client(server, args.timeout, args)) for server in servers},
            args.timeout,
        )
        error = _carry_out(rollout)
    _print(rollout, error, args.json)
    return FAILED if error else DONE


def _carry_out(rollout: Rollout) -> CliError | None:
    try:
        rollout.look()
        rollout.load()
        rollout.move()
    except CliError as error:
        return error
    return None


def named_versions(model: ModelConfig) -> frozenset[int]:
    """The versions that the config names by number, as ``specific`` or by a label."""
    specific = model.model_version_policy.specific
    return frozenset((*(specific.versions if specific else ()), *model.version_labels.values()))


def beside_config(config: ModelServerConfig, before: Before) -> ModelServerConfig:
    """``config`` with the versions that a server has in addition to those that ``config`` names, and its labels where
    they are. Models of which no version is named stay as they are in ``config``."""
    from tfs_lite.config.model_server import Specific, VersionPolicy

    def beside(model: ModelConfig) -> ModelConfig:
        named = named_versions(model)
        if not named:
            return model
        both = Specific(versions=tuple(sorted(named | before.versions[model.name])))
        policy, labels = VersionPolicy(specific=both), before.labels[model.name]
        return model.model_copy(update={"model_version_policy": policy, "version_labels": labels})

    models = config.model_config_list.model_copy(update={"config": tuple(map(beside, config.models))})
    return config.model_copy(update={"model_config_list": models})


def server_addresses(text: str) -> list[str]:
    """The addresses in a comma-separated list, with names behind ``dns:///`` looked up. Raises UsageError, and CliError
    for a name that is not found."""
    found = [address for word in text.split(",") if word.strip() for address in _addresses(word.strip())]
    twice = sorted({address for address in found if found.count(address) > 1})
    if not found or twice or len(found) > MAX_SERVERS:
        wrong = f"{', '.join(twice)} twice" if twice else f"{len(found)} addresses"
        raise UsageError(f"--servers: expected 1 to {MAX_SERVERS} different addresses, got {wrong}")
    return found


def _addresses(word: str) -> Iterator[str]:
    if word.startswith("unix:"):
        yield word
        return
    host, _, port = word.removeprefix(_DNS).rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"--servers: expected HOST:PORT, got {word!r}")
    if not word.startswith(_DNS):
        yield word
        return
    try:
        answers = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise CliError(f"--servers: {host} is not found: {error.strerror or error}", "UNAVAILABLE") from None
    for address in dict.fromkeys(str(answer[4][0]) for answer in answers):
        yield f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _available_versions(client: Client, model: str) -> frozenset[int]:
    return frozenset(item.version for item in _status(client, model) if item.state is VersionState.AVAILABLE)


def _current_labels(client: Client, model: ModelConfig) -> Iterator[tuple[str, int]]:
    for label in model.version_labels:
        for item in _status(client, model.name, label):
            if item.state is VersionState.AVAILABLE:
                yield label, item.version


def _status(client: Client, model: str, label: str | None = None) -> list[Any]:
    """Empty if the server does not have the model or the label."""
    try:
        return list(client.status(model, label=label, timeout=_ANSWER_SECONDS))
    except ServingError as error:
        if error.code in (StatusCode.NOT_FOUND, StatusCode.INVALID_ARGUMENT):
            return []
        raise


def _print(rollout: Rollout, error: CliError | None, as_json: bool) -> None:
    reports = list(rollout.reports.values())
    if as_json:
        failure = {"error": {"code": error.code, "message": str(error)}} if error else {}
        shown = {"servers": [asdict(report) for report in reports], "skew_seconds": rollout.skew_seconds}
        print_json(failure | shown)
        return
    from rich.text import Text

    rows = [(each.server, Text(each.state, style=_STATE_STYLES.get(each.state, "")), each.reason) for each in reports]
    console().print(table(("server", "state", "reason"), rows))
    if error:
        print(f"tfs-lite: {error}", file=sys.stderr)
    elif rollout.skew_seconds is not None:
        number = f"{len(reports)} server{'s' if len(reports) != 1 else ''}"
        print(f"the labels have moved on {number}, at most {rollout.skew_seconds * 1000:.0f} ms apart")
