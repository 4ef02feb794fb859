"""What three replicas answer next to one, and how long an answer takes while a replica dies.

    python benchmarks/replica_scaling.py [--rounds 5] [--json]

One server, real processes on pretended nodes of this machine. The models sleep, so that the processor is not what
limits them. Aims: three replicas answer at least 2.8 times the rows of one; the longest answer while a replica is
killed every second takes at most 0.3 s more than its run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.support.cluster.process_cluster import PRELOAD, ProcessCluster
from tests.support.cluster.replicated_models import ReplicatedModels
from tests.support.servers.in_process import ROW, ServerFixture, serving
from tests.support.servers.replicas import ReplicaHost
from tfs_lite.client import Client

RUN_SECONDS = 0.05
CALLERS = 12
MEASURED_SECONDS = 3.0
KILLS = 10
SIDES = {"one": 1, "three": 3}


@contextmanager
def served() -> Iterator[tuple[ServerFixture, ProcessCluster]]:
    with tempfile.TemporaryDirectory() as scratch, ReplicaHost(PRELOAD) as host, ProcessCluster(host) as cluster:
        cluster.add_node("a", {"num_cpus": 16, "memory": 1e12})
        root = Path(scratch, "models")
        root.mkdir()
        models = ReplicatedModels(root, Path(scratch))
        for name, count in SIDES.items():
            models.publish(1, name, count, running=f"import time; time.sleep({RUN_SECONDS})")
        trusted = (str(root),)
        engine = cluster.connect()
        with serving(
            root, engine=engine, model_repository=str(root), trusted_model_base_paths=trusted, cluster="auto"
        ) as fixture:
            fixture.server.wait_ready(60)
            yield fixture, cluster


def answers(target: str, model: str, callers: int, until: Callable[[], bool]) -> list[tuple[float, float]]:
    """When each answer came, and the seconds that it took."""
    found: list[tuple[float, float]] = []

    def call_on() -> None:
        with Client(target) as client:
            while not until():
                began = time.monotonic()
                client.predict(model, {"x": ROW})
                ended = time.monotonic()
                found.append((ended, ended - began))

    threads = [threading.Thread(target=call_on) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


def rows_a_second(target: str, model: str) -> float:
    """Between the first answer and the last."""
    ends = time.monotonic() + MEASURED_SECONDS
    found = answers(target, model, CALLERS, lambda: time.monotonic() >= ends)
    return (len(found) - 1) / (found[-1][0] - found[0][0])


def longest_while_replicas_die(target: str, cluster: ProcessCluster) -> tuple[float, Sequence[float]]:
    """The longest answer of two callers in seconds while nothing dies, and that around each kill."""
    done = threading.Event()
    kills: list[float] = []

    def kill() -> None:
        for _ in range(KILLS):
            time.sleep(1.0)
            oldest = next(one for one in cluster.replicas if one.replica and str(one.wish.name).startswith("three/"))
            kills.append(time.monotonic())
            if oldest.replica is not None:
                oldest.replica.kill()
        time.sleep(1.0)
        done.set()

    killer = threading.Thread(target=kill)
    killer.start()
    found = answers(target, "three", 2, done.is_set)
    killer.join()
    quiet = [took for ended, took in found if ended < kills[0]]
    around = [max(t for e, t in found if a <= e < b) for a, b in pairwise([*kills, float("inf")])]
    return max(quiet), around


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with served() as (fixture, cluster):
        rows: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(options.rounds):
            for side in list(SIDES)[:: 1 if turn % 2 else -1]:
                rows[side].append(rows_a_second(fixture.target, side))
        quiet, around = longest_while_replicas_die(fixture.target, cluster)
    ratio = statistics.median(three / one for three, one in zip(rows["three"], rows["one"], strict=True))
    found = {
        "rows a second": {side: round(statistics.median(values), 1) for side, values in rows.items()},
        "ratio": round(ratio, 2),
        "longest answer, ms": round(quiet * 1e3, 1),
        "longest answers while replicas die, ms": [round(took * 1e3, 1) for took in around],
        "run, ms": RUN_SECONDS * 1e3,
    }
    print(json.dumps(found, indent=2) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
