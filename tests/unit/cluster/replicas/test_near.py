"""Models in replicas: what they answer over each kind of connection, and what becomes of them when these are lost."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tests.support.servers.replicas import SECRET
from tfs_lite.cluster.replicas import near
from tfs_lite.cluster.replicas.connection import Credentials, dial_frames
from tfs_lite.cluster.replicas.near import tell
from tfs_lite.cluster.replicas.replica import MAX_ONGOING
from tfs_lite.core.model import WorkerBusy, WorkerLost
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.workers.channel import ConnectionClosed
from tfs_lite.workers.request_channel import RequestChannel
from tfs_lite.workers.supervisor import Backoff
from tfs_lite.workers.wire import CLOSE, DESCRIBE, DRAIN, PING

ROW = np.arange(6, dtype=np.float32).reshape(2, 3)
NEVER = threading.Event()


def where(model) -> int:
    """The process that answers."""
    return int(model.run("", {"x": ROW}, ("pid",))["pid"][0])


def test_model_shows_and_answers_what_the_one_in_the_replica_does(open_replica, way):
    opened = open_replica(way=way)
    model = opened.model
    assert (model.platform, model.resident_bytes(), model.has_item_steps, model.concurrency) == (
        "child",
        1234,
        False,
        1,
    )
    assert {"leave", DEFAULT_SIGNATURE} <= set(model.signatures)
    assert (model.worker.kind, model.alive, model.restarts) == ("ray", True, 0)
    answer = model.run("", {"x": ROW}, ())
    np.testing.assert_array_equal(answer["y"], ROW)
    assert answer["pid"].tolist() == [model.pid]
    assert list(model.run("", {"x": ROW}, ("pid", "y"))) == ["pid", "y"]
    assert opened.place.losses == []


def test_busy_replica_has_not_run_the_request_and_a_model_that_says_so_has(open_replica, start, way, tmp_path):
    replica = start()
    model = open_replica(
        options={"gate": str(tmp_path)}, replicas=[replica], way=way, near={"lanes": MAX_ONGOING}
    ).model
    other = open_replica(options={"gate": str(tmp_path)}, replicas=[replica], way=way).model
    assert "busy" in refusal(other.run, "busy", {"x": ROW}, (), code=StatusCode.RESOURCE_EXHAUSTED)
    with pytest.raises(ServingError) as error:
        other.run("busy", {"x": ROW}, ())
    assert not isinstance(error.value, WorkerBusy)
    with ThreadPoolExecutor(MAX_ONGOING) as pool:
        runs = [pool.submit(model.run, "gate", {"x": ROW}, ()) for _ in range(MAX_ONGOING)]
        asking = RequestChannel(dial_frames(replica.address, Credentials(SECRET)))
        wait_until(lambda: asking.ask(PING) or asking.ongoing == MAX_ONGOING, "all are inside")
        with pytest.raises(WorkerBusy, match="its replica is busy") as busy:
            other.run("", {"x": ROW}, ())
        (tmp_path / "open").touch()
        for run in runs:
            run.result(60)
    asking.close()
    assert busy.value.status.reason is Reason.QUEUE_FULL
    np.testing.assert_array_equal(other.run("", {"x": ROW}, ("y",))["y"], ROW)


def test_every_size_and_type_goes_through(open_replica, way):
    model = open_replica(way=way).model
    texts = np.array([b"a", "ü".encode(), b""], dtype=object)
    for value in (texts, np.zeros((0, 4)), np.float64(3.0), np.arange(1_000_000), np.array([True, False]), ROW.T):
        got = model.run("", {"x": np.asarray(value)}, ("y",))["y"]
        assert got.dtype == np.asarray(value).dtype
        assert got.tolist() == np.asarray(value).tolist()
    many = {f"t{index}": np.full(index % 3, index) for index in range(1500)}
    np.testing.assert_array_equal(model.run("", {"x": ROW, **many}, ("y",))["y"], ROW)


def test_results_are_the_callers_own(open_replica, way):
    model = open_replica(way=way).model
    first = model.run("", {"x": ROW}, ("y",))["y"]
    model.run("", {"x": ROW + 1}, ("y",))
    np.testing.assert_array_equal(first, ROW)
    first += 1


def test_staged_inputs_arrive(open_replica, way):
    model = open_replica(way=way).model
    for rows in (3, 50_000):
        staged = model.stage("", {"x": ((rows, 3), np.dtype(np.float32)), "t": ((rows,), np.dtype(object))})
        assert list(staged) == ["x"]
        staged["x"][...] = np.arange(rows * 3).reshape(rows, 3)
        got = model.run("", {"x": staged["x"][: rows - 1]}, ("y",))["y"]
        np.testing.assert_array_equal(got, staged["x"][: rows - 1])


def test_memory_of_a_run_is_bounded_both_ways(open_replica, way):
    model = open_replica(way=way, memory_limit=1 << 20).model
    assert "model m version 1: the inputs of a run take 2097152 bytes, at most" in refusal(
        model.run, "", {"x": np.zeros(1 << 18)}, (), code=StatusCode.RESOURCE_EXHAUSTED
    )
    with pytest.raises(ServingError, match="the inputs of a run"):
        model.stage("", {"x": ((1 << 20, 2), np.dtype(np.uint8))})
    assert where(model) == model.pid
    if way == "shared memory":
        assert "the outputs of a run take" in refusal(
            model.run, "huge", {"x": ROW}, (), code=StatusCode.RESOURCE_EXHAUSTED
        )
        assert where(model) == model.pid


def test_answer_beyond_the_limit_of_the_server_counts_as_garbage(open_replica):
    opened = open_replica(way="TCP", memory_limit=1 << 20)
    with pytest.raises(WorkerLost, match="it sent garbage"):
        opened.model.run("large", {"x": np.array([1 << 21])}, ())
    wait_until(lambda: opened.place.losses, "the replica is given up")
    assert opened.place.losses[0][1] == "it sent garbage"


def test_failures_of_the_model_keep_code_and_message(open_replica, way):
    model = open_replica(way=way).model
    assert "x is not to my liking" in refusal(model.run, "refuse", {"x": ROW}, ())
    assert "model m version 1 failed: ValueError" in refusal(
        model.run, "fail", {"x": ROW}, (), code=StatusCode.INTERNAL
    )
    refusal(model.run, "no_such", {"x": ROW}, (), code=StatusCode.FAILED_PRECONDITION)
    assert where(model) == model.pid


def test_steps_of_requests_go_on_beside_a_run_and_beside_each_other(open_replica, way, tmp_path):
    model = open_replica("make_items", {"gate": str(tmp_path)}, way=way).model
    assert model.has_item_steps
    with ThreadPoolExecutor(3) as pool:
        run = pool.submit(model.run, "gate", {"x": ROW}, ())
        steps = [
            pool.submit(model.preprocess, "meet", {"x": np.array(pair)}, None) for pair in ([1.0, 2.0], [2.0, 1.0])
        ]
        assert [step.result(60)["x"].tolist() for step in steps] == [[2.0, 4.0], [4.0, 2.0]]
        assert not run.done()
        (tmp_path / "open").touch()
        np.testing.assert_array_equal(run.result(60)["y"], ROW)
    final = model.postprocess("", {"y": ROW}, None)
    np.testing.assert_array_equal(final["y"], ROW / 2)
    assert final["kept"].tolist() == [3.0, 3.0]
    (left,) = model.preprocess("deadline", {}, time.monotonic() + 100)["left"]
    assert 50 < left < 101
    assert "x is not to my liking" in refusal(model.preprocess, "refuse", {"x": ROW}, None)


def test_every_run_is_told_with_its_time_on_the_way_and_its_bytes(open_replica, way, tmp_path):
    told = []
    model = open_replica(
        options={"gate": str(tmp_path)}, way=way, near={"on_remote": lambda *run: told.append(run)}
    ).model
    model.run("", {"x": np.zeros(1000), "t": np.array([b"abc", b""], dtype=object)}, ("y",))
    ((seconds, nbytes),) = told
    assert seconds > 0
    assert nbytes == 16_003
    (tmp_path / "open").touch()
    model.run("gate", {"x": ROW}, ())
    assert len(told) == 2
    refusal(model.run, "refuse", {"x": ROW}, ())
    assert len(told) == 2


def test_what_prepares_a_replica_says_with_which_arguments_it_opens(open_replica, start):
    replica = start(facts={"host": "node-a"})
    asked = []

    def prepare(channel):
        asked.append(channel.ask(DESCRIBE)["state"])
        return json.dumps({"reason": "prepared"})

    model = open_replica(replicas=[replica], near={"prepare": prepare}).model
    assert asked == ["placed"]
    assert (model.worker.reason, model.worker.node) == ("prepared", "node-a")


def test_preparation_that_fails_is_a_refusal(open_replica, start):
    def prepare(channel):
        raise ServingError(StatusCode.FAILED_PRECONDITION, "node n has other files")

    with pytest.raises(ServingError, match="node n has other files"):
        open_replica(replicas=[start()], near={"prepare": prepare})


def test_two_lanes_send_the_next_request_while_one_runs(open_replica, way, tmp_path):
    model = open_replica(options={"gate": str(tmp_path)}, way=way, near={"lanes": 2}).model
    assert model.concurrency == 2
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(model.run, "gate", {"x": ROW}, ())
        wait_until((tmp_path / "entered").exists, "the first runs")
        second = pool.submit(model.run, "", {"x": ROW * 2}, ())
        assert not second.done()
        (tmp_path / "open").touch()
        np.testing.assert_array_equal(first.result(60)["y"], ROW)
        np.testing.assert_array_equal(second.result(60)["y"], ROW * 2)
    assert where(model) == model.pid
    assert model.ongoing == 0


def test_memory_that_was_staged_for_a_run_that_never_came_keeps_no_other_thread_from_running(open_replica, start):
    model = open_replica(near={"lanes": 2}).model
    shapes = {"x": (ROW.shape, ROW.dtype)}

    def stage_and_run(value):
        staged = model.stage("", shapes)
        staged["x"][...] = value
        return model.run("", staged, ("y",))["y"]

    with ThreadPoolExecutor(3) as pool:
        barrier = threading.Barrier(3, timeout=60)

        def stage_only():
            barrier.wait()
            return model.stage("", shapes)["x"]

        abandoned = [one.result(60) for one in [pool.submit(stage_only) for _ in range(3)]]
        for array in abandoned:
            array[...] = 1
    for value in range(5):
        np.testing.assert_array_equal(stage_and_run(value), np.full_like(ROW, value))
        np.testing.assert_array_equal(model.run("", {"x": abandoned[0]}, ("y",))["y"].shape, ROW.shape)


def test_opening_that_is_refused_says_why_and_leaves_nothing(open_replica, start):
    gc.collect()
    files, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    for function, code, message in (
        ("refuse", StatusCode.DATA_LOSS, "no model: because"),
        ("fail", StatusCode.FAILED_PRECONDITION, "cannot be loaded: RuntimeError"),
        ("there_is_none", StatusCode.FAILED_PRECONDITION, "cannot be loaded: AttributeError"),
    ):
        replica = start()
        before = set(os.listdir("/proc/self/fd"))
        assert message in refusal(open_replica, function, "because", replicas=[replica], code=code)
        assert not replica.ended
        gc.collect()
        assert set(os.listdir("/proc/self/fd")) == before
    assert len(os.listdir("/proc/self/fd")) == len(files) + 3  # what the test itself keeps of the three replicas
    assert threading.active_count() == threads


def test_replicas_that_are_lost_while_they_open_the_model_are_followed_by_others(open_replica, start, tmp_path):
    replicas = [start(), start()]
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_replica, "make_and_wait", str(tmp_path), replicas=replicas)
        wait_until((tmp_path / "opening").exists, "the first opens it")
        (tmp_path / "opening").unlink()
        replicas[0].kill()
        wait_until((tmp_path / "opening").exists, "the second opens it")
        (tmp_path / "open").touch()
        opened = opening.result(60)
    assert where(opened.model) == replicas[1].address.pid
    assert opened.place.losses == [(replicas[0].address, "its connection was closed")]


def test_opening_fails_when_the_place_has_lost_too_many_replicas(open_replica, start):
    replicas = [start() for _ in range(3)]
    message = refusal(open_replica, "leave", replicas=replicas, code=StatusCode.UNAVAILABLE)
    assert message == f"{replicas[2].address.name} was lost while it opened: its connection was closed"
    for replica in replicas:
        replica.wait()


def test_opening_that_finds_no_room_says_what_it_waits_for(open_replica):
    with pytest.raises(ServingError, match="no node has room") as waits:
        open_replica(replicas=[])
    assert waits.value.status.reason is Reason.WAITS_FOR_PLACE


def test_place_hears_which_replica_is_ready(open_replica, start):
    first, second = start(), start()
    opened = open_replica(replicas=[first, second])
    assert opened.place.ready == [(first.address, None)]
    first.kill()
    wait_until(lambda: opened.model.restarts == 1, "the next one is used")
    assert opened.place.ready == [(first.address, None), (second.address, None)]


def test_replica_that_its_place_does_not_hold_any_more_is_told_to_close(open_replica, start, monkeypatch):
    monkeypatch.setattr(near, "PING_SECONDS", 0.05)
    first, second = start(), start()
    opened = open_replica(replicas=[first, second])
    opened.place.take()
    first.wait()
    wait_until(lambda: opened.model.restarts == 1, "the next one is used")
    assert where(opened.model) == second.pid
    assert opened.place.losses == []


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("leave", "its connection was closed"),
        ("be_killed", "its connection was closed"),
        ("say_garbage", "it sent garbage"),
        ("close_sockets", "its connection was closed"),
    ],
)
def test_replica_that_is_lost_in_a_run_fails_that_run_and_the_next_one_is_used(
    open_replica, start, way, what, cause, caplog
):
    opened = open_replica(way=way)
    model, first = opened.model, opened.model.pid
    with pytest.raises(WorkerLost) as error:
        model.run(what, {"x": ROW}, ())
    assert (
        str(error.value) == f"model m version 1: its replica ended ({cause}); it is being placed again, try again later"
    )
    opened.put(start())
    assert model.recover(NEVER)
    assert (model.alive, model.restarts) == (True, 1)
    assert where(model) == model.pid != first
    ((address, said),) = opened.place.losses
    assert (address.pid, said) == (first, cause)
    assert f"its replica ended ({cause})" in caplog.text


def test_replica_that_dies_while_idle_is_noticed_and_the_next_one_is_used(open_replica, start, way):
    replica, following = start(), start()
    opened = open_replica(way=way, replicas=[replica, following])
    replica.kill()
    wait_until(lambda: opened.model.restarts == 1, "the next one is used")
    assert where(opened.model) == following.address.pid


def test_request_while_no_replica_is_there_is_refused_at_once_and_is_safe_elsewhere(open_replica, start):
    replica = start()
    opened = open_replica(replicas=[replica])
    replica.kill()
    wait_until(lambda: not opened.model.alive, "the loss is noticed")
    with pytest.raises(WorkerLost, match="it is being placed again") as error:
        opened.model.run("", {"x": ROW}, ())
    assert error.value.unread


def test_frozen_replica_is_lost_when_it_does_not_answer_a_ping(open_replica, start, way):
    replica, following = start(), start()
    opened = open_replica(way=way, replicas=[replica, following], near={"health_check_timeout": 1.5})
    with ThreadPoolExecutor(1) as pool:
        replica.signal(signal.SIGSTOP)
        answer = pool.submit(opened.model.run, "", {"x": ROW}, ())
        with pytest.raises(WorkerLost, match=r"not answering for 1\.5 s"):
            answer.result(60)
    assert opened.model.recover(NEVER)
    assert where(opened.model) == following.address.pid


def test_replica_whose_connection_alone_was_lost_is_used_again_and_opens_nothing_anew(open_replica, start, tmp_path):
    (tmp_path / "open").touch()
    opened = open_replica("make_and_wait", str(tmp_path))
    model, pid = opened.model, opened.model.pid
    (tmp_path / "opening").unlink()
    for end in _sockets():
        end.shutdown(socket.SHUT_RDWR)
        end.close()
    with pytest.raises(WorkerLost):
        model.run("", {"x": ROW}, ())
    assert model.recover(NEVER)
    assert where(model) == pid
    assert (model.restarts, opened.place.losses) == (0, [])
    assert not (tmp_path / "opening").exists()


def _sockets() -> list[socket.socket]:
    """Copies of the stream sockets of this process that are connected to a replica."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
            if b"tfs-lite-replica" in _peer(copy):
                found.append(copy)
            else:
                copy.close()
        except OSError:
            pass
    return found


