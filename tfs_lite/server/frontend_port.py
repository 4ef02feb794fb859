"""One port for several processes: taken by the server, listened on by its frontends.

The server's socket is bound and does not listen, so that it gets no connections, keeps the port while no frontend is
there, and makes one port of 0 for all of them. It is bound alone first and shares the port only then: a stranger who
has it is found, even one who would share it too.
"""

from __future__ import annotations

import socket

from tfs_lite.core.status import ServingError
from tfs_lite.server.addresses import check_address, in_use


def hold_port(host: str, port: int, flag: str, *, with_strangers: bool = False) -> socket.socket:
    """A socket that holds the port until it is closed; 0: a free one. Processes of the same user can listen on it with
    SO_REUSEPORT. ``with_strangers``: it may be one that others share already. FAILED_PRECONDITION or INVALID_ARGUMENT,
    naming ``flag`` or --host, if it cannot be had."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier server may linger
        if with_strangers:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        sock.close()
        raise _explain(host, port, flag) from None
    return sock


def _explain(host: str, port: int, flag: str) -> ServingError:
    try:
        check_address(host, port, flag)
    except ServingError as error:
        return error
    return in_use(host, port, flag)
