"""Clients that mean harm, and a server of :mod:`tfs_lite.transport` that has to bear them while others ask.

    with AttackTest(Limits(...)) as attack:
        attacker = attack.attacker()                       # a socket that sends what no real client does
        attacker.flood(repeat(h2.ping(), 100_000))      # at full speed, until the server has had enough
        assert attacker.end() == (ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        attack.expect_closed("too_many_pings")

A control with a stock gRPC client asks all the time on a connection of its own, and every answer is looked at. When
the block ends every attacker leaves; then every gauge must go to 0 and a new client be answered.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import grpc

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import Frame, plain_field
from tests.support.grpc.transport_fixture import ECHO, PATIENCE, RawClient, TransportFixture
from tests.support.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

READ = 1 << 16
SMALL_BUFFER = 4096
"""Of a socket whose owner does not want to read much."""
LEAST_ANSWERS = 5
"""What the control has to get during an attack."""


class Attacker(RawClient):
    """``flood`` sends as fast as the server takes it. ``settings``: in the first SETTINGS; with ``preface`` False there
    are none, and no preface. One thread."""

    def __init__(
        self, address: tuple[str, int], settings: dict[int, int] | None, preface: bool, small: bool = False
    ) -> None:
        connecting = socket.socket()
        if small:
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connecting.settimeout(PATIENCE)
        connecting.connect(address)
        self.began = time.monotonic()
        super().__init__(connecting, settings, preface)

    @property
    def seconds(self) -> float:
        """Since it has come."""
        return time.monotonic() - self.began

    def request_block(self, path: str, *more: tuple[bytes, bytes]) -> bytes:
        """A header block for any number of requests: none of it goes into the table."""
        fields = [(name, path.encode() if name == b":path" else value) for name, value in h2.REQUEST]
        return b"".join(plain_field(name, value) for name, value in [*fields, *more])

    def flood(self, pieces: Iterable[bytes], read: bool = True) -> bool:
        """Whether the server had enough before everything was sent. What it says is read meanwhile, if ``read``."""
        self.socket.setblocking(False)
        try:
            return any(self._push(memoryview(piece), read) for piece in pieces)
        finally:
            self.socket.settimeout(PATIENCE)

    def end(self) -> tuple[ErrorCode, str]:
        """The last GOAWAY, after the server has closed; then so do we."""
        frames = self.rest()
        self.close()
        last = [frame for frame in frames if frame.kind == h2.GOAWAY][-1]
        return ErrorCode(last.value), last.payload.decode()

    def rest_raw(self) -> bytes:
        """Everything until the server closes, whatever it is."""
        found = b""
        try:
            while data := self.socket.recv(READ):
                found += data
        except ConnectionResetError:
            pass
        return found

    def resets(self) -> list[tuple[int, ErrorCode]]:
        """Of what was read so far."""
        return [(frame.stream, ErrorCode(frame.value)) for frame in self.frames if frame.kind == h2.RST_STREAM]

    def sync(self) -> None:
        """Returns when the server has read everything until here. One PING."""
        self.send(h2.ping(b"are you?"))
        self.read_until(lambda frame: frame.kind == h2.PING and frame.payload == b"are you?")

    def _push(self, left: memoryview, read: bool) -> bool:
        while left:
            readable, writable, _ = select.select([self.socket] if read else [], [self.socket], [], PATIENCE)
            if not readable and not writable:
                raise TimeoutError("the server neither reads nor writes nor closes")
            try:
                if readable and not self._read():
                    return True
                if writable:
                    left = left[self.socket.send(left) :]
            except (BrokenPipeError, ConnectionResetError):
                return True
        return False

    def _read(self) -> bool:
        data = self.socket.recv(READ)
        self.frames += self.peer.read(data)
        return bool(data)


class ControlClient:
    """One call after the other through a stock client. Leaving the block is an AssertionError if one went wrong."""

    def __init__(self, channel: Callable[[], grpc.Channel]) -> None:
        self.answered = 0
        self.slowest = 0.0
        """Seconds."""
        self._fault: BaseException | None = None
        self._channel = channel
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="control")

    def __enter__(self) -> ControlClient:
        self._thread.start()
        wait_until(lambda: self.answered or self._fault, "the control client's first answer", PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        assert self._fault is None, f"call {self.answered + 1} of the control client: {self._fault!r}"

    def wait_more(self, count: int = LEAST_ANSWERS) -> None:
        enough = self.answered + count
        wait_until(lambda: self.answered >= enough or self._fault, "the control is answered", PATIENCE)

    def _ask(self) -> None:
        try:
            with self._channel() as channel:
                ask = channel.unary_unary(ECHO)
                while not self._stopped.is_set():
                    question = b"%d" % self.answered
                    began = time.monotonic()
                    answer = ask(question, timeout=PATIENCE)
                    assert answer == question, answer
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self.answered += 1
        except BaseException as error:
            self._fault = error


class AttackTest:
    """A server, the control client, and attackers that come when they are asked for. See the module."""

    def __init__(
        self,
        limits: Limits | None = None,
        loop: str = "uvloop",
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        trusted: bytes | None = None,
    ) -> None:
        """``tls`` as of the server; ``trusted``: certificates in PEM that friends believe in then."""
        self.server = TransportFixture(loop, limits, tls=tls)
        self.service = self.server.service
        self.control = ControlClient(self.channel)
        self._trusted = trusted
        self._attackers: list[Attacker] = []

    def __enter__(self) -> AttackTest:
        self.server.__enter__()
        self.control.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as leaving:  # the transport last, whatever happens
            leaving.push(self.server)
            if kind is None:
                leaving.callback(self._check_recovered)
            leaving.push(self.control)
            leaving.callback(self._leave)
            if kind is None:
                self.control.wait_more()

    @property
    def numbers(self) -> Any:
        return self.server.numbers

    def channel(self) -> grpc.Channel:
        """Of a friend."""
        if self._trusted is None:
            return grpc.insecure_channel(self.server.target)
        return grpc.secure_channel(f"localhost:{self.server.port}", grpc.ssl_channel_credentials(self._trusted))

    def attacker(
        self, settings: dict[int, int] | None = None, *, preface: bool = True, small: bool = False
    ) -> Attacker:
        """``small``: with hardly a buffer for what the server says."""
        made = Attacker(("127.0.0.1", self.server.port), settings, preface, small)
        self._attackers.append(made)
        return made

    def expect_closed(self, kind: str, count: int = 1) -> None:
        """So many connections have ended, or will, and are counted so."""
        numbers = self.numbers
        wait_until(lambda: numbers.closed[kind] >= count, f"{count} connections closed as {kind}", PATIENCE)
        assert numbers.closed[kind] == count

    def wait(self, key: str, count: int) -> None:
        """Until so much has happened to the handlers."""
        happened = self.service.happened
        wait_until(lambda: happened[key] >= count, f"{count} handlers {key}", PATIENCE)

    def connections(self) -> list[Any]:
        """The server's objects, for what they hold."""

        async def look() -> list[Any]:
            return [protocol.connection for protocol in self.server.transport._connections]

        return self.server.run(look())

    def _leave(self) -> None:
        for attacker in self._attackers:
            attacker.close()

    def _check_recovered(self) -> None:
        if self.service._loop is not None:
            self.service.open()
        numbers = self.numbers

        def gauges() -> tuple[int, ...]:
            return numbers.connections, numbers.streams, numbers.unread, numbers.unsent

        wait_until(lambda: not any(gauges()), "every gauge is 0", PATIENCE)
        assert self.connections() == []
        with self.channel() as channel:
            assert channel.unary_unary(ECHO)(b"recovered", timeout=PATIENCE) == b"recovered"


def status_of(frame: Frame) -> int:
    """The gRPC status in a frame of trailers."""
    return int(dict(frame.fields)[b"grpc-status"])
