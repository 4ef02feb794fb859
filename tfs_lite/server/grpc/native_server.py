"""Serves a table of methods with our own transport, with the interface and the errors of :class:`GrpcServer`.

The transport knows HTTP/2 and gRPC. This file adds addresses with clear errors, TLS, admission, the status of
exceptions, and the bounds of ``--grpc_channel_arguments``.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tfs_lite.core.callbacks import ignore
from tfs_lite.server.grpc.admission import AdmissionControl
from tfs_lite.server.grpc.channel_arguments import Arguments, read_limits, shares_port
from tfs_lite.server.grpc.status import explain
from tfs_lite.server.runtime.sockets import PORT_FLAG, SOCKET_FLAG, UnixListener, listen
from tfs_lite.transport.backlog import Backlog
from tfs_lite.transport.grpc.call import OnUnread
from tfs_lite.transport.numbers import Numbers
from tfs_lite.transport.room import ConnectionShare
from tfs_lite.transport.server import Hooks, TransportServer
from tfs_lite.transport.table import Method


class NativeGrpcServer:
    """``start`` -> ``stop``, both on the event loop that runs the handlers; made there, too.

    ``arguments`` are gRPC options that override ours; those without effect here are ignored, and INVALID_ARGUMENT names
    one that is wrong. ``tls`` gives the context of one connection; None: no TLS. Beyond ``max_concurrent_calls`` a call
    is refused with RESOURCE_EXHAUSTED; health and reflection do not count. Calls wait in the ``backlog``, and
    connections count in the ``share``, which others may have a part in (None: one of its own). ``on_unread`` is told of
    calls that end before their handler begins: see :class:`Hooks`.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        max_message_bytes: int,
        *,
        arguments: Arguments = (),
        tls: Callable[[], ssl.SSLContext] | None = None,
        max_concurrent_calls: int | None = None,
        backlog: Backlog | None = None,
        share: ConnectionShare | None = None,
        on_unread: OnUnread = ignore,
    ) -> None:
        admission = AdmissionControl(max_concurrent_calls)
        hooks = Hooks(admission.acquire, admission.release, explain, on_unread)
        self._tls = tls
        limits = read_limits(arguments, max_message_bytes)
        self._server = TransportServer(methods, limits, hooks, tls=tls, backlog=backlog, share=share)
        self._shares_port = shares_port(arguments)
        self._started = False
        self._unix: UnixListener | None = None

    @property
    def numbers(self) -> Numbers:
        """The transport's counters. Any thread."""
        return self._server.numbers

    async def start(self, host: str, port: int | None, socket_path: str) -> int | None:
        """Returns the TCP port, None without one. FAILED_PRECONDITION, with nothing left open, names the address and
        flag that cannot be had, or the key or certificate that TLS cannot use."""
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
        """Accepts no more connections; returns when the calls in flight are answered, or cancelled after ``grace``
        seconds. May be called again with a shorter grace while it runs, and before ``start``.

        Admission stays open: clients get a GOAWAY, and the calls that they sent before it are answered. Request streams
        are read no further, so that they end when they have answered.
        """
        if self._unix is not None:
            self._unix.remove()
        if self._started:
            await self._server.stop(grace)
