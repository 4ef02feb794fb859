"""Pushes of every kind under callers, and what came of them: the shape of the proof, for whichever client is at hand.

    with Pushes(directory, "rest", *flags) as pushes:
        pushes.record_answers()                 # or not
        pushes.push_all()
        results = pushes.wait_decided(900)
        print(table(results))

``python -m tests.support.guard.scenario`` does that by hand: see ``--help``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.guard.pushes import KINDS, Kind, push
from tests.support.servers.process import ServerProcess, default_command, wait_until

OLD, NEW = 1, 2
RECORDED = 120
FEW = [kind for kind in KINDS if kind.fault in ("raises", "nan", "renamed")]
ANSWERS = 50
"""Of each model before the pushes: the time that a run of version 1 takes is known then."""
REPOSITORY = Path(__file__).parents[3]
GUARD = ("--bake_seconds=60",)


class CallersProcess:
    """The program :mod:`tests.support.guard.callers`, by this Python."""

    def __init__(self, way: str, address: str, kinds: Sequence[Kind], callers: int, rate: float) -> None:
        deadlines = json.dumps({kind.fault: kind.deadline for kind in kinds})
        module = ("-m", "tests.support.guard.callers")
        self.last: dict[str, dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [sys.executable, *module, way, address, deadlines, f"--callers={callers}", f"--rate={rate}"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def counts(self) -> dict[str, dict[str, Any]]:
        """Model -> what its callers have got so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.last = json.loads(self._process.stdout.readline())
        return self.last

    def stop(self) -> None:
        """Closes its standard input, which ends it."""
        self._process.communicate(timeout=60)


@dataclass(slots=True)
class Result:
    """What came of one push. ``seconds``: from the push to the decision. ``cause``: ``TAKEN_BACK``, ``HELD_BACK``, or
    ``""`` if the version was kept. ``text``: what is said of it. ``got``: the callers' counts since the push, ``old``
    and ``new`` answers too."""

    kind: Kind
    cause: str = ""
    text: str = ""
    seconds: float = 0.0
    got: dict[str, Any] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


class Pushes:
    """A server with one model for each kind, version 1 of each good, and callers of all of them. Used by one thread."""

    def __init__(
        self,
        directory: Path,
        way: str,
        flags: Sequence[str] = GUARD,
        *,
        kinds: Sequence[Kind] = KINDS,
        callers: int = 50,
        rate: float = 200.0,
        command: Sequence[str] | None = None,
    ) -> None:
        self.kinds = {kind.fault: kind for kind in kinds}
        self._models, self._way, self._callers, self._rate = directory / "models", way, callers, rate
        self._command = list(command or default_command())
        for fault in self.kinds:
            push(self._models / fault, OLD, "none")
        own = [f"--model_repository={self._models}", f"--trusted_model_base_paths={self._models}"]
        if way == "rest":
            own.append(f"--rest_api_timeout_in_ms={min(kind.deadline for kind in kinds) * 1000:.0f}")
        self.server = ServerProcess(*own, f"--state_directory={directory / 'state'}", *flags, command=command)

    def __enter__(self) -> Pushes:
        self.server.__enter__()
        kinds = list(self.kinds.values())
        address = f"127.0.0.1:{self.server.http_port}" if self._way == "rest" else self.server.target
        self.callers = CallersProcess(self._way, address, kinds, self._callers, self._rate)
        try:
            wait_until(self._have_answered, "all models answer")
        except TimeoutError as error:
            self.__exit__(None, None, None)
            raise AssertionError(f"{error}: {self.callers.last}\n{self.server.log()}") from None
        return self

    def _have_answered(self) -> bool:
        return all(sum(got["versions"].values()) >= ANSWERS for got in self.callers.counts().values())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.callers.stop()
        self.server.__exit__(kind, error, trace)

    def record_answers(self) -> None:
        """Puts ``replay.tfrecord`` beside the versions of every model: what version 1 answers to drawn rows."""
        bodies = self._models.with_name("bodies")
        bodies.mkdir()
        for index in range(RECORDED):
            row = [random.random() for _ in range(4)]
            (bodies / f"{index}.json").write_text(json.dumps({"instances": [row]}), encoding="utf-8")
        for fault in self.kinds:
            out = self._models / fault / "replay.tfrecord"
            asking = ["record", f"--server={self.server.target}", f"--model_name={fault}", f"--out={out}"]
            files = map(str, sorted(bodies.iterdir()))
            subprocess.run([*self._command, *asking, *files], check=True, cwd=REPOSITORY, capture_output=True)

    def push_all(self, parameters: str = ', guard.max_changed: "0.05"') -> None:
        self._before = self.callers.counts()
        self._pushed = time.monotonic()
        for fault in self.kinds:
            push(self._models / fault, NEW, fault, parameters)

    def wait_decided(self, timeout: float) -> list[Result]:
        """Waits until every pushed version has been taken back, held back or kept, and returns what came of each."""
        results: dict[str, Result] = {}

        def decided() -> bool:
            for fault, kind in self.kinds.items():
                if fault not in results and (result := self._decision(kind)) is not None:
                    results[fault] = result
            return len(results) == len(self.kinds)

        try:
            wait_until(decided, "every trial has ended", timeout, interval=1.0)
        except TimeoutError:
            for fault, kind in self.kinds.items():
                results.setdefault(fault, self._result(kind, "UNDECIDED"))
        return self._with_counts([results[fault] for fault in self.kinds])

    def wait_seconds(self, seconds: float) -> list[Result]:
        """What callers have got so many seconds after the pushes. For servers without a guard."""
        wait_until(lambda: time.monotonic() - self._pushed > seconds, "the time is over", seconds + 10, interval=0.2)
        return self._with_counts([self._result(kind, "") for kind in self.kinds.values()])

    def explain(self, model: str, version: int | None = None) -> dict[str, Any]:
        name = model if version is None else f"{model}/versions/{version}"
        return json_of(self.server, f"/v1/models/{name}:explain")

    def states(self, model: str) -> dict[int, str]:
        statuses = json_of(self.server, f"/v1/models/{model}")["model_version_status"]
        return {int(line["version"]): line["state"] for line in statuses}

    def _decision(self, kind: Kind) -> Result | None:
        explained = self.explain(kind.fault, NEW)
        for link in explained["because"]:
            if link["cause"] in ("TAKEN_BACK", "HELD_BACK"):
                return self._result(kind, link["cause"], link["text"])
        if self.states(kind.fault) == {NEW: "AVAILABLE", OLD: "END"}:
            return self._result(kind, "", str(explained["rollout"]["ended"]["text"]))
        return None

    def _result(self, kind: Kind, cause: str, text: str = "") -> Result:
        return Result(kind, cause, text, time.monotonic() - self._pushed, states=self.states(kind.fault))

    def _with_counts(self, results: list[Result]) -> list[Result]:
        after = self.callers.counts()
        for result in results:
            was, now = self._before[result.kind.fault], after[result.kind.fault]
            result.got = {name: now[name] - was[name] for name in ("errors", "nonfinite", "wrong")}
            for name, version in (("old", OLD), ("new", NEW)):
                result.got[name] = now["versions"].get(str(version), 0) - was["versions"].get(str(version), 0)
            result.got["first_errors"] = now["first_errors"]
        return results


