"""Starts the servers that are measured, each pinned to its cores, and ends them with everything they started.

    with launch_ours(model, place, *flags) as running: ...
    with launch_peer("mosec", RAW)(model, place) as running: ...

``Absent`` says, in a line, why a server cannot run here: not installed, or what it last wrote.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
from connections import Connection, ProtocolError
from forms import Codec
from models import BENCH, Model

from tests.support.servers.process import ServerProcess, default_command, free_ports

T = TypeVar("T")
HERE = Path(__file__).resolve().parent
START_SECONDS = 90.0
STOP_SECONDS = 15.0
MAX_ROWS = 32
WAIT_MS = 2.0
"""Of peers, and of ours where it waits for a fixed time."""


class Absent(RuntimeError):
    """This server cannot run here."""


@dataclass(frozen=True, slots=True)
class Place:
    """Cores as ``taskset`` writes them: ``0`` or ``0,1``. Servers run the source tree ``source``, or else this one."""

    server: str = "0"
    client: str = "1"
    source: str = ""

    def pin_this_process(self) -> None:
        os.sched_setaffinity(0, {int(cpu) for cpu in self.client.split(",")})

    def pinned(self, command: Sequence[str]) -> list[str]:
        other = ["env", "-C", self.source, f"PYTHONPATH={self.source}"] if self.source else []
        return ["taskset", "-c", self.server, *other, *command]


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    port: int
    """Of the side's main protocol."""
    http_port: int = 0
    """Of ours, for REST and metrics."""
    ours: ServerProcess | None = None

    def cpu_seconds(self) -> float:
        return sum(self._of_each(lambda process: sum(process.cpu_times()[:2])))

    def proportional_bytes(self) -> int:
        """Of all its processes; each of ``n`` processes that share a page counts an ``n``-th of it (PSS). Reading it
        holds the processes up for some milliseconds."""
        return sum(self._of_each(lambda process: process.memory_full_info().pss))

    def resident_bytes(self) -> int:
        """Of all its processes; pages that they share count more than once."""
        return sum(self._of_each(lambda process: process.memory_info().rss))

    def _of_each(self, figure: Callable[[psutil.Process], T]) -> list[T]:
        """The figure of each of its processes; one that ends meanwhile has none."""
        root = psutil.Process(self.pid)
        found = []
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                found.append(figure(process))
        return found


Launch = Callable[[Model, Place], AbstractContextManager["Running"]]


def last_words(log: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "it ended without a word"


def batching_file(max_rows: int = MAX_ROWS, wait_ms: float = 0.0) -> Path:
    """``--batching_parameters_file`` with these settings."""
    path = BENCH / f"batching-{max_rows}-{wait_ms:g}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"max_batch_size {{ value: {max_rows} }}\nbatch_timeout_micros {{ value: {round(wait_ms * 1000)} }}\n"
        "max_enqueued_batches { value: 100 }\nnum_batch_threads { value: 1 }\n"
    )
    return path


def batched(max_rows: int = MAX_ROWS, wait_ms: float = 0.0) -> tuple[str, ...]:
    """The flags that turn batching on. Without a wait, the server's own judgement decides when a batch leaves."""
    return ("--enable_batching", f"--batching_parameters_file={batching_file(max_rows, wait_ms)}")


