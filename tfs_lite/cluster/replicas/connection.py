"""One connection to a replica: how it is made, how both ends prove who they are, and how messages travel over it.

    front end -> replica    "TFSR", version, nonce          (strangers get no further, and learn nothing)
    replica -> front end    "TFSR", version, nonce
    front end -> replica    epoch, carrier, HMAC
    replica -> front end    HMAC

Each HMAC is over the sender's role, both nonces, the replica's name, the epoch and the carrier, with the secret of the
cluster: so a recorded greeting is worth nothing, and a replica of another name or life refuses. Between hosts there may
be TLS around all of it (``tls``). The *carrier* says how
tensors travel from then on: as frames, or, where both ends are on one host, through shared memory (``ArenaChannel``),
of which the front end then sends the descriptors.
"""

from __future__ import annotations

import hmac
import mmap
import secrets
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from threading import Lock

from tfs_lite.cluster.replicas.engine import ReplicaAddress
from tfs_lite.cluster.replicas.frames import LENGTH_BYTES, Piece, head_end, pack, read_head
from tfs_lite.cluster.replicas.tls import Tls, TlsSocket
from tfs_lite.core.signature import DataType, Tensor
from tfs_lite.protocols.dtypes import Array
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.connection import Lane
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.tensor_channel import ArenaChannel, TensorChannel
from tfs_lite.workers.tensors import TensorLocation, copy_tensor, view_tensor
from tfs_lite.workers.wire import Message

FRAMES, MEMORY = 0, 1
"""Carriers."""
CONNECT_SECONDS = 2.0
GREETING_SECONDS = 5.0
"""How long each step of the greeting may take."""
STALL_SECONDS = 5.0
"""How long the rest of a begun message may take for each MiB, and at least."""
SECRET_BYTES = 32
_MAGIC = b"TFSR\x01"
_NONCE = 32
_PROOF = 32
_CLAIM = struct.Struct(">QB")
_FIRST_BYTES = 1 << 16
_MAX_PIECES = 512
_MAX_SENT = 1 << 20  # bytes: of more at once, TCP hands the other end nothing for too long
_SO_TIMEVAL = struct.Struct("@ll")
Stream = socket.socket | TlsSocket
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A host that has vanished is noticed after 4 seconds."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secret of the cluster, and under which epoch one speaks to a replica. ``tls`` is for other hosts."""

    secret: bytes = field(repr=False)
    epoch: int = 0
    tls: Tls | None = None


class GreetingRefused(ConnectionClosed):
    """The other end closed in the greeting, or did not know the secret."""


@cache
def boot_id() -> str:
    """The id of this host's last start."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def dial(
    address: ReplicaAddress, credentials: Credentials, lane: Lane | None, limit: int, what: str, shared: bool = True
) -> TensorChannel:
    """A connection to the replica at ``address``. It uses ``lane``'s memory, or, without, memory of its own, of at most
    ``limit`` bytes each way; ``what`` names the tensors that are sent. ``shared``: shares the memory with a replica of
    this host. Raises OSError if nothing listens there; GreetingRefused; ProtocolError."""
    sock = _connect(address, credentials.tls)
    if not shared or isinstance(sock, TlsSocket) or sock.family != socket.AF_UNIX:
        return _greet_for_frames(sock, address, credentials, limit, what)
    try:
        greet(sock, credentials, address.name, MEMORY)
        return _share_memory(sock, lane, limit, what)
    except BaseException:
        sock.close()
        raise


def dial_frames(address: ReplicaAddress, credentials: Credentials, limit: int = 0, what: str = "") -> FrameChannel:
    """Dials as :func:`dial` does, without shared memory; by default for messages without tensors."""
    return _greet_for_frames(_connect(address, credentials.tls), address, credentials, limit, what)


def _greet_for_frames(
    sock: Stream, address: ReplicaAddress, credentials: Credentials, limit: int, what: str
) -> FrameChannel:
    try:
        greet(sock, credentials, address.name, FRAMES)
        return FrameChannel(sock, limit, what)
    except BaseException:
        sock.close()
        raise


def _connect(address: ReplicaAddress, tls: Tls | None) -> Stream:
    """Connects over the UNIX socket where that can be reached: containers of one host may not share it."""
    if address.unix is not None and address.boot_id == boot_id():
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(f"\0{address.unix}")
            return sock
        except OSError:
            sock.close()
    sock = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
    sock.settimeout(None)
    tune(sock)
    if tls is None:
        return sock
    try:
        stream = tls.wrap(sock, near=True)
    except BaseException:
        sock.close()
        raise
    try:
        stream.handshake(GREETING_SECONDS)
    except BaseException:
        stream.close()
        raise
    return stream


def tune(sock: socket.socket) -> None:
    """Sets what both ends of a TCP connection want of it."""
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)


def greet(sock: Stream, credentials: Credentials, name: str, carrier: int) -> None:
    """The front end's part of the greeting. Raises GreetingRefused, ProtocolError."""
    ours = secrets.token_bytes(_NONCE)
    _send(sock, _MAGIC + ours)
    theirs = _read_nonce(sock)
    claim = _CLAIM.pack(credentials.epoch, carrier)
    proofs = [_proof(credentials.secret, role, ours + theirs, name, claim) for role in (b"front end", b"replica")]
    _send(sock, claim + proofs[0])
    if not hmac.compare_digest(_receive(sock, _PROOF), proofs[1]):
        raise GreetingRefused


