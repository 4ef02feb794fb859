"""Serves a table of methods with ``grpc.aio``, gRPC's own library and the reference for :mod:`native_server`.

It adds what the library lacks: admission, clear errors for addresses, and a drain that loses no call.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

import grpc

from tfs_lite.config.server_files import SSLConfig
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.server.grpc.admission import AdmissionControl
from tfs_lite.server.grpc.channel_arguments import RECEIVE_LIMIT, SEND_LIMIT, SHARE_PORT
from tfs_lite.server.grpc.status import explain
from tfs_lite.server.runtime.sockets import PORT_FLAG, SOCKET_FLAG, cannot_listen, check_address, claim, in_use
from tfs_lite.server.runtime.tls import TlsFile
from tfs_lite.transport.peer import UNIX, Peer, is_same_user, peer_at
from tfs_lite.transport.table import (
    BidiHandler,
    CallContext,
    CallKind,
    ClientStreamHandler,
    Method,
    StreamHandler,
    UnaryHandler,
)

MAX_QUIET_WAIT = 1.0
"""Seconds to wait at most for a moment without a new call before gRPC is stopped."""
MAX_PEERS = 1024
"""Addresses that are remembered."""
CERTIFICATE_NAMES = ("peer_uri", "peer_dns")
"""Kinds of names in a certificate that count, as gRPC calls them."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer:
    """``start`` -> ``stop``, both on the event loop that runs the handlers.

    ``arguments`` are gRPC options that override ours. ``credentials`` makes the TLS credentials of one address; None:
    no TLS. Beyond ``max_concurrent_calls`` a call is refused with RESOURCE_EXHAUSTED; health and reflection do not
    count.
    """

    numbers = None
    """The library counts nothing."""

    def __init__(
        self,
        methods: Sequence[Method],
        max_message_bytes: int,
        *,
        arguments: Sequence[tuple[str, int | str]] = (),
        credentials: Callable[[], grpc.ServerCredentials] | None = None,
        max_concurrent_calls: int | None = None,
    ) -> None:
        options: dict[str, int | str] = {
            SHARE_PORT: 0,  # a port in use is an error
            RECEIVE_LIMIT: max_message_bytes,
            SEND_LIMIT: -1,
        }
        options.update(arguments)
        self._server = grpc.aio.server(options=list(options.items()))
        self._shares_port = options[SHARE_PORT] == 1
        self._credentials = credentials
        self._admission = AdmissionControl(max_concurrent_calls)
        self._draining = asyncio.Event()
        self._peers = _Peers()
        services: dict[str, dict[str, Any]] = defaultdict(dict)
        for method in methods:
            services[method.service][method.name] = _rpc_handler(method, self._admission, self._draining, self._peers)
        handlers = [grpc.method_handlers_generic_handler(name, rows) for name, rows in services.items()]
        self._server.add_generic_rpc_handlers(handlers)

    async def start(self, host: str, port: int | None, socket_path: str) -> int | None:
        """Returns the TCP port, None without one. FAILED_PRECONDITION, naming port and flag, if it cannot be had."""
        bound = None
        if port is not None:
            if not self._shares_port:
                check_address(host, port, PORT_FLAG)
            bound = self._add(_target(host, port), lambda: self._explain_port(host, port))
        if socket_path:
            address = claim(socket_path, SOCKET_FLAG)
            self._add(address, lambda: cannot_listen(socket_path, SOCKET_FLAG, f"gRPC refuses it{self._or_tls}"))
            self._peers.socket_path = socket_path
        await self._server.start()
        return bound

    async def stop(self, grace: float) -> None:
        """Refuses new calls; returns when those in flight are answered, or cancelled after ``grace`` seconds. May be
        called again with a shorter grace while it runs.

        gRPC's own stop cancels calls that have arrived but were not handed to Python yet. Therefore admission is closed
        first, and gRPC is stopped once no more calls arrive. Request streams are read no further, so that they end when
        they have answered.
        """
        ends = time.monotonic() + grace
        self._admission.close()
        self._draining.set()
        await self._admission.wait_quiet(min(grace, MAX_QUIET_WAIT))
        await self._server.stop(max(ends - time.monotonic(), 0.0))

    def _add(self, target: str, error: Callable[[], ServingError]) -> int:
        try:
            if self._credentials is None:
                return cast(int, self._server.add_insecure_port(target))
            return cast(int, self._server.add_secure_port(target, self._credentials()))
        except RuntimeError:
            raise error() from None

    def _explain_port(self, host: str, port: int) -> ServingError:
        """gRPC does not name the cause; if the port is free now, it was something else."""
        try:
            check_address(host, port, PORT_FLAG)
        except ServingError as error:
            return error
        if self._credentials is None:
            return in_use(host, port, PORT_FLAG)
        return failed_precondition(f"gRPC refuses to listen on port {port} of {host} ({PORT_FLAG}){self._or_tls}")

    @property
    def _or_tls(self) -> str:
        return "" if self._credentials is None else ", or the key or certificate (--ssl_config_file)"


