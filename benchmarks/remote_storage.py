"""What base paths in a bucket cost, next to those of this machine's disk.

    python benchmarks/remote_storage.py [--rows fetch,start,push,beside] [--rounds 5] [--megabytes 512] [--rate 100]
        [--cpus 0,1] [--directory DIR] [--json FILE]

The bucket is a process of this machine (``bucket.py``) that sends files from the page cache, so every figure is about
this side of the network. Sides take turns within a round, and begin it in turn; a ratio compares the two of one round.
Medians over rounds.

``fetch``: a version of one file comes from the bucket into the cache, hashed and on the disk, next to ``cp`` and
``sync`` of the same file. The fetch has a process of its own for each round; its imports and the listing are not
counted. ``memory``: by how much the peak of its resident memory is above what it had before.
``start``: from the start of a server to ready, from the cache with a bucket that nothing answers for, next to the same
model on the disk.
``push``: from the end of the first listing with a new version of 8 MB to AVAILABLE, next to a version that is renamed
into a base path of the disk, where the time begins with the rename. Both models are served by one server.
``beside``: the 99th percentile of a small model, open loop, while the same server fetches ``--megabytes`` at ``--rate``
MiB a second, next to the same without a fetch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batching import cell, say, table
from bucket import Bucket
from load import Tally, open_loop, steady
from models import BENCH, Model, model
from pushed import artefact
from servers import STOP_SECONDS, Running
from sides import close, ours, picks

from tests.support.servers.process import ServerProcess, default_command, wait_until
from tfs_lite.core.publish import publish

ASKED, LARGE = "mlp", "large"
KIND, MEGABYTES = "script", 8
"""What is pushed."""
PLACE = "models"
"""The bucket."""
REQUESTS_A_SECOND = 200.0
WARM_UP_SECONDS, STEADY_SECONDS = 0.5, 4.0
WINDOW = 0.8
"""The part of a fetch's time in which requests are measured."""
LOOK_SECONDS = 0.002
START_SECONDS, FETCH_SECONDS = 120.0, 300.0
GOALS = {"fetch": "3", "start": "1.05", "push": "0.3 s", "beside": "1.2"}


@dataclass(frozen=True, slots=True)
class Row:
    """``figures``: those of each round, by name; ``ratio`` is among them."""

    name: str
    sides: tuple[str, str]
    unit: str
    figures: list[dict[str, float]]

    def median(self, figure: str) -> float:
        return statistics.median(each.get(figure, float("nan")) for each in self.figures)

    def cells(self) -> list[str]:
        rest = [name for name in self.figures[0] if name not in ("ratio", *self.sides)]
        ratios = [each["ratio"] for each in self.figures]
        first, second = (f"{side} {cell(self.median(side), 3)} {self.unit}" for side in self.sides)
        notes = ", ".join(f"{name} {cell(self.median(name), 2)}" for name in rest)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        return [self.name, cell(self.median("ratio"), 2), spread, GOALS[self.name], first, second, notes]


def in_turn(round_number: int, sides: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """What each side takes; the first one of the last round is the second one of this."""
    names = list(sides)
    found = {name: sides[name]() for name in (names if round_number % 2 else reversed(names))}
    return {name: found[name] for name in names}


# fetch


def fetch_rows(folder: Path, arguments: argparse.Namespace) -> Row:
    held = folder / "bucket"
    path = publish_large(held / PLACE / LARGE, folder, arguments.megabytes)
    rounds = []
    with Bucket(held, cpus=arguments.cpus) as bucket:
        for number in range(arguments.rounds):
            say(f"fetch: round {number + 1} of {arguments.rounds}")
            told: dict[str, float] = {}

            def fetched(told: dict[str, float] = told, bucket: Bucket = bucket) -> float:
                cache = folder / "cache"
                told.update(fetch_apart(f"s3://{PLACE}/{LARGE}", cache, bucket))
                shutil.rmtree(cache)
                return told.pop("seconds")

            def copied() -> float:
                target = folder / "copy"
                begun = time.perf_counter()
                subprocess.run(["cp", str(path), str(target)], check=True)
                subprocess.run(["sync", str(target)], check=True)
                took = time.perf_counter() - begun
                target.unlink()
                return took

            found = in_turn(number, {"fetched": fetched, "cp and sync": copied})
            rounds.append({**found, **told, "ratio": found["fetched"] / found["cp and sync"]})
    return Row("fetch", ("fetched", "cp and sync"), "s", rounds)


def publish_large(base: Path, folder: Path, megabytes: int) -> Path:
    """A version 1 of one file of random bytes; no platform can load it. Returns the file."""
    source = folder / "large"
    source.mkdir()
    with (source / "model.pt2").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1 << 20))
    publish(str(source), str(base), 1)
    shutil.rmtree(source)
    return base / "1" / "model.pt2"


