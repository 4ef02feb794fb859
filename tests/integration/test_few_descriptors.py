"""Idle connections on both ports take what connections may have, and nothing that the server needs for itself."""

from __future__ import annotations

import http.client
import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.servers.models import TaggedArchives
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, default_command, wait_until

FILES = 256


@pytest.fixture(params=["thread", "process"])
def server(request: pytest.FixtureRequest, archives: TaggedArchives, tmp_path: Path) -> Iterator[ServerProcess]:
    archives.write_version(1, tmp_path / "models" / "m")
    limited = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *default_command()]
    with ServerProcess(
        f"--model_repository={tmp_path / 'models'}", f"--worker={request.param}", command=limited
    ) as one:
        yield one
    assert one.exit_code == 0


def is_open(connection: socket.socket) -> bool:
    """Whether the server has not closed it, also where bytes of the server wait to be read."""
    ends = select.poll()
    ends.register(connection, select.POLLRDHUP)
    return not ends.poll(0)


def test_idle_connections_leave_the_server_what_it_needs(
    server: ServerProcess, archives: TaggedArchives, tmp_path: Path
) -> None:
    next_version = archives.write_version(2, tmp_path / "next")
    with ExitStack() as stack:
        probe = stack.enter_context(Probe(server))
        wait_until(lambda: probe.states("m") == {1: "AVAILABLE"}, "version 1 is available")
        held = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
        stack.callback(held.close)

        def is_ready() -> bool:
            held.request("GET", "/readyz")
            response = held.getresponse()
            assert response.read()
            return response.status == 200

        assert is_ready()
        silent = []
        for number in range(2 * FILES):
            port = (server.http_port, server.grpc_port)[number % 2]
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)))
            if number % 16 == 0:
                assert is_ready()
                assert probe.ask("m") == 1
        assert is_ready()
        wait_until(lambda: sum(map(is_open, silent)) < FILES / 2 + 8, "silent connections were closed")
        assert len(os.listdir(f"/proc/{server.pid}/fd")) <= FILES * 3 / 4
        next_version.rename(tmp_path / "models" / "m" / "2")
        wait_until(lambda: is_ready() and probe.ask("m") == 2, "version 2 answers")
        assert is_ready()
        assert server.get("/readyz")[0] == 200
        assert "Too many open files" not in server.log()
