"""Bad versions pushed under callers, who do not notice: all of it at once, in one minute.

    python examples/guarded_versions/demo.py

It serves version 1, has twenty callers call it without pause, and pushes one version after the other: one that raises,
one whose classes stand in another order, one with a renamed input, and a good one. It prints what the server says of
each, and in the end how many errors the callers got. The exit code is 0 if it went as it should, without one.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from call import MODEL, Callers
from push import push

COMMAND = (sys.executable, "-m", "tfs_lite.cli.main")
RECORDED = 40
TIMEOUT = 60.0


class Server:
    """The server of ``serve.sh`` on free ports of this machine, with its files in ``directory``. Leaving the ``with``
    block ends it, by SIGTERM."""

    def __init__(self, directory: Path) -> None:
        self.port, self.rest_port = _free_port(), _free_port()
        self.base, self._log = directory / "models" / MODEL, directory / "server.log"
        self._flags = [
            f"--model_name={MODEL}", f"--model_base_path={self.base}", f"--trusted_model_base_paths={self.base.parent}",
            f"--port={self.port}", f"--rest_api_port={self.rest_port}", "--bake_seconds=60",
            f"--state_directory={directory / 'state'}",
        ]  # fmt: skip

    def __enter__(self) -> Server:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*COMMAND, "serve", *self._flags], stdout=log, stderr=log)
        try:
            self.wait(lambda: self.verdict(1) == "SERVING", "version 1 serves")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def explain(self, version: int) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.rest_port}/v1/models/{MODEL}/versions/{version}:explain"
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def verdict(self, version: int) -> str:
        """``""`` while the server does not answer."""
        try:
            return str(self.explain(version)["verdict"])
        except OSError:
            return ""

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Returns once it holds. RuntimeError with the server's log if the server ends or it takes too long."""
        deadline = time.monotonic() + TIMEOUT
        while not holds():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"not within {TIMEOUT:g} s: {what}\n{self._log.read_text(errors='replace')}")
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


class Demo:
    """The pushes, in their order, each as a line of what was done and a line of what the server said."""

    def __init__(self, server: Server, callers: Callers) -> None:
        self._server, self._callers, self._began = server, callers, time.monotonic()

    def run(self) -> None:
        self._server.wait(lambda: self._callers.versions[1] >= RECORDED, "version 1 answers the callers")
        self._say(f"version 1 serves; {self._callers.told()}")
        self._push("raises", "REJECTED")
        self._record()
        self._push("shuffled", "HELD_BACK")
        self._push("renamed", "HELD_BACK")
        version = self._push("good", "SERVING")
        self._server.wait(lambda: self._callers.versions[version] >= RECORDED, f"version {version} answers the callers")
        self._say(f"version {version} answers; {self._callers.told()}")

    def _push(self, kind: str, verdict: str) -> int:
        version = push(kind, self._server.base)
        self._say(f"push.py {kind}: version {version}")
        self._server.wait(lambda: self._server.verdict(version) == verdict, f"version {version} is {verdict}")
        self._say(f"{verdict}: {self._server.explain(version)['sentence']}")
        return version

    def _record(self) -> None:
        """Has the server answer some requests, and keeps its answers beside the versions."""
        out = self._server.base / "replay.tfrecord"
        with tempfile.TemporaryDirectory() as directory:
            bodies = [Path(directory, f"{index}.json") for index in range(RECORDED)]
            for body in bodies:
                body.write_text(json.dumps({"instances": [[random.random() for _ in range(4)]]}), encoding="utf-8")
            server = f"--server=127.0.0.1:{self._server.port}"
            command = [*COMMAND, "record", server, f"--model_name={MODEL}", f"--out={out}", *map(str, bodies)]
            subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)
        self._say(f"tfs-lite record: {RECORDED} answers of version 1 are in replay.tfrecord, beside the versions")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guarded-versions-") as directory:
        base = Path(directory, "models", MODEL)
        base.parent.mkdir()
        push("good", base)
        try:
            with Server(Path(directory)) as server, Callers(f"127.0.0.1:{server.port}") as callers:
                Demo(server, callers).run()
        except (OSError, RuntimeError) as error:
            sys.exit(f"error: {error}")
    for what, count in callers.errors.most_common(5):
        print(f"{count} x {what}")
    print(f"errors: {callers.errors.total()} in {callers.versions.total() + callers.errors.total():,} requests")
    sys.exit(callers.errors.total() > 0)


if __name__ == "__main__":
    main()
