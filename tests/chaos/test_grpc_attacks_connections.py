"""Connections that are opened, left silent, never finished or are no HTTP/2 at all: they cost a place for a while."""

from __future__ import annotations

import ssl

import pytest
import trustme
from prometheus_client import CollectorRegistry, generate_latest

from tfs_lite.server.grpc.metrics import TransportCollector
from tfs_lite.testing.grpc import http2_peer as h2
from tfs_lite.testing.grpc.http2_attacks import AttackTest
from tfs_lite.testing.grpc.transport_fixture import ECHO, LOOPS, PATIENCE, WAIT
from tfs_lite.testing.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

MESSAGE = b"\0\0\0\0\1x"
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(189))
HTTP1 = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
HTTP1_ANSWER = b"HTTP/1.1 400 "


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_silent_connections_give_way_to_new_ones(loop: str) -> None:
    """Those that were silent for longest; a client that asks keeps its own."""
    with AttackTest(Limits(max_connections=20), loop) as siege:
        for _ in range(100):
            siege.enemy(greet=False)
        numbers = siege.numbers
        wait_until(lambda: numbers.connections_total == 101, "all have come", PATIENCE)
        siege.bystander.wait_more()
        siege.expect_closed("too_many", 81)
        assert len(siege.connections()) == 20
        assert numbers.connections_total == 101, "the bystander did not have to come again"


def test_silent_connections_do_not_last() -> None:
    with AttackTest(Limits(handshake_timeout=0.3)) as siege:
        enemies = [siege.enemy(greet=False) for _ in range(100)]
        for enemy in enemies:
            assert enemy.rest() == []
            enemy.close()
        siege.expect_closed("handshake", 100)


def test_connections_with_a_call_inside_are_not_sent_away_and_new_ones_are() -> None:
    with AttackTest(Limits(max_connections=11)) as siege:
        enemies = [siege.enemy() for _ in range(10)]
        for enemy in enemies:
            enemy.request(1, WAIT, MESSAGE)
        siege.wait("started", 10)
        wait_until(lambda: siege.numbers.connections == 11, "the house is full", PATIENCE)
        late = siege.enemy(greet=False)
        assert late.rest() == []
        siege.expect_closed("too_many")
        siege.service.open()
        for enemy in enemies:
            assert enemy.status(1)[0] == 0


def test_peer_that_has_vanished_is_asked_and_given_up_with_its_calls() -> None:
    """Its side of the connection is open, and nothing comes any more."""
    with AttackTest(Limits(keepalive_time=0.2, keepalive_timeout=0.2)) as siege:
        enemies = [siege.enemy() for _ in range(10)]
        for enemy in enemies:
            enemy.request(1, WAIT, MESSAGE)
        siege.expect_closed("keepalive", 10)
        siege.wait("cancelled", 10)
        assert [frame.kind for frame in enemies[0].rest() if not frame.ack].count(h2.PING) == 1


@pytest.mark.parametrize(
    "sent", [HTTP1, CLIENT_HELLO, bytes(range(256)) * 100, b"\0"], ids=["http1", "tls", "bytes", "0"]
)
def test_what_is_no_http2_is_closed_at_once(sent: bytes) -> None:
    with AttackTest() as siege:
        for _ in range(50):
            enemy = siege.enemy(greet=False)
            enemy.send(sent)
            if sent == HTTP1:
                assert enemy.socket.recv(1000).startswith(HTTP1_ANSWER)
            else:
                assert enemy.end()[0] is ErrorCode.PROTOCOL_ERROR
            enemy.close()
        siege.expect_closed("no_http2", 50)


@pytest.mark.parametrize("begun", [b"", CLIENT_HELLO[:50], b"no TLS at all"], ids=["nothing", "half", "rubbish"])
def test_handshakes_that_are_never_finished_are_given_up(begun: bytes) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    authority.issue_cert("localhost").configure_cert(context)
    limits = Limits(handshake_timeout=0.5)
    with AttackTest(limits, tls=lambda: context, trusted=authority.cert_pem.bytes()) as siege:
        enemies = [siege.enemy(greet=False) for _ in range(50)]
        for enemy in enemies:
            enemy.send(begun)
        for enemy in enemies:
            enemy.rest_raw()
            enemy.close()
        siege.expect_closed("handshake", 50)


def test_metrics_page_names_what_ended_each_connection() -> None:
    with AttackTest() as siege:
        registry = CollectorRegistry()
        registry.register(TransportCollector(siege.numbers))
        for sent in (h2.ping() * 1000, h2.priority(1) * 10_000, h2.settings() * 1000, h2.raw(0xEE, 0, 0) * 10_000):
            enemy = siege.enemy()
            enemy.pour([sent])
            enemy.end()
        siege.expect_closed("odd_frame_flood", 2)
        siege.expect_closed("settings_flood")
        siege.expect_closed("too_many_pings")
        lines = generate_latest(registry).decode().splitlines()
        for kind, count in {"odd_frame_flood": 2, "settings_flood": 1, "too_many_pings": 1}.items():
            assert f'tfs_lite_grpc_connections_closed_total{{kind="{kind}"}} {count}.0' in lines


def test_attacker_that_stays_after_its_goaway_is_put_out() -> None:
    """It neither closes its side nor stops sending."""
    with AttackTest() as siege:
        enemy = siege.enemy()
        enemy.pour((h2.ping() * 1000 for _ in range(100_000)), read=False)
        siege.expect_closed("too_many_pings")


def test_attacker_that_stays_silently_after_its_goaway_is_put_out() -> None:
    with AttackTest() as siege:
        enemy = siege.enemy()
        enemy.send(h2.ping() * 10)
        enemy.read_until(lambda frame: frame.kind == h2.GOAWAY)
        siege.expect_closed("too_many_pings")
        with siege.channel() as channel:
            assert channel.unary_unary(ECHO)(b"x", timeout=PATIENCE) == b"x"
