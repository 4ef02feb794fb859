"""Streams several signals through the filter at once, piece by piece, and compares with scipy on the whole signals.

    python examples/streaming_filter/client.py [--address localhost:8501] [--push models]

Four signals begin. When half of them has been sent, two more begin; with ``--push``, a new version of the filter is
published just before. The four stay on the version they began with, whose memory they need; the two get the new one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from make import MODEL, RATE_HZ, make, whole
from numpy.typing import NDArray

SAMPLES = 1000
PIECE = 64
FIRST, LATER = 4, 2
PUSHED_HZ = 60.0
TIMEOUT = 60.0
"""Seconds for an answer, and for a new version to be served."""
Samples = NDArray[np.float32]


class Stream:
    """One signal on its way through the server: a sequence of requests with an id. For one thread at a time.

    ``filtered`` grows; ``versions`` and ``cutoffs_hz`` are those of all answers so far.
    """

    def __init__(self, address: str, id: int, samples: Samples) -> None:
        self.id = id
        self.samples = samples
        self.filtered = np.empty(0, np.float32)
        self.versions, self.cutoffs_hz = set[str](), set[float]()
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT)

    @property
    def ended(self) -> bool:
        return len(self.filtered) == len(self.samples)

    def send(self, pieces: int) -> None:
        """Sends so many more pieces, if there are that many, over a connection of their own: servers close those that
        are idle for seconds. RuntimeError in the server's words."""
        with closing(self._connection):
            for _ in range(pieces):
                if not self.ended:
                    self._send_piece()

    def _send_piece(self) -> None:
        at = len(self.filtered)
        piece = self.samples[at : at + PIECE]
        answer = self._ask(
            {
                "inputs": [{"name": "samples", "shape": [1, len(piece)], "datatype": "FP32", "data": piece.tolist()}],
                "parameters": {
                    "sequence_id": self.id,
                    "sequence_start": at == 0,
                    "sequence_end": at + len(piece) == len(self.samples),
                },
            }
        )
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        self.filtered = np.concatenate([self.filtered, np.array(outputs["filtered"], np.float32)])
        self.cutoffs_hz.update(outputs["cutoff_hz"])
        self.versions.add(answer["model_version"])

    def _ask(self, body: object) -> dict[str, Any]:
        self._connection.request("POST", f"/v2/models/{MODEL}/infer", json.dumps(body))
        reply = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(reply.read())
        if reply.status != 200:
            raise RuntimeError(answer["error"])
        return answer

    def difference(self) -> float:
        """The largest one between what came back and what scipy makes of the whole signal."""
        (cutoff_hz,) = self.cutoffs_hz
        return float(np.abs(self.filtered - whole(self.samples, cutoff_hz)).max())


def measured(number: int) -> Samples:
    """A signal as a sensor might give it: slow waves, hum of 150 Hz and noise, around some level."""
    random = np.random.default_rng(number)
    seconds = np.arange(SAMPLES) / RATE_HZ
    slow = sum(random.uniform(1, 3) * np.sin(2 * np.pi * hertz * seconds) for hertz in random.uniform(1, 8, 3))
    hum = np.sin(2 * np.pi * 150 * seconds)
    found: Samples = (random.uniform(-20, 20) + slow + hum + random.normal(0, 0.5, SAMPLES)).astype(np.float32)
    return found


def send_all(streams: Sequence[Stream], pieces: int) -> None:
    """Pieces of all streams, each by its own thread: the server filters those that meet in one batch."""
    with ThreadPoolExecutor(len(streams)) as pool:
        for done in [pool.submit(stream.send, pieces) for stream in streams]:
            done.result()


def push(address: str, repository: Path) -> str:
    """Publishes a version, and waits until the server has it; the version."""
    version = make(repository, PUSHED_HZ).name
    gives_up = time.monotonic() + TIMEOUT
    while not _is_served(address, version):
        if time.monotonic() > gives_up:
            raise RuntimeError(f"version {version} is not served after {TIMEOUT:g} s")
        time.sleep(0.1)
    return version


def _is_served(address: str, version: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
    try:
        connection.request("GET", f"/v2/models/{MODEL}/versions/{version}/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def run(address: str, repository: Path | None) -> list[Stream]:
    """All streams, ended. ``repository``: where to push the new version."""
    streams = [Stream(address, id, measured(id)) for id in range(1, FIRST + LATER + 1)]
    send_all(streams[:FIRST], SAMPLES // PIECE // 2)
    if repository is not None:
        print(f"version {push(address, repository)} is served")
    send_all(streams, SAMPLES)
    return streams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="localhost:8501", help="the server's HTTP port")
    parser.add_argument("--push", type=Path, metavar="REPOSITORY", help="publish a new version into it half-way")
    arguments = parser.parse_args()
    try:
        streams = run(arguments.address, arguments.push)
    except (OSError, RuntimeError) as error:
        sys.exit(f"error: {error}")
    for stream in streams:
        answered = f"version {'+'.join(sorted(stream.versions))} ({min(stream.cutoffs_hz):g} Hz)"
        print(f"signal {stream.id}: answered by {answered}, differs from scipy by {stream.difference():.0e} at most")


if __name__ == "__main__":
    main()
