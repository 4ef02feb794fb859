"""Makes the gRPC server that ``--grpc_server`` names: our own transport or gRPC's library. The two have one interface,
and neither is imported before it is chosen."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tfs_lite.core.callbacks import ignore
from tfs_lite.server.grpc.channel_arguments import Arguments, read_limits, without_effect
from tfs_lite.server.runtime.tls import GRPC, TlsFile
from tfs_lite.serving.options import NATIVE
from tfs_lite.transport.backlog import Backlog
from tfs_lite.transport.grpc.call import OnUnread
from tfs_lite.transport.numbers import Numbers
from tfs_lite.transport.room import ConnectionShare
from tfs_lite.transport.table import Method

logger = logging.getLogger(__name__)


class GrpcTransport(Protocol):
    """See :class:`NativeGrpcServer` and :class:`GrpcServer`."""

    @property
    def numbers(self) -> Numbers | None:
        """The transport's counters; None if it has none."""
        ...

    async def start(self, host: str, port: int | None, socket_path: str) -> int | None: ...

    async def stop(self, grace: float) -> None: ...


def make_grpc_server(
    name: str,
    methods: Sequence[Method],
    max_message_bytes: int,
    *,
    arguments: Arguments = (),
    tls: TlsFile | None = None,
    max_concurrent_calls: int | None = None,
    backlog: Backlog | None = None,
    share: ConnectionShare | None = None,
    on_unread: OnUnread = ignore,
) -> GrpcTransport:
    """``name`` is one of ``GRPC_SERVERS``. Called on the event loop that runs the handlers. ``backlog``, ``share`` and
    ``on_unread``: see :class:`NativeGrpcServer`; gRPC's library has none of them."""
    if name == NATIVE:
        from tfs_lite.server.grpc.native_server import NativeGrpcServer

        return NativeGrpcServer(
            methods,
            max_message_bytes,
            arguments=arguments,
            tls=partial(tls.context, GRPC) if tls else None,
            max_concurrent_calls=max_concurrent_calls,
            backlog=backlog,
            share=share,
            on_unread=on_unread,
        )
    from tfs_lite.server.grpc.grpcio_server import GrpcServer, dynamic_credentials

    return GrpcServer(
        methods,
        max_message_bytes,
        arguments=arguments,
        credentials=partial(dynamic_credentials, tls) if tls else None,
        max_concurrent_calls=max_concurrent_calls,
    )


def effective_arguments(name: str, arguments: Arguments) -> tuple[tuple[str, int | str], ...]:
    """The arguments that have an effect on the server; those without are logged. INVALID_ARGUMENT names a wrong one."""
    if name != NATIVE:
        return tuple(arguments)
    read_limits(arguments, max_message_bytes=0)
    idle = without_effect(arguments)
    if idle:
        logger.warning("--grpc_channel_arguments: without effect on --grpc_server=native: %s", ", ".join(idle))
    return tuple((argument, value) for argument, value in arguments if argument not in idle)
