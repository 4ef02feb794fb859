"""Listening sockets, TCP and UNIX, with clear errors: an address that cannot be had is FAILED_PRECONDITION in one line
that names it and its flag.

A server that died leaves the file of its UNIX socket behind. The file is removed unless a server still listens there.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument

BACKLOG = 1024
PORT_FLAG = "--port"
SOCKET_FLAG = "--grpc_socket_path"


def check_address(host: str, port: int, flag: str) -> None:
    """Raises unless a socket could listen there now."""
    listen(host, port, flag).close()


def listen(host: str, port: int, flag: str, *, shared: bool = False) -> socket.socket:
    """A listening, non-blocking TCP socket. Port 0: a free one. ``shared``: other such sockets may listen there."""
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
    """Whether only this machine can reach the host. Names other than ``localhost`` are not looked up."""
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


_CONNECT_SECONDS = 1.0
_NO_LISTENER = (errno.ECONNREFUSED, errno.ENOENT)


def claim(path: str, flag: str) -> str:
    """Makes ``path`` free for a UNIX socket and returns its gRPC address.

    INVALID_ARGUMENT if it cannot be an address; FAILED_PRECONDITION if a server listens there, the file is no socket,
    or the system allows no socket there. Both name ``flag``.
    """
    try:
        if _is_socket(path, flag):
            _refuse_if_alive(path, flag)
            Path(path).unlink(missing_ok=True)
        _check_bind(path)
    except ValueError:
        raise invalid_argument(f"{path!r} ({flag}) is no path") from None
    except OSError as error:
        raise _bind_error(path, flag, error) from None
    return f"unix:{quote(os.fsencode(path))}"


class UnixListener:
    """A listening, non-blocking UNIX socket; raises what ``claim`` does. ``remove`` deletes its file, unless another
    server has replaced it."""

    def __init__(self, path: str, flag: str) -> None:
        claim(path, flag)
        self._path = os.path.abspath(path)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.bind(path)
            self.socket.listen(BACKLOG)
            self.socket.setblocking(False)
            self._identity = self._stat()
        except OSError as error:
            self.socket.close()
            raise _bind_error(path, flag, error) from None

    def remove(self) -> None:
        with suppress(OSError):
            if self._stat() == self._identity:
                os.unlink(self._path)

    def _stat(self) -> tuple[int, int]:
        found = os.lstat(self._path)
        return found.st_dev, found.st_ino


def cannot_listen(path: str, flag: str, why: str) -> ServingError:
    return failed_precondition(f"cannot listen on the UNIX socket {path} ({flag}): {why}")


def _is_socket(path: str, flag: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise cannot_listen(path, flag, "something that is no socket lies there")
    return True


def _refuse_if_alive(path: str, flag: str) -> None:
    """A socket that accepts the connection, or is too busy to, has a server."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_SECONDS)
        try:
            client.connect(path)
        except OSError as error:
            if error.errno in _NO_LISTENER:
                return
            if error.errno in (errno.EACCES, errno.EPERM):
                raise
    raise cannot_listen(path, flag, "another server listens there")


def _check_bind(path: str) -> None:
    """Raises the system's error for a socket there."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(path)
        os.unlink(path)


def _bind_error(path: str, flag: str, error: OSError) -> ServingError:
    if error.errno is None:  # Python's own refusal, before the system is asked
        return invalid_argument(f"{path} ({flag}) is too long for a UNIX socket")
    return cannot_listen(path, flag, os.strerror(error.errno))
