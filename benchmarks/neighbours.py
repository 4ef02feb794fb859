"""What pushing versions of one model costs a neighbour that is always busy: the other half of ``hot_reload.py``.

    python benchmarks/neighbours.py [--neighbours language,encoder] [--kinds pt2,encoder,language] [--size 50]
        [--places pinned,free] [--rounds 3] [--seconds 6] [--json FILE]

``language``: a Llama of 50 MB writes four texts at a time, each streamed over OpenAI's API, and the next begins when
one has ended. ``rate`` is tokens a second, and times are those between two tokens of a text. ``encoder``: 64 callers
ask a BERT of 50 MB for embeddings, closed loop, one text of 3 to 12 words a request. ``rate`` is texts a second, and
times are those of an answer.

Meanwhile a version of the other model is pushed once a second, as ``hot_reload.py`` does it: places, pushes and rounds
are described there. Steady and pushed take turns within each round, and a ratio compares the two parts of one round.
Medians over rounds, but for the longest time, which is the longest of all, and for pushes and failures, which are added
up. Both neighbours use all of the core that they are pinned to, so that a load takes from their rate what CPU it needs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from batching import cell, say, table
from connections import HttpConnection
from hot_reload import BUSY_INTERVAL, PLACES, WARM_UP_SECONDS, Pusher, Variant, Versions, served
from load import closed_loop, cycle
from models import Model
from pushed import VOCABULARY, artefact, lacks
from servers import Absent, Running, end_in_order
from sides import close

ASKED = "neighbour"
NEIGHBOUR_MB = 50
STREAMS, TOKENS = 4, 400
CALLERS, TEXTS, FEWEST_WORDS, MOST_WORDS = 64, 256, 3, 12
PATIENCE_SECONDS = 60.0
SEED = 5


class Streams:
    """Writes texts until the time is over; ``gaps`` has the seconds between two tokens of one text."""

    def __init__(self, port: int, seconds: float) -> None:
        self.gaps, self.failures = array("d"), 0
        self._port, self._ends = port, time.perf_counter() + seconds
        self._lock = threading.Lock()  # guards the first two
        self._threads = [threading.Thread(target=self._write_texts, args=(number,)) for number in range(STREAMS)]
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _write_texts(self, number: int) -> None:
        gaps, failures = array("d"), 0
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_SECONDS)
        values = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        body = json.dumps({"model": ASKED, "prompt": words(3, number), **values})
        while time.perf_counter() < self._ends:
            connection.request("POST", "/openai/v1/completions", body, {"content-type": "application/json"})
            failures += not self._read_text(connection.getresponse(), gaps)
        connection.close()
        with self._lock:
            self.gaps += gaps
            self.failures += failures

    def _read_text(self, answer: http.client.HTTPResponse, gaps: array[float]) -> bool:
        """Whether the text came to its end, or to that of the time without an error."""
        if answer.status != 200:
            answer.read()
            return False
        before = None
        while line := answer.readline():
            if not line.startswith(b"data: "):
                continue
            now = time.perf_counter()
            if line.startswith(b'data: {"error"'):
                answer.read()
                return False
            if line.startswith(b"data: [DONE]"):
                answer.read()
                return True
            if now >= self._ends:
                answer.close()
                return True
            if before is not None:
                gaps.append(now - before)
            before = now
        return False


def words(count: int, seed: int) -> str:
    draw = np.random.default_rng([SEED, seed])
    return " ".join(f"w{word}" for word in draw.integers(VOCABULARY - 4, size=count))


def language(running: Running, seconds: float) -> dict[str, float]:
    found = Streams(running.http_port, seconds)
    return figures(found.gaps, len(found.gaps) / seconds, found.failures)


def encoder(running: Running, seconds: float) -> dict[str, float]:
    lengths = np.random.default_rng(SEED).integers(FEWEST_WORDS, MOST_WORDS + 1, size=TEXTS)
    asks = [{"model": ASKED, "input": words(int(n), at), "encoding_format": "base64"} for at, n in enumerate(lengths)]
    messages = [json.dumps(ask).encode() for ask in asks]
    connections = [HttpConnection(running.http_port, "/openai/v1/embeddings", messages) for _ in range(CALLERS)]
    try:
        tally = closed_loop(connections, 1, seconds, cycle(TEXTS))
    finally:
        close(connections)
    return figures(tally.served, tally.rate, tally.failures)


def figures(times: Sequence[float], rate: float, failures: int) -> dict[str, float]:
    """Times in milliseconds."""
    if not times:
        return {"rate": rate, "p50": np.nan, "p99": np.nan, "max": np.nan, "failed": failures}
    p50, p99, longest = (float(value) * 1e3 for value in np.percentile(times, (50, 99, 100)))
    return {"rate": rate, "p50": p50, "p99": p99, "max": longest, "failed": failures}


NEIGHBOURS: Mapping[str, Callable[[Running, float], dict[str, float]]] = {"language": language, "encoder": encoder}


def one_round(
    name: str, running: Running, versions: Versions, arguments: argparse.Namespace
) -> tuple[Versions, dict[str, float]]:
    ask = NEIGHBOURS[name]
    calm = ask(running, arguments.seconds)
    with Pusher(running, versions, BUSY_INTERVAL) as pusher:
        beside = ask(running, arguments.seconds)
    found = {f"steady_{figure}": value for figure, value in calm.items()} | beside
    found |= {f"{figure}_ratio": beside[figure] / calm[figure] for figure in ("rate", "p50", "p99")}
    push = statistics.median(pusher.seconds) * 1e3 if pusher.seconds else float("nan")
    found |= {"pushes": len(pusher.seconds), "push": push, "failed": calm["failed"] + beside["failed"]}
    return pusher.versions, found


def measure(name: str, variant: Variant, arguments: argparse.Namespace) -> list[dict[str, float]]:
    os.sched_setaffinity(0, {int(cpu) for cpu in PLACES[variant.place].client.split(",")})
    neighbour, found = Model(ASKED, artefact(name, NEIGHBOUR_MB).parent, (), 0, (), ()), []
    with served(variant, neighbour) as (running, versions, _):
        with Pusher(running, versions, BUSY_INTERVAL, 1) as first:  # imports are a matter of the first load
            pass
        versions = first.versions
        NEIGHBOURS[name](running, WARM_UP_SECONDS)
        for number in range(arguments.rounds):
            say(f"{name} beside {variant.name}, {variant.place}: round {number + 1} of {arguments.rounds}")
            versions, figures = one_round(name, running, versions, arguments)
            found.append(figures)
    return found


COLUMNS: Sequence[tuple[str, str, int, Callable[[list[float]], float]]] = (
    ("steady rate", "steady_rate", 0, statistics.median),
    ("p50", "steady_p50", 2, statistics.median),
    ("p99", "steady_p99", 2, statistics.median),
    ("max", "steady_max", 1, max),
    ("pushed rate", "rate", 0, statistics.median),
    ("p50", "p50", 2, statistics.median),
    ("p99", "p99", 2, statistics.median),
    ("max", "max", 1, max),
    ("rate ratio", "rate_ratio", 2, statistics.median),
    ("p50 ratio", "p50_ratio", 2, statistics.median),
    ("p99 ratio", "p99_ratio", 2, statistics.median),
    ("failed", "failed", 0, sum),
    ("pushes", "pushes", 0, sum),
    ("push", "push", 0, statistics.median),
)
"""Head, figure, digits, and how the rounds are summed up."""
HEAD = ("neighbour", "pushed", "place", *(head for head, *_ in COLUMNS))


def main() -> int:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", default=",".join(NEIGHBOURS))
    parser.add_argument("--kinds", default="pt2,encoder,language", help="of what is pushed")
    parser.add_argument("--size", type=int, default=50, help="megabytes of what is pushed")
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments: Any = parser.parse_args()
    rows, kept = list[list[str]](), list[dict[str, Any]]()
    for name in arguments.neighbours.split(","):
        for kind in arguments.kinds.split(","):
            if missing := ", ".join(filter(None, (lacks(name), lacks(kind)))):
                print(f"not measured: {name} beside {kind}: {missing} is not installed")
                continue
            for place in arguments.places.split(","):
                variant = Variant(kind, arguments.size, place, "auto")
                try:
                    rounds = measure(name, variant, arguments)
                except Absent as error:
                    print(f"not measured: {name} beside {variant}: {error}")
                    continue
                cells = [cell(sum_up([one[figure] for one in rounds]), digits) for _, figure, digits, sum_up in COLUMNS]
                rows.append([name, variant.name, place, *cells])
                say(table(HEAD, rows[-1:]))
                kept.append({"neighbour": name, "pushed": variant.name, "place": place, "rounds": rounds})
                if arguments.json:
                    arguments.json.write_text(json.dumps(kept, indent=1))
    print(table(HEAD, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
