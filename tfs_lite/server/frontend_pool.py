"""gRPC in several processes: the same table of methods as in one, behind frontends that share a port.

Each frontend speaks gRPC and hands the bytes of its calls to this process, which runs the handlers: one at a time, in
one process with the models, as if they came from here. Clients see one server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from tfs_lite.core.status import failed_precondition
from tfs_lite.server.addresses import PORT_FLAG
from tfs_lite.server.door import Door
from tfs_lite.server.frontend_child import FrontendChild
from tfs_lite.server.frontend_port import hold_port
from tfs_lite.server.frontend_setup import FrontendSetup, rows_of
from tfs_lite.server.frontend_wire import MAX_PAYLOAD
from tfs_lite.server.grpc_arguments import RECEIVE_LIMIT, SHARE_PORT
from tfs_lite.server.grpc_choice import GRPCIO
from tfs_lite.transport.table import CallContext, CallKind, Method


class FrontendPool:
    """``start`` -> ``stop``, both on the event loop that runs the handlers. Takes the place of a GrpcServer.

    ``server``, one of ``GRPC_SERVERS``, runs in each frontend. ``ssl_config_file`` is read by each; "": no TLS.
    ``max_concurrent_calls`` counts the calls of all frontends together. A frontend that dies is started again, after a
    pause; the calls inside it are cancelled. Metrics, for any thread: ``frontends`` that listen now, ``restarts`` so
    far, ``calls_inside``.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        max_message_bytes: int,
        *,
        arguments: Sequence[tuple[str, int | str]] = (),
        ssl_config_file: str = "",
        max_concurrent_calls: int | None = None,
        processes: int = 2,
        server: str = GRPCIO,
    ) -> None:
        if max_concurrent_calls is not None:
            door = Door(max_concurrent_calls)
            methods = [_counted(method, door) for method in methods]
        self._methods = methods
        self._max_message_bytes = max_message_bytes
        self._arguments = dict(arguments)
        self._ssl_config_file = ssl_config_file
        self._processes = processes
        self._server = server
        self._children: tuple[FrontendChild, ...] = ()
        self._held: socket.socket | None = None

    async def start(self, host: str, port: int | None, socket_path: str) -> int | None:
        """The TCP port, None without one, once every frontend listens. The first one has the UNIX socket, too. Raises
        what GrpcServer does, and UNAVAILABLE if a frontend does not come up; nothing is left running then."""
        _check_readable_by_all(self._ssl_config_file)
        if port is not None:
            shared = self._arguments.get(SHARE_PORT) == 1
            self._held = hold_port(host, port, PORT_FLAG, with_strangers=shared)
            port = cast(int, self._held.getsockname()[1])
        setup = self._setup(host, port)
        self._children = tuple(
            self._child(index, replace(setup, socket_path="" if index else socket_path))
            for index in range(self._processes if port is not None else 1)
        )
        results = await asyncio.gather(*(child.start() for child in self._children), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.stop(0.0)
            raise failures[0]
        return port

    async def stop(self, grace: float) -> None:
        """Refuses new calls; returns when those inside are answered, or cancelled after ``grace`` seconds, and every
        frontend has ended. May be called again with a shorter grace while it runs."""
        await asyncio.gather(*(child.stop(grace) for child in self._children))
        if self._held is not None:
            self._held.close()
            self._held = None

    @property
    def frontends(self) -> int:
        return sum(child.listens for child in self._children)

    @property
    def restarts(self) -> int:
        return sum(child.restarts for child in self._children)

    @property
    def calls_inside(self) -> int:
        return sum(child.calls_inside for child in self._children)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the frontends that run, in the order of their numbers."""
        return tuple(found for child in self._children if (found := child.process_id) is not None)

    def _child(self, index: int, setup: FrontendSetup) -> FrontendChild:
        limit = self._arguments.get(RECEIVE_LIMIT, self._max_message_bytes)
        max_payload = limit if isinstance(limit, int) and limit >= 0 else MAX_PAYLOAD
        return FrontendChild(index, self._methods, setup, max_payload)

    def _setup(self, host: str, port: int | None) -> FrontendSetup:
        return FrontendSetup(
            rows=rows_of(self._methods),
            max_message_bytes=self._max_message_bytes,
            arguments=tuple({**self._arguments, SHARE_PORT: 1}.items()),
            ssl_config_file=self._ssl_config_file,
            host=host,
            port=port,
            socket_path="",
            server=self._server,
            directory=os.getcwd(),
            log_level=logging.getLogger().getEffectiveLevel(),
        )


def _check_readable_by_all(path: str) -> None:
    """Whether there is such a file, and what is in it, every frontend finds out for itself."""
    if path and os.path.exists(path) and not os.path.isfile(path):
        raise failed_precondition(
            f"{path} (--ssl_config_file) is no regular file: several frontends cannot read it (--grpc_frontends)"
        )


def _counted(method: Method, door: Door) -> Method:
    """The same method behind a door, which all frontends share."""
    path = method.path
    if method.kind in (CallKind.UNARY, CallKind.CLIENT_STREAM):
        one = cast(Callable[[Any, CallContext], Awaitable[bytes]], method.handler)

        async def call(asked: Any, context: CallContext) -> bytes:
            entered = door.enter(path)
            try:
                return await one(asked, context)
            finally:
                if entered:
                    door.leave()

        return replace(method, handler=call)
    many = cast("Callable[[Any, CallContext], AsyncGenerator[bytes, None]]", method.handler)

    async def items(asked: Any, context: CallContext) -> AsyncIterator[bytes]:
        entered = door.enter(path)
        try:
            async with aclosing(many(asked, context)) as answers:
                async for item in answers:
                    yield item
        finally:
            if entered:
                door.leave()

    return replace(method, handler=items)