def welcome(sock: Stream, secret: bytes, name: str) -> tuple[int, int]:
    """The replica's part: the epoch and the carrier of a front end that knows the secret. Raises GreetingRefused,
    ProtocolError."""
    theirs = _read_nonce(sock)
    ours = secrets.token_bytes(_NONCE)
    _send(sock, _MAGIC + ours)
    claim = _receive(sock, _CLAIM.size)
    proofs = [_proof(secret, role, theirs + ours, name, claim) for role in (b"front end", b"replica")]
    if not hmac.compare_digest(_receive(sock, _PROOF), proofs[0]):
        raise GreetingRefused
    _send(sock, proofs[1])
    epoch, carrier = _CLAIM.unpack(claim)
    if carrier not in (FRAMES, MEMORY) or (carrier == MEMORY and sock.family != socket.AF_UNIX):
        raise ProtocolError("an unknown way for tensors")
    return epoch, carrier


def _proof(secret: bytes, role: bytes, nonces: bytes, name: str, claim: bytes) -> bytes:
    return hmac.digest(secret, role + b"\0" + nonces + claim + name.encode(), "sha256")


def _read_nonce(sock: Stream) -> bytes:
    found = _receive(sock, len(_MAGIC) + _NONCE)
    if not found.startswith(_MAGIC):
        raise ProtocolError("no greeting")
    return found[len(_MAGIC) :]


def _send(sock: Stream, message: bytes) -> None:
    try:
        sock.sendall(message)
    except OSError:
        raise GreetingRefused from None


def _receive(sock: Stream, size: int) -> bytes:
    """Receives exactly ``size`` bytes, within :data:`GREETING_SECONDS`."""
    found = bytearray(size)
    try:
        receive_into(sock, memoryview(found), GREETING_SECONDS)
    except ConnectionClosed:
        raise GreetingRefused from None
    return bytes(found)


def receive_into(sock: Stream, view: memoryview, seconds: float) -> None:
    """Fills ``view``. Raises ConnectionClosed; ProtocolError if it takes longer than ``seconds``."""
    latest = time.monotonic() + seconds
    try:
        while view:
            _set_patience(sock, max(latest - time.monotonic(), 0.001))
            got = sock.recv_into(view, 0, socket.MSG_WAITALL)
            if not got:
                raise ConnectionClosed
            view = view[got:]
    except BlockingIOError:
        raise ProtocolError(f"all but {len(view)} bytes of a message, and then nothing") from None
    except OSError:
        raise ConnectionClosed from None
    finally:
        _set_patience(sock, 0.0)