def dynamic_credentials(file: TlsFile) -> grpc.ServerCredentials:
    """The credentials of one listening address of gRPC's library, which tracks the newest certificate of each address
    by itself. The library calls from threads of its own."""
    given = file.content

    def newer() -> Any:
        nonlocal given
        newest = file.newest()
        if newest.revision == given.revision:
            return None
        given = newest
        return _certificates(newest.config)

    return grpc.dynamic_ssl_server_credentials(_certificates(given.config), newer, given.config.client_verify)


def _certificates(config: SSLConfig) -> Any:
    """The key and certificates for gRPC's library, which consumes the object: each use needs a new one."""
    pair = (config.server_key.get_secret_value().encode(), config.server_cert.encode())
    return grpc.ssl_server_certificate_configuration(
        [pair], config.custom_ca.encode() if config.client_verify else None
    )


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Peers:
    """The peers that call. ``socket_path`` is the server's UNIX socket, empty without one.

    The library does not tell which process is at the other end of a UNIX socket. Where only the socket's owner may
    write to its file, the system lets only processes of that user and of root connect.
    """

    def __init__(self) -> None:
        self.socket_path = ""
        self._at = lru_cache(MAX_PEERS)(peer_at)

    def find(self, context: Any) -> Peer:
        kind, _, rest = context.peer().partition(":")
        if kind == UNIX:
            return Peer(UNIX, same_user=self._is_private(), names=_certificate_names(context))
        return self._at(unquote(rest.rpartition(":")[0]).strip("[]"), _certificate_names(context))

    def _is_private(self) -> bool:
        try:
            found = os.stat(self.socket_path)
        except OSError:
            return False
        return is_same_user(found.st_uid) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _certificate_names(context: Any) -> frozenset[str]:
    """Those that the library has verified."""
    if not context.peer_identities():
        return frozenset()
    found = context.auth_context()
    return frozenset(name.decode() for kind in CERTIFICATE_NAMES for name in found.get(kind, ()))


class _Metadata(Mapping[str, str]):
    """The client's metadata, without binary values; it is read from the library when it is first looked at."""

    __slots__ = ("_context", "_found")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._found: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[str, str]:
        if self._found is None:
            self._found = {}
            for name, value in self._context.invocation_metadata() or ():
                if isinstance(value, str):
                    self._found[name] = f"{self._found[name]},{value}" if name in self._found else value
        return self._found


def _rpc_handler(method: Method, admission: AdmissionControl, draining: asyncio.Event, peers: _Peers) -> Any:
    path, handler = method.path, method.handler
    if method.kind is CallKind.UNARY:
        return grpc.unary_unary_rpc_method_handler(_unary(path, cast(UnaryHandler, handler), admission, peers))
    if method.kind is CallKind.CLIENT_STREAM:
        fold = _client_stream(path, cast(ClientStreamHandler, handler), admission, draining, peers)
        return grpc.stream_unary_rpc_method_handler(fold)
    if method.kind is CallKind.BIDI_STREAM:
        bidi = _bidi(path, cast(BidiHandler, handler), admission, draining, peers)
        return grpc.stream_stream_rpc_method_handler(bidi)
    return grpc.unary_stream_rpc_method_handler(_stream(path, cast(StreamHandler, handler), admission, peers))


