"""A client that asks at a steady rate while something else is done to its server, in a process of its own.

    with Bystander(port, path, message, answer, place) as bystander:
        ...
    print(bystander.p99_ms)

Every answer must be ``answer`` byte for byte. Run as a script it is that process: it reads what to ask as one line of
JSON from its standard input, asks until that ends, and writes what it found.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from types import TracebackType

import connections
from load import open_loop
from replay import ReplayConnection
from servers import Place

RATE = 200.0
"""Requests a second."""
STOP_SECONDS = 60.0


class Bystander:
    """``failures`` counts refused, wrong and missing answers of the block."""

    def __init__(self, port: int, path: str, message: bytes, answer: bytes, place: Place) -> None:
        self.p50_ms = self.p99_ms = float("nan")
        self.answered = self.failures = 0
        texts = {"message": b64encode(message).decode(), "answer": b64encode(answer).decode()}
        self._asks = json.dumps({"port": port, "path": path, **texts}) + "\n"
        self._command = ["taskset", "-c", place.client, sys.executable, __file__]

    def __enter__(self) -> Bystander:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._asks)
        self._process.stdin.flush()
        self._process.stdout.readline()  # it has begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            text, _ = self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        if kind is not None:
            return
        if self._process.returncode:
            raise ConnectionError("the bystander lost its connection")
        found = json.loads(text)
        self.p50_ms, self.p99_ms = found["p50_ms"], found["p99_ms"]
        self.answered, self.failures = found["answered"], found["failures"]


def main() -> None:
    connections.SAMPLE = 1
    asks, stopped = json.loads(sys.stdin.readline()), threading.Event()
    message, answer = b64decode(asks["message"]), b64decode(asks["answer"])
    connection = ReplayConnection(asks["port"], asks["path"], [message], [len(answer)])

    def wait_for_end() -> None:
        sys.stdin.read()
        stopped.set()

    def arrivals() -> Iterator[float]:
        number = 0
        while not stopped.is_set():
            yield number / RATE
            number += 1

    threading.Thread(target=wait_for_end, daemon=True).start()
    print("begun", flush=True)
    tally = open_loop([connection], arrivals(), lambda: 0, lambda _, body: body == answer)
    connection.sock.close()
    found = {"p50_ms": tally.percentile(50) * 1e3, "p99_ms": tally.percentile(99) * 1e3}
    print(json.dumps({**found, "answered": len(tally.served), "failures": tally.failures}))


if __name__ == "__main__":
    main()
