"""Every version has exactly one verdict at every moment, and it agrees with what a lookup does: 10,000 random steps of
disks, configs, loads and requests, in virtual time. A run is its seed."""

from __future__ import annotations

import logging
import random

import pytest

from tests.support.lifecycle.simulated_models import BASES, Arrival, Flaw, Recipe
from tests.support.lifecycle.simulation import RETRY_INTERVAL, Simulation, SimulationOptions
from tests.support.lifecycle.verdict_checker import VerdictChecker
from tfs_lite.core.servable import ModelRef
from tfs_lite.operations.explain.explanation import Verdict
from tfs_lite.sources.source_config import ServableToMonitor
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy, VersionPolicy

NAMES = ("a", "b", "c")
UNKNOWN = "nobody"
VERSIONS = range(1, 6)
STEPS, WORLDS = 10_000, 40
POLICIES: tuple[VersionPolicy, ...] = (LatestPolicy(), LatestPolicy(2), AllPolicy(), SpecificPolicy((3, 1)))


class RandomServer:
    """One simulated server, and something that happens to it."""

    def __init__(self, seed: int, policy: str) -> None:
        self._random = random.Random(seed)
        self._simulation = Simulation(SimulationOptions(policy, self._random.choice([0.0, 2.0])), self._config())
        self._checker = VerdictChecker(self._simulation)

    def run(self, steps: int) -> set[Verdict]:
        """Returns the verdicts that were given."""
        try:
            for _ in range(steps):
                self._step()
                asked = ModelRef(self._random.choice(NAMES), self._random.choice([None, *VERSIONS]))
                self._checker.check((*NAMES, UNKNOWN), VERSIONS, asked)
        finally:
            self._simulation.close()
        return self._checker.seen

    def _config(self) -> dict[str, tuple[ServableToMonitor, int]]:
        choose = self._random.choice
        chosen = [(name, base) for name, base in zip(NAMES, BASES, strict=False) if self._random.random() < 0.9]
        return {
            name: (ServableToMonitor(name, base, choose(POLICIES)), choose([0, 0, 0, 1, 2])) for name, base in chosen
        }

    def _step(self) -> None:
        weights = {
            self._write: 4,
            self._change_base: 1,
            self._reload: 1,
            self._let_time_pass: 2,
            self._simulation.poll: 6,
            self._tick: 8,
            self._move: 12,
            self._request: 4,
            self._room: 1,
        }
        self._random.choices(list(weights), list(weights.values()))[0]()

    def _write(self) -> None:
        store, choose = self._simulation.store, self._random.choice
        base, version = choose(BASES), choose(VERSIONS)
        there = version in store.bases.get(base, {})
        if there and self._random.random() < 0.4:
            store.delete(base, version)
        elif there and self._random.random() < 0.5:
            store.finish(base, version)
        elif there:
            store.overwrite(base, version, self._recipe())
        else:
            store.push(base, version, self._recipe(), choose(list(Arrival)))

    def _recipe(self) -> Recipe:
        choose = self._random.choice
        return Recipe(
            ram=choose([1, 2, 3, 5, 9]),
            load_failures=choose([0, 0, 0, 1, 3]),
            flaw=choose([Flaw.NONE] * 8 + list(Flaw)),
            remote=choose([False, False, True]),
        )

    def _change_base(self) -> None:
        store, base = self._simulation.store, self._random.choice(BASES)
        store.make_base(base)
        change = self._random.choice([store.allow, store.allow, store.deny, store.remove_base])
        change(base)

    def _reload(self) -> None:
        self._simulation.reload(self._config())

    def _let_time_pass(self) -> None:
        self._simulation.advance(self._random.choice([0.5, 2.5, RETRY_INTERVAL]))

    def _tick(self) -> None:
        self._simulation.tick()

    def _move(self) -> None:
        self._simulation.move(self._random.choice([self._simulation.loads, self._simulation.unloads]))

    def _request(self) -> None:
        handles = self._simulation.checker.handles
        if handles and self._random.random() < 0.5:
            self._simulation.release_handle(self._random.randrange(len(handles)))
        else:
            self._simulation.take_handle(ModelRef(self._random.choice(NAMES)))

    def _room(self) -> None:
        self._simulation.change_room(self._random.choice(NAMES), self._random.random() < 0.5)


@pytest.mark.timeout(600)
def test_every_version_has_one_verdict_at_every_moment_and_it_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite"), "propagate", False)
    first, seen = random.SystemRandom().randrange(2**32), set[Verdict]()
    for world in range(WORLDS):
        seed = first + world
        try:
            seen |= RandomServer(seed, ("availability", "resource")[world % 2]).run(STEPS // WORLDS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, world {world % 2}: {error}") from error
    everyday = {Verdict.SERVING, Verdict.LOADING, Verdict.WAITING, Verdict.FAILED, Verdict.LEAVING}
    rare = {Verdict.NOT_WANTED, Verdict.NOT_ON_DISK, Verdict.NOT_CONFIGURED}
    assert everyday | rare <= seen
