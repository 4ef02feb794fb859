"""Calls the model ``ranker`` from several threads, and counts what its callers get: answers by version, and errors.

    python examples/guarded_versions/call.py [--server localhost:8500] [--seconds 60]

It prints a line a second until Ctrl-C. An answer that is no number counts as an error. The exit code is 1 if there was
an error.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from types import TracebackType

import numpy as np

from tfs_lite import Client
from tfs_lite.core.status import ServingError

MODEL = "ranker"
CALLERS = 20
PAUSE = 0.1
"""Seconds between an answer and the caller's next request."""


class Callers:
    """Threads that call the model while the ``with`` block runs. ``versions`` counts answers, ``errors`` the rest."""

    def __init__(self, target: str, callers: int = CALLERS) -> None:
        self.versions, self.errors = Counter[int](), Counter[str]()
        self._client = Client(target)
        self._lock = threading.Lock()  # guards the two counters
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call_on) for _ in range(callers)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def told(self) -> str:
        with self._lock:
            versions = ", ".join(f"version {version}: {count:,}" for version, count in sorted(self.versions.items()))
            return f"answers of {versions or 'nobody'}; errors: {self.errors.total():,}"

    def _call_on(self) -> None:
        while not self._stop.wait(PAUSE):
            self._call([random.random() for _ in range(4)])

    def _call(self, row: list[float]) -> None:
        try:
            answer = self._client.predict(MODEL, {"x": [row]})
        except ServingError as error:
            with self._lock:
                self.errors[str(error)] += 1
            return
        with self._lock:
            if np.isfinite(answer.outputs["scores"]).all():
                self.versions[answer.version] += 1
            else:
                self.errors[f"version {answer.version} answered {answer.outputs['scores']}"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="localhost:8500", help="gRPC address")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    began = time.monotonic()
    with Callers(arguments.server) as callers:
        try:
            while (passed := time.monotonic() - began) < arguments.seconds:
                print(f"{passed:4.0f} s  {callers.told()}", flush=True)
                time.sleep(min(1.0, arguments.seconds - passed))
        except KeyboardInterrupt:
            print()
    for what, count in callers.errors.most_common(5):
        print(f"{count} x {what}")
    print(f"errors: {callers.errors.total()}")
    sys.exit(callers.errors.total() > 0)


if __name__ == "__main__":
    main()
