"""Large messages, very many connections, connections that come and go, and clients that do not read.

    python benchmarks/scale.py [large,idle,churn,slow] [--grpc_server native|grpcio|default] [--quick] [--json FILE]

A server of two tiny models on one core (``slow``: an echo server on the same transport), the clients on another. Each
part prints what it bounds; the exit code is not 0 when an answer was wrong, missing or refused.

- large: one message of 64 MB each way, three times: seconds, and the server's peak memory beyond before, in messages.
  Meanwhile another client asks another model 200 times a second: its p99.
- idle: 10,000 connections that have made a call each and stay: memory of the server for each, p50 of a single caller
  before and with them, memory and open files after them.
- churn: 1,000 connections at a time that open, ask once and close, every other one by a TCP reset: how many a second,
  memory and open files after.
- slow: 50 readers of streams of 26 MB take 160 KB a second each: memory of the server for each, and another client's
  p99. Half of them give no credit, half do not read their sockets. Then one reads its stream to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import shutil
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import connections
import numpy as np
import psutil
from batching import say
from bystander import Bystander
from connections import Connection, GrpcConnection, ProtocolError
from forms import GRPC_ECHO, PREDICT
from load import Watch, closed_loop
from models import BENCH, Rows, model
from replay import ReplayConnection
from servers import HERE, Absent, Place, Running, launch_command, launch_serve
from slow_readers import SlowReader

from tests.support.servers.process import free_ports, wait_until

VERSION, WIDTH = 3, 3
SPARE_FILES = 20
PATIENCE = 120.0
SMALL = np.arange(WIDTH, dtype=np.float32).reshape(1, WIDTH)
STREAM_COUNT, STREAM_SIZE = 400, 65_536
TURN = 0.1
"""Seconds between a slow reader's reads."""
WAVE = 200
"""Connections that are opened at a time."""
LINGER_NOT = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Target:
    """A server and the question of one row that everybody asks. ``answer``: the right one."""

    running: Running
    place: Place
    path: str
    message: bytes
    answer: bytes

    def bystander(self) -> Bystander:
        return Bystander(self.running.port, self.path, self.message, self.answer, self.place)

    def connect(self) -> ReplayConnection:
        return ReplayConnection(self.running.port, self.path, [self.message], [len(self.answer)])

    def is_right(self, index: int, body: bytes | None) -> bool:
        return body == self.answer

    def one_caller(self, seconds: float) -> tuple[float, int]:
        """(p50 in ms, failures) of a closed loop."""
        connection = self.connect()
        tally = closed_loop([connection], 1, seconds, lambda: 0, self.is_right)
        connection.sock.close()
        return tally.percentile(50) * 1e3, tally.failures

    # The server's process.

    def memory(self, name: str = "VmRSS") -> float:
        """MB. ``VmHWM``: the most since ``forget_peak``."""
        for line in Path(f"/proc/{self.running.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise LookupError(name)

    def forget_peak(self) -> None:
        Path(f"/proc/{self.running.pid}/clear_refs").write_text("5")

    def files(self) -> int:
        return psutil.Process(self.running.pid).num_fds()

    def wait_files(self, before: int) -> None:
        wait_until(lambda: self.files() <= before + SPARE_FILES, f"open files are back near {before}", PATIENCE)


class LargeConnection(GrpcConnection):
    """For a message that fits no single frame."""

    def __init__(self, port: int, path: str, message: bytes) -> None:
        super().__init__(port, path, [b""])
        self._bodies = [b"\0" + struct.pack(">I", len(message)) + message]


def request(name: str, rows: Rows) -> bytes:
    from tfs_lite.protocols.messages import PredictRequest
    from tfs_lite.protocols.tensorflow.tensor_proto import encode

    message = PredictRequest(model_spec={"name": name}, output_filter=["y"])
    message.inputs["x"].CopyFrom(encode(rows, as_content=True))
    return bytes(message.SerializeToString())


def is_answer(body: bytes | None, rows: Rows) -> bool:
    from tfs_lite.protocols.messages import PredictResponse

    found = PredictResponse.FromString(body or b"").outputs["y"].tensor_content
    return np.array_equal(np.frombuffer(found, np.float32), (rows + np.float32(VERSION)).ravel())


def ask(connection: Connection) -> tuple[int, bytes | None, float]:
    """(status, answer, seconds) of message 0."""
    watch, started = Watch([connection]), time.perf_counter()
    connection.start(0, started)
    watch.flush(connection)
    try:
        while time.perf_counter() < started + PATIENCE:
            for _, answers in watch.ready(1.0):
                if answers:
                    return answers[0].code, answers[0].body, time.perf_counter() - started
    finally:
        watch.close()
        connection.sock.close()
    raise ConnectionError("no answer")


@contextmanager
def product(arguments: argparse.Namespace) -> Iterator[Target]:
    """Ours, with the models ``big`` and ``small``: y = x + 3."""
    from tests.support.servers.models import TaggedArchives

    root = BENCH / "scale"
    if not (root / "small" / str(VERSION)).exists():
        shutil.rmtree(root, ignore_errors=True)
        for name in ("big", "small"):
            TaggedArchives().write_version(VERSION, root / name)
    flags = [f"--model_repository={root}", "--enable_serialization_as_tensor_content"]
    flags.append("--version_quiet_period_seconds=0")
    if arguments.grpc_server != "default":
        flags.append(f"--grpc_server={arguments.grpc_server}")
    with launch_serve(arguments.place, *flags) as running:
        message = request("small", SMALL)
        code, body, _ = ask(GrpcConnection(running.port, PREDICT, [message]))
        if code or body is None or not is_answer(body, SMALL):
            raise ConnectionError(f"its first answer is wrong: {code}")
        yield Target(running, arguments.place, PREDICT, message, body)


@contextmanager
def echo(arguments: argparse.Namespace) -> Iterator[Target]:
    kind = "native" if arguments.grpc_server == "native" else "grpcio"
    (port,) = free_ports(1)
    command = [sys.executable, str(HERE / "transport_echo.py"), kind, str(port), "uvloop"]
    with launch_command(command, port, GRPC_ECHO, model("mlp"), arguments.place, {}) as running:
        message = request("small", SMALL)
        yield Target(running, arguments.place, PREDICT, message, message)


def large(target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    rows = np.arange(arguments.megabytes * 250_000 // WIDTH * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    message, failures, times, peaks = request("big", rows), 0, list[float](), list[float]()
    with target.bystander() as before:
        time.sleep(arguments.seconds)
    rss = target.memory()
    with target.bystander() as during:
        for _ in range(3):
            target.forget_peak()
            code, body, seconds = ask(LargeConnection(target.running.port, PREDICT, message))
            failures += code != 0 or not is_answer(body, rows)
            times.append(seconds)
            peaks.append(target.memory("VmHWM") - rss)
    return {
        "seconds": times,
        "peak_mb": peaks,
        "peak_in_messages": max(peaks) / (len(message) / 2**20),
        "mb_before": rss,
        "mb_after": target.memory(),
        "others_p99_ms_before": before.p99_ms,
        "others_p99_ms_during": during.p99_ms,
        "failures": failures + before.failures + during.failures,
    }


def idle(target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    before, failures = target.one_caller(arguments.seconds)
    rss, files, started = target.memory(), target.files(), time.perf_counter()
    opened: list[Connection] = []
    try:
        while len(opened) < arguments.connections:
            wave: list[Connection] = [target.connect() for _ in range(min(WAVE, arguments.connections - len(opened)))]
            opened += wave
            failures += ask_all(wave, target)
        opening, full = time.perf_counter() - started, target.memory()
        with_them, more = target.one_caller(arguments.seconds)
    finally:
        for connection in opened:
            connection.sock.close()
    target.wait_files(files)
    return {
        "connections": len(opened),
        "opened_a_second": len(opened) / opening,
        "kb_a_connection": (full - rss) * 1024 / len(opened),
        "one_p50_ms_before": before,
        "one_p50_ms_with": with_them,
        "ratio": with_them / before,
        "mb_before": rss,
        "mb_after": target.memory(),
        "failures": failures + more,
    }


def ask_all(wave: list[Connection], target: Target) -> int:
    """One question on each; how many were not answered rightly."""
    watch, right, gives_up = Watch(wave), 0, time.monotonic() + PATIENCE
    for connection in wave:
        connection.start(0, 0.0)
        watch.flush(connection)
    while any(connection.busy for connection in wave) and time.monotonic() < gives_up:
        for _, answers in watch.ready(1.0):
            right += sum(answer.code == 0 and target.is_right(0, answer.body) for answer in answers)
    watch.close()
    return len(wave) - right


def churn(target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    rss, files = target.memory(), target.files()
    selector, failures, done, opened = selectors.DefaultSelector(), 0, 0, 0
    started = time.perf_counter()
    ends = started + arguments.seconds
    while (now := time.perf_counter()) < ends + PATIENCE and (now < ends or selector.get_map()):
        while now < ends and len(selector.get_map()) < arguments.churning and opened < done + arguments.churning:
            connection = target.connect()
            connection.start(0, 0.0)
            connection.flush()
            selector.register(connection.sock, selectors.EVENT_READ, connection)
            opened += 1
        for key, _ in selector.select(0.1):
            right = answered(key.data, target)
            if right is None:
                continue
            failures, done = failures + (not right), done + 1
            selector.unregister(key.data.sock)
            if done % 2:
                key.data.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
            key.data.sock.close()
    left = len(selector.get_map())
    selector.close()
    seconds = time.perf_counter() - started
    target.wait_files(files)
    rates = {"connections_a_second": done / seconds, "connections": done}
    memory = {"mb_before": rss, "mb_after": target.memory()}
    return {**rates, **memory, "failures": failures + left}


def answered(connection: ReplayConnection, target: Target) -> bool | None:
    """Whether rightly; None: not yet."""
    try:
        answers = connection.receive()
        connection.flush()
    except (ConnectionError, ProtocolError):
        return False
    return answers[0].code == 0 and target.is_right(0, answers[0].body) if answers else None


def slow(target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    with target.bystander() as before:
        time.sleep(arguments.seconds)
    rss = target.memory()
    target.forget_peak()
    with target.bystander() as during:
        port, size = target.running.port, STREAM_SIZE
        readers = [SlowReader(port, STREAM_COUNT, size, has_credit=n % 2 == 1) for n in range(arguments.readers)]
        ends = time.monotonic() + arguments.seconds
        while time.monotonic() < ends:
            for reader in readers:
                reader.turn()
            time.sleep(TURN)
    peak, early = target.memory("VmHWM"), sum(reader.status is not None for reader in readers)
    for reader in readers[2:]:
        reader.sock.close()
    wrong = sum(bool(reader.fault) for reader in readers[2:])
    for reader in readers[:2]:
        reader.rest()
        wrong += bool(reader.fault) or reader.status != 0 or reader.messages != STREAM_COUNT
        reader.sock.close()
    return {
        "readers": len(readers),
        "mb_a_stream": STREAM_COUNT * STREAM_SIZE / 2**20,
        "mb_a_reader": (peak - rss) / len(readers),
        "mb_before": rss,
        "mb_peak": peak,
        "mb_after": target.memory(),
        "others_p99_ms_before": before.p99_ms,
        "others_p99_ms_during": during.p99_ms,
        "failures": wrong + early + before.failures + during.failures,
    }


PARTS: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, Any]]]] = {
    "large": (product, large),
    "idle": (product, idle),
    "churn": (product, churn),
    "slow": (echo, slow),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", default=",".join(PARTS))
    parser.add_argument("--grpc_server", default="native", choices=("native", "grpcio", "default"))
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--connections", type=int, default=10_000, help="that stay")
    parser.add_argument("--churning", type=int, default=1000, help="connections at a time that come and go")
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.connections, arguments.churning = 1.0, 1000, 100
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    return arguments


def main() -> int:
    arguments = parse()
    arguments.place.pin_this_process()
    connections.SAMPLE = 1  # every body is looked at
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.nice(5)  # the bystander goes first where the two share a core
    found = dict[str, dict[str, Any]]()
    for name in arguments.parts.split(","):
        start, part = PARTS[name]
        say(f"{name}, {arguments.grpc_server}")
        try:
            with start(arguments) as target:
                found[name] = part(target, arguments)
        except (Absent, ConnectionError, TimeoutError) as error:
            found[name] = {"failed": str(error), "failures": 1}
        print(json.dumps({name: found[name]}, indent=1), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"grpc_server": arguments.grpc_server, **found}, indent=1))
    return 1 if any(part["failures"] for part in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
