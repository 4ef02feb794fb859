"""A good version pushed under callers, and something that happens in the middle of its trial.

    python -m tests.support.guard.good_pushes [stop] [kill]

One server has a model for each of ``EVENTS``; ``stop`` and ``kill`` happen to servers of their own. What callers get
while such a server is away does not count. Afterwards nobody has got an error, and one version is in memory.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.guard.pushes import Kind, push
from tests.support.guard.scenario import GUARD, CallersProcess, json_of
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite import Client
from tfs_lite.config.text import parse_model_server_config

EVENTS = ("nothing", "reload", "old_deleted", "third_push")
TRIAL_SECONDS = 80.0
"""The bake, and the time until its last votes are in."""
LONGEST = 2 * TRIAL_SECONDS + 30.0
"""Seconds until a trial is over that has begun anew in the middle."""
ANSWERS = 100
"""So many answers of every model are waited for before something happens, and after it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``got``: what the callers of the model got, but for the time without a server. ``away``: their errors then.
    ``states``: those of its versions in the end."""

    event: str
    got: dict[str, Any]
    states: dict[int, str]
    text: str
    away: int = 0

    @property
    def in_memory(self) -> list[int]:
        return [version for version, state in self.states.items() if state != "END"]


class GoodPushes:
    """A server with these models, version 1 of each, and callers of all. Used by one thread."""

    def __init__(self, directory: Path, models: Sequence[str], callers: int = 10, rate: float = 20.0) -> None:
        self.models, self._base = models, directory / "models"
        self._callers, self._rate = callers, rate
        for model in models:
            push(self._base / model, 1, "none")
        file = directory / "models.config"
        file.write_text(self._config(models), encoding="utf-8")
        self.server = ServerProcess(
            f"--model_config_file={file}",
            f"--trusted_model_base_paths={self._base}/**",
            f"--state_directory={directory / 'state'}",
            *GUARD,
        )

    def _config(self, models: Sequence[str]) -> str:
        entries = " ".join(f'config {{ name: "{model}" base_path: "{self._base / model}" }}' for model in models)
        return f"model_config_list {{ {entries} }}"

    def __enter__(self) -> GoodPushes:
        self.server.__enter__()
        kinds = [Kind(model, "", ("",)) for model in self.models]
        self.callers = CallersProcess("grpc", self.server.target, kinds, self._callers, self._rate)
        return self

    def __exit__(self, *raised: Any) -> None:
        self.callers.stop()
        self.server.__exit__(*raised)

    def push_all(self, version: int, models: Sequence[str] = ()) -> None:
        for model in models or self.models:
            push(self._base / model, version, "none")
        wait_until(
            lambda: all(self.rollout(model)["version"] == version for model in models or self.models),
            f"every version {version} is on trial",
        )

    def wait_answers(self) -> None:
        """Until the callers of every model have got some more."""
        before = self.answered()
        wait_until(lambda: all(self.answered()[model] > before[model] + ANSWERS for model in self.models), "answers")

    def answered(self) -> dict[str, int]:
        return {model: sum(got["versions"].values()) for model, got in self.callers.counts().items()}

    def errors(self) -> dict[str, int]:
        return {model: got["errors"] for model, got in self.callers.counts().items()}

    def rollout(self, model: str) -> dict[str, Any]:
        return json_of(self.server, f"/v1/models/{model}:guard")

    def reload(self) -> None:
        """The config with one more model, which has no versions of its own."""
        push(self._base / "more", 1, "none")
        with Client(self.server.target) as client:
            client.reload(parse_model_server_config(self._config([*self.models, "more"]), "reload"))

    def delete_old(self, model: str) -> None:
        shutil.rmtree(self._base / model / "1")

    def begin_again(self, end: Callable[[], None]) -> dict[str, int]:
        """Ends the server and starts it again; the errors of each model meanwhile."""
        before = self.errors()
        end()
        self.server.wait()
        self.server.start()
        self.server.wait_ready()
        self.wait_answers()
        after = self.errors()
        return {model: after[model] - before[model] for model in self.models}

    def outcomes(self, away: dict[str, int] | None = None) -> list[Outcome]:
        """What came of every model, once no trial goes on."""

        def over() -> bool:
            self.callers.counts()
            return all(self.rollout(model)["state"] == "NONE" and one_left(model) for model in self.models)

        def one_left(model: str) -> bool:
            return [state != "END" for state in self.states(model).values()].count(True) == 1

        wait_until(over, "every trial is over, and one version is left", LONGEST, interval=1.0)
        self.wait_answers()
        counts, missed = self.callers.counts(), away or {}
        found = list[Outcome]()
        for model in self.models:
            got = dict(counts[model], errors=counts[model]["errors"] - missed.get(model, 0))
            ended = self.rollout(model)["ended"] or {}
            text = f"version {ended.get('version')}: {ended.get('text')}"
            found.append(Outcome(model, got, self.states(model), text, missed.get(model, 0)))
        return found

    def states(self, model: str) -> dict[int, str]:
        statuses = json_of(self.server, f"/v1/models/{model}")["model_version_status"]
        return {int(line["version"]): line["state"] for line in statuses}


def in_one_server(directory: Path) -> list[Outcome]:
    """A reload, the old version deleted, a third push: each in the middle of a trial."""
    with GoodPushes(directory, EVENTS) as pushes:
        pushes.wait_answers()
        pushes.push_all(2)
        pushes.wait_answers()
        pushes.reload()
        pushes.delete_old("old_deleted")
        pushes.push_all(3, ["third_push"])
        return pushes.outcomes()


def restarted(directory: Path, how: str) -> list[Outcome]:
    """The server is stopped (``stop``) or killed (``kill``) in the middle of a trial, and started again."""
    with GoodPushes(directory, [how], callers=5) as pushes:
        pushes.wait_answers()
        pushes.push_all(2)
        pushes.wait_answers()
        end = pushes.server.terminate if how == "stop" else pushes.server.process.kill
        return pushes.outcomes(pushes.begin_again(end))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ends", nargs="*", help="stop, kill; none: those of one server")
    with tempfile.TemporaryDirectory() as directory:
        ends = parser.parse_args().ends
        found = [] if ends else in_one_server(Path(directory, "one"))
        for how in ends:
            found += restarted(Path(directory, how), how)
    for outcome in found:
        got = outcome.got
        print(
            f"{outcome.event:12} answers {got['versions']}, errors {got['errors']}, wrong {got['wrong']}, "
            f"no number {got['nonfinite']}, in memory {outcome.in_memory}, errors while away {outcome.away}; "
            f"{outcome.text}"
        )


if __name__ == "__main__":
    main()
