"""Listening addresses: clear errors before a server library gets to write its own.

An address that cannot be had is FAILED_PRECONDITION in one line that names it and the flag that chose it.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument

BACKLOG = 1024
PORT_FLAG = "--port"
SOCKET_FLAG = "--grpc_socket_path"


def check_address(host: str, port: int, flag: str) -> None:
    """Raises unless a socket could listen there now."""
    listen(host, port, flag).close()


def listen(host: str, port: int, flag: str, *, shared: bool = False) -> socket.socket:
    """A listening, non-blocking TCP socket. Port 0: a free one. ``shared``: others who say so too may listen there."""
    # The protocol is named because asyncio turns Nagle's algorithm off only where it is: without that, an answer whose
    # body follows its head waits for the client's delayed acknowledgement, 40 ms.
    sock = socket.socket(_family(host), socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _explain(host, port, flag, error) from None
    return sock


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Names but ``localhost`` are not looked up."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def in_use(host: str, port: int, flag: str) -> ServingError:
    return failed_precondition(
        f"port {port} of {host} is already in use ({flag}); choose another one or stop what listens there"
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _explain(host: str, port: int, flag: str, error: OSError) -> ServingError:
    if error.errno == errno.EADDRINUSE:
        return in_use(host, port, flag)
    if error.errno == errno.EACCES:
        return failed_precondition(f"not allowed to listen on port {port} of {host} ({flag})")
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return invalid_argument(f"{host!r} is not an address of this machine (--host)")
    return failed_precondition(f"cannot listen on port {port} of {host} ({flag}): {error.strerror}")
