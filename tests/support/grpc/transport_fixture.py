"""A server of :mod:`tfs_lite.transport` on a real port and an event loop of its own, with handlers for tests.

    with TransportFixture("uvloop", Limits(max_streams=1)) as server:
        channel = grpc.insecure_channel(server.target)
        raw = server.dial()          # a socket and a client's HTTP/2 state, for what no real client does

``close`` stops the server and says AssertionError if anything is left on the loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import Frame, Peer
from tfs_lite.transport.backlog import Backlog
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.server import Hooks, TransportServer
from tfs_lite.transport.table import CallContext, Method, Reply, bidi_stream, client_stream, server_stream, unary

T = TypeVar("T")

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
PATIENCE = 30.0
"""Seconds that a test waits for anything."""
MOST_CONTEXTS = 100
"""Calls whose contexts a service keeps; a client may make thousands of them."""
ECHO, WAIT, FAIL, REPLY, COUNT, FLOW, TALK, TOTAL = (
    f"/test.Service/{name}" for name in ("echo", "wait", "fail", "reply", "count", "flow", "talk", "total")
)


class Refused(Exception):
    """What handlers raise: a code and a text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class HeldReply(Reply[bytes]):
    """Ends when the test says so."""

    def __init__(self, service: Service, request: bytes) -> None:
        self.request = request
        self._service = service
        self._done: Callable[[bytes | Exception], None] | None = None

    def then(self, done: Callable[[bytes | Exception], None]) -> None:
        self._done = done
        self._service.happened["started"] += 1

    def cancel(self) -> None:
        if self._done is not None:
            self._done = None
            self._service.happened["cancelled"] += 1

    def end(self, result: bytes | Exception) -> None:
        """On the loop."""
        done, self._done = self._done, None
        if done is not None:
            done(result)


