"""A proxy in front of a storage that counts requests and breaks, by one thread a connection.

with FaultProxy(server.port) as proxy:
    proxy.fail("status", status=503, code="SlowDown")            # until heal()
    proxy.fail("cut", times=3, after=256 << 10, method="GET", path="model.pt2")
    assert proxy.count("list") == 1
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["status", "hang", "reset", "lose", "cut", "stall", "slow"]
"""``status`` answers with a status and an XML error that has a code; ``hang`` takes the request and answers nothing;
``reset`` closes the connection without an answer; ``lose`` does so after the storage has answered. The other three
concern the body of an answer: ``cut`` closes the connection, ``stall`` sends nothing more, ``slow`` sends on, a piece
at a time."""

FOREVER = 1 << 60
PIECE = 16 << 10
SLOW_WAIT_SECONDS = 0.01


@dataclass
class Fault:
    """What breaks: requests with this method and with ``path`` in their target, ``times`` of them, after ``after``
    bytes of the body. ``operation``: only ``list``, ``get``, ``head``, ``put`` or ``delete``."""

    kind: Kind
    times: int = FOREVER
    after: int = 0
    method: str = ""
    path: str = ""
    operation: str = ""
    status: int = 503
    code: str = "SlowDown"
    broken: int = 0
    """How many requests it has broken."""

    def concerns(self, request: Request) -> bool:
        return (
            self.broken < self.times
            and self.method in ("", request.method)
            and self.operation in ("", request.operation)
            and self.path in request.target
        )


@dataclass
class Request:
    """A request that has come. ``sent``: bytes of the answer's body that the client was sent until now."""

    method: str
    target: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0

    @property
    def operation(self) -> str:
        """``list``, or the method in small letters."""
        _, _, query = self.target.partition("?")
        names = {item for part in query.split("&") for item in (part, part.split("=")[0])}
        return "list" if self.method == "GET" and names & {"list-type", "comp=list"} else self.method.lower()


@dataclass
class _Journal:
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


class FaultProxy:
    """Listens on ``port`` of the loopback; forwards to ``upstream``, another one, which may be changed."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self._lock = threading.Lock()
        self._journal = _Journal()
        self._healed = threading.Event()
        self._server = _Server(self)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="fault-proxy", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what hangs, and stops listening."""
        self.heal()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fail(self, kind: Kind, **more: object) -> Fault:
        """Adds a fault with the fields of :class:`Fault`; the first one that concerns a request breaks it."""
        fault = Fault(kind, **more)  # type: ignore[arg-type]
        with self._lock:
            self._journal.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Takes all faults away; connections that hang, stall or are slow are closed."""
        with self._lock:
            self._journal.faults.clear()
            healed, self._healed = self._healed, threading.Event()
        healed.set()

    @property
    def requests(self) -> tuple[Request, ...]:
        with self._lock:
            return tuple(self._journal.requests)

    def count(self, operation: str = "", path: str = "") -> int:
        """Requests of an operation (all without one) with ``path`` in their target."""
        return sum(operation in ("", request.operation) and path in request.target for request in self.requests)

    def counts(self) -> Counter[str]:
        """Requests by operation."""
        return Counter(request.operation for request in self.requests)

    def sent(self, operation: str = "get", path: str = "") -> int:
        """Bytes of bodies that were sent to clients."""
        return sum(r.sent for r in self.requests if r.operation == operation and path in r.target)

    def forget(self) -> None:
        """Forgets the requests that have come."""
        with self._lock:
            self._journal.requests.clear()

    def note(self, request: Request) -> tuple[Fault | None, threading.Event]:
        """Keeps a request; returns what breaks it, and what is set when that ends."""
        with self._lock:
            self._journal.requests.append(request)
            fault = next((fault for fault in self._journal.faults if fault.concerns(request)), None)
            if fault is not None:
                fault.broken += 1
            return fault, self._healed


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.proxy = proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client or a storage that has gone is no news."""


class _Connection(socketserver.StreamRequestHandler):
    """One request; the connection ends with its answer."""

    server: _Server

    def handle(self) -> None:
        head = _read_head(self.rfile)
        if head is None:
            return
        request, raw = head
        fault, healed = self.server.proxy.note(request)
        body = _read_body(self.rfile, request.headers)
        kind = fault.kind if fault is not None else ""
        if fault is not None and kind in ("status", "hang", "reset"):
            self._refuse(fault, request, healed)
            return
        with socket.create_connection(("127.0.0.1", self.server.proxy.upstream)) as upstream:
            upstream.sendall(raw + body)
            with upstream.makefile("rb") as answer:
                self._answer(answer, request, fault, healed)

    def _refuse(self, fault: Fault, request: Request, healed: threading.Event) -> None:
        if fault.kind == "hang":
            healed.wait()
        if fault.kind != "status":
            self._reset()
            return
        request.status = fault.status
        body = (
            f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>{request.target}</Message></Error>".encode()
        )
        if request.method == "HEAD":
            body = b""
        head = f"HTTP/1.1 {fault.status} Broken\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        self.wfile.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _answer(self, answer: BufferedIOBase, request: Request, fault: Fault | None, healed: threading.Event) -> None:
        lines = [answer.readline()]
        while lines[-1].strip():
            lines.append(answer.readline())
        request.status = int(lines[0].split()[1])
        if fault is not None and fault.kind == "lose":
            answer.read()
            self._reset()
            return
        keep = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:"))]
        self.wfile.write(b"".join([*keep[:-1], b"Connection: close\r\n\r\n"]))
        while piece := answer.read1(PIECE):
            if fault is not None:
                allowed = max(0, fault.after - request.sent)
                self._send(piece[:allowed], request)
                piece = piece[allowed:]
                if piece and not self._goes_on(fault, healed):
                    return
            self._send(piece, request)

    def _send(self, piece: bytes, request: Request) -> None:
        self.wfile.write(piece)
        request.sent += len(piece)

    def _goes_on(self, fault: Fault, healed: threading.Event) -> bool:
        """Whether a body is sent on that is to break here."""
        if fault.kind == "slow":
            return not healed.wait(SLOW_WAIT_SECONDS)
        if fault.kind == "stall":
            healed.wait()
        return False

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            self.connection.close()


def _read_head(stream: BufferedIOBase) -> tuple[Request, bytes] | None:
    """The request, and its head as the storage gets it."""
    first = stream.readline()
    if not first.strip():
        return None
    method, target, _ = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    lines = [first]
    while (line := stream.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
        if name.strip().lower() != "connection":
            lines.append(line)
    return Request(method, target, headers), b"".join([*lines, b"Connection: close\r\n\r\n"])


def _read_body(stream: BufferedIOBase, headers: dict[str, str]) -> bytes:
    return stream.read(int(headers.get("content-length", 0)))
