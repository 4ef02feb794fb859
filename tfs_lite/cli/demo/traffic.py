"""The demo's clients: threads that send pictures of digits without pause, and check every answer."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tfs_lite.cli.demo.model import NAME, Digits
from tfs_lite.client import Client
from tfs_lite.core.status import ServingError, StatusCode, status_of

PICTURES_PER_REQUEST = 8
_RECENT_REQUESTS = 200
_LAST_ANSWER_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class VersionTally:
    """The answers of one version. ``least_per_client`` is the smallest number of answers that a client got."""

    requests: int
    correct: int
    least_per_client: int

    @property
    def accuracy(self) -> float:
        """The share of pictures that it classified correctly."""
        return self.correct / (self.requests * PICTURES_PER_REQUEST) if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Tally:
    """All answers so far; ``recent_accuracy`` is that of the last few hundred pictures."""

    versions: Mapping[int, VersionTally]
    failures: int
    first_failure: str
    recent_accuracy: float

    @property
    def requests(self) -> int:
        return sum(version.requests for version in self.versions.values())

    def version(self, number: int) -> VersionTally:
        return self.versions.get(number, VersionTally(0, 0, 0))


class Traffic:
    """Clients with a connection each, calling while the ``with`` block runs. Any thread may call ``tally``."""

    def __init__(self, target: str, digits: Digits, clients: int) -> None:
        self._target = target
        self._digits = digits
        self._lock = threading.Lock()  # guards the five below
        self._requests: Counter[tuple[int, int]] = Counter()  # by version and client
        self._correct: Counter[int] = Counter()  # by version
        self._recent: deque[int] = deque(maxlen=_RECENT_REQUESTS)
        self._failures = 0
        self._first_failure = ""
        self._stopping = threading.Event()
        self._clients = range(clients)
        self._threads = [
            threading.Thread(target=self._call_on, args=(client,), name=f"demo-client-{client}", daemon=True)
            for client in self._clients
        ]

    def tally(self) -> Tally:
        with self._lock:
            versions = {
                number: VersionTally(
                    requests=sum(self._requests[number, client] for client in self._clients),
                    correct=correct,
                    least_per_client=min(self._requests[number, client] for client in self._clients),
                )
                for number, correct in sorted(self._correct.items())
            }
            recent = sum(self._recent) / (len(self._recent) * PICTURES_PER_REQUEST) if self._recent else 0.0
            return Tally(versions, self._failures, self._first_failure, recent)

    def stop(self) -> None:
        """Stops the clients and waits for the last answers; a missing answer is a failure."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_LAST_ANSWER_TIMEOUT)
            if thread.is_alive():
                self._fail(ServingError(StatusCode.DEADLINE_EXCEEDED, f"{thread.name} got no answer"))

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _call_on(self, client: int) -> None:
        random = np.random.default_rng(client)
        with Client(self._target) as connection:
            while not self._stopping.is_set():
                chosen = random.integers(len(self._digits.labels), size=PICTURES_PER_REQUEST)
                try:
                    answer = connection.predict(NAME, {"images": self._digits.images[chosen]})
                    correct = int((answer.outputs["digit"] == self._digits.labels[chosen]).sum())
                except Exception as error:  # every error is a failed request, which is counted
                    self._fail(error)
                    continue
                self._succeed(client, answer.version, correct)

    def _succeed(self, client: int, version: int, correct: int) -> None:
        with self._lock:
            self._requests[version, client] += 1
            self._correct[version] += correct
            self._recent.append(correct)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            self._first_failure = self._first_failure or str(status_of(error))
