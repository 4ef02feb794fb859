"""Replicas that do not keep to the protocol: each is given up and replaced, whatever it says and whenever."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping

import numpy as np
import ormsgpack
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.replicas import SECRET, PlaceOfReplicas
from tfs_lite.cluster.replicas import connection, near
from tfs_lite.cluster.replicas.connection import FrameChannel, welcome
from tfs_lite.cluster.replicas.engine import ReplicaAddress
from tfs_lite.cluster.replicas.near import ReplicaModel
from tfs_lite.core.model import WorkerLost
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.connection import RemoteModel
from tfs_lite.workers.supervisor import Backoff
from tfs_lite.workers.wire import OPEN, PING, RUN, answer_to, describe_model

NAME = "m/1/00000000/0#1"
LIMIT = 1 << 20
ROW = np.arange(6, dtype=np.float32).reshape(2, 3)
SILENCE = b""
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 2


def frame(raw: object, more: bytes = b"") -> bytes:
    packed = ormsgpack.packb(raw)
    return struct.pack("<I", len(packed)) + packed + more


def answer(detail: object, number: int = 1, code: int = 0, ongoing: int = 0, tensors: object = ()) -> bytes:
    return frame([number, "answer", "", [], list(tensors), [code, detail, ongoing]])


class HostileReplica:
    """It greets, describes a model and answers pings as replicas do, but for what the test says it says instead:
    ``greeting``, and bytes by what was asked for. It is silent where that is empty."""

    def __init__(self, model: object, says: Mapping[str, bytes], greeting: bytes | None = None) -> None:
        self._about = {"niceness": 0, "model": describe_model(model, 1)}
        self._says = dict(says)
        self._greeting = greeting
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ReplicaAddress(NAME, "127.0.0.1", self._listener.getsockname()[1])
        self._opened: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        try:
            while True:
                self._opened.append(self._listener.accept()[0])
                threading.Thread(target=self._serve, args=(self._opened[-1],), daemon=True).start()
        except OSError:
            pass

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._greeting is not None:
                sock.sendall(self._greeting)
                return
            welcome(sock, SECRET, NAME)
            channel = FrameChannel(sock, LIMIT, "")
            while True:
                message, _ = channel.receive()
                said = self._says.get(message.what)
                if said is not None:
                    sock.sendall(said)
                elif message.what in (OPEN, PING):
                    detail = self._about if message.what == OPEN else None
                    channel.send(answer_to(message.number, detail), {})
        except (ConnectionClosed, ProtocolError, OSError):
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for sock in self._opened:
            sock.close()


class Opening:
    """Opens a model in a hostile replica, or in the one that comes after it."""

    def __init__(self, child_models: str, good: ReplicaAddress) -> None:
        self.place = PlaceOfReplicas()
        self.good = good
        self._child_models = child_models
        self._hostile: list[HostileReplica] = []
        self._opened: list[ReplicaModel] = []

    def open(self, says: Mapping[str, bytes], greeting: bytes | None = None, timeout: float = 60.0) -> ReplicaModel:
        hostile = HostileReplica(__import__(self._child_models).ChildModel(), says, greeting)
        self._hostile.append(hostile)
        self.place.put(hostile.address)
        self.place.put(self.good)
        remote = RemoteModel("model m version 1", f"{self._child_models}:make", "{}", memory_limit=LIMIT)
        model = ReplicaModel(self.place, remote, SECRET, backoff=Backoff(first=0.01), health_check_timeout=timeout)
        self._opened.append(model)
        return model

    @property
    def causes(self) -> list[str]:
        """Why hostile replicas were lost. The good one never is."""
        assert all(address != self.good for address, _ in self.place.losses)
        return [cause for _, cause in self.place.losses]

    def check(self, model: ReplicaModel) -> None:
        """The good one is used."""
        assert model.recover(threading.Event())
        wait_until(lambda: model.pid == self.good.pid, "the next one is used")
        np.testing.assert_array_equal(model.run("", {"x": ROW}, ("y",))["y"], ROW)

    def close(self) -> None:
        for model in self._opened:
            model.close()
        for hostile in self._hostile:
            hostile.close()


@pytest.fixture
def opening(child_models, start) -> Iterator[Opening]:
    made = Opening(child_models, start().address)
    yield made
    made.close()


GARBAGE = {
    "noise": b"\xde\xad\xbe\xef" * 100,
    "HTTP": HTTP,
    "huge length": b"\xff" * 4,
    "two messages": answer(0.5) * 2,
    "tensors that do not fit": answer(0.5, tensors=[["x", 4, [LIMIT + 1], LIMIT + 1]]),
    "negative sizes": answer(0.5, tensors=[["x", 4, [-1], 4]]),
    "another number": answer(0.5, number=9),
    "no answer": frame([1, "run", "", [], [], None]),
    "unknown code": answer("x", code=99),
    "less than no requests": answer(0.5, ongoing=-1),
}
HALF = {
    "half a length": b"\x05\x00",
    "half a head": answer(0.5)[:-3],
    "tensors that do not come": answer(0.5, tensors=[["y", 4, [1000], 1000]]) + b"x" * 500,
}
RUNS = {**GARBAGE, "other outputs": answer(0.5, tensors=[["z", 1, [], 4]]) + bytes(64)}
RUNS["no duration"] = answer(None, tensors=[["y", 1, [], 4]]) + bytes(64)
OPENINGS = {
    **GARBAGE,
    "no description": answer(5),
    "description of nothing": answer({"model": None}),
    "no GPU": answer({"gpu": ["uuid", -1, 0], "niceness": 0}),
    "no niceness": answer({"niceness": "none"}),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who begins a message and does not go on is waited for shortly, and pings are often."""
    monkeypatch.setattr(FrameChannel.__init__, "__defaults__", (0.2,))
    monkeypatch.setattr(connection, "GREETING_SECONDS", 3.0)
    monkeypatch.setattr(near, "PING_SECONDS", 0.05)