def _peer(sock: socket.socket) -> bytes:
    try:
        peer = sock.getpeername()
    except OSError:
        return b""
    return peer if isinstance(peer, bytes) else b""


def test_version_that_has_become_another_does_not_come_back(open_replica, start, tmp_path, caplog):
    how = tmp_path / "how"
    how.write_text("ok")
    first, second = start(), start()
    opened = open_replica("make_from_file", str(how), replicas=[first, second])
    how.write_text("other")
    first.kill()
    wait_until(lambda: opened.place.refusals, "the change is noticed")
    ((address, status),) = opened.place.refusals
    assert address == second.address
    assert status.code is StatusCode.FAILED_PRECONDITION
    assert "its files were changed" in status.message
    assert not opened.model.alive


def test_replacement_that_refuses_is_reported_and_the_next_one_is_used(open_replica, start, tmp_path):
    how = tmp_path / "how"
    how.write_text("ok")
    first, second, third = (start() for _ in range(3))
    opened = open_replica("make_from_file", str(how), replicas=[first, second])
    how.write_text("refuse")
    first.kill()
    wait_until(lambda: opened.place.refusals, "the second has refused")
    assert opened.place.refusals == [(second.address, Status(StatusCode.INVALID_ARGUMENT, "x is not to my liking"))]
    how.write_text("ok")
    opened.put(third)
    assert opened.model.recover(NEVER)
    assert where(opened.model) == third.address.pid


