"""The far end: whom it lets in, what it answers, and when it ends by itself."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import ormsgpack
import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tests.support.servers.replicas import SECRET, ReplicaHost
from tfs_lite.cluster.replicas.connection import Credentials, boot_id, dial_frames
from tfs_lite.cluster.replicas.near import tell
from tfs_lite.cluster.replicas.replica import CLOSE_SECONDS, MAX_ONGOING, MAX_STRANGERS, Replica
from tfs_lite.core.status import StatusCode
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.workers.channel import ConnectionClosed
from tfs_lite.workers.request_channel import RequestChannel
from tfs_lite.workers.wire import CLOSE, DESCRIBE, OPEN, PING, RUN, read_description

NAME = "m/1/00000000/0#1"
LIMIT = 1 << 20
ROW = np.arange(6, dtype=np.float32).reshape(2, 3)


def connect(address, epoch=0):
    return RequestChannel(dial_frames(address, Credentials(SECRET, epoch), LIMIT))


@pytest.fixture
def serving():
    """A replica in a thread of this process, in virtual time; it opens nothing."""

    class Serving:
        clock = VirtualClock()
        exits: list[int] = []  # noqa: RUF012
        replica = Replica(NAME, SECRET, orphan_seconds=600.0, clock=clock, exit=exits.append)
        thread = threading.Thread(target=replica.serve)

    Serving.thread.start()
    wait_until(lambda: Serving.clock.pending == 1, "it expects company")
    yield Serving
    Serving.replica.end("the test is over")
    Serving.thread.join()


def test_replica_ends_when_no_server_has_ever_come(serving):
    serving.clock.advance(599)
    assert serving.replica.cause == ""
    serving.clock.advance(1)
    assert serving.replica.cause == "no server has been connected for 600 s"
    serving.thread.join(60)
    assert not serving.thread.is_alive()
    with pytest.raises(OSError):
        socket.create_connection((serving.replica.address.host, serving.replica.address.port), 5)
    assert serving.exits == []


def test_replica_lives_while_a_server_is_connected_and_for_a_time_after_the_last(serving):
    serving.clock.advance(599)
    channels = [connect(serving.replica.address) for _ in range(2)]
    for channel in channels:
        channel.ask(PING)
    serving.clock.advance(10_000)
    channels[0].close()
    channels[1].ask(PING)
    serving.clock.advance(10_000)
    assert serving.replica.cause == ""
    channels[1].close()
    wait_until(lambda: serving.clock.pending == 1, "the end of the connection is noticed")
    serving.clock.advance(599)
    assert serving.replica.cause == ""
    serving.clock.advance(1)
    assert serving.replica.cause


def test_stranger_keeps_no_replica_alive(serving):
    with socket.create_connection((serving.replica.address.host, serving.replica.address.port)):
        serving.clock.advance(600)
        assert serving.replica.cause


def test_process_ends_when_the_replica_does_not(serving):
    unserved = Replica(NAME, SECRET, clock=serving.clock, exit=serving.exits.append)
    unserved.end("it was told to")
    serving.clock.advance(CLOSE_SECONDS)
    assert serving.exits == [1]
    unserved.serve()


def test_replica_ends_with_its_parent():
    with ReplicaHost() as own:
        replicas = [own.start(f"{NAME}{index}") for index in range(2)]
        own.kill()
        for replica in replicas:
            replica.wait()


def test_replica_takes_the_first_free_port_of_its_range(start):
    first = start()
    port = first.address.port
    with pytest.raises(OSError):
        Replica(NAME, SECRET, ports=range(port, port + 1))
    taken = Replica(NAME, SECRET, ports=range(port, port + 50))
    assert port < taken.address.port < port + 50
    taken.end("the test is over")
    taken.serve()


def test_strangers_get_nothing_and_disturb_no_server(open_replica, start):
    replica = start()
    model = open_replica(replicas=[replica]).model
    address = (replica.address.host, replica.address.port)
    strangers = [socket.create_connection(address) for _ in range(MAX_STRANGERS + 8)]
    for stranger in strangers[:8]:
        stranger.settimeout(60)
        assert stranger.recv(100) == b""
    for said in (b"GET / HTTP/1.1\r\n\r\n" * 3, b"TFSR\x01" + bytes(32) + bytes(41), b"\xff" * 200_000):
        with socket.create_connection(address, 60) as stranger:
            try:
                stranger.sendall(said)
                while stranger.recv(100):
                    pass
            except OSError:
                pass
    np.testing.assert_array_equal(model.run("", {"x": ROW}, ("y",))["y"], ROW)
    again = open_replica(replicas=[replica], way="TCP").model
    np.testing.assert_array_equal(again.run("", {"x": ROW}, ("y",))["y"], ROW)
    assert (model.restarts, again.restarts) == (0, 0)
    for stranger in strangers:
        stranger.close()


HOSTILE = {
    "unknown request": [1, "fly", "", [], [], None],
    "no model": [1, OPEN, "", [], [], ["m:f"]],
    "no time": [1, "preprocess", "", [], [], "soon"],
    "answer": [1, "answer", "", [], [], [0, None, 0]],
    "tensors too large": [1, RUN, "", [], [["x", 4, [1 << 33], 1 << 33]], None],
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
def test_connection_that_is_not_understood_is_closed_and_the_others_go_on(open_replica, start, message):
    replica = start()
    model = open_replica("make_items", replicas=[replica]).model
    channel = dial_frames(replica.address, Credentials(SECRET), LIMIT)
    packed = ormsgpack.packb(message)
    channel._sock.sendall(len(packed).to_bytes(4, "little") + packed)
    with pytest.raises(ConnectionClosed):
        channel.receive()
    channel.close()
    assert model.run("", {"x": ROW}, ("pid",))["pid"].tolist() == [replica.address.pid]
    assert model.restarts == 0


@contextmanager
def running(model, gate):
    """A run that goes on until the block is left."""
    thread = threading.Thread(target=model.run, args=("gate", {"x": ROW}, ()))
    thread.start()
    wait_until((gate / "entered").exists, "it runs")
    yield
    (gate / "open").touch()
    thread.join()


def test_pings_are_answered_while_the_model_runs(open_replica, start, tmp_path):
    replica = start()
    model = open_replica(options={"gate": str(tmp_path)}, replicas=[replica]).model
    channel = connect(replica.address)
    with running(model, tmp_path):
        for _ in range(3):
            channel.ask(PING)
        assert channel.ongoing == 1
    channel.ask(PING)
    channel.close()


def test_replica_with_too_many_requests_is_busy(open_replica, start, tmp_path):
    replica = start()
    model = open_replica(options={"gate": str(tmp_path)}, replicas=[replica]).model
    asking = connect(replica.address)
    channels = [connect(replica.address) for _ in range(MAX_ONGOING - 1)]
    threads = [threading.Thread(target=channel.call, args=(RUN, "", {"x": ROW}, ())) for channel in channels]

    def ongoing():
        asking.ask(PING)
        return asking.ongoing == MAX_ONGOING

    with running(model, tmp_path):
        for thread in threads:
            thread.start()
        wait_until(ongoing, "all are inside")
        assert refusal(asking.call, RUN, "", {"x": ROW}, (), code=StatusCode.RESOURCE_EXHAUSTED) == "busy"
    for thread in threads:
        thread.join()
    asking.call(RUN, "", {"x": ROW}, ())
    for channel in (asking, *channels):
        channel.close()


def test_replica_tells_about_itself(open_replica, start):
    replica = start(facts={"node": "n1"})
    channel = connect(replica.address)
    about = channel.ask(DESCRIBE)
    assert (about["state"], about["model"], about["facts"]) == ("placed", None, {"node": "n1"})
    assert about["niceness"] == os.getpriority(os.PRIO_PROCESS, replica.pid)
    assert (about["pid"], about["boot_id"], about["name"]) == (replica.address.pid, boot_id(), replica.address.name)
    refusal(channel.call, RUN, "", {"x": ROW}, (), code=StatusCode.FAILED_PRECONDITION)
    open_replica(replicas=[replica])
    about = channel.ask(DESCRIBE)
    assert about["state"] == "ready"
    assert about["versions"]["numpy"] == np.__version__
    assert read_description(about["model"]).platform == "child"
    channel.close()


def test_replica_opens_one_model_only(open_replica, start):
    replica = start()
    model = open_replica(replicas=[replica]).model
    again = open_replica("refuse", replicas=[replica]).model
    for each in (model, again):
        np.testing.assert_array_equal(each.run("", {"x": ROW}, ("y",))["y"], ROW)


def test_servers_that_ask_one_replica_by_turns_and_at_once_get_their_own_answers(open_replica, start, way):
    replica = start()
    models = [open_replica(replicas=[replica], way=way).model for _ in range(3)]

    def ask(model, first, count):
        for number in range(first, first + count):
            x = np.full((2, 3), number)
            np.testing.assert_array_equal(model.run("", {"x": x}, ("y",))["y"], x)

    ask(models[0], 0, 20)
    with ThreadPoolExecutor(3) as pool:
        for asking in [pool.submit(ask, model, 1000 * index, 200) for index, model in enumerate(models)]:
            asking.result(120)
    for index in (1, 0):
        models[index].close()
    ask(models[2], 0, 20)
    again = open_replica(replicas=[replica], way=way).model
    ask(again, 0, 5)
    assert [model.restarts for model in models] == [0, 0, 0]


def test_replica_ends_while_its_only_connection_waits_for_the_next_request(open_replica, start, way):
    replica = start()
    model = open_replica(replicas=[replica], way=way).model
    for _ in range(3):
        model.run("", {"x": ROW}, ())
    tell(replica.address, Credentials(SECRET), CLOSE)
    replica.wait()
