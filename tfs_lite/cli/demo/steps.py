"""The steps of the demo. A step ends when the server and the clients have reached its state.

train -> serve version 1 -> clients -> publish version 2 -> publish a damaged version 3 -> stop
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tfs_lite.cli.demo import model as demo_model
from tfs_lite.cli.demo.model import DigitClassifier, Digits
from tfs_lite.cli.demo.outcome import BETTER, BROKEN, FIRST, DemoOutcome
from tfs_lite.cli.demo.server import DemoServer
from tfs_lite.cli.demo.traffic import Tally, Traffic
from tfs_lite.cli.demo.view import DemoView
from tfs_lite.client import Client
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState, VersionStatus
from tfs_lite.core.status import ServingError

_LOOK_AGAIN = 0.05
_CONNECT_TIMEOUT = 0.5
_STATUS_TIMEOUT = 10.0

Versions = dict[int, VersionStatus]


class StuckError(Exception):
    """A step did not reach its end; the message says why."""


class DemoSteps:
    """One run of the demo, on one thread; the clients have threads of their own."""

    def __init__(self, view: DemoView, directory: Path, clients: int, requests: int, seconds: float) -> None:
        self._view = view
        self._base = directory / demo_model.NAME
        self._directory = directory
        self._clients = clients
        self._requests = requests
        self._seconds = seconds
        self._started = time.monotonic()

    def run(self) -> DemoOutcome:
        self._view.step("training two classifiers of handwritten digits")
        training, testing = demo_model.load_digits()
        better = demo_model.train_well(training)
        demo_model.save_version(demo_model.train_quickly(training), self._base, FIRST)
        self._view.step(f"starting a server with version {FIRST}, which has learned little")
        with DemoServer(demo_model.NAME, self._base, self._directory / "server.log") as server:
            return self._serve(server, better, testing)

    def _serve(self, server: DemoServer, better: DigitClassifier, testing: Digits) -> DemoOutcome:
        stuck = ""
        traffic = Traffic(server.target, testing, self._clients)
        with Client(server.target, timeout=_STATUS_TIMEOUT, connect_timeout=_CONNECT_TIMEOUT) as client:
            watch = _StepWatch(self._view, server, client, traffic, self._seconds)
            try:
                watch.until(f"version {FIRST} is available", _is(FIRST, VersionState.AVAILABLE))
                with traffic:
                    self._load(watch, traffic, better)
            except StuckError as error:
                stuck = str(error)
            versions = watch.versions()
        self._view.step("stopping the server")
        return DemoOutcome(versions, traffic.tally(), server.stop(), time.monotonic() - self._started, stuck)

    def _load(self, watch: _StepWatch, traffic: Traffic, better: DigitClassifier) -> None:
        self._view.step(f"{self._clients} clients send pictures")
        watch.until(f"every client has had answers of version {FIRST}", self._answers_of(FIRST, self._requests))

        self._view.step(f"publishing version {BETTER}, which has learned well")
        demo_model.save_version(better, self._base, BETTER)
        watch.until(f"version {BETTER} is available", _is(BETTER, VersionState.AVAILABLE))
        watch.until(f"version {FIRST} is unloaded", _is(FIRST, VersionState.END))
        watch.until(f"every client has had answers of version {BETTER}", self._answers_of(BETTER, self._requests))

        self._view.step(f"publishing version {BROKEN}, which is damaged")
        publish(str(self._damaged()), str(self._base), BROKEN)
        watch.until(f"version {BROKEN} has failed", _is(BROKEN, VersionState.END))
        had = traffic.tally().version(BETTER).least_per_client
        watch.until(f"version {BETTER} goes on answering", self._answers_of(BETTER, had + self._requests))

    def _answers_of(self, version: int, requests: int) -> Callable[[Versions, Tally], bool]:
        """Every client has had so many answers of that version."""
        return lambda versions, tally: tally.version(version).least_per_client >= requests

    def _damaged(self) -> Path:
        """The first half of the better version's archive."""
        whole = (self._base / str(BETTER) / "model.pt2").read_bytes()
        damaged = self._directory / "damaged.pt2"
        damaged.write_bytes(whole[: len(whole) // 2])
        return damaged


def _is(version: int, state: VersionState) -> Callable[[Versions, Tally], bool]:
    """Whether the server reports that state for the version."""
    return lambda versions, tally: version in versions and versions[version].state is state


class _StepWatch:
    """Polls the server and the clients, shows their states, and waits for states."""

    def __init__(self, view: DemoView, server: DemoServer, client: Client, traffic: Traffic, seconds: float) -> None:
        self._view = view
        self._server = server
        self._client = client
        self._traffic = traffic
        self._seconds = seconds

    def versions(self) -> Versions:
        """The server's versions of the model; none while it does not answer."""
        try:
            return {status.version: status for status in self._client.status(demo_model.NAME)}
        except ServingError:
            return {}

    def until(self, what: str, reached: Callable[[Versions, Tally], bool]) -> None:
        """Returns when the state is reached. Raises StuckError after the time limit, or if the server has ended."""
        deadline = time.monotonic() + self._seconds
        while True:
            versions, tally = self.versions(), self._traffic.tally()
            self._view.show(versions, tally)
            if reached(versions, tally):
                return
            if self._server.exit_code is not None:
                raise StuckError(f"the server ended by itself: {self._server.last_log_line()}")
            if time.monotonic() > deadline:
                raise StuckError(f"not within {self._seconds:g} s: {what}; {self._server.last_log_line()}")
            time.sleep(_LOOK_AGAIN)
