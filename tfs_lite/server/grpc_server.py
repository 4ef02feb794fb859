"""Puts tables of methods on ``grpc.aio``.

Everything that only gRPC has is here: status codes, the cut of long error texts, message limits, reflection, and a
clear error when an address cannot be had.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.protocols.descriptors import POOL
from tfs_lite.server.addresses import check_address, in_use
from tfs_lite.server.grpc_table import CallContext, CallKind, Method, StreamHandler, UnaryHandler

logger = logging.getLogger(__name__)

MAX_DETAILS = 1024
"""Longer error texts are cut: they travel in a header."""
INTERNAL = Status(StatusCode.INTERNAL, "internal error")
HEALTH = "/grpc.health.v1.Health/"
QUIET = 0.1
MAX_KNOCKING = 1.0
"""Seconds without a new call before gRPC is stopped, and how long to wait for them at most."""
REFLECTION_SERVICES = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")
"""The two have the same messages."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer:
    """``start`` -> ``stop``, both on the event loop that runs the handlers."""

    def __init__(self, methods: Sequence[Method], max_message_bytes: int) -> None:
        options = [
            ("grpc.so_reuseport", 0),  # a port in use is an error, not a port shared with a stranger
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
        ]
        self._server = grpc.aio.server(options=options)
        self._door = Door()
        services: dict[str, dict[str, Any]] = defaultdict(dict)
        for method in methods:
            services[method.service][method.name] = _rpc_handler(method, self._door)
        handlers = [grpc.method_handlers_generic_handler(name, rows) for name, rows in services.items()]
        self._server.add_generic_rpc_handlers([*handlers, *_reflection(tuple(services))])

    async def start(self, host: str, port: int | None, socket_path: str) -> int | None:
        """The TCP port, None without one. FAILED_PRECONDITION, naming port and flag, if it cannot be had."""
        bound = None
        if port is not None:
            check_address(host, port, "--port")
            bound = self._add(_target(host, port), lambda: in_use(host, port, "--port"))
        if socket_path:
            self._add(f"unix:{socket_path}", lambda: in_use_socket(socket_path))
        await self._server.start()
        return bound

    async def stop(self, grace: float) -> None:
        """Refuses new calls; returns when those inside are answered, or cancelled after ``grace`` seconds. May be
        called again with a shorter grace while it runs.

        gRPC's own stop cancels calls that have arrived but were not handed to Python yet. Therefore the door is shut
        first, and gRPC is stopped once nobody knocks any more.
        """
        ends = time.monotonic() + grace
        self._door.shut()
        await self._door.quiet(min(grace, MAX_KNOCKING))
        await self._server.stop(max(ends - time.monotonic(), 0.0))

    def _add(self, target: str, error: Callable[[], ServingError]) -> int:
        try:
            return cast(int, self._server.add_insecure_port(target))
        except RuntimeError:
            raise error() from None


class Door:
    """Whether calls are let in, and whether any still come. Health is always answered."""

    def __init__(self) -> None:
        self._open = True
        self._knocked = asyncio.Event()

    def enter(self, path: str) -> None:
        """UNAVAILABLE once the door is shut."""
        self._knocked.set()
        if not self._open and not path.startswith(HEALTH):
            raise ServingError(StatusCode.UNAVAILABLE, "the server is shutting down; try another one")

    def shut(self) -> None:
        self._open = False

    async def quiet(self, patience: float) -> None:
        """Returns when nobody has knocked for a moment, at the latest after ``patience`` seconds."""
        ends = time.monotonic() + patience
        while (left := ends - time.monotonic()) > 0:
            self._knocked.clear()
            try:
                await asyncio.wait_for(self._knocked.wait(), min(QUIET, left))
            except TimeoutError:
                return


def in_use_socket(path: str) -> ServingError:
    return ServingError(StatusCode.FAILED_PRECONDITION, f"cannot listen on the UNIX socket {path} (--grpc_socket_path)")


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def truncate(message: str) -> str:
    return message if len(message) <= MAX_DETAILS else message[:MAX_DETAILS] + "...TRUNCATED"


def _rpc_handler(method: Method, door: Door) -> Any:
    if method.kind is CallKind.UNARY:
        return grpc.unary_unary_rpc_method_handler(_unary(method.path, cast(UnaryHandler, method.handler), door))
    return grpc.unary_stream_rpc_method_handler(_stream(method.path, cast(StreamHandler, method.handler), door))


def _unary(path: str, handler: UnaryHandler, door: Door) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def call(request: bytes, context: Any) -> bytes:
        try:
            door.enter(path)
            return await handler(request, _call_context(context))
        except Exception as error:
            return cast(bytes, await _abort(path, context, error))

    return call


def _stream(path: str, handler: StreamHandler, door: Door) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
    async def call(request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            door.enter(path)
            async for message in handler(request, _call_context(context)):
                yield message
        except Exception as error:
            await _abort(path, context, error)

    return call


def _call_context(context: Any) -> CallContext:
    remaining = context.time_remaining()
    return CallContext(None if remaining is None else time.monotonic() + remaining)


async def _abort(path: str, context: Any, error: Exception) -> Any:
    if isinstance(error, ServingError):
        status = error.status
    else:
        logger.exception("%s failed", path, exc_info=error)
        status = INTERNAL
    return await context.abort(_CODES[int(status.code)], truncate(status.message))


def _reflection(services: Sequence[str]) -> list[Any]:
    """Reflection under both of its names, answered from our own descriptor pool."""
    servicer = reflection.aio.ReflectionServicer([*services, *REFLECTION_SERVICES], pool=POOL)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    rows = {"ServerReflectionInfo": handler}
    return [grpc.method_handlers_generic_handler(name, rows) for name in REFLECTION_SERVICES]