def test_close_hangs_up_and_closes_the_place(open_replica, start, way):
    replica = start()
    opened = open_replica(way=way, replicas=[replica])
    gc.collect()
    opened.model.close()
    assert opened.place.is_closed
    assert not replica.ended
    assert opened.place.losses == []
    assert opened.model.recover(NEVER) is False
    again = open_replica(way=way, replicas=[replica])
    assert where(again.model) == replica.address.pid


def test_close_gives_everything_back(open_replica, start, way):
    replica = start()
    open_replica(way=way, replicas=[replica]).model.close()
    gc.collect()
    files, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    model = open_replica(way=way, replicas=[replica]).model
    model.run("", {"x": np.zeros(1_000_000)}, ())
    model.close()
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == files
    assert threading.active_count() == threads


def test_close_ends_a_run_that_hangs(open_replica, way, tmp_path):
    model = open_replica(options={"entered": str(tmp_path / "entered")}, way=way).model
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(model.run, "hang", {"x": ROW}, ())
        wait_until((tmp_path / "entered").exists, "the run has begun")
        model.close()
        with pytest.raises(WorkerLost, match="it is being unloaded"):
            answer.result(60)


def test_close_ends_an_opening_and_a_wait_for_a_replica(open_replica, start, tmp_path):
    (tmp_path / "open").touch()
    replica = start()
    opened = open_replica("make_and_wait", str(tmp_path), replicas=[replica])
    (tmp_path / "open").unlink()
    (tmp_path / "opening").unlink()
    replica.kill()
    opened.put(start())
    wait_until((tmp_path / "opening").exists, "it is being opened again")
    opened.model.close()
    waiting = open_replica(near={"backoff": Backoff(first=0.001)})
    with pytest.raises(WorkerLost):
        waiting.model.run("leave", {"x": ROW}, ())
    waiting.model.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tfs-restart"]


