"""The server's end against a child that sends what the test says: every answer is checked, and nothing may hang."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ormsgpack
import pytest

from tests.support.errors import refusal
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import StatusCode
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.request_channel import ChannelPool, RequestChannel
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.tensor_channel import ArenaChannel
from tfs_lite.workers.tensors import read_locations
from tfs_lite.workers.wire import ANSWER

LIMIT = 1 << 20


def answer_of(number, code, detail):
    """The answer to a question: tensors, or the message of a failure."""
    found = isinstance(detail, list)
    return [number, ANSWER, "", [], detail if found else [], [code, "" if found else detail, 0]]


class ChildEnd:
    """The child's end of a channel: its socket and its view of both memories."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.inputs, self.outputs = Arena.create(LIMIT, "inputs"), Arena.create(LIMIT, "outputs")
        our_inputs = Staging(Arena(os.dup(self.inputs.descriptor), LIMIT, "the inputs"))
        our_outputs = Arena(os.dup(self.outputs.descriptor), LIMIT, "the outputs")
        channel = Channel(ours, stall_seconds=0.05)
        self.server = RequestChannel(ArenaChannel(channel, our_inputs, our_outputs, owner=True))
        self.channel = Channel(self.sock)

    def answer(self, make) -> threading.Thread:
        """Reads one question and sends what ``make`` makes of its number: bytes as they are, the rest as a message."""

        def work() -> None:
            number, *_ = self.channel.receive()
            made = make(number)
            if isinstance(made, bytes):
                self.sock.sendall(made)
            elif made is not None:
                self.channel.send(made)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def put(self, **tensors):
        return [location.plain for location in self.outputs.write(tensors)]

    def close(self) -> None:
        self.server.close()
        self.channel.close()
        self.inputs.close()
        self.outputs.close()


@pytest.fixture
def child():
    found = ChildEnd()
    yield found
    found.close()


def test_question_and_answer(child):
    def work():
        number, what, signature, wanted, locations, seconds = child.channel.receive()
        inputs = {location.name: child.inputs.read(location).tolist() for location in read_locations(locations)}
        child.channel.send(answer_of(number, 0, child.put(y=np.array([3.5]), n=np.array([b"text"], dtype=object))))
        return what, signature, wanted, inputs, seconds

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(work)
        answer = child.server.call("run", "s", {"x": np.arange(3)}, ("n", "y"))
    assert seen.result() == ("run", "s", ["n", "y"], {"x": [0, 1, 2]}, None)
    assert {name: value.tolist() for name, value in answer.items()} == {"n": [b"text"], "y": [3.5]}
    assert list(answer) == ["n", "y"]


def test_answer_is_the_callers_own(child):
    thread = child.answer(lambda number: answer_of(number, 0, child.put(y=np.zeros(4))))
    answer = child.server.call("run", "", {}, ("y",))
    thread.join()
    child.put(y=np.ones(4))
    assert answer["y"].tolist() == [0] * 4
    assert answer["y"].flags.owndata
    assert answer["y"].flags.writeable


def test_deadline_travels_as_the_seconds_that_are_left(child):
    def work():
        number, *_, seconds = child.channel.receive()
        child.channel.send(answer_of(number, 0, []))
        return seconds

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(work)
        assert child.server.call("preprocess", "", {}, (), time.monotonic() + 100) == {}
    assert 90 < seen.result() <= 100


def test_failure_of_the_model_is_raised_and_the_channel_goes_on(child):
    thread = child.answer(lambda number: answer_of(number, int(StatusCode.INVALID_ARGUMENT), "no such word"))
    assert "no such word" in refusal(child.server.call, "run", "", {}, ())
    thread.join()
    thread = child.answer(lambda number: answer_of(number, 0, []))
    assert child.server.call("run", "", {}, ()) == {}
    thread.join()


def location(name="y", dtype=DataType.FLOAT, shape=(4,), offset=0, nbytes=16):
    return [name, int(dtype), list(shape), offset, nbytes]