class Service:
    """Handlers, and what happened to them. ``gate`` is opened from any thread with ``open``."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        """Those of the last calls."""
        self.happened: Counter[str] = Counter()
        """entered, left, started, cancelled, closed (a generator's end), yielded, taken, ended."""
        self.unread: Counter[tuple[str, int]] = Counter()
        """Calls that ended before their handler began, by path and code."""
        self.unread_texts: list[str] = []
        self.refusing: Refused | None = None
        self.stubborn = False
        """``wait`` goes on after it was cancelled, until the gate is open."""
        self.trailers: list[tuple[str, str]] = []
        self.replies: list[HeldReply] = []
        self._gate = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def methods(self) -> list[Method]:
        return [
            replace(unary(ECHO, self.echo, refusable=True), admit=self.admit),
            unary(WAIT, self.wait),
            unary(FAIL, self.fail),
            unary(REPLY, self.reply),
            server_stream(COUNT, self.count),
            server_stream(FLOW, self.flow),
            bidi_stream(TALK, self.talk),
            client_stream(TOTAL, self.total),
        ]

    def hooks(self) -> Hooks:
        return Hooks(self._acquire, self._release, self._explain, self._unread)

    def open(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._gate.set)

    def _acquire(self, path: str) -> bool:
        self._loop = asyncio.get_running_loop()
        if self.refusing is not None:
            raise self.refusing
        self.happened["acquired"] += 1
        return True

    def _release(self) -> None:
        self.happened["released"] += 1

    def _unread(self, path: str, code: int, text: str, count: int, call: CallContext | None) -> None:
        self.unread[path, code] += count
        self.unread_texts.append(text)

    def _explain(self, path: str, error: Exception) -> tuple[int, str]:
        if isinstance(error, Refused):
            return error.code, str(error)
        return 2, f"{path}: {type(error).__name__}"

    def _note(self, context: CallContext) -> None:
        self.contexts.append(context)
        del self.contexts[:-MOST_CONTEXTS]

    def admit(self, context: CallContext) -> None:
        if "stranger" in context.metadata:
            raise Refused(7, "not you")

    async def echo(self, data: bytes, context: CallContext) -> bytes:
        self._note(context)
        context.trailers += self.trailers
        return data

    async def wait(self, data: bytes, context: CallContext) -> bytes:
        self._note(context)
        self.happened["started"] += 1
        try:
            await self._gate.wait()
        except asyncio.CancelledError:
            self.happened["cancelled"] += 1
            if self.stubborn:
                await self._gate.wait()
            raise
        return data

    async def fail(self, data: bytes, context: CallContext) -> bytes:
        code, _, text = data.decode().partition(" ")
        if code == "crash":
            raise RuntimeError(text)
        if code == "cancel":
            raise asyncio.CancelledError
        if code == "none":
            return None  # type: ignore[return-value]
        raise Refused(int(code), text)

    def reply(self, data: bytes, context: CallContext) -> Reply[bytes]:
        held = HeldReply(self, data)
        self.replies.append(held)
        return held

    async def count(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        """``3`` messages, or ``3 fail`` for an error behind them, or ``3 wait`` for the gate."""
        self._note(context)
        number, _, then = data.decode().partition(" ")
        try:
            for at in range(int(number)):
                yield b"%d" % at
                self.happened["yielded"] += 1
            if then == "fail":
                raise Refused(9, "no more")
            if then == "wait":
                self.happened["started"] += 1
                await self._gate.wait()
        finally:
            self.happened["closed"] += 1

    async def flow(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        """Messages of that size, without an end."""
        try:
            while True:
                yield bytes(int(data))
                self.happened["yielded"] += 1
        finally:
            self.happened["closed"] += 1

    async def talk(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """Echoes each; ``wait`` waits for the gate, ``stop`` ends, ``crash`` fails."""
        self._note(context)
        self.happened["started"] += 1
        try:
            async for request in requests:
                self.happened["taken"] += 1
                if request == b"wait":
                    await self._gate.wait()
                elif request == b"stop":
                    return
                elif request == b"crash":
                    raise Refused(9, "crashed")
                yield request
            self.happened["ended"] += 1
            yield b"bye"
        finally:
            self.happened["closed"] += 1

    async def total(self, requests: AsyncIterator[bytes], context: CallContext) -> bytes:
        self._note(context)
        size = 0
        async for request in requests:
            if request == b"stop":
                break
            size += len(request)
        context.trailers += self.trailers
        return b"%d" % size


class RawClient:
    """A client's socket, its preface and SETTINGS sent. ``frames`` has all that was read."""

    def __init__(self, connected: socket.socket, settings: dict[int, int] | None, preface: bool) -> None:
        self.socket = connected
        self.socket.settimeout(PATIENCE)
        self.peer = Peer()
        self.frames: list[Frame] = []
        if preface:
            self.send(h2.PREFACE, self.peer.settings(settings), h2.settings_ack())

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def request(
        self, stream: int, path: str, contents: bytes = b"", *more: tuple[bytes, bytes], end: bool = True
    ) -> None:
        """HEADERS and, if there are contents, DATA, in one piece; a request without an end if ``end`` is False."""
        fields = [(name, path.encode() if name == b":path" else value) for name, value in h2.REQUEST]
        opening = self.peer.open(stream, [*fields, *more])
        self.send(opening, h2.data(stream, contents, ended=end) if contents or end else b"")

    def read_until(self, found: Callable[[Frame], bool]) -> Frame:
        """The first frame of that kind that was not read yet; what comes before it is in ``frames`` too."""
        while True:
            for at, frame in enumerate(self.frames):
                if found(frame):
                    del self.frames[: at + 1]
                    return frame
            data = self.socket.recv(65536)
            if not data:
                raise EOFError(f"the server has closed the connection after {self.frames}")
            self.frames += self.peer.read(data)

    def status(self, stream: int) -> tuple[int, str]:
        """The gRPC status of a call, which has ended."""
        last = self.read_until(lambda frame: frame.stream == stream and frame.kind == h2.HEADERS and frame.ended)
        fields = {name.decode(): value.decode() for name, value in last.fields}
        return int(fields["grpc-status"]), fields.get("grpc-message", "")

    def rest(self) -> list[Frame]:
        """Everything until the server closes its side."""
        try:
            while data := self.socket.recv(65536):
                self.frames += self.peer.read(data)
        except ConnectionResetError:
            pass
        return self.frames

    def close(self) -> None:
        self.socket.close()


class TransportFixture:
    """Starts with the context and ends with it."""

    def __init__(
        self,
        loop: str = "uvloop",
        limits: Limits | None = None,
        *,
        service: Service | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        unix: Path | None = None,
        backlog: Backlog | None = None,
    ) -> None:
        self.service = service or Service()
        self._limits = limits or Limits()
        self._tls = tls
        self._unix = unix
        self._backlog = backlog
        self._raw: list[RawClient] = []
        self.loop = LOOPS[loop]()
        self.errors: list[dict[str, Any]] = []
        """What the loop's exception handler was told."""
        self._thread = threading.Thread(target=self._serve, name="transport-fixture")

    def __enter__(self) -> TransportFixture:
        self._thread.start()
        if self._unix is None:
            self.listening = socket.create_server(("127.0.0.1", 0))
            self.port = self.listening.getsockname()[1]
            self.target = f"127.0.0.1:{self.port}"
        else:
            self.listening = socket.socket(socket.AF_UNIX)
            self.listening.bind(str(self._unix))
            self.target = f"unix:{self._unix}"
        self.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for raw in self._raw:
            raw.close()
        self.service._gate.set() if self.service._loop is None else self.service.open()
        self.run(self.transport.stop(0))
        left = self.run(self._left())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        if kind is None:
            assert left == [], f"left over on the loop: {left}"
            assert self.errors == [], f"the loop was told of {self.errors}"
            numbers = self.numbers
            assert (numbers.connections, numbers.streams, numbers.unread, numbers.unsent) == (0, 0, 0, 0)
            assert self.service.happened["acquired"] == self.service.happened["released"]

    @property
    def numbers(self) -> Any:
        return self.transport.numbers

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """A future of :mod:`concurrent.futures`."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def dial(self, settings: dict[int, int] | None = None, preface: bool = True) -> RawClient:
        raw = RawClient(socket.create_connection(("127.0.0.1", self.port)), settings, preface)
        self._raw.append(raw)
        return raw

    async def _start(self) -> None:
        self.transport = TransportServer(
            self.service.methods(), self._limits, self.service.hooks(), tls=self._tls, backlog=self._backlog
        )
        await self.transport.start([self.listening])

    async def _left(self) -> list[Any]:
        """Tasks that are not ours, and whatever else would still happen on the loop."""
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        timers = [timer for timer in getattr(self.loop, "_scheduled", ()) if not timer.cancelled()]
        return [*tasks, *timers]

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        try:
            self.loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
