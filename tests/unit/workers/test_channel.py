import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfs_lite.workers.channel import MAX_MESSAGE, Channel, ConnectionClosed, ProtocolError

STALL = 0.05
MESSAGE = [1, "run", [["x", 1, [2, 3], 64, 24]], None]


@pytest.fixture
def ends():
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours, STALL)
    with theirs:
        yield channel, theirs
        channel.close()


@pytest.fixture
def pair():
    ours, theirs = (Channel(end) for end in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def frame(body):
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("message", [None, 0, "text", b"\0\1", MESSAGE, {"a": [1.5, -(2**63), 2**64 - 1]}])
def test_message_arrives_as_it_was_sent(pair, message):
    ours, theirs = pair
    ours.send(message)
    assert theirs.receive() == message


def test_long_message_arrives_whole_and_one_that_is_too_long_is_not_sent(pair):
    ours, theirs = pair
    message = ["x" * 1_000_000, b"y" * 3_000_000]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ours.send, message)
        assert theirs.receive() == message
    ours, theirs = pair
    with pytest.raises(ValueError, match="at most"):
        ours.send(b"x" * MAX_MESSAGE)
    ours.send("next")
    assert theirs.receive() == "next"


def test_message_in_pieces_is_put_together(ends):
    channel, theirs = ends

    def write():
        for byte in frame(b"\x93\x01\x02\x03"):
            theirs.sendall(bytes([byte]))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        assert channel.receive() == [1, 2, 3]


GARBAGE = {
    "no msgpack": frame(b"\xc1"),
    "nothing": frame(b""),
    "an unfinished list": frame(b"\x93\x01\x02"),
    "too long": struct.pack("<I", MAX_MESSAGE + 1) + b"x",
    "huge": b"\xff" * 4,
    "two messages": frame(b"\x01") + frame(b"\x02"),
    "a message and more": frame(b"\x01") + b"\0",
    "half a length": b"\x05",
    "a length": struct.pack("<I", 100),
    "half a message": struct.pack("<I", 100) + b"half of it",
}


@pytest.mark.parametrize("written", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_found_out(ends, written):
    channel, theirs = ends
    theirs.sendall(written)
    with pytest.raises(ProtocolError):
        channel.receive()


def test_message_too_long_for_the_buffer_that_stops_is_garbage(ends):
    channel, theirs = ends
    theirs.sendall(struct.pack("<I", 200_000) + b"x" * 100_000)
    with pytest.raises(ProtocolError, match="and then nothing"):
        channel.receive()


@pytest.mark.parametrize("written", [b"", b"\x05", frame(b"\x93\x01")[:-1]])
def test_end_of_the_connection_is_noticed(ends, written):
    channel, theirs = ends
    theirs.sendall(written)
    theirs.close()
    with pytest.raises(ConnectionClosed) as gone:
        channel.receive()
    assert not gone.value.unread


def test_it_is_known_whether_the_last_message_was_read(ends):
    channel, theirs = ends
    channel.send("never read")
    theirs.close()
    with pytest.raises(ConnectionClosed) as gone:
        channel.receive()
    assert gone.value.unread
    with pytest.raises(ConnectionClosed) as gone:
        channel.send("too late")
    assert gone.value.unread


def test_hanging_up_wakes_whoever_waits(ends):
    channel, _ = ends
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.receive)
        channel.shut_down()
        with pytest.raises(ConnectionClosed):
            waiting.result()
    channel.shut_down()


def test_file_descriptors_travel_along(pair, tmp_path):
    ours, theirs = pair
    with open(tmp_path / "file", "w+") as file:
        ours.send("a file", [file.fileno()])
        message, (descriptor,) = theirs.receive_with_descriptors()
        assert message == "a file"
        assert os.path.sameopenfile(descriptor, file.fileno())
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_file_descriptors_of_a_bad_message_are_closed(ends, tmp_path):
    channel, theirs = ends
    reader, writer = os.pipe()
    socket.send_fds(theirs, [frame(b"\xc1")], [writer])
    os.close(writer)
    with pytest.raises(ProtocolError):
        channel.receive_with_descriptors()
    assert os.read(reader, 1) == b""
    os.close(reader)
