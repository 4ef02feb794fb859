"""Accepts connections on listening sockets, with or without TLS: at most so many at once, and so many handshakes.

listening socket -> accept -> (TLS handshake) -> the protocol that the factory makes
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress

from tfs_lite.transport.room import ConnectionShare

logger = logging.getLogger(__name__)

BACKLOG = 1024
MAX_HANDSHAKES = 1024
"""TLS handshakes that may be in progress at a time, or a quarter of the connections that the process may have; one more
ends the oldest."""
ACCEPT_AT_ONCE = 64
"""Connections accepted in one turn of the loop."""
ACCEPT_PAUSE = 1.0
"""Seconds until the next attempt after the system had no socket (too many open files)."""


class Acceptor:
    """Accepts connections on listening sockets: ``start`` -> ``stop``, both on the event loop. ``tls`` returns the
    newest context and is called for every connection; None means no TLS.

    ``accepted`` is called for every connection that was taken; ``failed`` for one that ended before its protocol had
    it, with the client's address and why, None where it was not the client's fault; ``starved`` with the reason when
    the system has no socket for another one.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        handshake_timeout: float,
        shutdown_timeout: float,
        accepted: Callable[[], None],
        failed: Callable[[object, str | None], None],
        starved: Callable[[str], None],
        share: ConnectionShare,
    ) -> None:
        """Times are in seconds; ``shutdown_timeout`` is for the end of TLS. The handshakes count in the ``share``."""
        self._protocol = protocol
        self._tls = tls
        self._handshake_timeout = handshake_timeout
        self._shutdown_timeout = shutdown_timeout
        self._accepted = accepted
        self._failed = failed
        self._starved = starved
        self._share = share
        self._most_handshakes = max(min(MAX_HANDSHAKES, share.most / 4), 1)
        share.join(lambda: len(self._handshakes))
        self._loop: asyncio.AbstractEventLoop
        self._sockets: list[socket.socket] = []
        self._retries: dict[socket.socket, asyncio.Handle] = {}
        self._handshakes: dict[socket.socket, asyncio.Task[None]] = {}  # the oldest first
        self._given_up: dict[socket.socket, asyncio.Task[None]] = {}

    @property
    def listening(self) -> bool:
        return bool(self._sockets)

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """``sockets`` are bound, of TCP or Unix. The acceptor owns them from now on, and closes them."""
        self._loop = asyncio.get_running_loop()
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(BACKLOG)
            self._sockets.append(listening)
            self._listen(listening)

    async def stop(self) -> None:
        """Closes the sockets and gives up the handshakes of TLS. Connections that have their protocol stay."""
        for retry in self._retries.values():
            retry.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        tasks = list(self._handshakes.values())
        if self._tls is not None:
            for accepted in list(self._handshakes):
                self._give_up(accepted)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _listen(self, listening: socket.socket) -> None:
        self._retries.pop(listening, None)
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the client has gone already
            except OSError as error:
                self._starved(str(error.strerror))
                self._loop.remove_reader(listening)
                self._retries[listening] = self._loop.call_later(ACCEPT_PAUSE, self._listen, listening)
                return
            if not self._share.may_have(accepted.fileno()):
                accepted.close()
                self._starved("the process has no descriptor left for it")
                continue
            accepted.setblocking(False)
            self._accepted()
            if len(self._handshakes) >= self._most_handshakes:
                self._give_up(next(iter(self._handshakes)))
            self._handshakes[accepted] = self._loop.create_task(self._take(accepted))

    def _give_up(self, accepted: socket.socket) -> None:
        """Ends the connection, so that its handshake fails. Its task is not cancelled: uvloop would drop a connection
        that has its protocol by now, without a word to the protocol."""
        self._given_up[accepted] = self._handshakes.pop(accepted)
        with suppress(OSError):
            accepted.shutdown(socket.SHUT_RDWR)

    async def _take(self, accepted: socket.socket) -> None:
        peer, why = _peer_of(accepted), None
        try:
            await self._handshake(accepted)
            return
        except OSError as error:  # ssl.SSLError is one, and a timeout
            if accepted not in self._given_up:
                why = str(error) or type(error).__name__
        except Exception:
            logger.exception("a connection from %s could not be taken", peer)
        finally:
            self._handshakes.pop(accepted, None)
            self._given_up.pop(accepted, None)
        self._failed(peer, why)
        accepted.close()

    async def _handshake(self, accepted: socket.socket) -> None:
        if self._tls is None:
            await self._loop.connect_accepted_socket(self._protocol, accepted)
            return
        await self._loop.connect_accepted_socket(
            self._protocol,
            accepted,
            ssl=self._tls(),
            ssl_handshake_timeout=self._handshake_timeout,
            ssl_shutdown_timeout=self._shutdown_timeout,
        )


def _peer_of(accepted: socket.socket) -> object:
    """The client's address, or None if the client has gone already."""
    try:
        return accepted.getpeername()
    except OSError:
        return None