@asynccontextmanager
async def _admitted(path: str, context: Any, admission: AdmissionControl, peers: _Peers) -> AsyncIterator[CallContext]:
    """Admits a call for the time of the block, and aborts it with the status of an exception. The block gets what its
    handler is told of the call; the trailers are sent."""
    acquired, call_context = False, _call_context(context, peers)
    try:
        acquired = admission.acquire(path)
        yield call_context
        _send_trailers(context, call_context)
    except Exception as error:
        _send_trailers(context, call_context)
        await _abort(path, context, error)
    finally:
        if acquired:
            admission.release()


def _unary(
    path: str, handler: UnaryHandler, admission: AdmissionControl, peers: _Peers
) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def call(request: bytes, context: Any) -> bytes:
        async with _admitted(path, context, admission, peers) as call_context:
            return await handler(request, call_context)

    return call


def _stream(
    path: str, handler: StreamHandler, admission: AdmissionControl, peers: _Peers
) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
    async def call(request: bytes, context: Any) -> AsyncIterator[bytes]:
        async with _admitted(path, context, admission, peers) as call_context:
            async for message in handler(request, call_context):
                yield message

    return call


def _client_stream(
    path: str, handler: ClientStreamHandler, admission: AdmissionControl, draining: asyncio.Event, peers: _Peers
) -> Callable[[Any, Any], Awaitable[bytes]]:
    async def call(requests: Any, context: Any) -> bytes:
        async with _admitted(path, context, admission, peers) as call_context:
            incoming = _Incoming(context, draining)
            async with aclosing(incoming.messages()) as messages:
                answer = await handler(messages, call_context)
            incoming.check()
        return answer

    return call


def _bidi(
    path: str, handler: BidiHandler, admission: AdmissionControl, draining: asyncio.Event, peers: _Peers
) -> Callable[[Any, Any], Awaitable[None]]:
    async def call(requests: Any, context: Any) -> None:
        """A coroutine, so that the handler's iterator is closed as soon as the call is cancelled."""
        async with _admitted(path, context, admission, peers) as call_context:
            incoming = _Incoming(context, draining)
            async with aclosing(incoming.messages()) as messages:
                generator = cast("AsyncGenerator[bytes, None]", handler(messages, call_context))
                async with aclosing(generator) as answers:
                    async for answer in answers:
                        await context.write(answer)
            incoming.check()

    return call


class _Incoming:
    """The client's messages, until its half-close or until the server drains; ``cut`` tells the latter."""

    def __init__(self, context: Any, draining: asyncio.Event) -> None:
        self._context = context
        self._draining = draining
        self.cut = False

    def check(self) -> None:
        """Checks the answer at the end of the call. UNAVAILABLE if it was cut, because the answer does not cover all
        messages."""
        if self.cut:
            raise ServingError(StatusCode.UNAVAILABLE, "the server is shutting down; try another one")

    async def messages(self) -> AsyncGenerator[bytes, None]:
        tasks = {drained := asyncio.ensure_future(self._draining.wait())}
        try:
            while not self.cut:
                message = asyncio.ensure_future(self._context.read())
                tasks = {message, drained}
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                self.cut = not message.done()
                if message.done():
                    if message.result() is grpc.aio.EOF:
                        return
                    yield message.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def _call_context(context: Any, peers: _Peers) -> CallContext:
    remaining = context.time_remaining()
    deadline = None if remaining is None else time.monotonic() + remaining
    return CallContext(deadline, _Metadata(context), peer=peers.find(context))


def _send_trailers(context: Any, call_context: CallContext) -> None:
    if call_context.trailers:
        context.set_trailing_metadata(tuple(call_context.trailers))


async def _abort(path: str, context: Any, error: Exception) -> None:
    code, text = explain(path, error)
    try:
        await context.abort(_CODES[code], text)
    except grpc.aio.InternalError:  # the client has disconnected in the meantime
        raise asyncio.CancelledError from None
