"""Connections to replicas against ends that do not keep to the protocol: nothing hangs, and nothing is given away."""

from __future__ import annotations

import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ormsgpack
import pytest

from tests.support.servers.replicas import SECRET
from tfs_lite.cluster.replicas import connection
from tfs_lite.cluster.replicas.connection import (
    FRAMES,
    MEMORY,
    Credentials,
    FrameChannel,
    GreetingRefused,
    greet,
    receive_memory,
    welcome,
)
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.wire import Message

NAME = "m/1/00000000/0#1"
LIMIT = 1 << 20
ROW = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def both(ends, near, far):
    """What the two parts of a greeting give, or their errors."""
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(_outcome, end, part) for end, part in zip(ends, (near, far), strict=True)]
        return [part.result(60) for part in parts]


def _outcome(end, part):
    try:
        return part(end)
    except (ConnectionClosed, ProtocolError) as error:
        end.shutdown(socket.SHUT_RDWR)
        return type(error)


@pytest.mark.parametrize("carrier", [FRAMES, MEMORY])
def test_ends_that_know_the_secret_and_the_name_agree(ends, carrier):
    found = both(
        ends, lambda end: greet(end, Credentials(SECRET, 12), NAME, carrier), lambda end: welcome(end, SECRET, NAME)
    )
    assert found == [None, (12, carrier)]


@pytest.mark.parametrize(("secret", "name"), [(b"x" * 32, NAME), (SECRET, "m/1/00000000/0#2"), (b"", NAME)])
def test_another_secret_or_name_is_refused(ends, secret, name):
    found = both(
        ends, lambda end: greet(end, Credentials(secret), name, FRAMES), lambda end: welcome(end, SECRET, NAME)
    )
    assert found == [GreetingRefused, GreetingRefused]


def test_epoch_and_carrier_cannot_be_changed_on_the_way(ends):
    def meddle(end):
        """Greets under epoch 1, and claims 2."""
        copy = _Meddler(end)
        return greet(copy, Credentials(SECRET, 1), NAME, FRAMES)

    class _Meddler:
        def __init__(self, sock):
            self._sock = sock

        def sendall(self, message):
            if not message.startswith(b"TFSR"):
                message = struct.pack(">QB", 2, FRAMES) + message[9:]
            self._sock.sendall(message)

        def __getattr__(self, name):
            return getattr(self._sock, name)

    assert both(ends, meddle, lambda end: welcome(end, SECRET, NAME)) == [GreetingRefused, GreetingRefused]


def test_replica_that_only_sends_back_what_it_gets_is_refused(ends):
    def echo(end):
        while piece := end.recv(4096):
            end.sendall(piece)
        return "closed"

    found = both(ends, lambda end: greet(end, Credentials(SECRET), NAME, FRAMES), echo)
    assert found == [GreetingRefused, "closed"]


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3, b"TFSR\x02" + bytes(32), bytes(37), b"TFSR\x01" + bytes(100)],
)
def test_stranger_learns_nothing(ends, sent):
    ours, theirs = ends
    theirs.sendall(sent)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises((GreetingRefused, ProtocolError)):
        welcome(ours, SECRET, NAME)
    ours.shutdown(socket.SHUT_RDWR)
    answered = theirs.recv(4096)
    assert answered == b"" or (sent.startswith(b"TFSR\x01") and len(answered) == 37)


def test_stranger_who_says_nothing_is_not_waited_for(ends, monkeypatch):
    monkeypatch.setattr(connection, "GREETING_SECONDS", 0.05)
    with pytest.raises(ProtocolError, match="and then nothing"):
        welcome(ends[0], SECRET, NAME)


def test_memory_is_only_taken_if_it_cannot_be_taken_away(ends):
    ours, theirs = ends
    with ArenaPair() as (inputs, outputs):
        Channel(theirs).send((LIMIT,), [inputs.descriptor, outputs.descriptor])
        receive_memory(ours, LIMIT, "").close()


