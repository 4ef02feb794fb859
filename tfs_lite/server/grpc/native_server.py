"""Puts tables of methods on our own transport; the same surface and the same errors as :class:`GrpcServer`.

The transport knows HTTP/2 and gRPC. Here is what a server adds: addresses with clear errors, TLS, the door, the meaning
of exceptions, and the bounds that ``--grpc_channel_arguments`` gives.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tfs_lite.server.grpc.admission import AdmissionControl
from tfs_lite.server.grpc.channel_arguments import Arguments, read_limits, shares_port
from tfs_lite.server.grpc.status import explain
from tfs_lite.server.runtime.sockets import PORT_FLAG, SOCKET_FLAG, UnixListener, listen
from tfs_lite.transport.numbers import Numbers
from tfs_lite.transport.server import Hooks, Server
from tfs_lite.transport.table import Method


class NativeGrpcServer:
    """``start`` -> ``stop``, both on the event loop that runs the handlers; made there, too.

    ``arguments`` are gRPC options that win over ours; those that mean nothing here are passed over, and
    INVALID_ARGUMENT names one that cannot be used. ``tls`` gives the context of one connection, and is called for each;
    None: no TLS. Beyond ``max_concurrent_calls`` (above 0) a call is refused with RESOURCE_EXHAUSTED; health and
    reflection do not count.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        max_message_bytes: int,
        *,
        arguments: Arguments = (),
        tls: Callable[[], ssl.SSLContext] | None = None,
        max_concurrent_calls: int | None = None,
    ) -> None:
        door = AdmissionControl(max_concurrent_calls)
        hooks = Hooks(door.enter, door.leave, explain)
        self._tls = tls
        self._server = Server(methods, read_limits(arguments, max_message_bytes), hooks, tls=tls)
        self._shares_port = shares_port(arguments)
        self._started = False
        self._unix: UnixListener | None = None

    @property
    def numbers(self) -> Numbers:
        """What it has counted so far. Any thread."""
        return self._server.numbers

    async def start(self, host: str, port: int | None, socket_path: str) -> int | None:
        """The TCP port, None without one. FAILED_PRECONDITION, naming address and flag, if it cannot be had, or if TLS
        cannot use key or certificate; nothing is left open then."""
        if self._tls is not None:
            self._tls()
        with ExitStack() as opened:
            sockets: list[socket.socket] = []
            bound = None
            if port is not None:
                sockets.append(opened.enter_context(listen(host, port, PORT_FLAG, shared=self._shares_port)))
                bound = int(sockets[0].getsockname()[1])
            if socket_path:
                unix = UnixListener(socket_path, SOCKET_FLAG)
                opened.callback(unix.remove)
                sockets.append(opened.enter_context(unix.socket))
                self._unix = unix
            await self._server.start(sockets)
            opened.pop_all()
        self._started = True
        return bound

    async def stop(self, grace: float) -> None:
        """Nobody gets in any more; returns when the calls inside are answered, or cancelled after ``grace`` seconds.
        May be called again with a shorter grace while it runs, and before ``start``.

        The door stays open: clients are told to go elsewhere, and what they have sent by then is answered. Of streams
        of requests no more is read, so that they end when they have answered.
        """
        if self._unix is not None:
            self._unix.remove()
        if self._started:
            await self._server.stop(grace)
