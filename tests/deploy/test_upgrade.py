"""From one release to the next: two servers behind a balancer are replaced one after the other, under callers.

``RELEASED`` names the ``tfs-lite`` of the release before; without it this tree's own wheel takes its part, which shows
the way and not the difference. Both builds have the same models and, one after the other, the same state directories.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from deploy_files import ROOT
from test_wheel import built

from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import ServerProcess, free_ports, wait_until

pytestmark = [
    pytest.mark.load,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]
CALLERS = 8
BALANCER = """
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    retries 3
    option redispatch
    retry-on conn-failure
frontend models
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    option httpchk GET /readyz
    timeout check 2s
    default-server check inter 200ms fall 2 rise 1
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the release before."""
    if found := os.environ.get("RELEASED"):
        return [found]
    place = tmp_path_factory.mktemp("released")
    with zipfile.ZipFile(built(ROOT, place)) as archive:
        archive.extractall(place / "wheel")
    start = f"import sys; sys.path.insert(0, {str(place / 'wheel')!r}); from tfs_lite.cli.main import main; main()"
    program = place / "tfs-lite"
    program.write_text(f"#!{sys.executable}\n{start}\n")
    program.chmod(0o755)
    return [str(program)]


def server_of(place: int, command: list[str], root: Path) -> ServerProcess:
    """A server that is not started yet. Those of one place have one state directory, and take turns."""
    flags = (f"--model_repository={root / 'models'}", f"--state_directory={root / f'state-{place}'}")
    return ServerProcess(*flags, "--shutdown_delay_seconds=2", command=command)


def balancing(servers: list[ServerProcess], port: int, root: Path) -> subprocess.Popen[bytes]:
    lines = [f"    server s{server.http_port} 127.0.0.1:{server.http_port}" for server in servers]
    config = root / "haproxy.cfg"
    config.write_text(BALANCER.format(port=port) + "\n".join(lines) + "\n")
    return subprocess.Popen(["haproxy", "-db", "-f", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[tuple[int, Counter[str]]]:
    """The port that callers ask without a pause, and how many of their requests were answered, and failed."""
    (port,), seen, stop = free_ports(1), Counter[str](), threading.Event()

    def ask() -> None:
        body = json.dumps({"instances": [[1.0, 2.0, 3.0]]}).encode()
        while not stop.is_set():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/m:predict", body, timeout=30) as answer:
                    seen["answered"] += answer.status == 200
            except OSError as error:
                said = error.read(100).decode() if isinstance(error, urllib.error.HTTPError) else ""
                if seen:  # the balancer is there
                    seen[f"failed: {error} {said}"] += 1
                stop.wait(0.05)

    with ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(CALLERS):
            pool.submit(ask)
        yield port, seen
        stop.set()


def test_two_servers_are_replaced_one_after_the_other_and_back(
    released: list[str], archives: TaggedArchives, callers: tuple[int, Counter[str]], tmp_path: Path
) -> None:
    archives.write_version(1, tmp_path / "models" / "m")
    port, seen = callers
    ours = [str(Path(sys.executable).with_name("tfs-lite"))]
    rounds = [[server_of(place, command, tmp_path) for place in range(2)] for command in (released, ours, released)]
    with ExitStack() as opened:
        for server in rounds[0]:
            opened.enter_context(server).wait_ready()
        # The balancer knows every server that will be there; its checks find out which of them are.
        balancer = balancing([server for servers in rounds for server in servers], port, tmp_path)
        opened.callback(balancer.wait)
        opened.callback(balancer.terminate)
        settled(seen)
        for servers, successors in pairwise(rounds):
            for server, successor in zip(servers, successors, strict=True):
                answered_more(seen)
                server.stop()
                opened.enter_context(successor).wait_ready()
                answered_more(seen)
        ended = dict(seen)
    assert [how for how in ended if how.startswith("failed")] == [], ended
    for place in range(2):
        events = (tmp_path / f"state-{place}" / "events.jsonl").read_text()
        assert events.count('"SERVER_STARTED"') == len(rounds), "each has gone on with what the one before has written"


def settled(seen: Counter[str]) -> None:
    """Returns when the balancer has found out which servers are there, and counts from then on."""
    while True:
        answered_more(seen)
        failed = seen.total() - seen["answered"]
        seen.clear()
        if not failed:
            return


def answered_more(seen: Counter[str]) -> None:
    enough = seen["answered"] + 1000
    wait_until(lambda: seen["answered"] >= enough, "the callers are answered")
