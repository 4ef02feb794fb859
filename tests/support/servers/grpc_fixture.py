"""A gRPC server of a few methods, on a test's event loop, with a channel to it.

with GrpcFixture(loop_thread, "native", [unary("/test.Service/echo", echo)]) as server:
    assert server.call("/test.Service/echo", b"x") == b"x"
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import grpc

from tfs_lite.server.grpc.factory import GrpcTransport, make_grpc_server
from tfs_lite.server.runtime.event_loop import LoopThread
from tfs_lite.transport.table import Method

LOCAL = ("grpc.use_local_subchannel_pool", 1)
"""A channel option: connections are not shared with other channels to the same address."""


def connect(target: str, *options: tuple[str, int]) -> grpc.Channel:
    return grpc.insecure_channel(target, [LOCAL, *options])


class GrpcFixture:
    """Starts on construction. ``settings`` are those of :func:`make_grpc_server`. ``path``: a UNIX socket beside the
    port, or instead of it if ``port`` is None. One thread."""

    def __init__(
        self,
        loop_thread: LoopThread,
        kind: str,
        methods: Sequence[Method],
        max_message_bytes: int = 100_000,
        *,
        host: str = "127.0.0.1",
        port: int | None = 0,
        path: str = "",
        **settings: Any,
    ) -> None:
        self._loop = loop_thread

        async def start() -> tuple[GrpcTransport, int | None]:
            server = make_grpc_server(kind, methods, max_message_bytes, **settings)
            return server, await server.start(host, port, path)

        self.server, self.port = loop_thread.run(start())
        address = f"[{host}]" if ":" in host else "127.0.0.1"
        self.target = f"unix:{path}" if self.port is None else f"{address}:{self.port}"
        unbounded = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self.channel = connect(self.target, *unbounded)

    def call(self, path: str, data: bytes, timeout: float | None = 20.0) -> bytes:
        answer: bytes = self.channel.unary_unary(path)(data, timeout=timeout)
        return answer

    def stop(self, grace: float = 0.0) -> None:
        self._loop.run(self.server.stop(grace))

    def __enter__(self) -> GrpcFixture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()
        self.stop()