def fetch_apart(url: str, cache: Path, bucket: Bucket) -> dict[str, float]:
    command = [sys.executable, __file__, "--fetch-into", str(cache), url]
    done = subprocess.run(
        command, env={**os.environ, **bucket.environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the fetch has failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def fetch_here(cache: str, text: str) -> None:
    """The process that fetches version 1, and writes what that took."""
    from tfs_lite.core.manifest import MANIFEST_NAME, parse_manifest
    from tfs_lite.storage.fetch import Fetcher, RemoteVersion, has_all_files, wanted_files, with_digests
    from tfs_lite.storage.files_cache import FilesCache
    from tfs_lite.storage.objects import open_storage
    from tfs_lite.storage.store import RemoteFile
    from tfs_lite.storage.url import StorageUrl

    url = StorageUrl.parse(text)
    storage = open_storage(url)
    prefix = f"{url.prefix}/1"
    listed = storage.files(prefix).files
    files = wanted_files(
        RemoteFile(file.path.removeprefix(f"{prefix}/"), file.size, file.tag, file.modified_ns) for file in listed
    )
    manifest = parse_manifest(b"".join(storage.read(f"{prefix}/{MANIFEST_NAME}")))
    version = RemoteVersion(url.text, "1", prefix, with_digests(files, manifest))
    fetcher = Fetcher(storage, FilesCache(cache, 1 << 50, has_all_files), threading.Event())
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, cpu, begun = peak_bytes(), time.process_time(), time.perf_counter()
    fetcher.fetch(version)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    mib = version.size / 2**20
    found = {
        "seconds": seconds,
        "MiB/s": mib / seconds,
        "CPU ms/MiB": cpu * 1e3 / mib,
        "memory MiB": (peak_bytes() - before) / 2**20,
    }
    print(json.dumps(found))


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


# servers


@contextmanager
def serving(*flags: str, env: Mapping[str, str], cpus: str) -> Iterator[ServerProcess]:
    """A server that has been started; it may not be ready."""
    server = ServerProcess(
        "--tensorflow_intra_op_parallelism=1",
        "--log_level=warning",
        *flags,
        command=["taskset", "-c", cpus, *default_command()],
        env=env,
        stop_timeout=STOP_SECONDS,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def states(server: ServerProcess, name: str) -> dict[int, str]:
    """The versions of a model with their states; empty if the server has none, or does not answer yet."""
    try:
        status, body = server.get(f"/v1/models/{name}")
    except OSError:
        return {}
    rows = json.loads(body).get("model_version_status", []) if status == 200 else []
    return {int(row["version"]): row["state"] for row in rows}


def wait_available(server: ServerProcess, name: str, version: int) -> float:
    """Returns when, as ``time.time`` has it."""

    def is_available() -> bool:
        if server.exit_code is not None:
            raise RuntimeError(f"the server has ended:\n{server.log()}")
        return states(server, name).get(version) == "AVAILABLE"

    wait_until(is_available, f"{name} {version} is available", START_SECONDS, interval=LOOK_SECONDS)
    return time.time()


# start


def start_rows(folder: Path, arguments: argparse.Namespace) -> Row:
    built, held = model(ASKED), folder / "bucket"
    publish(str(built.version), str(held / PLACE / ASKED), 1)
    publish(str(built.version), str(folder / "disk" / ASKED), 1)
    cached = (f"--model_base_path=s3://{PLACE}/{ASKED}", f"--model_cache_dir={folder / 'cache'}")

    def started(*flags: str, env: Mapping[str, str]) -> float:
        begun = time.perf_counter()
        with serving(f"--model_name={ASKED}", *flags, env=env, cpus=arguments.cpus) as server:
            server.wait_ready(START_SECONDS)
            return time.perf_counter() - begun

    with Bucket(held, cpus=arguments.cpus) as bucket:
        silent = bucket.environment  # soon: a listing that was kept counts for its endpoint alone
        started(*cached, env=silent)
    rounds = []
    for number in range(arguments.rounds):
        say(f"start: round {number + 1} of {arguments.rounds}")
        found = in_turn(
            number,
            {
                "cache": lambda: started(*cached, env=silent),
                "disk": lambda: started(f"--model_base_path={folder / 'disk' / ASKED}", env=silent),
            },
        )
        rounds.append({**found, "ratio": found["cache"] / found["disk"]})
    return Row("start", ("cache", "disk"), "s", rounds)


# push


def push_rows(folder: Path, arguments: argparse.Namespace) -> Row:
    held, aside = folder / "bucket", folder / "aside"
    there, here = held / PLACE / "remote", folder / "disk" / "local"
    for base in (there, here, aside):
        publish(str(artefact(KIND, MEGABYTES)), str(base), 1)
    config = folder / "models.yaml"
    config.write_text(
        f"model_config_list:\n  config:\n  - {{name: remote, base_path: 's3://{PLACE}/remote'}}\n"
        f"  - {{name: local, base_path: '{here}'}}\n"
    )
    flags = (
        f"--model_config_file={config}",
        f"--model_cache_dir={folder / 'cache'}",
        "--remote_poll_wait_seconds=1",
        "--file_system_poll_wait_seconds=60",
    )
    rounds = []
    with (
        Bucket(held, cpus=arguments.cpus) as bucket,
        serving(*flags, env=bucket.environment, cpus=arguments.cpus) as server,
    ):
        for name in ("remote", "local"):
            wait_available(server, name, 1)

        def pushed(base: Path, number: int) -> float:
            """Renames a copy of the version into the base path; returns when."""
            copy = aside / f"{number}.copy"
            shutil.copytree(aside / "1", copy)
            begun = time.time()
            copy.rename(base / str(number))
            return begun

        def remote(number: int) -> float:
            begun = pushed(there, number)
            available = wait_available(server, "remote", number)
            return available - first_listing(bucket, begun)

        def local(number: int) -> float:
            begun = pushed(here, number)
            return wait_available(server, "local", number) - begun

        for number in range(arguments.rounds):
            say(f"push: round {number + 1} of {arguments.rounds}")
            version = number + 2
            found = in_turn(
                number,
                {"bucket": lambda v=version: remote(v), "disk": lambda v=version: local(v)},  # type: ignore[misc]
            )
            rounds.append({**found, "ratio": found["bucket"] / found["disk"]})
    return Row("push", ("bucket", "disk"), "s", rounds)


def first_listing(bucket: Bucket, since: float) -> float:
    """The end of the first listing with more keys than the last one before ``since``."""
    listings = bucket.asked("list")
    before = max(item["keys"] for item in listings if item["at"] < since)
    return float(min(item["ended"] for item in listings if item["at"] >= since and item["keys"] > before))


# beside


def beside_rows(folder: Path, arguments: argparse.Namespace) -> Row:
    built, held = model(ASKED), folder / "bucket"
    base, aside = held / PLACE / LARGE, folder / "aside"
    publish(str(built.version), str(folder / "disk" / ASKED), 1)
    publish_large(aside, folder, arguments.megabytes)
    base.mkdir(parents=True)
    config = folder / "models.yaml"
    config.write_text(
        f"model_config_list:\n  config:\n  - {{name: {ASKED}, base_path: '{folder / 'disk' / ASKED}'}}\n"
        f"  - {{name: {LARGE}, base_path: 's3://{PLACE}/{LARGE}'}}\n"
    )
    flags = (
        f"--model_config_file={config}",
        f"--model_cache_dir={folder / 'cache'}",
        "--remote_poll_wait_seconds=1",
        "--max_num_load_retries=0",
    )
    rounds = []
    with (
        Bucket(held, arguments.rate, arguments.cpus) as bucket,
        serving(*flags, env=bucket.environment, cpus=arguments.cpus) as server,
    ):
        wait_available(server, ASKED, 1)
        seconds = arguments.megabytes / arguments.rate * WINDOW
        for number in range(arguments.rounds):
            say(f"beside: round {number + 1} of {arguments.rounds}")
            calm = asked(server, built, min(STEADY_SECONDS, max(1.0, seconds)))
            beside, whole = asked_beside(server, built, bucket, (aside / "1", base / str(number + 1)), seconds)
            found = {"fetching": beside.percentile(99) * 1e3, "steady": calm.percentile(99) * 1e3}
            rates = {"failed": float(calm.failures + beside.failures), "MiB/s": arguments.megabytes / whole}
            rounds.append({**found, **rates, "ratio": found["fetching"] / found["steady"]})
    return Row("beside", ("fetching", "steady"), "ms", rounds)


def asked_beside(
    server: ServerProcess, built: Model, bucket: Bucket, push: tuple[Path, Path], seconds: float
) -> tuple[Tally, float]:
    """Requests while a version is fetched, and how long its large file took. RuntimeError if it was fetched before the
    requests were through."""
    source, target = push
    staging = target.parent.parent / f".{target.name}"
    shutil.copytree(source, staging, copy_function=os.link)
    begun = time.time()
    staging.rename(target)
    key = f"{PLACE}/{LARGE}/{target.name}/model.pt2"

    def told(what: str) -> list[dict[str, Any]]:
        return [item for item in bucket.asked(what, begun) if item["key"] == key]

    wait_until(lambda: told("begun"), f"{key} is fetched", FETCH_SECONDS)
    beside = asked(server, built, seconds)
    if told("get"):
        raise RuntimeError("the fetch was over too soon: take more megabytes, or a lower rate")
    sent = wait_until(lambda: told("get"), f"{key} has been sent", FETCH_SECONDS)[0]
    wait_until(lambda: states(server, LARGE).get(int(target.name)) == "END", "it has been refused", FETCH_SECONDS)
    return beside, sent["ended"] - sent["at"]


def asked(server: ServerProcess, built: Model, seconds: float) -> Tally:
    side = ours("ours")
    connections, _ = side.connect(Running(server.pid, server.grpc_port, server.http_port, server), built)
    try:
        open_loop(connections, steady(REQUESTS_A_SECOND, WARM_UP_SECONDS), picks(built, False))
        return open_loop(connections, steady(REQUESTS_A_SECOND, seconds), picks(built, False), side.check(built))
    finally:
        close(connections)


ROWS: Mapping[str, Callable[[Path, argparse.Namespace], Row]] = {
    "fetch": fetch_rows,
    "start": start_rows,
    "push": push_rows,
    "beside": beside_rows,
}
HEAD = ("row", "ratio", "lowest to highest", "goal", "bucket", "next to", "also")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512, help="MiB of what is fetched")
    parser.add_argument("--rate", type=float, default=100.0, help="MiB a second of the fetch beside requests")
    parser.add_argument("--cpus", default="0,1", help="the cores of servers and of the bucket")
    parser.add_argument("--directory", type=Path, default=BENCH, help="where files are written; a disk, not memory")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    parser.add_argument("--fetch-into", nargs=2, metavar=("CACHE", "URL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.fetch_into:
        fetch_here(*arguments.fetch_into)
        return 0
    arguments.directory.mkdir(parents=True, exist_ok=True)
    rows = list[Row]()
    for name in arguments.rows.split(","):
        with tempfile.TemporaryDirectory(prefix="remote-", dir=arguments.directory) as folder:
            rows.append(ROWS[name](Path(folder), arguments))
        say(table(HEAD, [rows[-1].cells()]))
        if arguments.json:
            found = [{"row": row.name, "rounds": row.figures} for row in rows]
            arguments.json.write_text(json.dumps(found, indent=1))
    print(table(HEAD, [row.cells() for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
