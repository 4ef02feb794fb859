"""What the engine over Ray does beyond the contract: replicas, the lead, and the helper.

Functions of Ray that are not public are covered by the contract suite: ``actors`` and ``actor`` by lists and causes of
ends, ``draining`` by the node that drains, ``free`` by what nodes have, ``id_of`` by every place.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psutil
import pytest

from tests.support.cluster.engine_contract import Watched
from tests.support.cluster.ray_nodes import RayNodes
from tests.support.errors import refusal
from tfs_lite.cluster.replicas.connection import Credentials, dial_frames
from tfs_lite.cluster.replicas.engine import CPUS, Changed, PlacedReplica, ReplicaName, ReplicaSlot, Unreachable, Wish
from tfs_lite.cluster.replicas.helper import HelperEngine
from tfs_lite.config.replicas import ClusterOptions
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.workers.channel import ConnectionClosed
from tfs_lite.workers.request_channel import RequestChannel
from tfs_lite.workers.wire import DESCRIBE

PATIENCE = 60.0
FOR_EVER = 600.0


def until(condition: Callable[[], bool]) -> None:
    """Calls that fail because the cluster is out of reach are made again."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if condition():
                return
        except ServingError as error:
            if error.code is not StatusCode.UNAVAILABLE:
                raise
        threading.Event().wait(0.05)
    raise AssertionError("it never came about")


def connect(cluster: RayNodes, name: str, lease_seconds: float = 10.0, **fields: object) -> HelperEngine:
    options = ClusterOptions(**{"address": cluster.address, "name": name, **fields})
    return HelperEngine.connect(options, lease_seconds=lease_seconds)


def wish(model: str, cpus: float = 0.1) -> Wish:
    return Wish(ReplicaName(ReplicaSlot(model, 1, "0123abcd", 0), 0), {CPUS: cpus} if cpus else {})


def find(engine: HelperEngine, id: str) -> PlacedReplica | None:
    return next((replica for replica in engine.list() if replica.id == id), None)


def place(engine: HelperEngine, model: str, cpus: float = 0.1) -> PlacedReplica:
    """One that listens."""
    id = engine.place(wish(model, cpus))
    until(lambda: getattr(find(engine, id), "address", None) is not None)
    found = find(engine, id)
    assert found is not None
    return found


def pid_of(replica: PlacedReplica) -> int:
    assert replica.address is not None
    assert replica.address.pid is not None
    return replica.address.pid


@pytest.fixture(scope="module")
def engine(ray_nodes: RayNodes) -> Iterator[HelperEngine]:
    with closing(connect(ray_nodes, "engine", lease_seconds=2.0)) as found:
        yield found


def test_a_replica_knows_the_secret_and_its_node_and_ends_when_it_is_told_to(engine: HelperEngine) -> None:
    watched = Watched(engine)
    replica = place(engine, "asked")
    address = replica.address
    assert address is not None
    with pytest.raises(ConnectionClosed):
        dial_frames(address, Credentials(bytes(32), engine.epoch))
    channel = RequestChannel(dial_frames(address, Credentials(engine.secret, engine.epoch)))
    about = channel.ask(DESCRIBE)
    assert isinstance(about, dict)
    assert about["facts"]["node"] == replica.node
    assert about["facts"]["ray"]
    channel.request_close(PATIENCE)
    until(lambda: watched.cause_of(replica.id) == "its process has ended")
    until(lambda: not psutil.pid_exists(pid_of(replica)))
    channel.close()
    assert find(engine, replica.id) is None


def test_a_replica_that_needs_nothing_does_not_land_on_the_head(ray_nodes: RayNodes, engine: HelperEngine) -> None:
    replicas = [place(engine, f"light{index}", cpus=0) for index in range(3)]
    assert ray_nodes.head not in {replica.node for replica in replicas}
    for replica in replicas:
        engine.end(replica.id)


def test_a_process_that_stands_still_is_ended_all_the_same(engine: HelperEngine) -> None:
    replica = place(engine, "stopped")
    os.kill(pid_of(replica), signal.SIGSTOP)
    engine.end(replica.id)
    until(lambda: not psutil.pid_exists(pid_of(replica)))


def test_replicas_listen_where_they_are_told_to_and_end_when_no_server_comes(ray_nodes: RayNodes) -> None:
    fields = {"host": "127.0.0.2", "port_range": (23450, 23459), "orphan_seconds": 1.0}
    with closing(connect(ray_nodes, "settings", **fields)) as engine:
        watched = Watched(engine)
        id = engine.place(wish("orphan"))
        seen: list[PlacedReplica] = []
        until(lambda: seen.extend(engine.list()) or bool(watched.cause_of(id)))
        addresses = {replica.address for replica in seen if replica.address is not None}
        assert [(address.host, 23450 <= address.port <= 23459) for address in addresses] == [("127.0.0.2", True)]
        assert engine._leader.host == "127.0.0.2"


def test_why_a_replica_cannot_start_is_said_in_words(ray_nodes: RayNodes) -> None:
    options = ClusterOptions(ray_nodes.address, name="mistaken")
    with closing(HelperEngine.connect(options, {"no_such_setting": 1})) as engine:
        watched = Watched(engine)
        id = engine.place(wish("never"))
        until(lambda: bool(watched.cause_of(id)))
        assert re.fullmatch("it could not start: .*no_such_setting.*", watched.cause_of(id))
        assert find(engine, id) is None


