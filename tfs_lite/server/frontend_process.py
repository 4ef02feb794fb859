"""A gRPC frontend: a process that has a gRPC server on a shared port, and neither torch nor models.

Started by the server as ``python -m tfs_lite.server.frontend_process SOCKET MEMORY``, two descriptors that it inherits.
Its life is the server's: it ends when the server's end of the socket closes, and takes no notice of SIGINT and SIGTERM,
which a terminal sends to both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from mmap import mmap

from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_asker import Asker
from tfs_lite.server.frontend_ring import map_memory
from tfs_lite.server.frontend_setup import FrontendSetup
from tfs_lite.server.grpc_choice import GrpcTransport, make_grpc_server
from tfs_lite.server.loop_thread import new_event_loop

logger = logging.getLogger(__name__)

ENDED_WELL = 0
SERVER_IS_GONE = 1


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    memory = map_memory(int(sys.argv[2]))
    os.close(int(sys.argv[2]))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_Frontend().run(sock, memory))


class _Frontend:
    """Starts, serves until it is drained, says so, and ends the process."""

    def __init__(self) -> None:
        self._server: GrpcTransport | None = None
        self._drains: set[asyncio.Task[None]] = set()
        self._drained = False

    async def run(self, sock: socket.socket, memory: mmap) -> None:
        loop = asyncio.get_running_loop()
        self._asker = asker = Asker(memory, self._on_drain, self._on_gone)
        await loop.create_unix_connection(lambda: asker, sock=sock)
        setup = FrontendSetup.decode(await asker.setup)
        logging.basicConfig(
            stream=sys.stderr,
            level=setup.log_level,
            format="%(asctime)s.%(msecs)03d %(levelname)s gRPC frontend: %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
        )
        status = await self._start(setup)
        if not status.ok:
            asker.send(wire.FAILED, payload=status.message.encode(errors="replace"), code=int(status.code))
        await loop.create_future()  # _on_gone ends the process

    async def _start(self, setup: FrontendSetup) -> Status:
        try:
            server = _make_server(setup, self._asker)
            port = await server.start(setup.host, setup.port, setup.socket_path)
        except ServingError as error:
            return error.status
        except Exception as error:
            logger.exception("cannot start")
            return Status(StatusCode.INTERNAL, f"a gRPC frontend cannot start: {type(error).__name__}")
        self._server = server
        self._asker.send(wire.READY, value=wire.NO_PORT if port is None else port)
        return Status()

    def _on_drain(self, grace: float) -> None:
        task = asyncio.get_running_loop().create_task(self._drain(grace))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _drain(self, grace: float) -> None:
        if self._server is not None:
            await self._server.stop(grace)
        if not self._drained:
            self._drained = True
            self._asker.send(wire.BYE)
            self._asker.close()

    def _on_gone(self) -> None:
        """At once: there is nobody left to answer for, and gRPC's threads have nothing to put in order."""
        os._exit(ENDED_WELL if self._drained else SERVER_IS_GONE)


def _make_server(setup: FrontendSetup, asker: Asker) -> GrpcTransport:
    tls = None
    if setup.ssl_config_file:
        from pathlib import Path

        from tfs_lite.server.tls import TlsFile

        tls = TlsFile(setup.ssl_config_file, Path(setup.directory))
    methods = asker.table(setup.rows)
    return make_grpc_server(setup.server, methods, setup.max_message_bytes, arguments=setup.arguments, tls=tls)


if __name__ == "__main__":
    main()
