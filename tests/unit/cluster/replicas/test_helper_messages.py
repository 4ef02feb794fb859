"""What the server and its helper say to each other."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tfs_lite.cluster.replicas.engine import (
    ClusterNode,
    PlacedReplica,
    ReplicaAddress,
    ReplicaName,
    ReplicaSlot,
    Strategy,
    Wish,
)
from tfs_lite.cluster.replicas.helper_messages import (
    MessageStream,
    plain_node,
    plain_replica,
    plain_wish,
    read_node,
    read_replica,
    read_wish,
)
from tfs_lite.workers.channel import MAX_MESSAGE, ConnectionClosed, ProtocolError

NAME = ReplicaName(ReplicaSlot("folder/model", 3, "0123abcd", 2), 7)
ADDRESS = ReplicaAddress(str(NAME), "10.0.0.7", 4711, "boot", "socket", 99)


@pytest.fixture
def ends() -> Iterator[tuple[MessageStream, socket.socket]]:
    ours, theirs = socket.socketpair()
    stream = MessageStream(ours)
    yield stream, theirs
    stream.close()
    theirs.close()


@pytest.mark.parametrize(
    "node",
    [
        ClusterNode("id", "host", {"num_cpus": 4.0}, {"num_cpus": 0.5}, {"zone": "a"}, True, True, 12.5),
        ClusterNode("id", "host", {}, {}, alive=False),
    ],
)
def test_nodes_arrive_as_they_were_sent(ends: tuple[MessageStream, socket.socket], node: ClusterNode) -> None:
    assert read_node(there_and_back(ends, plain_node(node))) == node


@pytest.mark.parametrize("replica", [PlacedReplica("a", NAME), PlacedReplica("b", NAME, "node", ADDRESS)])
def test_replicas_arrive_as_they_were_sent(ends: tuple[MessageStream, socket.socket], replica: PlacedReplica) -> None:
    assert read_replica(there_and_back(ends, plain_replica(replica))) == replica


@pytest.mark.parametrize(
    "wish",
    [Wish(NAME, {"num_gpus": 0.5}, "node", frozenset({"x", "y"}), {"zone": "!a"}, Strategy.PACK), Wish(NAME, {})],
)
def test_wishes_arrive_as_they_were_sent(ends: tuple[MessageStream, socket.socket], wish: Wish) -> None:
    assert read_wish(there_and_back(ends, plain_wish(wish))) == wish


def there_and_back(ends: tuple[MessageStream, socket.socket], plain: object) -> object:
    stream, sock = ends
    peer = MessageStream(sock.dup())
    stream.send(plain)
    (found,) = peer.receive()
    peer.close()
    sock.close()
    return found


def test_many_messages_of_many_threads_are_received_whole(ends: tuple[MessageStream, socket.socket]) -> None:
    stream, sock = ends
    peer = MessageStream(sock.dup())
    texts = [str(number) * 5000 for number in range(8)]
    senders = [threading.Thread(target=peer.send, args=(index, text)) for index, text in enumerate(texts)]
    for sender in senders:
        sender.start()
    assert sorted(stream.receive() for _ in texts) == [[index, text] for index, text in enumerate(texts)]
    for sender in senders:
        sender.join()
    peer.close()


def test_the_end_of_the_other_end_is_told(ends: tuple[MessageStream, socket.socket]) -> None:
    stream, sock = ends
    sock.sendall(struct.pack("<I", 10) + b"half")
    sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionClosed):
        stream.receive()
    with pytest.raises(ConnectionClosed):
        stream.send("the other end does not read this")


def test_a_stream_that_was_shut_down_wakes_the_thread_that_receives(ends: tuple[MessageStream, socket.socket]) -> None:
    stream, _ = ends
    closed = threading.Event()

    def receive() -> None:
        with pytest.raises(ConnectionClosed):
            stream.receive()
        closed.set()

    threading.Thread(target=receive).start()
    stream.shut_down()
    assert closed.wait(30)


@pytest.mark.parametrize(
    "garbage", [struct.pack("<I", MAX_MESSAGE + 1), struct.pack("<I", 1) + b"\xc1", struct.pack("<I", 1) + b"\x05"]
)
def test_garbage_is_no_message(ends: tuple[MessageStream, socket.socket], garbage: bytes) -> None:
    stream, sock = ends
    sock.sendall(garbage)
    with pytest.raises(ProtocolError):
        stream.receive()