def json_of(server: ServerProcess, path: str) -> dict[str, Any]:
    """What it answers to a GET."""
    status, body = server.get(path)
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def table(results: Sequence[Result]) -> str:
    """One line a push, and the sentence of each below."""
    lines = [
        f"{'push':12} {'came to':11} {'seconds':>7} {'errors':>6} {'no number':>9} {'wrong':>6} {'old':>6} {'new':>6}"
    ]
    for result in results:
        got = result.got
        lines.append(
            f"{result.kind.fault:12} {result.cause or 'kept':11} {result.seconds:7.0f} {got['errors']:6} "
            f"{got['nonfinite']:9} {got['wrong']:6} {got['old']:6} {got['new']:6}"
        )
    for result in results:
        lines.append(f"{result.kind.fault}: {result.text}")
        lines.extend(f"    {error}" for error in result.got["first_errors"][:1])
    return "\n".join(lines)


def check(results: Sequence[Result], recorded: bool) -> None:
    """Raises AssertionError if not everything came as it should."""
    print(table(results))
    for result in results:
        check_one(result, result.kind.recorded if recorded else (result.kind.cause,))


def check_one(result: Result, causes: Sequence[str]) -> None:
    kind, got, cause = result.kind, result.got, result.cause
    assert cause in causes, table([result])
    if cause or kind.fault == "slow":
        assert kind.names in result.text
    if cause:
        assert result.states == {NEW: "END", OLD: "AVAILABLE"}
    if cause == "HELD_BACK":
        assert got["new"] == 0
    if kind.fault != "hangs" or cause == "HELD_BACK":
        assert got["errors"] == 0, table([result])
    assert got["nonfinite"] == 0
    if kind.fault != "shuffled" or cause == "HELD_BACK":
        assert got["wrong"] == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", default="grpc", help="rest, grpc, or with their packages tensorflow, triton")
    parser.add_argument("--kinds", default="", help="only these, with commas between them")
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--recorded", action="store_true", help="answers are recorded before the pushes")
    parser.add_argument("--unguarded", type=float, metavar="SECONDS", help="no guard: what callers get for so long")
    parser.add_argument("--timeout", type=float, default=1200.0)
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if not arguments.kinds or kind.fault in arguments.kinds.split(",")]
    flags = () if arguments.unguarded else GUARD
    with tempfile.TemporaryDirectory() as directory:
        how: dict[str, Any] = {"kinds": kinds, "callers": arguments.callers, "rate": arguments.rate}
        with Pushes(Path(directory), arguments.way, flags, **how) as pushes:
            if arguments.recorded:
                pushes.record_answers()
            pushes.push_all()
            waits = pushes.wait_seconds if arguments.unguarded else pushes.wait_decided
            print(table(waits(arguments.unguarded or arguments.timeout)))


if __name__ == "__main__":
    main()
