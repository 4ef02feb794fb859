"""Four hours of numbers for each version, made from the counters that exist: 2 s apart for ten minutes, 60 s apart for
four hours.

    counters -> Counts, every 2 s -> two rings of points for each version -> what the page draws

A number is a rate, a mean or a quantile of the time between two points, or the state at the second one. A version that
was never asked has no points and costs nothing; of the others the 256 most recently asked are kept. A version has at
most 16 numbers of 540 points of 4 bytes, 34 KiB, so that all take at most 9 MiB.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from tfs_lite.metrics.requests import LATENCY_BUCKETS

FINE_SECONDS, FINE_POINTS = 2.0, 300
COARSE_SECONDS, COARSE_POINTS = 60.0, 240
MINUTE_POINTS = 30
"""Fine points of a minute."""
MAX_VERSIONS = 256
"""The most versions whose points are kept."""
NO_NUMBER = math.nan

Key: TypeAlias = tuple[str, str]
"""Model and version. The version is empty for requests that reached none of the model."""
TOTAL: Key = ("", "")
"""Everything together."""
Numbers: TypeAlias = dict[str, float]
"""The numbers by signal: ``requests`` and ``errors`` are predictions a second, failed ones among them, and those that
failed, and ``faults`` those of them that are not their callers'; ``p50`` and ``p99`` seconds of an answer; ``queue``
and ``run`` the mean seconds of a call before its run, and of a run; ``rows`` and ``padding`` the mean rows of requests
in a run, and those added to it; ``waiting`` the calls that wait for a run; ``in_flight`` the requests that hold the
version; ``memory`` its bytes; ``tokens`` the output tokens a second; ``texts``, ``texts_waiting`` and ``cache`` the
texts that run and that wait, and the share of the cache that is kept for those that run."""
GAUGES = ("waiting", "in_flight", "memory", "texts", "texts_waiting", "cache")
"""States. A point of the coarse ring has the highest of its minute."""


@dataclass(slots=True)
class Counts:
    """The counts of one version since its counters began, and its state now. ``seconds`` is a histogram's cell with the
    limits of request times. Texts None: it is no language model."""

    requests: float = 0.0
    failures: float = 0.0
    seconds: Sequence[float] = ()
    waits: float = 0.0
    wait_seconds: float = 0.0
    runs: float = 0.0
    rows: float = 0.0
    padding: float = 0.0
    timed_runs: float = 0.0
    run_seconds: float = 0.0
    tokens: float = 0.0
    gauges: dict[str, float] = field(default_factory=dict)
    faults: float = 0.0

    @property
    def used(self) -> bool:
        """Whether anything was ever asked of it."""
        return bool(self.requests or self.runs or self.tokens)

    def since(self, before: Counts | None) -> Counts:
        """The counts since ``before``; everything if the counters have begun anew in between."""
        if before is None or self.requests < before.requests or self.runs < before.runs or self.tokens < before.tokens:
            return self
        seconds = self.seconds
        if before.seconds and seconds:
            seconds = [now - then for now, then in zip(seconds, before.seconds, strict=True)]
        return Counts(
            self.requests - before.requests,
            self.failures - before.failures,
            seconds,
            self.waits - before.waits,
            self.wait_seconds - before.wait_seconds,
            self.runs - before.runs,
            self.rows - before.rows,
            self.padding - before.padding,
            self.timed_runs - before.timed_runs,
            self.run_seconds - before.run_seconds,
            self.tokens - before.tokens,
            self.gauges,
            self.faults - before.faults,
        )

    def numbers_since(self, before: Counts | None, elapsed: float) -> Numbers:
        """The numbers of the counts since ``before``, in ``elapsed`` seconds: most of many models were not asked
        then."""
        if before is None or self._counted != before._counted:
            return self.since(before).numbers(elapsed)
        tokens = {"tokens": 0.0} if "texts" in self.gauges else {}
        return {"requests": 0.0, "errors": 0.0, "faults": 0.0, **self.gauges, **tokens}

    @property
    def _counted(self) -> tuple[float, ...]:
        return self.requests, self.failures, self.waits, self.runs, self.timed_runs, self.tokens

    def add(self, other: Counts) -> None:
        """Adds the counts of another version, and its gauges but for shares."""
        self.requests += other.requests
        self.failures += other.failures
        self.faults += other.faults
        if other.seconds:
            self.seconds = (
                [a + b for a, b in zip(self.seconds, other.seconds, strict=True)] if self.seconds else [*other.seconds]
            )
        self.waits += other.waits
        self.wait_seconds += other.wait_seconds
        self.runs += other.runs
        self.rows += other.rows
        self.padding += other.padding
        self.timed_runs += other.timed_runs
        self.run_seconds += other.run_seconds
        self.tokens += other.tokens
        for name, value in other.gauges.items():
            if name != "cache":
                self.gauges[name] = self.gauges.get(name, 0.0) + value

    def numbers(self, elapsed: float) -> Numbers:
        """The numbers of the counts in ``elapsed`` seconds. A mean or quantile of nothing is left out."""
        found = {"requests": self.requests / elapsed, "errors": self.failures / elapsed, **self.gauges}
        found["faults"] = self.faults / elapsed
        if self.seconds and any(self.seconds[:-1]):
            found["p50"] = quantile(0.5, self.seconds)
            found["p99"] = quantile(0.99, self.seconds)
        if self.waits > 0:
            found["queue"] = self.wait_seconds / self.waits
        if self.timed_runs > 0:
            found["run"] = self.run_seconds / self.timed_runs
        if self.runs > 0:
            found["rows"] = self.rows / self.runs
            found["padding"] = self.padding / self.runs
        if "texts" in self.gauges:
            found["tokens"] = self.tokens / elapsed
        return found


def quantile(share: float, cell: Sequence[float], limits: Sequence[float] = LATENCY_BUCKETS) -> float:
    """The quantile as Prometheus' ``histogram_quantile`` computes it: evenly spread in each bucket; beyond the last
    limit, that limit."""
    running = list(accumulate(cell[:-1]))
    wanted = share * running[-1]
    bucket = min(bisect_left(running, wanted), len(limits))
    if bucket == len(limits):
        return limits[-1]
    low = limits[bucket - 1] if bucket else 0.0
    before = running[bucket - 1] if bucket else 0.0
    return low + (limits[bucket] - low) * (wanted - before) / (running[bucket] - before or 1.0)


def _sum(versions: Sequence[Counts]) -> Counts:
    """The sum over the versions of a model, which mostly has one. Shares are left out."""
    if len(versions) == 1 and "cache" not in versions[0].gauges:
        return versions[0]
    total = Counts()
    for found in versions:
        total.add(found)
    return total


class Ring:
    """The points of every version, ``step`` seconds apart, ``points`` of them. One thread at a time."""

    def __init__(self, step: float, points: int) -> None:
        self.step = step
        self.points = points
        self.tick = -1
        """The number of the last point: its time, in seconds since 1970, divided by the step. -1: there is none."""
        self._time = 0.0
        self._before: dict[Key, Counts] = {}
        self._peaks: dict[Key, dict[str, float]] = {}
        self._tracks: dict[Key, dict[str, array[float]]] = {}

    def add(self, now: float, counts: Mapping[Key, Counts]) -> dict[Key, Numbers] | None:
        """Makes a point if it is time for one, and returns its numbers. ``now`` is in seconds since 1970; when the
        clock is set back the points begin anew."""
        tick = int(now / self.step)
        if tick == self.tick or self._peaks:
            self._note_peaks(counts)
        if tick == self.tick:
            return None
        elapsed = now - self._time
        if self.tick < 0 or tick < self.tick:
            self._tracks.clear()
            numbers: dict[Key, Numbers] = {}
        else:
            numbers = {key: found.numbers_since(self._before.get(key), elapsed) for key, found in counts.items()}
            for key, peaks in self._peaks.items():
                if key in numbers:
                    numbers[key].update(peaks)
            self._write(self.tick, tick, numbers)
        self.tick, self._time, self._before, self._peaks = tick, now, dict(counts), {}
        return numbers

    def keep(self, keys: Sequence[Key]) -> None:
        """Keeps the points of exactly these from now on."""
        for key in [key for key in self._tracks if key not in keys]:
            del self._tracks[key]
        for key in keys:
            self._tracks.setdefault(key, {})

    def read(self, key: Key) -> dict[str, list[float | None]]:
        """The points of each signal that has any, the oldest first; None where there is no number."""
        at = (self.tick + 1) % self.points
        return {
            signal: [None if value != value else value for value in (*track[at:], *track[:at])]  # not NaN
            for signal, track in self._tracks.get(key, {}).items()
        }

    def tail(self, key: Key, signal: str, count: int) -> list[float]:
        """The last points of one signal, 0 where there is no number."""
        return [value if value == value else 0.0 for value in self._last(key, signal, count)]

    def recent(self, key: Key, signal: str, count: int) -> list[float]:
        """Those of the last points of one signal that are numbers."""
        return [value for value in self._last(key, signal, count) if value == value]

    def _last(self, key: Key, signal: str, count: int) -> Sequence[float]:
        track = self._tracks.get(key, {}).get(signal)
        if track is None:
            return [NO_NUMBER] * count
        return [track[number % self.points] for number in range(self.tick + 1 - count, self.tick + 1)]

    def _note_peaks(self, counts: Mapping[Key, Counts]) -> None:
        for key, found in counts.items():
            if found.gauges:
                peaks = self._peaks.setdefault(key, {})
                for name, value in found.gauges.items():
                    if value > peaks.get(name, -1.0):
                        peaks[name] = value

    def _write(self, last: int, tick: int, numbers: Mapping[Key, Numbers]) -> None:
        """Points that were missed, because the machine slept, have no numbers."""
        missed = range(max(last + 1, tick - self.points + 1), tick)
        for key, track in self._tracks.items():
            found = numbers.get(key, {})
            for signal in found.keys() - track.keys():
                track[signal] = array("f", [NO_NUMBER]) * self.points
            for signal, values in track.items():
                for skipped in missed:
                    values[skipped % self.points] = NO_NUMBER
                values[tick % self.points] = found.get(signal, NO_NUMBER)


@dataclass(frozen=True, slots=True)
class LatestNumbers:
    """The numbers of the last point of the fine ring: of everything, of each model and of each version that was ever
    asked."""

    tick: int = -1
    total: Numbers = field(default_factory=dict)
    models: Mapping[str, Numbers] = field(default_factory=dict)
    versions: Mapping[Key, Numbers] = field(default_factory=dict)


class DashboardSeries:
    """``start`` -> reads from any thread -> ``close``. A thread of its own reads the counters."""

    def __init__(self, read: Callable[[], Mapping[Key, Counts]], wall: Callable[[], float] = time.time) -> None:
        """``read`` is called on that thread, every two seconds. It has under ``TOTAL`` what is to be added to the sum
        of the others."""
        self._read = read
        self._wall = wall
        self._lock = threading.Lock()  # guards the rings
        self._fine, self._coarse = Ring(FINE_SECONDS, FINE_POINTS), Ring(COARSE_SECONDS, COARSE_POINTS)
        self._used: dict[Key, float] = {}  # when each was asked last, by the counter of its requests; this thread only
        self._requests: dict[Key, float] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.latest = LatestNumbers()
        """Replaced as a whole, as is the next one."""
        self.kept: list[Key] = []
        """The versions that have points, those that were asked last first."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tfs-series", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def sample(self) -> None:
        """Reads the counters once. Called by the thread, and by tests in its place."""
        now, counts = self._wall(), dict(self._read())
        total = Counts()
        total.add(counts.pop(TOTAL, Counts()))
        models: dict[str, list[Counts]] = {}
        for (model, _), found in counts.items():
            models.setdefault(model, []).append(found)
            total.add(found)
        kept = self.kept = self._choose(now, counts)
        by_model = {(model, "*"): _sum(versions) for model, versions in models.items()}
        with self._lock:
            for ring in (self._fine, self._coarse):
                ring.keep([TOTAL, *kept])
            numbers = self._fine.add(now, {**counts, **by_model, TOTAL: total})
            self._coarse.add(now, {**{key: counts[key] for key in kept if key in counts}, TOTAL: total})
        if numbers is not None:
            self.latest = LatestNumbers(
                self._fine.tick,
                numbers.get(TOTAL, {}),
                {model: numbers[model, "*"] for model in models if (model, "*") in numbers},
                {key: numbers[key] for key in counts if key in numbers},
            )

    def history(
        self, keys: Sequence[Key], coarse: bool
    ) -> tuple[float, float, dict[Key, dict[str, list[float | None]]]]:
        """The seconds between two points, the time of the last one in seconds since 1970, and the points of those that
        have any."""
        ring = self._coarse if coarse else self._fine
        with self._lock:
            found = {key: points for key in keys if (points := ring.read(key))}
            return ring.step, ring.tick * ring.step, found

    def of_model(self, model: str, coarse: bool) -> tuple[float, float, dict[Key, dict[str, list[float | None]]]]:
        """The same, of every version of the model."""
        return self.history([key for key in self.kept if key[0] == model], coarse)

    def last_minute(self, key: Key, signal: str) -> float | None:
        """The mean of the fine points of a version; None if it has none."""
        with self._lock:
            found = self._fine.recent(key, signal, MINUTE_POINTS)
        return sum(found) / len(found) if found else None

    def count(self, key: Key, signal: str, seconds: float) -> int:
        """The count for a version in the last ``seconds``, of a signal that is a rate per second."""
        with self._lock:
            found = self._fine.tail(key, signal, int(seconds / FINE_SECONDS))
        return round(sum(found) * FINE_SECONDS)

    def sparks(self, count: int, step: int, most: int) -> dict[str, list[float]]:
        """Requests a second of each model, of at most ``most``: ``count`` numbers, each the mean of ``step`` fine
        points."""
        found: dict[str, list[float]] = {}
        for model, version in self.kept:
            if model in found or len(found) < most:
                with self._lock:
                    tail = self._fine.tail((model, version), "requests", count * step)
                means = [sum(tail[at : at + step]) / step for at in range(0, len(tail), step)]
                found[model] = [a + b for a, b in zip(found.get(model, [0.0] * count), means, strict=True)]
        return {model: [round(value, 3) for value in values] for model, values in found.items() if any(values)}

    def _choose(self, now: float, counts: Mapping[Key, Counts]) -> list[Key]:
        """Chooses the versions whose points are kept: those that were asked last. One that is gone is forgotten after
        four hours."""
        for key, found in counts.items():
            asked = found.requests + found.runs + found.tokens
            if asked and self._requests.get(key) != asked:
                self._requests[key], self._used[key] = asked, now
        oldest = now - COARSE_SECONDS * COARSE_POINTS
        kept = sorted(self._used, key=lambda key: self._used[key], reverse=True)[:MAX_VERSIONS]
        kept = [key for key in kept if key in counts or self._used[key] > oldest]
        self._used = {key: self._used[key] for key in kept}
        self._requests = {key: self._requests[key] for key in kept}
        return kept

    def _run(self) -> None:
        while not self._closed.wait(FINE_SECONDS - self._wall() % FINE_SECONDS):
            try:
                self.sample()
            except Exception:
                logging.getLogger(__name__).exception("the numbers of the dashboard could not be read")
