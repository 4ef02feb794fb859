"""TLS around the connections between machines: both ends show a certificate, and demand one of the same authorities.

    near end -> TLS -> greeting (``connection``) -> messages

A stranger without such a certificate gets no further than the handshake. Which replica answers is proved by the
greeting, so certificates need not name hosts. Connections within a host, over a UNIX socket, go without.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tfs_lite.config.server_files import SSLConfig
from tfs_lite.core.status import failed_precondition, invalid_argument
from tfs_lite.transport.pem import load_pair

_RECORD = 1 << 14
"""The most bytes in one record of TLS; smaller pieces are sent together."""


@dataclass(frozen=True, slots=True)
class TlsKeys:
    """The keys of an end, as PEM texts: its private key, its certificate with those that lead to an authority, and the
    authorities of which the other end must have one."""

    key: str = field(repr=False)
    certificates: str
    authorities: str

    @staticmethod
    def of(config: SSLConfig) -> TlsKeys:
        """Reads the keys of a config. INVALID_ARGUMENT unless it demands certificates of both ends."""
        if not config.client_verify:
            raise invalid_argument("client_verify: a server and its replicas show each other certificates; say true")
        return TlsKeys(config.server_key.get_secret_value(), config.server_cert, config.custom_ca)

    @property
    def plain(self) -> dict[str, str]:
        """The keys as texts. The private key is one of them."""
        return asdict(self)


class Tls:
    """TLS for both kinds of ends with these keys. Threads: any. FAILED_PRECONDITION if TLS refuses them."""

    def __init__(self, keys: TlsKeys) -> None:
        try:
            self._near = _context(ssl.PROTOCOL_TLS_CLIENT, keys)
            self._far = _context(ssl.PROTOCOL_TLS_SERVER, keys)
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or type(error).__name__
            raise failed_precondition(f"TLS refuses the key or a certificate for replicas: {why}") from None
        self._far.num_tickets = 0  # or the near end would find bytes to read that are no message

    @staticmethod
    def read(plain: Mapping[str, str]) -> Tls:
        """Makes it from the keys of which ``plain`` is that. INVALID_ARGUMENT if there are none."""
        try:
            keys = TlsKeys(**plain)
        except TypeError:
            raise invalid_argument("no keys for TLS") from None
        return Tls(keys)

    def wrap(self, sock: socket.socket, *, near: bool) -> TlsSocket:
        """Takes the socket over. The handshake comes next. Raises OSError."""
        context = self._near if near else self._far
        return TlsSocket(context.wrap_socket(sock, server_side=not near, do_handshake_on_connect=False))


class TlsSocket:
    """A connection under TLS with those methods of a socket that connections use. Threads: one at a time, but any may
    call ``shutdown``."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._patience: float | None = None
        self.family = sock.family

    def handshake(self, seconds: float) -> None:
        """Raises OSError, TimeoutError for one."""
        self._sock.settimeout(seconds)
        self._sock.do_handshake()

    def set_patience(self, seconds: float) -> None:
        """How long a receive waits for bytes; 0: for ever."""
        self._patience = seconds or None

    @property
    def has_more(self) -> bool:
        """Whether bytes can be received that the system does not have any more."""
        return self._sock.pending() > 0

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(None)
        self._sock.sendall(data)

    def sendmsg(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Sends all of them."""
        self._sock.settimeout(None)
        small = bytearray()
        for piece in pieces:
            if len(piece) < _RECORD:
                small += piece
                continue
            if small:
                self._sock.sendall(small)
                small = bytearray()
            self._sock.sendall(piece)
        if small:
            self._sock.sendall(small)
        return sum(map(len, pieces))

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """Receives some bytes, whatever ``flags`` say. BlockingIOError if none come in time."""
        self._sock.settimeout(self._patience)
        try:
            return self._sock.recv_into(buffer, nbytes)
        except TimeoutError:
            raise BlockingIOError from None

    def fileno(self) -> int:
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._sock, how)  # TLS's own gives the encryption up before the connection

    def close(self) -> None:
        self._sock.close()


def _context(protocol: int, keys: TlsKeys) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an authority need not be its own
    context.load_verify_locations(cadata=keys.authorities.encode("ascii", "replace").decode())
    load_pair(context, keys.key.encode(), keys.certificates.encode())
    return context