SERVER = """
import sys
from tfs_lite.config.replicas import ClusterOptions
from tfs_lite.cluster.replicas.helper import HelperEngine
engine = HelperEngine.connect(ClusterOptions(sys.argv[1], name="lock"), lease_seconds=float(sys.argv[2]))
print(engine._leader.host, engine._leader.port, engine.pid, engine.epoch, engine.secret.hex(), flush=True)
sys.stdin.read()
"""


def test_a_second_server_is_refused_until_the_first_has_ended_however_that_came(ray_nodes: RayNodes) -> None:
    """No lease ends here: the port of a killed server refuses, and one that stops gives the lead back."""
    command = [sys.executable, "-c", SERVER, ray_nodes.address, str(FOR_EVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        host, port, helper, epoch, secret = server.stdout.readline().split()
        message = refusal(connect, ray_nodes, "lock", FOR_EVER, code=StatusCode.FAILED_PRECONDITION)
        assert message == (
            f"the server at {host}:{port} leads the cluster name 'lock'; a second one needs another --cluster_name"
        )
        server.kill()
    until(lambda: not psutil.pid_exists(int(helper)))
    for _ in range(2):
        with closing(connect(ray_nodes, "lock", FOR_EVER)) as engine:
            assert engine.epoch > int(epoch)
            assert engine.secret.hex() == secret
            helper = engine.pid
        assert not psutil.pid_exists(helper)


def test_a_helper_that_dies_is_started_again_and_knows_the_replicas(engine: HelperEngine) -> None:
    watched, restarts, before = Watched(engine), engine.restarts, (engine.epoch, engine.secret, engine._leader)
    replica = place(engine, "steady")
    watched.events.clear()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    until(lambda: watched.has(Unreachable))
    assert "signal 9" in str(watched.events[0])
    until(lambda: watched.has(Changed))
    assert engine.is_up
    assert engine.restarts == restarts + 1
    assert (engine.epoch, engine.secret, engine._leader) == before
    until(lambda: find(engine, replica.id) == replica)
    engine.end(replica.id)
    until(lambda: find(engine, replica.id) is None)


def test_calls_under_way_fail_when_the_helper_dies(ray_nodes: RayNodes) -> None:
    with closing(connect(ray_nodes, "underway")) as engine:
        helper, answers = engine.pid, []
        assert helper is not None
        os.kill(helper, signal.SIGSTOP)
        asking = threading.Thread(target=lambda: answers.append(refusal(engine.list, code=StatusCode.UNAVAILABLE)))
        asking.start()
        os.kill(helper, signal.SIGKILL)
        asking.join(PATIENCE)
        assert "signal 9" in answers[0]


def test_a_registrar_that_dies_learns_from_the_leader_who_leads(ray_nodes: RayNodes, engine: HelperEngine) -> None:
    epoch, secret = engine.epoch, engine.secret
    processes = psutil.Process(ray_nodes.pid).children(recursive=True)
    registrars = [process for process in processes if "Registrar" in process.name()]
    assert registrars
    for process in registrars:
        process.kill()
    found: list[PlacedReplica] = []
    until(lambda: found.append(place(engine, "after")) is None)
    engine.end(found[0].id)
    assert (engine.epoch, engine.secret) == (epoch, secret)


def test_the_cluster_of_this_machine_is_found_by_itself(ray_nodes: RayNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # it is on loopback, which the address does not say
    with closing(connect(ray_nodes, "found", address="auto")) as engine:
        assert ray_nodes.head in {node.id for node in engine.nodes()}


def test_a_client_from_outside_of_the_cluster_is_a_server_as_any_other(ray_nodes: RayNodes) -> None:
    with closing(connect(ray_nodes, "outside", address=ray_nodes.start_client_server())) as engine:
        watched = Watched(engine)
        replica = place(engine, "far")
        assert (
            refusal(engine.place, wish("far"), code=StatusCode.ALREADY_EXISTS)
            == "there is a replica far/1/0123abcd/0#0"
        )
        assert replica.node in {node.id for node in engine.nodes()}
        os.kill(pid_of(replica), signal.SIGKILL)
        until(lambda: bool(watched.cause_of(replica.id)))


def test_a_wrong_token_is_suspected(ray_nodes: RayNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 32)
    options = ClusterOptions(ray_nodes.address)
    message = refusal(HelperEngine.connect, options, connect_seconds=5, code=StatusCode.UNAVAILABLE)
    assert message.startswith(f"the cluster at {ray_nodes.address} cannot be reached: wrong or missing token?")


VERSIONS = """
import ray._private.utils
from tfs_lite.cluster.replicas.ray_engine import failure_of
try:
    ray._private.utils.check_version_info({"ray_version": "2.54.0", "python_version": "3.10.1"}, "here")
except RuntimeError as error:
    print(failure_of("head:6379", error).status)
"""


def test_other_versions_than_the_clusters_are_named() -> None:
    said = subprocess.run([sys.executable, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(
        r"FAILED_PRECONDITION: the cluster at head:6379 has Ray 2\.54\.0 and Python 3\.10\.1, "
        r"this server Ray [\d.]+ and Python [\d.]+; they must be the same\n",
        said,
    )
