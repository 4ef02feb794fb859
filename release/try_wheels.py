"""Installs the wheels of a release into empty environments, and uses them as their users would.

    python release/try_wheels.py DIRECTORY

The server's: save a model, serve it, ask for a prediction from a shell and for an explanation. The client's, which has
no torch: the same prediction from that server. Prints how long each step took.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WAIT_SECONDS = 120.0
SAVE = """
import torch, tfs_lite
net = torch.nn.Sequential(torch.nn.Linear(4, 2))
tfs_lite.save(net, "models/ranker", example_inputs=(torch.randn(3, 4),))
"""
ASK = """
import sys, time
began = time.perf_counter()
import tfs_lite
client = tfs_lite.Client(sys.argv[1])
imported = time.perf_counter() - began
assert "torch" not in sys.modules
answer = client.predict("ranker", {"input": [[1.0, 2.0, 3.0, 4.0]]})
assert answer.version == 1 and answer.outputs["output_0"].shape == (1, 2), answer
print(f"{imported * 1e3:.0f} ms")
"""


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)


def installed(place: Path, wheel: Path) -> Path:
    """The programs of a new environment that has the wheel and what it needs."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "-c", ROOT / "constraints.txt", wheel], check=True)
    return place / "bin"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def serving(programs: Path, place: Path) -> Iterator[tuple[str, str]]:
    """The addresses for gRPC and HTTP of a server that is ready, and is asked to stop in the end."""
    ports = free_port(), free_port()
    flags = ["--model_name=ranker", f"--model_base_path={place}/models/ranker"]
    flags += [f"--port={ports[0]}", f"--rest_api_port={ports[1]}"]
    with (place / "server.log").open("w") as log:
        server = subprocess.Popen([programs / "tfs-lite", "serve", *flags], stdout=log, stderr=log, cwd=place)
    try:
        until = time.monotonic() + WAIT_SECONDS
        while not is_ready(ports[1]):
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server is not ready:\n{(place / 'server.log').read_text()}")
            time.sleep(0.1)
        yield f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
    finally:
        server.terminate()
        server.wait(WAIT_SECONDS)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


def main(directory: str) -> int:
    (wheel,) = Path(directory).resolve().glob("tfs_lite-*.whl")
    (client_wheel,) = Path(directory).resolve().glob("tfs_lite_client-*.whl")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        began = time.monotonic()
        with timed("the server is installed"):
            programs = installed(place / "server", wheel)
        with timed("a model is saved"):
            subprocess.run([programs / "python", "-c", SAVE], check=True, cwd=place, stdout=subprocess.DEVNULL)
        with serving(programs, place) as (grpc, rest):
            tool = programs / "tfs-lite"
            with timed("the first answer"):
                asked = [tool, "predict", "ranker", "--server", grpc, "--input", "input=[[1, 2, 3, 4]]"]
                subprocess.run(asked, check=True, stdout=subprocess.DEVNULL)
            print(f"{time.monotonic() - began:6.1f} s  from nothing to the first answer", flush=True)
            with timed("explained"):
                subprocess.run([tool, "explain", "ranker", "--rest", rest], check=True, stdout=subprocess.DEVNULL)
            with timed("the client alone is installed"):
                alone = installed(place / "client", client_wheel)
            with timed("the client's first answer"):
                subprocess.run([alone / "python", "-c", ASK, grpc], check=True, cwd=place)
        files = [path for path in (place / "client" / "lib").rglob("*") if path.is_file() and "tfs_lite" in str(path)]
        print(f"{sum(path.stat().st_size for path in files):,} bytes of tfs-lite-client, without what it needs")
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "dist"))
