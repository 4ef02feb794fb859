"""Everything at once: trains a language model, serves it, trains it further and replaces it while it is writing.

    python examples/tiny_lm/demo.py [--steps 600]

The first quarter of the steps makes version 1. The rest makes version 2, which is published while two clients read long
texts of version 1: those stay with version 1 to their end, and who asks next is answered by version 2. The exit code is
0 if it went like that.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType

from client import MODEL, USUAL, WAYS, Pieces, show
from train import train

from tfs_lite.core.publish import publish

CONFIG = Path(__file__).resolve().parent / "config.yaml"
SERVER = (sys.executable, "-m", "tfs_lite.cli.main", "serve")
PROMPT = "The "
SHORT = 400
LONG_SECONDS = 5.0
"""How long version 1 takes for its long texts, about."""
LONGEST = 16_000
TIMEOUT = 120.0


class Server:
    """``tfs-lite serve`` on free ports of this machine. Leaving the ``with`` block ends it, by SIGTERM."""

    def __init__(self, repository: Path, log: Path) -> None:
        port, rest_port = _free_port(), _free_port()
        self.address = f"127.0.0.1:{rest_port}"
        self._log = log
        self._command = [*SERVER, f"--port={port}", f"--rest_api_port={rest_port}", f"--model_repository={repository}"]

    def __enter__(self) -> Server:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            self.wait_for_version(1)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait_for_version(self, version: int) -> None:
        """Returns once it is served. RuntimeError with the server's log if the server ends or takes too long."""
        url = f"http://{self.address}/v2/models/{MODEL}/versions/{version}/ready"
        deadline = time.monotonic() + TIMEOUT
        while not _answers(url):
            if self.exit_code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"version {version} is not served:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.05)

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    """Whether it answers with a status of 200."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT):
            return True
    except OSError:
        return False


class Stream:
    """One text on its way, read by a thread of ``pool``. ``text`` and ``versions`` grow until it has ``ended``."""

    def __init__(self, pieces: Pieces, pool: ThreadPoolExecutor) -> None:
        self.text, self.versions = "", set[str]()
        self._news = threading.Event()
        self._end = pool.submit(self._read, pieces)

    @property
    def ended(self) -> bool:
        return self._end.done()

    def wait_begun(self) -> None:
        if not self._news.wait(TIMEOUT):
            raise RuntimeError(f"nothing came in {TIMEOUT:g} s")

    def wait_ended(self) -> None:
        """Raises what went wrong with it."""
        self._end.result(TIMEOUT)

    def _read(self, pieces: Pieces) -> None:
        try:
            for piece, version in pieces:
                self.text += piece
                self.versions.add(version)
                self._news.set()
        finally:
            self._news.set()


class Demo:
    """The steps of it, in their order. ``problems``: what did not go as promised."""

    def __init__(self, directory: Path, steps: int) -> None:
        self.repository = directory / "models"
        self.problems: list[str] = []
        self._trained = directory / "trained"
        self._steps = steps

    def make_first(self) -> None:
        self._train(max(1, self._steps // 4))
        self._publish()
        shutil.copy(CONFIG, self.repository / MODEL)

    def run(self, server: Server) -> None:
        address = server.address
        list(WAYS[USUAL](address, PROMPT, 1))  # the first one takes longer
        began = time.monotonic()
        first = self._ask(address, "1")
        rate = SHORT / (time.monotonic() - began)
        print("version 1 goes on serving meanwhile:")
        self._train(max(1, self._steps - self._steps // 4))
        with ThreadPoolExecutor(2) as pool:
            count = min(LONGEST, int(rate * LONG_SECONDS))
            streams = {way: Stream(WAYS[way](address, PROMPT, count), pool) for way in (USUAL, "v2")}
            self._replace(server, list(streams.values()))
            second = self._ask(address, "2")
            for way, stream in streams.items():
                stream.wait_ended()
                self._judge(way, stream, count)
        if first == second:
            self.problems.append("both versions write the same text")

    def _train(self, steps: int) -> None:
        print(f"training, {steps} steps ...", flush=True)
        began = time.monotonic()
        bits = train(self._trained, steps)
        print(f"  {time.monotonic() - began:.0f} s; {bits:.2f} bits per byte of topics it has not seen\n")

    def _publish(self) -> None:
        publish(str(self._trained), str(self.repository / MODEL))

    def _ask(self, address: str, expected: str) -> str:
        print(f"version {expected}, asked to go on with {PROMPT!r}:")
        text, versions = show(PROMPT, WAYS[USUAL](address, PROMPT, SHORT))
        print()
        if versions != {expected}:
            self.problems.append(f"version {'+'.join(sorted(versions))} answered, expected {expected}")
        return text

    def _replace(self, server: Server, streams: list[Stream]) -> None:
        for stream in streams:
            stream.wait_begun()
        self._publish()
        server.wait_for_version(2)
        alive = sum(not stream.ended for stream in streams)
        print(f"version 2 is served; {alive} streams of version 1 are under way\n")
        if alive < len(streams):
            self.problems.append("streams of version 1 had ended before version 2 was there")

    def _judge(self, way: str, stream: Stream, count: int) -> None:
        """A character may be several bytes, so there are not quite as many."""
        versions = "+".join(sorted(stream.versions))
        print(f"the stream by {way} has ended: {len(stream.text)} characters, all by version {versions}")
        if versions != "1":
            self.problems.append(f"the stream by {way} was not written by version 1 alone")
        if not count / 4 <= len(stream.text) <= count:
            self.problems.append(f"the stream by {way} is not whole: {len(stream.text)} characters of {count} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="of training, for both versions together")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals without all letters
    with tempfile.TemporaryDirectory(prefix="tiny-lm-") as directory:
        demo = Demo(Path(directory), arguments.steps)
        try:
            demo.make_first()
            with Server(demo.repository, Path(directory, "server.log")) as server:
                demo.run(server)
        except (OSError, RuntimeError) as error:
            sys.exit(f"error: {error}")
    if server.exit_code != 0:
        demo.problems.append(f"the server ended with {server.exit_code}")
    if demo.problems:
        sys.exit("not as promised: " + "; ".join(demo.problems))
    print("every stream had one version, and none was cut off")


if __name__ == "__main__":
    main()
