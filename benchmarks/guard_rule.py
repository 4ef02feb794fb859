"""How soon a bad version is taken back, and how often one that is as good as the old: simulated trials.

    python benchmarks/guard_rule.py             all trials; about three minutes on one core
    python benchmarks/guard_rule.py --quick     a few trials of each, in seconds: it only shows that it runs

The evidence is the server's own (``tfs_lite/operations/guard/evidence.py``), in virtual time; requests, versions and
their failures are simulated. Fails if a version that is as good as the old was taken back, or if a median is more than
a tenth from ``EXPECTED``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.core.trial import Ending, TrialEnding
from tfs_lite.operations.guard.evidence import KEPT_IN_SPAN, RULE_2_FAILURES, SPAN_SECONDS, Ran, TrialEvidence
from tfs_lite.operations.guard.trial import LAST_VOTES_SECONDS, Judgement, TrialSettings
from tfs_lite.protocols.runs import Run

Shares = NDArray[np.float64]
"""For each second, the share of runs that fail."""
Disturb = Callable[[random.Random, Shares, Shares], None]
"""Adds to the shares of the new and of the old version."""

RATES = (2.0, 20.0, 200.0)
SLOW_RATE = 0.2
BAKE, LONG_BAKE = 600.0, 3600.0
RUN_SECONDS = 0.005
WELL = TrialEnding(Ending.WELL)
INTERNAL = Status(StatusCode.INTERNAL, "it failed")
NEW_ONLY, BOTH, BY_CHANCE = "fails on the new version", "fails on both", "fails by chance"
RUNS = {kind: (Run(kind, {}),) for kind in (NEW_ONLY, BOTH, BY_CHANCE)}


@dataclass(frozen=True)
class Push:
    """How two versions fail: shares of requests, which fail in each run, and shares of runs, by chance. ``disturb``
    adds what changes with time. ``new_seconds``: the time of a run of the new version."""

    new_requests: float = 0.0
    new_runs: float = 0.0
    both_requests: float = 0.0
    both_runs: float = 0.0
    new_seconds: float = RUN_SECONDS
    disturb: Disturb | None = None

    def shares(self, rng: random.Random, seconds: int) -> tuple[Shares, Shares]:
        """The shares of runs of each version that fail by chance, in each second."""
        new = np.full(seconds, 1 - (1 - self.new_runs) * (1 - self.both_runs))
        old = np.full(seconds, self.both_runs)
        if self.disturb is not None:
            self.disturb(rng, new, old)
        return new, old


@dataclass(frozen=True)
class Result:
    """``seconds`` until it was taken back; None: never. ``outlasted``: the trial was longer than its bake. ``lost``:
    the share of its failures that the old version did not answer."""

    seconds: float | None
    outlasted: bool
    lost: float


class Trial:
    """One trial. Seconds in which nothing fails cost next to nothing, and of a second with many failures only those are
    told that may count."""

    def __init__(self, push: Push, rate: float, bake: float, seed: int) -> None:
        self._push = push
        self._settings = TrialSettings(bake)
        self._rng = random.Random(seed)
        generator = np.random.default_rng(seed)
        seconds = int(self._settings.longest(Judgement(leaning=True)))
        self._new, self._old = push.shares(self._rng, seconds)
        self._certain = 1 - (1 - push.new_requests) * (1 - push.both_requests)
        self._fails = 1 - (1 - self._certain) * (1 - self._new)
        requests = generator.poisson(rate, seconds)
        failed = generator.binomial(requests, self._fails)
        self._answered = int(np.argmax(requests > failed)) if (requests > failed).any() else seconds
        """The first second in which a request is answered well."""
        self._failed: list[int] = failed.tolist()
        self._now = 0.0
        self._told = 0  # failures of this span
        self._evidence = TrialEvidence(ServableId("m", 8), 7, lambda: self._now)

    def run(self) -> Result:
        ends = self._settings.bake_seconds + LAST_VOTES_SECONDS
        evidence, span = self._evidence, int(SPAN_SECONDS)
        for second, failed in enumerate(self._failed):
            self._now = second + 0.5
            if second == self._answered:
                evidence.on_end(WELL)
            if failed:
                self._requests(second, failed)
            self._pairs(second)
            self._now = now = second + 1.0
            if (second + 1) % span and second > self._answered:
                continue  # no vote, and no rule 2
            judgement = evidence.judgement(now)
            if judgement.rule:
                return self._result(now)
            if now % span == 0:
                self._told = 0
                if now >= ends and not judgement.leaning:
                    break
        return self._result(None)

    def _result(self, seconds: float | None) -> Result:
        ends, counts = self._settings.bake_seconds + LAST_VOTES_SECONDS, self._evidence.counts
        return Result(seconds, self._now > ends, counts.lost / max(counts.failed, 1))

    def _requests(self, second: int, failed: int) -> None:
        most = KEPT_IN_SPAN if second >= self._answered else RULE_2_FAILURES
        for _ in range(min(failed, most - self._told)):
            self._told += 1
            kind = self._kind(second)
            old_failed = self._side_fails(kind, self._old[second], new=False)
            ending = TrialEnding(
                Ending.FAULT, INTERNAL, shielded=not old_failed, old_failed=old_failed, runs=RUNS[kind]
            )
            self._evidence.on_end(ending)

    def _kind(self, second: int) -> str:
        """Of a request that has failed on the new version."""
        drawn = self._rng.random() * self._fails[second]
        if drawn < self._push.new_requests:
            return NEW_ONLY
        return BOTH if drawn < self._certain else BY_CHANCE

    def _pairs(self, second: int) -> None:
        while (pair := self._evidence.due(self._now)) is not None:
            (run,) = pair.runs
            new = Ran(self._push.new_seconds, self._side_fails(run.signature, self._new[second], new=True))
            old = Ran(RUN_SECONDS, self._side_fails(run.signature, self._old[second], new=False))
            self._evidence.on_pair(pair, new, old)
            self._now += 0.05

    def _side_fails(self, kind: str, share: float, *, new: bool) -> bool:
        return kind is BOTH or (new and kind is NEW_ONLY) or self._rng.random() < share


# What disturbs equal versions. Times in seconds.


def spells(every: float, shortest: float, longest: float, share: float, *, alike: bool) -> Disturb:
    """Spells in which so many runs fail, at random times: of both versions at once, or of each by itself."""

    def disturb(rng: random.Random, new: Shares, old: Shares) -> None:
        for shares in ((new, old),) if alike else ((new,), (old,)):
            at = 0.0
            while (at := at + rng.expovariate(1 / every)) < len(new):
                end = at + rng.uniform(shortest, longest)
                for each in shares:
                    each[int(at) : int(end) + 1] = 1 - (1 - each[int(at) : int(end) + 1]) * (1 - share)
                at = end

    return disturb


def together(*disturbs: Disturb) -> Disturb:
    def disturb(rng: random.Random, new: Shares, old: Shares) -> None:
        for each in disturbs:
            each(rng, new, old)

    return disturb


OUTAGES = spells(600, 30, 120, 1.0, alike=True)
SHARED_SPELLS = spells(120, 10, 60, 0.5, alike=True)
OWN_SPELLS = spells(60, 1, 8, 0.8, alike=False)
LONG_OWN_SPELLS = spells(300, 20, 60, 0.8, alike=False)

EQUAL = tuple(
    push
    for share in (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
    for push in (Push(both_requests=share), Push(both_runs=share))
)
DISTURBED = (
    Push(disturb=OUTAGES),
    Push(both_runs=0.01, disturb=SHARED_SPELLS),
    Push(disturb=OWN_SPELLS),
    Push(both_runs=0.05, disturb=OWN_SPELLS),
    Push(both_requests=0.2),
    Push(both_requests=0.5, both_runs=0.02),
    Push(both_requests=0.1, disturb=together(OUTAGES, OWN_SPELLS)),
    Push(both_requests=0.02, both_runs=0.02, disturb=together(OUTAGES, SHARED_SPELLS, OWN_SPELLS)),
)
"""A share of requests that fails on both is a client that sends what neither can take."""


@dataclass(frozen=True)
class Row:
    """A line of the table, for a push that is worse. ``expected``: the median seconds at each rate; None: never, or in
    fewer than half of the trials; 0.0: not judged."""

    name: str
    push: Push
    expected: Sequence[float | None]


EXPECTED = (
    Row("raises, answers NaN, or refuses: always", Push(new_requests=1.0), (11, 11, 11)),
    Row("20 % of requests, the same ones each time", Push(new_requests=0.2), (160, 160, 160)),
    Row("20 % of runs, at random", Push(new_runs=0.2), (280, 210, 210)),
    Row("5 % of requests", Push(new_requests=0.05), (240, 160, 160)),
    Row("1 % of requests", Push(new_requests=0.01), (810, 180, 160)),
    Row("0.1 % of requests", Push(new_requests=0.001), (None, 850, 180)),
    Row("5 % of runs", Push(new_runs=0.05), (0.0, 560, 560)),
    Row("2 % of runs", Push(new_runs=0.02), (None, 1960, 1310)),
    Row("10 % fail on both, 5 % of requests on new", Push(new_requests=0.05, both_runs=0.1), (400, 240, 250)),
    Row("three times slower, 1 % fail on both", Push(both_runs=0.01, new_seconds=3 * RUN_SECONDS), (None,) * 3),
)
SLOW = (
    Row("raises: always, at 0.2 requests/s", EXPECTED[0].push, (50,)),
    Row("20 % of requests, at 0.2 requests/s", EXPECTED[1].push, (460,)),
)


@dataclass
class Report:
    """Prints as it goes, and remembers what is wrong."""

    wrong: list[str] = field(default_factory=list)

    def worse(self, row: Row, rates: Sequence[float], trials: int) -> None:
        cells, lost = [], list[float]()
        for rate, expected in zip(rates, row.expected, strict=True):
            results = run([row.push], rate, BAKE, trials)
            times = [result.seconds for result in results if result.seconds is not None]
            cells.append(found(times, trials))
            lost += [result.lost for result in results]
            if not as_expected(times, trials, expected):
                self.wrong.append(f"{row.name} at {rate:g}/s: {cells[-1]}, expected {expected}")
        share = statistics.fmean(lost)
        self.line(row.name, [*cells, f"{share:.0%} of its failures" if share else "0"])

    def equal(self, name: str, pushes: Sequence[Push], bake: float, trials: int, *, judged: bool = True) -> None:
        cells, longer = [], []
        for rate in RATES:
            results = run(pushes, rate, bake, trials)
            taken = sum(result.seconds is not None for result in results)
            cells.append(f"{taken} of {len(results):,}")
            longer.append(f"{sum(result.outlasted for result in results) / len(results):.1%}")
            if taken and judged:
                self.wrong.append(f"{name} at {rate:g}/s: {cells[-1]} taken back")
        self.line(name, [*cells, ""])
        self.line("... their trials outlast the bake", [*longer, ""])

    def line(self, name: str, cells: Iterable[str]) -> None:
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def run(pushes: Sequence[Push], rate: float, bake: float, trials: int) -> list[Result]:
    """So many trials, of the pushes in turn. The same ones each time that it is called."""
    return [Trial(pushes[seed % len(pushes)], rate, bake, seed).run() for seed in range(trials)]


def found(times: Sequence[float], trials: int) -> str:
    if not times:
        return "never"
    share = "" if len(times) == trials else f"{len(times) / trials:.0%} found, "
    return f"{share}{statistics.median(times):.0f} s"


def as_expected(times: Sequence[float], trials: int, expected: float | None) -> bool:
    if expected is None:
        return len(times) < 0.1 * trials
    if not expected:
        return True
    return bool(times) and abs(statistics.median(times) - expected) <= 0.1 * expected


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few trials of each, and no verdict on their medians")
    quick = parser.parse_args(arguments).quick
    worse, equal, disturbed, bake = (4, 14, 8, 600.0) if quick else (200, 2800, 2400, LONG_BAKE)
    began, report = time.process_time(), Report()
    report.line(
        f"bake {BAKE:.0f} s; median time to the verdict", [*(f"{rate:g} requests/s" for rate in RATES), "clients lose"]
    )
    report.line("---", ["--:"] * (len(RATES) + 1))
    for row in EXPECTED:
        report.worse(row, RATES, worse)
    report.equal("as good as old, 0 to 10 % fail: taken back", EQUAL, BAKE, equal)
    report.equal(f"as good, spells, outages, bad clients, {bake / 60:.0f} minutes", DISTURBED, bake, disturbed)
    own = Push(disturb=LONG_OWN_SPELLS)
    report.equal("as good, each with spells of its own of 20 to 60 s", [own], BAKE, worse, judged=False)
    for row in SLOW:
        report.worse(row, [SLOW_RATE], worse)
    print(f"{time.process_time() - began:.0f} s of one core")
    for text in () if quick else report.wrong:
        print(f"not as expected: {text}")
    return 1 if report.wrong and not quick else 0


if __name__ == "__main__":
    sys.exit(main())