def _set_patience(sock: Stream, seconds: float) -> None:
    """How long the system waits for bytes; 0: for ever. Python's own time limit knows no MSG_WAITALL."""
    if isinstance(sock, TlsSocket):
        sock.set_patience(seconds)
        return
    try:
        whole = int(seconds)
        timeval = _SO_TIMEVAL.pack(whole, int((seconds - whole) * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    except OSError:
        pass  # it is closed, as the next call finds out


def _share_memory(sock: socket.socket, lane: Lane | None, limit: int, what: str) -> ArenaChannel:
    channel = Channel(sock)
    inputs = lane.inputs if lane else Staging(Arena.create(limit, what))
    outputs = lane.outputs if lane else Arena.create(limit, "")
    shared = ArenaChannel(channel, inputs, outputs, owner=lane is None)
    try:
        channel.send((limit,), [inputs.arena.descriptor, outputs.descriptor])
    except BaseException:
        shared.close()
        raise
    return shared


def receive_memory(sock: socket.socket, limit: int, what: str) -> ArenaChannel:
    """The replica's end of a connection with shared memory, which the front end sends now. Raises ConnectionClosed,
    ProtocolError."""
    channel = Channel(sock)
    _set_patience(sock, GREETING_SECONDS)
    try:
        message, descriptors = channel.receive_with_descriptors()
    finally:
        _set_patience(sock, 0.0)
    arenas = [Arena(descriptor, limit, what) for descriptor in descriptors]
    try:
        if len(arenas) != 2 or not isinstance(message, list) or len(message) != 1 or type(message[0]) is not int:
            raise ProtocolError("no shared memory")
        for arena in arenas:
            arena.restrict(message[0])
        inputs, outputs = arenas
    except BaseException:
        for arena in arenas:
            arena.close()
        raise
    return ArenaChannel(channel, Staging(outputs), inputs, owner=True)


class FrameChannel:
    """A :class:`TensorChannel` over TCP, TLS or a UNIX socket: the tensors' bytes follow the message. Owns the socket.

    ``limit``, in bytes, bounds the tensors of a message each way; ``what`` names those that are sent. What is received
    lies in one buffer, which grows and is kept."""

    def __init__(self, sock: Stream, limit: int, what: str, stall_seconds: float = STALL_SECONDS) -> None:
        self._sock = sock
        self._limit = limit
        self._what = what
        self._stall = stall_seconds
        _set_patience(sock, stall_seconds)  # for each call, so that a silent sender is not waited for much longer
        self._buffer = memoryview(mmap.mmap(-1, _FIRST_BYTES))
        self._local = sock.family == socket.AF_UNIX
        self._closing = Lock()  # guards the descriptor: shut_down must not use one that was closed

    def send(self, message: Message, tensors: Mapping[str, Tensor]) -> None:
        pieces = pack(message, tensors, self._limit, self._what)
        try:
            while pieces:
                pieces = _unsent(pieces, self._sock.sendmsg(_next(pieces)))
        except OSError:
            raise ConnectionClosed(unread=True) from None

    def receive(self) -> tuple[Message, list[TensorLocation]]:
        got = self._fill(self._begin(), LENGTH_BYTES)
        end = head_end(self._buffer)
        got = self._fill(got, end)
        head = read_head(self._buffer[:end], self._limit)
        if self._fill(got, head.size) > head.size:
            raise ProtocolError("more than one message")
        return head.message, head.locations

    def read(self, locations: Sequence[TensorLocation], copy: bool) -> dict[str, Array]:
        return {
            location.name: (copy_tensor if copy or location.dtype is DataType.STRING else view_tensor)(
                self._buffer, location
            )
            for location in locations
        }

    def wait(self, seconds: float | None) -> bool:
        """Whether something to receive, or the end, is there within ``seconds``; None: waits for ever."""
        if isinstance(self._sock, TlsSocket) and self._sock.has_more:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def shut_down(self) -> None:
        with self._closing, suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._closing:
            self._sock.close()

    def _begin(self) -> int:
        """Waits for the next message; how many bytes of it came at once."""
        while True:
            try:
                got = self._sock.recv_into(self._buffer)
            except BlockingIOError:
                continue
            except OSError as error:
                # on one host the kernel says whether the request was read; a reset from afar may have any cause
                raise ConnectionClosed(self._local and isinstance(error, ConnectionResetError)) from None
            if not got:
                raise ConnectionClosed
            return got

    def _fill(self, got: int, wanted: int) -> int:
        """Receives until ``wanted`` bytes are in the buffer; how many are there then."""
        if got >= wanted:
            return got
        if wanted > len(self._buffer):
            larger = memoryview(mmap.mmap(-1, 1 << (wanted - 1).bit_length()))
            larger[:got] = self._buffer[:got]
            self._buffer = larger
        latest = time.monotonic() + self._stall * max(1.0, (wanted - got) / (1 << 20))
        while got < wanted:
            try:
                piece = self._sock.recv_into(self._buffer[got:wanted], 0, socket.MSG_WAITALL)
                if not piece:
                    raise ConnectionClosed
                got += piece
            except BlockingIOError:
                pass
            except OSError:
                raise ConnectionClosed from None
            if got < wanted and time.monotonic() > latest:
                raise ProtocolError(f"{got} of {wanted} bytes of a message, and then nothing")
        return wanted


def _next(pieces: list[Piece]) -> list[Piece]:
    """The pieces that are sent at once: as many as the system takes, and of a large one a part."""
    size = 0
    for index, piece in enumerate(pieces):
        size += len(piece)
        if size > _MAX_SENT:
            return [*pieces[:index], memoryview(piece)[: len(piece) - (size - _MAX_SENT)]]
        if index + 1 == _MAX_PIECES:
            return pieces[:_MAX_PIECES]
    return pieces


def _unsent(pieces: list[Piece], sent: int) -> list[Piece]:
    """The rest of the pieces after the first ``sent`` bytes."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []
