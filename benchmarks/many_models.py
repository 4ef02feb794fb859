"""What a server of many models costs for each of them: 10, 100 and 1,000 copies of one tiny exported program.

    python benchmarks/many_models.py [--models 10,100,1000] [--forms repository,config,shared] [--seconds 10]
        [--json FILE]

Default flags, thread workers. ``repository``: ``--model_repository``. ``config``: a base path for each model in a
``--model_config_file``. ``shared``: as many names on one base path, which a single push swaps all.

All figures but the stop are CPU time of the server, so that other work on the machine does not count; what a server
without a model costs is taken off. ``start``, ``push`` (version 2 is loaded beside version 1, which is unloaded
then), ``unload`` (half of the models are taken away), ``scrape`` and ``index`` are for each model, ``status`` for a
request that names one model. ``idle`` and ``log`` are shares of a core; ``log`` while a file that no version
consists of grows beside one model, 20 times a second. ``stop``: seconds from SIGTERM to the end, and CPU for each
model. Memory: what the server has for itself after the start (``RssAnon``).

The last lines say by how much the cost for each model grows from the smallest to the largest number of models.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from batching import cell, say, table
from servers import Place

import tfs_lite
from tests.support.servers.process import ServerProcess, default_command, wait_until

PATIENCE = 900.0
STATUS_REQUESTS, SCRAPES = 200, 20
LINES_A_SECOND = 20
CPUCLOCK_SCHED = 2
SETTLING = 2.0
"""Seconds after the start before anything else is measured."""
FIGURES: Sequence[tuple[str, str, int]] = (
    ("start ms", "start_ms", 2),
    ("MB", "model_mb", 3),
    ("idle %", "idle_percent", 1),
    ("log %", "log_percent", 1),
    ("status us", "status_us", 0),
    ("scrape us", "scrape_us", 0),
    ("index us", "index_us", 0),
    ("push ms", "push_ms", 2),
    ("push s", "push_s", 1),
    ("unload ms", "unload_ms", 2),
    ("stop ms", "stop_ms", 2),
    ("stop s", "stop_s", 2),
)
FLAT = ("start_ms", "push_ms", "status_us", "scrape_us", "index_us", "unload_ms", "stop_ms", "model_mb")
"""What should be the same for each model, however many there are."""


class Tiny(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Models:
    """``count`` models in ``form``, all with hard links to the files of one version."""

    def __init__(self, folder: Path, form: str, count: int) -> None:
        self.form, self.count = form, count
        self._version = folder / "saved" / "1"
        if not self._version.exists():
            tfs_lite.save(Tiny().eval(), self._version.parent, example_inputs=(torch.zeros(1, 2),), version=1)
        self._root, self._aside = folder / f"{form}-{count}", folder / f"{form}-{count}-aside"
        self._root.mkdir()
        self._aside.mkdir()
        self.names = [f"model{number:04}" for number in range(count)]
        self._config = folder / f"{form}-{count}.pbtxt"
        for base in self._bases():
            base.mkdir()
            self._link(base / "1")
        self._write_config(self.names)

    def base(self, name: str) -> Path:
        return self._root / ("all" if self.form == "shared" else name)

    @property
    def flags(self) -> tuple[str, ...]:
        if self.form == "repository":
            return (f"--model_repository={self._root}",)
        return (f"--model_config_file={self._config}", "--model_config_file_poll_wait_seconds=1")

    def push(self) -> None:
        """Version 2 of every model, complete from the first moment on."""
        for base in self._bases():
            ready = self._aside / f"{base.name}-2"
            self._link(ready)
            ready.rename(base / "2")

    def take_away(self, names: Sequence[str]) -> None:
        """These models are no longer to be served."""
        if self.form == "repository":
            for name in names:
                self.base(name).rename(self._aside / name)
        else:
            self._write_config([name for name in self.names if name not in set(names)])

    def _bases(self) -> list[Path]:
        return list(dict.fromkeys(map(self.base, self.names)))

    def _link(self, directory: Path) -> None:
        shutil.copytree(self._version, directory, copy_function=os.link)

    def _write_config(self, names: Sequence[str]) -> None:
        models = "".join(f'config {{ name: "{name}" base_path: "{self.base(name)}" }}\n' for name in names)
        whole = self._config.with_suffix(".new")
        whole.write_text(f"model_config_list {{\n{models}}}\n")
        whole.rename(self._config)


class Served:
    """A running server. Its log says what has happened, so that watching it costs it nothing."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.wait_log("listening on", interval=0.001)
        self.cpu_at_first = self.cpu
        self.wait_log("ready: ")

    @property
    def cpu(self) -> float:
        """Seconds of the process, its ended threads included. Psutil counts in hundredths of a second."""
        return time.clock_gettime(~self.server.pid << 3 | CPUCLOCK_SCHED)

    @property
    def memory(self) -> int:
        """Bytes of its own; not the pages of files, which it may share."""
        found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{self.server.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10

    def wait_log(self, words: str, count: int = 1, interval: float = 0.02) -> None:
        """Returns when its log has ``words`` so often."""

        def seen() -> bool:
            if self.server.exit_code is not None:
                raise ChildProcessError(self.server.log()[-2000:])
            return self.server.log().count(words) >= count

        wait_until(seen, f"{words!r} {count} times in the log", PATIENCE, interval)

    def wait_unloaded(self, version: int, count: int) -> None:
        """Returns when so many models have unloaded their version of this number."""
        self.wait_log(f" version: {version}}} is unloaded", count)

    def stop(self) -> tuple[float, float]:
        """CPU and wall seconds from SIGTERM to the end."""
        before, began = self.cpu, time.perf_counter()
        last = before
        self.server.terminate()
        while self.server.exit_code is None:
            try:
                last = max(last, self.cpu)
            except OSError:
                break
            time.sleep(0.01)
        self.server.wait(PATIENCE)
        return last - before, time.perf_counter() - began

    def share(self, seconds: float) -> float:
        """Percent of a core that it takes from now on."""
        before, began = self.cpu, time.perf_counter()
        time.sleep(seconds)
        return 100 * (self.cpu - before) / (time.perf_counter() - began)

    def cost_of(self, path: str, times: int) -> float:
        """CPU seconds for one GET."""
        self._get(path)
        before = self.cpu
        for _ in range(times):
            self._get(path)
        return (self.cpu - before) / times

    def _get(self, path: str) -> None:
        status, body = self.server.get(path, PATIENCE)
        if status != 200:
            raise ConnectionError(f"{path} answers {status}: {body[:200]!r}")

    def share_beside_log(self, file: Path, seconds: float) -> float:
        """Percent of a core while ``file`` grows."""
        before, began = self.cpu, time.perf_counter()
        with file.open("w") as log:
            for number in range(round(seconds * LINES_A_SECOND)):
                log.write(f"step {number}\n")
                log.flush()
                time.sleep(1 / LINES_A_SECOND)
        found = 100 * (self.cpu - before) / (time.perf_counter() - began)
        file.unlink()
        return found


@contextmanager
def served(flags: Sequence[str], place: Place) -> Iterator[Served]:
    server = ServerProcess(
        "--tensorflow_intra_op_parallelism=1",
        "--log_level=info",
        *flags,
        command=place.pinned(default_command()),
        stop_timeout=PATIENCE,
    )
    server.start()
    try:
        yield Served(server)
    finally:
        server.stop()


def empty(folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """What a server without a model costs: CPU seconds of its start, stop, a scrape and a list, and bytes."""
    root = folder / "empty"
    root.mkdir()
    with served((f"--model_repository={root}",), arguments.place) as server:
        return {
            "start": server.cpu - server.cpu_at_first,
            "bytes": float(server.memory),
            "scrape": server.cost_of("/metrics", SCRAPES),
            "index": server.cost_of("/v1/models", SCRAPES),
            "stop": server.stop()[0],
        }


def measure(models: Models, base: dict[str, float], arguments: argparse.Namespace) -> dict[str, float]:
    count, seconds = models.count, arguments.seconds
    with served(models.flags, arguments.place) as server:
        found = {
            "start_ms": 1e3 * (server.cpu - server.cpu_at_first - base["start"]) / count,
            "model_mb": (server.memory - base["bytes"]) / count / 2**20,
        }
        time.sleep(SETTLING)
        found["idle_percent"] = server.share(seconds)
        found["log_percent"] = server.share_beside_log(models.base(models.names[0]) / "train.log", seconds)
        time.sleep(SETTLING)
        found["status_us"] = 1e6 * server.cost_of(f"/v1/models/{models.names[count // 2]}", STATUS_REQUESTS)
        found["scrape_us"] = 1e6 * (server.cost_of("/metrics", SCRAPES) - base["scrape"]) / count
        found["index_us"] = 1e6 * (server.cost_of("/v1/models", SCRAPES) - base["index"]) / count
        before, began = server.cpu, time.perf_counter()
        models.push()
        server.wait_unloaded(1, count)
        found["push_s"] = time.perf_counter() - began
        found["push_ms"] = 1e3 * (server.cpu - before) / count
        stopped = server.stop()
        found["stop_ms"], found["stop_s"] = 1e3 * (stopped[0] - base["stop"]) / count, stopped[1]
    with served(models.flags, arguments.place) as server:
        time.sleep(SETTLING)
        half, before = models.names[count // 2 :], server.cpu
        models.take_away(half)
        server.wait_unloaded(2, len(half))
        found["unload_ms"] = 1e3 * (server.cpu - before) / len(half)
    return found


def row(form: str, count: int, figures: dict[str, float]) -> list[str]:
    return [form, str(count), *(cell(figures[key], digits) for _, key, digits in FIGURES)]


def growth(form: str, by_count: dict[int, dict[str, float]]) -> list[str]:
    """By what the cost for each model grows from the smallest to the largest number."""
    few, many = by_count[min(by_count)], by_count[max(by_count)]
    cells = [cell(many[key] / few[key], 2) if key in FLAT and few[key] > 0 else "" for _, key, _ in FIGURES]
    return [form, f"{max(by_count)} : {min(by_count)}", *cells]


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-many-") as folder:
        say("a server without a model")
        base = empty(Path(folder), arguments)
        for form in arguments.forms.split(","):
            for count in map(int, arguments.models.split(",")):
                say(f"{form}: {count} models")
                figures = measure(Models(Path(folder), form, count), base, arguments)
                found.append({"form": form, "models": count, **figures})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="10,100,1000")
    parser.add_argument("--forms", default="repository,config,shared")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which it is idle, and a log grows")
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments: Any = parser.parse_args()
    arguments.place = Place(arguments.server_cpus)
    found = run(arguments)
    rows = [row(one["form"], one["models"], one) for one in found]
    for form in dict.fromkeys(one["form"] for one in found):
        rows += [growth(form, {one["models"]: one for one in found if one["form"] == form})]
    print(table(("form", "models", *(head for head, *_ in FIGURES)), rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