@pytest.mark.parametrize("said", [*RUNS.values(), *HALF.values()], ids=[*RUNS, *HALF])
def test_nonsense_in_answer_to_a_run(opening, quick, said):
    model = opening.open({RUN: said})
    with pytest.raises(WorkerLost, match="it sent garbage"):
        model.run("", {"x": ROW}, ("y",))
    opening.check(model)
    assert opening.causes == ["it sent garbage"]


@pytest.mark.parametrize("said", [*OPENINGS.values(), *HALF.values()], ids=[*OPENINGS, *HALF])
def test_nonsense_instead_of_a_description(opening, quick, said):
    opening.check(opening.open({OPEN: said}))
    assert opening.causes == ["it sent garbage"]


@pytest.mark.parametrize("said", [*GARBAGE.values(), *HALF.values()], ids=[*GARBAGE, *HALF])
def test_nonsense_instead_of_a_sign_of_life(opening, quick, said):
    model = opening.open({PING: said})
    wait_until(lambda: opening.causes, "it is given up")
    opening.check(model)
    assert opening.causes == ["it sent garbage"]


@pytest.mark.parametrize("said", [SILENCE, b"\0", HTTP, b"TFSR\x02" + bytes(32), b"TFSR\x01" + bytes(64)])
def test_nonsense_instead_of_a_greeting(opening, quick, said):
    opening.check(opening.open({}, greeting=said))
    assert opening.causes in (["it sent garbage"], ["it refused the greeting"])


def test_silence_in_a_run_is_not_waited_for(opening, quick):
    model = opening.open({RUN: SILENCE, PING: SILENCE}, timeout=2.0)
    with pytest.raises(WorkerLost, match="not answering for 2 s"):
        model.run("", {"x": ROW}, ())
    opening.check(model)
    assert opening.causes == ["not answering for 2 s"]


def test_silence_while_it_opens_is_not_waited_for(opening, quick):
    opening.check(opening.open({OPEN: SILENCE, PING: SILENCE}, timeout=2.0))
    assert opening.causes == ["not answering for 2 s"]


def test_model_that_takes_long_to_open_and_answers_pings_is_waited_for(open_replica, start, tmp_path, quick):
    opened = threading.Thread(
        target=open_replica, args=("make_and_wait", str(tmp_path)), kwargs={"near": {"health_check_timeout": 3.0}}
    )
    opened.start()
    opened.join(4.0)
    assert opened.is_alive()
    (tmp_path / "open").touch()
    opened.join(60)
    assert not opened.is_alive()