def end_in_order() -> None:
    """From now on SIGTERM ends this benchmark as Ctrl-C does: what it has started ends, and what it has set is set
    back."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def launch_ours(model: Model, place: Place, *flags: str) -> Iterator[Running]:
    """``tfs-lite serve`` of one model, with one torch thread."""
    with launch_serve(place, f"--model_name={model.name}", f"--model_base_path={model.directory}", *flags) as running:
        yield running


@contextmanager
def launch_serve(place: Place, *flags: str, command: Sequence[str] | None = None) -> Iterator[Running]:
    """``tfs-lite serve`` of whatever the flags say, with one torch thread; ``command`` in place of ``tfs-lite``."""
    server = ServerProcess(
        "--tensorflow_intra_op_parallelism=1",
        "--log_level=warning",
        *flags,
        command=place.pinned(command or default_command()),
        stop_timeout=STOP_SECONDS,
    )
    server.start()
    try:
        try:
            server.wait_ready(START_SECONDS)
        except RuntimeError:
            raise Absent(last_words(server.log())) from None
        yield Running(server.pid, server.grpc_port, server.http_port, server)
    finally:
        server.stop()


@contextmanager
def launch_command(
    command: Sequence[str], port: int, codec: Codec, model: Model, place: Place, env: Mapping[str, str]
) -> Iterator[Running]:
    """Any other server, ready once it answers a question; run in ``peers``."""
    with tempfile.TemporaryFile("w+b") as log:
        process = subprocess.Popen(
            place.pinned(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=HERE / "peers",
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
            start_new_session=True,
        )

        def words() -> str:
            return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")

        try:
            _wait_answer(process, port, codec, model, words)
            yield Running(process.pid, port)
        finally:
            end(process)


def _wait_answer(
    process: subprocess.Popen[bytes], port: int, codec: Codec, model: Model, words: Callable[[], str]
) -> None:
    deadline, messages, why = time.monotonic() + START_SECONDS, codec.messages(model)[:1], ""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Absent(last_words(words()))
        try:
            code, good = ask_once(codec.connect(port, model, messages))
            if code == good:
                return
            why = f"it answers with status {code}"
        except (OSError, ProtocolError, TimeoutError) as error:
            why = str(error)
        time.sleep(0.2)
    raise Absent(f"not ready within {START_SECONDS:g} s: {why}; {last_words(words())}")


def ask_once(connection: Connection, seconds: float = 10.0) -> tuple[int, int]:
    """(code of the answer to the first message, code that is good). Closes the connection."""
    with connection.sock as sock:
        sock.settimeout(seconds)
        connection.start(0, 0.0)
        connection.flush()
        while not (answers := connection.receive()):
            connection.flush()
        return answers[0].code, connection.good


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its descendants: asked first, killed what is left. All of them were started from here."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(family, timeout=STOP_SECONDS)


def launch_limit(kind: str, codec: Codec) -> Launch:
    """One of ``limits.py``'s echo servers. HTTP with uvicorn's quick parts, where ``make bench-peers`` put them."""

    @contextmanager
    def launch(model: Model, place: Place) -> Iterator[Running]:
        (port,) = free_ports(1)
        python = BENCH / "limits" / "bin" / "python"
        chosen = str(python) if kind == "asgi-echo" and python.exists() else sys.executable
        command = [chosen, str(HERE / "limits.py"), kind, str(port)]
        with launch_command(command, port, codec, model, place, {}) as running:
            yield running

    return launch


def peer_python(name: str) -> Path:
    """The interpreter of a peer's own environment. Absent without it."""
    if not (BENCH / name / ".installed").exists():
        raise Absent("not installed (make bench-peers)")
    return BENCH / name / "bin" / "python"


def launch_peer(name: str, codec: Codec) -> Launch:
    """A server of ``peers/NAME_peer.py`` in the environment ``.bench/NAME``."""

    @contextmanager
    def launch(model: Model, place: Place) -> Iterator[Running]:
        python = peer_python(name)
        (port,) = free_ports(1)
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            env = {
                "BENCH_MODEL": str(model.version),
                "BENCH_NAME": model.name,
                "BENCH_SHAPE": ",".join(map(str, model.shape)),
                "BENCH_PORT": str(port),
                "BENCH_ROWS": str(MAX_ROWS),
                "BENCH_WAIT_MS": f"{WAIT_MS:g}",
                "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
                "TMPDIR": scratch,
                "PYTRITON_HOME": f"{scratch}/pytriton",
                "BENTOML_HOME": f"{scratch}/bentoml",
                "BENTOML_DO_NOT_TRACK": "1",
                "RAY_USAGE_STATS_ENABLED": "0",
            }
            if name == "pytriton":  # its own processes look for libpython, which need not be on the system's path
                env["LD_LIBRARY_PATH"] = str(python.resolve().parent.parent / "lib")
            with launch_command(_peer_command(name, python, port, scratch), port, codec, model, place, env) as running:
                yield running

    return launch


def _peer_command(name: str, python: Path, port: int, scratch: str) -> list[str]:
    if name == "bentoml":
        return [str(python), "-m", "bentoml", "serve", "bentoml_peer:Net", "--port", str(port), "--host", "127.0.0.1"]
    if name == "torchserve" and shutil.which("java") is None:
        raise Absent("it needs Java")
    return [str(python), str(HERE / "peers" / f"{name}_peer.py"), *([scratch] if name == "torchserve" else [])]