@pytest.mark.parametrize("message", [[LIMIT, 1], "memory", ["x"], [LIMIT]])
@pytest.mark.parametrize("kind", ["unsealed", "file", "one", "none"])
def test_memory_that_is_none_is_garbage(ends, message, kind, tmp_path):
    ours, theirs = ends
    sealed = Arena.create(LIMIT, "")
    unsealed = os.memfd_create("x")
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    descriptors = {
        "unsealed": [sealed.descriptor, unsealed],
        "file": [sealed.descriptor, file],
        "one": [sealed.descriptor],
        "none": [],
    }[kind]
    Channel(theirs).send(message, descriptors)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolError):
        receive_memory(ours, LIMIT, "")
    assert len(os.listdir("/proc/self/fd")) == before
    sealed.close()
    os.close(unsealed)
    os.close(file)


class ArenaPair:
    def __enter__(self):
        self.arenas = Arena.create(LIMIT, ""), Arena.create(LIMIT, "")
        return self.arenas

    def __exit__(self, *_):
        for arena in self.arenas:
            arena.close()


@pytest.fixture
def frames(ends):
    """A channel, and the bare socket at its other end."""
    ours, theirs = ends
    return FrameChannel(ours, LIMIT, "the inputs", stall_seconds=0.05), theirs


def frame(raw, more=b""):
    packed = ormsgpack.packb(raw)
    return struct.pack("<I", len(packed)) + packed + more


WHOLE = [1, "run", "", [], [], None]
GARBAGE = {
    "noise": b"\xde\xad\xbe\xef" * 100,
    "huge length": b"\xff" * 4,
    "half a length": b"\x05\x00",
    "half a head": frame(WHOLE)[:-3],
    "two messages": frame(WHOLE) * 2,
    "tensors that do not come": frame([1, "run", "", [], [["x", 4, [1000], 1000]], None], b"x" * 500),
    "tensors that do not fit": frame([1, "run", "", [], [["x", 4, [LIMIT + 1], LIMIT + 1]], None]),
    "large tensors that do not come": frame([1, "run", "", [], [["x", 4, [LIMIT], LIMIT]], None], b"x" * 70_000),
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_found_out(frames, sent):
    channel, theirs = frames
    theirs.sendall(sent)
    with pytest.raises(ProtocolError):
        channel.receive()


@pytest.mark.parametrize("sent", [b"", b"\x05", frame(WHOLE)[:-1], GARBAGE["tensors that do not come"]])
def test_end_of_the_connection_is_noticed(frames, sent):
    channel, theirs = frames
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(ConnectionClosed) as gone:
        channel.receive()
    assert not gone.value.unread


def test_message_in_pieces_is_put_together(frames):
    channel, theirs = frames
    sent = frame([1, "run", "", [], [["x", 4, [200], 200]], None])
    sent += bytes(-len(sent) % 64) + b"\x07" * 200
    channel = FrameChannel(channel._sock, LIMIT, "")

    def write():
        for start in range(0, len(sent), 7):
            theirs.sendall(sent[start : start + 7])

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        message, locations = channel.receive()
    assert message == Message(1, "run", "", [], None)
    assert channel.read(locations, copy=True)["x"].tolist() == [7] * 200


@pytest.mark.parametrize("nbytes", [0, 1, 65_000, 70_000, LIMIT - 100])
def test_large_and_small_messages_follow_one_another(ends, nbytes):
    ours, theirs = (FrameChannel(end, LIMIT, "") for end in ends)
    x = np.arange(nbytes, dtype=np.uint8)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            sending = pool.submit(
                ours.send, Message(1, "run"), {"x": x, "t": np.array([b"text"], dtype=object)[:nbytes]}
            )
            _, locations = theirs.receive()
            found = theirs.read(locations, copy=False)
            assert found["x"].tobytes() == x.tobytes()
            assert found["t"].tolist() == [b"text"][:nbytes]
            sending.result()
            nbytes = nbytes // 2
            x = x[:nbytes]


def test_it_is_known_on_one_host_whether_the_last_message_was_read(frames):
    channel, theirs = frames
    channel.send(Message(1, "run"), {"x": ROW})
    theirs.close()
    with pytest.raises(ConnectionClosed) as gone:
        channel.receive()
    assert gone.value.unread
    with pytest.raises(ConnectionClosed) as gone:
        channel.send(Message(1, "run"), {"x": ROW})
    assert gone.value.unread
