"""The sockets on which a replica listens: TCP, and an abstract UNIX socket for servers of its host; and the end of its
parent."""

from __future__ import annotations

import os
import secrets
import selectors
import socket
from collections.abc import Iterator
from contextlib import suppress

from tfs_lite.cluster.replicas.connection import tune


class Listener:
    """The sockets that a replica listens on, and the end of its parent process."""

    def __init__(self, bind: str, ports: range | None) -> None:
        self.tcp = _listen(bind, ports)
        self.unix_name = f"tfs-lite-replica-{secrets.token_hex(16)}"
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(f"\0{self.unix_name}")
        self._unix.listen()
        self._wakeup, self._waker = socket.socketpair()
        self._parent = _parent_descriptor()

    def accept(self) -> Iterator[socket.socket]:
        """Connections, until it is closed or the parent process has ended."""
        with selectors.DefaultSelector() as selector:
            for listener in (self.tcp, self._unix):
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            if self._parent is not None:
                selector.register(self._parent, selectors.EVENT_READ)
            ended = False
            while not ended:
                ready = {key.fd for key, _ in selector.select()}
                ended = bool(ready - {self.tcp.fileno(), self._unix.fileno()})
                for listener in (self.tcp, self._unix):
                    if not ended and listener.fileno() in ready:
                        with suppress(OSError):
                            sock, _ = listener.accept()
                            sock.setblocking(True)
                            if listener is self.tcp:
                                tune(sock)
                            yield sock
        for end in (self.tcp, self._unix, self._wakeup):
            end.close()
        if self._parent is not None:
            os.close(self._parent)

    def close(self) -> None:
        """Ends :meth:`accept`. Any thread."""
        self._waker.close()


def _parent_descriptor() -> int | None:
    """A descriptor that can be read when the parent process has ended; None for a parent outside of this container."""
    try:
        return os.pidfd_open(os.getppid())
    except OSError:
        return None


def _listen(bind: str, ports: range | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    failure: OSError | None = None
    for port in ports or (0,):
        try:
            return socket.create_server((bind, port), family=family, backlog=128)
        except OSError as error:
            failure = error
    raise failure or OSError("no port to listen on")