GARBAGE = {
    "noise": lambda number: b"\xde\xad\xbe\xef" * 100,
    "huge length": lambda number: struct.pack("<I", 0xFFFFFFFF),
    "half a message": lambda number: struct.pack("<I", 64) + b"abc",
    "half a length": lambda number: b"\x01\x00",
    "no list": lambda number: "hello",
    "empty list": lambda number: [],
    "too many": lambda number: [*answer_of(number, 0, []), 1],
    "number of another question": lambda number: answer_of(number + 1, 0, [location()]),
    "number as a text": lambda number: answer_of(str(number), 0, [location()]),
    "two answers": lambda number: (
        2 * (lambda body: struct.pack("<I", len(body)) + body)(ormsgpack.packb(answer_of(number, 0, [location()])))
    ),
    "unknown code": lambda number: answer_of(number, 99, "no"),
    "failure without a message": lambda number: answer_of(number, 13, None),
    "endless message": lambda number: answer_of(number, 13, "x" * 100_000),
    "no locations": lambda number: [number, ANSWER, "", [], None, [0, None, 0]],
    "a question": lambda number: [number, "run", "", [], [location()], [0, None, 0]],
    "no text": lambda number: [number, ANSWER, None, [], [location()], [0, None, 0]],
    "no names": lambda number: [number, ANSWER, "", [1], [location()], [0, None, 0]],
    "less than no requests": lambda number: [number, ANSWER, "", [], [location()], [0, None, -1]],
    "no outcome": lambda number: [number, ANSWER, "", [], [location()], None],
    "no location": lambda number: answer_of(number, 0, [1]),
    "another output": lambda number: answer_of(number, 0, [location("z")]),
    "one output too many": lambda number: answer_of(number, 0, [location(), location("z", offset=64)]),
    "an output twice": lambda number: answer_of(number, 0, [location(), location()]),
    "unknown dtype": lambda number: answer_of(number, 0, [location(dtype=77)]),
    "negative size": lambda number: answer_of(number, 0, [location(shape=(-4,))]),
    "shape of other bytes": lambda number: answer_of(number, 0, [location(shape=(5,))]),
    "behind the memory": lambda number: answer_of(number, 0, [location(offset=1 << 16)]),
    "far behind the memory": lambda number: answer_of(number, 0, [location(offset=1 << 60)]),
    "before the memory": lambda number: answer_of(number, 0, [location(offset=-64)]),
    "more than the limit": lambda number: answer_of(number, 0, [location(shape=(1 << 30,), nbytes=1 << 32)]),
    "texts that are none": lambda number: answer_of(
        number, 0, [location(dtype=DataType.STRING, shape=(2,), nbytes=16)]
    ),
}


def test_outputs_that_the_model_leaves_out_are_left_out(child):
    child.put(y=np.full(4, -1, np.int32))
    for locations in ([], [location()]):
        thread = child.answer(lambda number, locations=locations: answer_of(number, 0, locations))
        assert list(child.server.call("run", "", {}, ("z", "y"))) == ["y"] * len(locations)
        thread.join()


@pytest.mark.parametrize("make", GARBAGE.values(), ids=GARBAGE)
def test_invalid_answer_is_a_protocol_error(child, make):
    child.put(y=np.full(4, -1, np.int32))
    thread = child.answer(make)
    with pytest.raises(ProtocolError):
        child.server.call("run", "", {}, ("y",))
    thread.join()


def test_waiting_for_an_answer_ends_when_the_channel_is_shut_down(child):
    called = child.answer(lambda number: None)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(child.server.call, "run", "", {}, ("y",))
        called.join()
        with pytest.raises(ConnectionClosed):
            child.server.request_close(0.05)
        child.server.close()
        with pytest.raises(ConnectionClosed):
            asked.result()
    with pytest.raises(ConnectionClosed) as gone:
        child.server.call("run", "", {}, ("y",))
    assert gone.value.unread


def test_closed_connection_is_noticed(child):
    thread = child.answer(lambda number: child.sock.shutdown(socket.SHUT_RDWR))
    with pytest.raises(ConnectionClosed) as gone:
        child.server.call("run", "", {}, ("y",))
    thread.join()
    assert not gone.value.unread


def test_inputs_that_are_too_large_are_refused_before_they_are_sent(child):
    assert "the inputs take" in refusal(
        child.server.call, "run", "", {"x": np.zeros(LIMIT)}, (), code=StatusCode.RESOURCE_EXHAUSTED
    )
    thread = child.answer(lambda number: answer_of(number, 0, []))
    assert child.server.call("run", "", {"x": np.zeros(4)}, ()) == {}
    thread.join()


@pytest.fixture
def pool_of_two():
    ends = [ChildEnd(), ChildEnd()]
    pool = ChannelPool([end.server for end in ends])
    yield ends, pool
    pool.close()
    for end in ends:
        end.close()


def test_pool_runs_as_many_calls_at_once_as_it_has_channels(pool_of_two):
    ends, pool = pool_of_two
    both = threading.Barrier(2, timeout=30)

    def make(number):
        both.wait()
        return answer_of(number, 0, [])

    children = [end.answer(make) for end in ends]
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(pool.call, "preprocess", "", {}, None) for _ in ends]
        assert [one.result() for one in asked] == [{}, {}]
    for thread in children:
        thread.join()


def test_no_call_waits_for_a_busy_pool_beyond_its_deadline(pool_of_two):
    ends, pool = pool_of_two
    seen = [end.answer(lambda number: None) for end in ends]
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(pool.call, "preprocess", "", {}, None) for _ in ends]
        for thread in seen:
            thread.join()
        refusal(pool.call, "preprocess", "", {}, time.monotonic() + 0.02, code=StatusCode.DEADLINE_EXCEEDED)
        pool.shut_down()
        for one in asked:
            with pytest.raises(ConnectionClosed):
                one.result()
    with pytest.raises(ConnectionClosed):
        pool.call("preprocess", "", {}, None)
