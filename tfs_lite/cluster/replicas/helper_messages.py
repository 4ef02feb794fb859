"""The messages between the server and its helper, and the values of the contract as plain data.

    server -> helper    ["begin", settings]                   once; see ``helper_program``
                        [number, what, seconds, argument]     "lead", "nodes", "list", "place", "end", "release"
    helper -> server    ["up", host]                          the cluster is reached; ``host`` is the address used here
                        ["failed", code, message]             it cannot be reached; the helper ends
                        ["answer", number, result]
                        ["error", number, code, message]
                        ["superseded", number, epoch]         in place of an answer
                        ["changed"], ["ended", id, cause], ["unreachable", cause]

A message is a length and msgpack, over a stream socket. Neither end trusts the other with code: there is no pickle.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import ormsgpack

from tfs_lite.cluster.replicas.engine import ClusterNode, PlacedReplica, ReplicaAddress, ReplicaName, Strategy, Wish
from tfs_lite.workers.channel import MAX_MESSAGE, ConnectionClosed, ProtocolError

_LENGTH = struct.Struct("<I")


class MessageStream:
    """One end of the connection; it owns the socket. One thread receives, any may send. Both ends send whenever they
    like, so several messages may be under way."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb")
        self._sending = threading.Lock()  # guards what is sent, and the descriptor

    def send(self, *message: object) -> None:
        """Blocks while the other end does not read. Raises ConnectionClosed; TypeError if it is no plain data."""
        body = ormsgpack.packb(message)
        try:
            with self._sending:
                self._sock.sendall(_LENGTH.pack(len(body)) + body)
        except OSError:
            raise ConnectionClosed(unread=True) from None

    def receive(self) -> list[Any]:
        """Waits for the next message. Raises ConnectionClosed, ProtocolError."""
        try:
            length: int = _LENGTH.unpack(self._read(_LENGTH.size))[0]
            if length > MAX_MESSAGE:
                raise ProtocolError(f"a message of {length} bytes; at most {MAX_MESSAGE} are expected")
            message = ormsgpack.unpackb(self._read(length))
        except OSError:
            raise ConnectionClosed from None
        except ValueError:
            raise ProtocolError("a message that cannot be read") from None
        if not isinstance(message, list) or not message:
            raise ProtocolError("no message")
        return message

    def shut_down(self) -> None:
        """Ends the connection for both ends. Any thread."""
        with self._sending, suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the stream; only the thread that receives may call it."""
        with self._sending:
            self._reader.close()
            self._sock.close()

    def _read(self, count: int) -> bytes:
        found = self._reader.read(count)
        if len(found) < count:
            raise ConnectionClosed
        return found


def plain_node(node: ClusterNode) -> list[object]:
    return [
        node.id,
        node.host,
        dict(node.total),
        dict(node.free),
        dict(node.labels),
        node.alive,
        node.draining,
        node.drain_seconds,
    ]


def read_node(raw: Any) -> ClusterNode:
    id, host, total, free, labels, alive, draining, drain_seconds = raw
    return ClusterNode(id, host, total, free, labels, alive, draining, drain_seconds)


def plain_replica(replica: PlacedReplica) -> list[object]:
    address = replica.address
    return [replica.id, str(replica.name), replica.node, None if address is None else address.plain]


def read_replica(raw: Any) -> PlacedReplica:
    id, name, node, address = raw
    return PlacedReplica(id, ReplicaName.parse(name), node, None if address is None else ReplicaAddress.read(address))


def plain_wish(wish: Wish) -> list[object]:
    return [str(wish.name), dict(wish.needs), wish.node, sorted(wish.avoid), dict(wish.labels), wish.strategy.value]


def read_wish(raw: Any) -> Wish:
    name, needs, node, avoid, labels, strategy = raw
    return Wish(ReplicaName.parse(name), needs, node, frozenset(avoid), labels, Strategy(strategy))
