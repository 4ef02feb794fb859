"""The near end against a far end that says whatever the test says: nothing may be believed, nothing may hang."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time

import numpy as np
import ormsgpack
import pytest

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.workers.arena import Arena, read_places
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.child_channel import ChildChannel, LanePool
from tfs_lite.workers.staging import Staging

LIMIT = 1 << 20


class FarEnd:
    """The other end of a lane: its socket and its view of both memories."""

    def __init__(self) -> None:
        near, self.sock = socket.socketpair()
        self.inputs, self.outputs = Arena.create(LIMIT, "inputs"), Arena.create(LIMIT, "outputs")
        near_inputs = Staging(Arena(os.dup(self.inputs.descriptor), LIMIT, "the inputs"))
        near_outputs = Arena(os.dup(self.outputs.descriptor), LIMIT, "the outputs")
        self.lane = ChildChannel(Channel(near, stall_seconds=0.05), near_inputs, near_outputs)
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
        return [place.plain for place in self.outputs.put(tensors)]

    def close(self) -> None:
        self.lane.close()
        self.lane.inputs.close()
        self.lane.outputs.close()
        self.channel.close()
        self.inputs.close()
        self.outputs.close()


@pytest.fixture
def far():
    found = FarEnd()
    yield found
    found.close()


def test_question_and_answer(far):
    seen = []

    def work():
        number, what, signature, wanted, places, seconds = far.channel.receive()
        inputs = {place.name: far.inputs.get(place).tolist() for place in read_places(places)}
        seen.append((what, signature, wanted, inputs, seconds))
        far.channel.send((number, 0, far.put(y=np.array([3.5]), n=np.array([b"text"], dtype=object))))

    thread = threading.Thread(target=work)
    thread.start()
    answer = far.lane.ask("run", "s", {"x": np.arange(3)}, ("n", "y"))
    thread.join()
    assert seen == [("run", "s", ["n", "y"], {"x": [0, 1, 2]}, None)]
    assert {name: value.tolist() for name, value in answer.items()} == {"n": [b"text"], "y": [3.5]}
    assert list(answer) == ["n", "y"]


def test_answer_is_the_callers_own(far):
    thread = far.answer(lambda number: (number, 0, far.put(y=np.zeros(4))))
    answer = far.lane.ask("run", "", {}, ("y",))
    thread.join()
    far.put(y=np.ones(4))
    assert answer["y"].tolist() == [0] * 4
    assert answer["y"].flags.owndata
    assert answer["y"].flags.writeable


def test_deadline_travels_as_the_seconds_that_are_left(far):
    seen = []

    def work():
        number, *_, seconds = far.channel.receive()
        seen.append(seconds)
        far.channel.send((number, 0, []))

    thread = threading.Thread(target=work)
    thread.start()
    assert far.lane.ask("preprocess", "", {}, (), time.monotonic() + 100) == {}
    thread.join()
    assert 90 < seen[0] <= 100


def test_failure_of_the_model_is_raised_and_the_lane_goes_on(far):
    thread = far.answer(lambda number: (number, int(StatusCode.INVALID_ARGUMENT), "no such word"))
    with pytest.raises(ServingError, match="no such word") as caught:
        far.lane.ask("run", "", {}, ())
    thread.join()
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    thread = far.answer(lambda number: (number, 0, []))
    assert far.lane.ask("run", "", {}, ()) == {}
    thread.join()


def place(name="y", dtype=DataType.FLOAT, shape=(4,), offset=0, nbytes=16):
    return [name, int(dtype), list(shape), offset, nbytes]


GARBAGE = {
    "noise": lambda number: b"\xde\xad\xbe\xef" * 100,
    "huge length": lambda number: struct.pack("<I", 0xFFFFFFFF),
    "half a message": lambda number: struct.pack("<I", 64) + b"abc",
    "half a length": lambda number: b"\x01\x00",
    "no list": lambda number: "hello",
    "empty list": lambda number: [],
    "too many": lambda number: [number, 0, [], 1],
    "number of another question": lambda number: [number + 1, 0, [place()]],
    "number as a text": lambda number: [str(number), 0, [place()]],
    "two answers": lambda number: (
        2 * (lambda body: struct.pack("<I", len(body)) + body)(ormsgpack.packb([number, 0, [place()]]))
    ),
    "unknown code": lambda number: [number, 99, "no"],
    "failure without a message": lambda number: [number, 13, None],
    "endless message": lambda number: [number, 13, "x" * 100_000],
    "no places": lambda number: [number, 0, None],
    "no place": lambda number: [number, 0, [1]],
    "too few outputs": lambda number: [number, 0, []],
    "another output": lambda number: [number, 0, [place("z")]],
    "one output too many": lambda number: [number, 0, [place(), place("z", offset=64)]],
    "an output twice": lambda number: [number, 0, [place(), place()]],
    "unknown dtype": lambda number: [number, 0, [place(dtype=77)]],
    "negative size": lambda number: [number, 0, [place(shape=(-4,))]],
    "shape of other bytes": lambda number: [number, 0, [place(shape=(5,))]],
    "behind the memory": lambda number: [number, 0, [place(offset=1 << 16)]],
    "far behind the memory": lambda number: [number, 0, [place(offset=1 << 60)]],
    "before the memory": lambda number: [number, 0, [place(offset=-64)]],
    "more than the limit": lambda number: [number, 0, [place(shape=(1 << 30,), nbytes=1 << 32)]],
    "texts that are none": lambda number: [number, 0, [place(dtype=DataType.STRING, shape=(2,), nbytes=16)]],
}


@pytest.mark.parametrize("make", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_not_believed(far, make):
    far.put(y=np.full(4, -1, np.int32))
    thread = far.answer(make)
    with pytest.raises(ProtocolError):
        far.lane.ask("run", "", {}, ("y",))
    thread.join()


def test_silence_ends_when_somebody_hangs_up(far):
    asked = far.answer(lambda number: None)
    outcomes = []

    def ask():
        with pytest.raises(ConnectionClosed):
            far.lane.ask("run", "", {}, ("y",))
        outcomes.append("gone")

    asker = threading.Thread(target=ask)
    asker.start()
    asked.join()
    with pytest.raises(ConnectionClosed):
        far.lane.say_goodbye(0.05)
    far.lane.close()
    asker.join()
    assert outcomes == ["gone"]
    with pytest.raises(ConnectionClosed) as gone:
        far.lane.ask("run", "", {}, ("y",))
    assert gone.value.unread


def test_closed_connection_is_noticed(far):
    thread = far.answer(lambda number: far.sock.shutdown(socket.SHUT_RDWR))
    with pytest.raises(ConnectionClosed) as gone:
        far.lane.ask("run", "", {}, ("y",))
    thread.join()
    assert not gone.value.unread


def test_inputs_that_are_too_large_are_refused_before_they_are_sent(far):
    with pytest.raises(ServingError, match="the inputs take") as caught:
        far.lane.ask("run", "", {"x": np.zeros(LIMIT)}, ())
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    thread = far.answer(lambda number: (number, 0, []))
    assert far.lane.ask("run", "", {"x": np.zeros(4)}, ()) == {}
    thread.join()


@pytest.fixture
def crowd():
    ends = [FarEnd(), FarEnd()]
    pool = LanePool([end.lane for end in ends])
    yield ends, pool
    pool.close()
    for end in ends:
        end.close()


def test_pool_has_as_many_questions_under_way_as_it_has_lanes(crowd):
    ends, pool = crowd
    both = threading.Barrier(2, timeout=30)

    def make(number):
        both.wait()
        return (number, 0, [])

    far = [end.answer(make) for end in ends]
    answers = []
    askers = [threading.Thread(target=lambda: answers.append(pool.ask("preprocess", "", {}, None))) for _ in ends]
    for thread in askers:
        thread.start()
    for thread in (*far, *askers):
        thread.join()
    assert answers == [{}, {}]


def test_busy_pool_lets_nobody_wait_beyond_the_deadline(crowd):
    ends, pool = crowd
    seen = [end.answer(lambda number: None) for end in ends]
    outcomes = []

    def ask():
        with pytest.raises(ConnectionClosed):
            pool.ask("preprocess", "", {}, None)
        outcomes.append("gone")

    askers = [threading.Thread(target=ask) for _ in ends]
    for thread in askers:
        thread.start()
    for thread in seen:
        thread.join()
    with pytest.raises(ServingError) as caught:
        pool.ask("preprocess", "", {}, time.monotonic() + 0.02)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    pool.hang_up()
    for thread in askers:
        thread.join()
    assert outcomes == ["gone"] * 2
    with pytest.raises(ConnectionClosed):
        pool.ask("preprocess", "", {}, None)