def test_wrong_secret_gets_nothing(open_replica, start):
    replica = start()
    message = refusal(open_replica, replicas=[replica] * 3, near={"secret": b"x" * 32}, code=StatusCode.UNAVAILABLE)
    assert "it refused the greeting" in message
    assert where(open_replica(replicas=[replica]).model) == replica.address.pid


def test_replica_ends_when_it_is_told_to(open_replica, start, tmp_path):
    replica = start()
    mark = tmp_path / "closed"
    open_replica(options={"mark": str(mark)}, replicas=[replica])
    tell(replica.address, Credentials(SECRET), CLOSE)
    replica.wait()
    assert mark.exists()


def test_drained_replica_runs_on_and_ends_when_the_last_connection_has_gone(open_replica, start):
    replica = start()
    model = open_replica(replicas=[replica]).model
    tell(replica.address, Credentials(SECRET), DRAIN)
    assert where(model) == replica.address.pid
    model.close()
    replica.wait()


def test_leader_of_an_earlier_epoch_can_end_and_open_nothing(open_replica, start):
    replica = start()
    model = open_replica(replicas=[replica], near={"epoch": lambda: 7}).model
    for what in (CLOSE, DRAIN):
        assert "epoch 6 is over, 7 has begun" in refusal(
            tell, replica.address, Credentials(SECRET, 6), what, code=StatusCode.FAILED_PRECONDITION
        )
    refusal(open_replica, replicas=[replica], near={"epoch": lambda: 6}, code=StatusCode.FAILED_PRECONDITION)
    assert where(model) == replica.address.pid
    with pytest.raises((ConnectionClosed, OSError)):
        tell(replica.address, Credentials(b"?" * 32, 8), CLOSE)
    assert where(model) == replica.address.pid
