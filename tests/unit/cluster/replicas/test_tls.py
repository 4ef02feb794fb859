"""Replicas under TLS: both ends show certificates of one authority, and a stranger gets nothing."""

from __future__ import annotations

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import trustme

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tests.support.servers.replicas import SECRET
from tfs_lite.cluster.replicas import near as near_end
from tfs_lite.cluster.replicas.connection import Credentials, FrameChannel, dial_frames
from tfs_lite.cluster.replicas.near import tell
from tfs_lite.cluster.replicas.tls import Tls, TlsKeys
from tfs_lite.config.server_files import SSLConfig
from tfs_lite.core.model import WorkerLost
from tfs_lite.core.status import StatusCode
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.wire import CLOSE, Message

AUTHORITY, STRANGER = trustme.CA(), trustme.CA()
ROW = np.arange(6, dtype=np.float32).reshape(2, 3)


def keys_of(authority: trustme.CA, trusted: trustme.CA = AUTHORITY) -> TlsKeys:
    pair = authority.issue_cert("replicas.test")
    return TlsKeys(
        pair.private_key_pem.bytes().decode(),
        pair.cert_chain_pems[0].bytes().decode(),
        trusted.cert_pem.bytes().decode(),
    )


KEYS = keys_of(AUTHORITY)


@pytest.fixture
def opened(open_replica, start):
    """Over TCP, as from another host."""
    return open_replica(way="TCP", replicas=[start(tls=KEYS.plain)], near={"tls": Tls(KEYS)})


def test_every_size_and_type_goes_through(opened):
    texts = np.array([b"a", "ü".encode(), b""], dtype=object)
    for value in (
        texts,
        np.zeros((0, 4)),
        np.float64(3.0),
        np.arange(1_000_000),
        np.arange(40_000).reshape(200, 200).T,
    ):
        got = opened.model.run("", {"x": np.asarray(value)}, ("y",))["y"]
        assert got.tolist() == np.asarray(value).tolist()
    many = {f"t{index}": np.full(index % 3, index) for index in range(1500)}
    np.testing.assert_array_equal(opened.model.run("", {"x": ROW, **many}, ("y",))["y"], ROW)


def test_signs_of_life_and_several_lanes(open_replica, start, monkeypatch, tmp_path):
    monkeypatch.setattr(near_end, "PING_SECONDS", 0.01)
    model = open_replica(
        options={"gate": str(tmp_path)},
        way="TCP",
        replicas=[start(tls=KEYS.plain)],
        near={"tls": Tls(KEYS), "lanes": 2},
    ).model
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(model.run, "gate", {"x": ROW}, ())
        wait_until((tmp_path / "entered").exists, "the first runs")
        second = pool.submit(model.run, "", {"x": ROW * 2}, ())
        (tmp_path / "open").touch()
        np.testing.assert_array_equal(first.result(60)["y"], ROW)
        np.testing.assert_array_equal(second.result(60)["y"], ROW * 2)
    for _ in range(200):
        model.run("", {"x": ROW}, ())
    assert model.restarts == 0


def test_replica_that_dies_is_noticed_and_the_next_one_is_used(opened, start):
    with pytest.raises(WorkerLost, match="its connection was closed"):
        opened.model.run("be_killed", {"x": ROW}, ())
    following = start(tls=KEYS.plain)
    opened.put(following)
    assert opened.model.recover(threading.Event())
    assert opened.model.run("", {"x": ROW}, ("pid",))["pid"].tolist() == [following.pid]


def test_close_ends_a_run_that_hangs(open_replica, start, tmp_path):
    model = open_replica(
        options={"entered": str(tmp_path / "entered")},
        way="TCP",
        replicas=[start(tls=KEYS.plain)],
        near={"tls": Tls(KEYS)},
    ).model
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(model.run, "hang", {"x": ROW}, ())
        wait_until((tmp_path / "entered").exists, "the run has begun")
        model.close()
        with pytest.raises(WorkerLost, match="it is being unloaded"):
            answer.result(60)


STRANGERS = {
    "without TLS": None,
    "of another authority": keys_of(STRANGER),
    "of another authority, and trusting it": keys_of(STRANGER, STRANGER),
    "to whom the replica is a stranger": keys_of(AUTHORITY, STRANGER),
}


@pytest.mark.parametrize("keys", STRANGERS.values(), ids=STRANGERS)
def test_stranger_gets_nothing_even_with_the_secret(opened, start, keys):
    address = replace(start(tls=KEYS.plain).address, unix=None)
    credentials = Credentials(SECRET, tls=keys and Tls(keys))
    with pytest.raises((ConnectionClosed, ProtocolError, OSError)):
        tell(address, credentials, CLOSE)
    tell(address, Credentials(SECRET, tls=Tls(KEYS)), CLOSE)
    np.testing.assert_array_equal(opened.model.run("", {"x": ROW}, ("y",))["y"], ROW)


def test_client_without_a_certificate_gets_no_byte(opened):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address = opened.place.ready[0][0]
    with context.wrap_socket(socket.create_connection((address.host, address.port), 60)) as stranger, suppress(OSError):
        stranger.sendall(b"TFSR\x01" + bytes(32))
        assert stranger.recv(100) == b""


def test_replica_without_a_certificate_is_given_up(open_replica, start):
    replicas = [start(), start(tls=keys_of(STRANGER).plain)]
    message = refusal(open_replica, way="TCP", replicas=replicas, near={"tls": Tls(KEYS)}, code=StatusCode.UNAVAILABLE)
    assert "CERTIFICATE_VERIFY_FAILED" in message


def test_connection_within_a_host_goes_without(open_replica, start):
    model = open_replica(replicas=[start(tls=KEYS.plain)], near={"tls": Tls(KEYS)}).model
    np.testing.assert_array_equal(model.run("", {"x": ROW}, ("y",))["y"], ROW)


def test_begun_message_whose_rest_does_not_come_is_found_out(start):
    address = replace(start(tls=KEYS.plain).address, unix=None)
    channel = dial_frames(address, Credentials(SECRET, tls=Tls(KEYS)))
    ours, theirs = socket.socketpair()
    far, near = Tls(KEYS), Tls(KEYS)
    ends = far.wrap(ours, near=False), near.wrap(theirs, near=True)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(end.handshake, 60) for end in ends]:
            done.result(60)
    receiving = FrameChannel(ends[0], 1 << 20, "", stall_seconds=0.05)
    ends[1].sendall(b"\x05\x00")
    with pytest.raises(ProtocolError, match="and then nothing"):
        receiving.receive()
    FrameChannel(ends[1], 1 << 20, "").send(Message(1, "run"), {"x": ROW})
    for end in ends:
        end.close()
    channel.close()


def test_config_has_to_demand_certificates():
    config = SSLConfig(server_key=KEYS.key, server_cert=KEYS.certificates, custom_ca=KEYS.authorities)
    assert "client_verify" in refusal(TlsKeys.of, config)
    assert TlsKeys.of(config.model_copy(update={"client_verify": True})) == KEYS
    assert KEYS.key not in repr(KEYS)


@pytest.mark.parametrize("plain", [{}, {"key": "k"}, {**KEYS.plain, "more": ""}])
def test_keys_that_are_none_are_refused(plain):
    refusal(Tls.read, plain)


def test_keys_that_do_not_fit_are_refused():
    refusal(Tls, replace(KEYS, key=keys_of(AUTHORITY).key), code=StatusCode.FAILED_PRECONDITION)
