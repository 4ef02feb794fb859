"""Connections that are opened, left silent, never finished or are no HTTP/2 at all: they cost a place for a while."""

from __future__ import annotations

import ssl

import pytest
import trustme
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_attacks import Attacker, AttackTest
from tests.support.grpc.transport_fixture import ECHO, LOOPS, PATIENCE, WAIT
from tests.support.servers.process import wait_until
from tfs_lite.server.grpc.metrics import TransportCollector
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

MESSAGE = b"\0\0\0\0\1x"
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(189))
HTTP1 = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
HTTP1_ANSWER = b"HTTP/1.1 400 "


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_silent_connections_give_way_to_new_ones(loop: str) -> None:
    """Those that were silent for longest; a client that asks keeps its own."""
    with AttackTest(Limits(max_connections=20), loop) as attack:
        for _ in range(100):
            attack.attacker(preface=False)
        numbers = attack.numbers
        wait_until(lambda: numbers.connections_total == 101, "all have come", PATIENCE)
        attack.control.wait_more()
        attack.expect_closed("too_many", 81)
        assert len(attack.connections()) == 20
        assert numbers.connections_total == 101, "the control did not have to come again"


def test_silent_connections_do_not_last() -> None:
    with AttackTest(Limits(handshake_timeout=0.3)) as attack:
        attackers = [attack.attacker(preface=False) for _ in range(100)]
        for attacker in attackers:
            assert attacker.rest() == []
            attacker.close()
        attack.expect_closed("handshake", 100)


def test_connections_with_a_call_inside_are_not_sent_away_and_new_ones_are() -> None:
    with AttackTest(Limits(max_connections=11)) as attack:
        attackers = [attack.attacker() for _ in range(10)]
        for attacker in attackers:
            attacker.request(1, WAIT, MESSAGE)
        attack.wait("started", 10)
        wait_until(lambda: attack.numbers.connections == 11, "the transport is full", PATIENCE)
        late = attack.attacker(preface=False)
        assert late.rest() == []
        attack.expect_closed("too_many")
        attack.service.open()
        for attacker in attackers:
            assert attacker.status(1)[0] == 0


def test_peer_that_has_vanished_is_asked_and_given_up_with_its_calls() -> None:
    """Its side of the connection is open, and nothing comes any more."""
    with AttackTest(Limits(keepalive_time=0.2, keepalive_timeout=0.2)) as attack:
        attackers = [attack.attacker() for _ in range(10)]
        for attacker in attackers:
            attacker.request(1, WAIT, MESSAGE)
        attack.expect_closed("keepalive", 10)
        attack.wait("cancelled", 10)
        assert [frame.kind for frame in attackers[0].rest() if not frame.ack].count(h2.PING) == 1


@pytest.mark.parametrize(
    "sent", [HTTP1, CLIENT_HELLO, bytes(range(256)) * 100, b"\0"], ids=["http1", "tls", "bytes", "0"]
)
def test_what_is_no_http2_is_closed_at_once(attack: AttackTest, sent: bytes) -> None:
    for _ in range(50):
        attacker = attack.attacker(preface=False)
        attacker.send(sent)
        if sent == HTTP1:
            assert attacker.socket.recv(1000).startswith(HTTP1_ANSWER)
        else:
            assert attacker.end()[0] is ErrorCode.PROTOCOL_ERROR
        attacker.close()
    attack.expect_closed("no_http2", 50)


@pytest.mark.parametrize("begun", [b"", CLIENT_HELLO[:50], b"no TLS at all"], ids=["nothing", "half", "rubbish"])
def test_handshakes_that_are_never_finished_are_given_up(begun: bytes) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    authority.issue_cert("localhost").configure_cert(context)
    limits = Limits(handshake_timeout=0.5)
    with AttackTest(limits, tls=lambda: context, trusted=authority.cert_pem.bytes()) as attack:
        attackers = [attack.attacker(preface=False) for _ in range(50)]
        for attacker in attackers:
            attacker.send(begun)
        for attacker in attackers:
            attacker.rest_raw()
            attacker.close()
        attack.expect_closed("handshake", 50)


def test_metrics_page_names_what_ended_each_connection(attack: AttackTest) -> None:
    registry = CollectorRegistry()
    registry.register(TransportCollector(attack.numbers))
    for sent in (h2.ping() * 1000, h2.priority(1) * 10_000, h2.settings() * 1000, h2.raw(0xEE, 0, 0) * 10_000):
        attacker = attack.attacker()
        attacker.flood([sent])
        attacker.end()
    attack.expect_closed("odd_frame_flood", 2)
    attack.expect_closed("settings_flood")
    attack.expect_closed("too_many_pings")
    lines = generate_latest(registry).decode().splitlines()
    for kind, count in {"odd_frame_flood": 2, "settings_flood": 1, "too_many_pings": 1}.items():
        assert f'tfs_lite_grpc_connections_closed_total{{kind="{kind}"}} {count}.0' in lines


def test_attacker_that_stays_after_its_goaway_is_cut_off(attack: AttackTest, attacker: Attacker) -> None:
    """It neither closes its side nor stops sending."""
    attacker.flood((h2.ping() * 1000 for _ in range(100_000)), read=False)
    attack.expect_closed("too_many_pings")


def test_attacker_that_stays_silently_after_its_goaway_is_cut_off(attack: AttackTest, attacker: Attacker) -> None:
    attacker.send(h2.ping() * 10)
    attacker.read_until(lambda frame: frame.kind == h2.GOAWAY)
    attack.expect_closed("too_many_pings")
    with attack.channel() as channel:
        assert channel.unary_unary(ECHO)(b"x", timeout=PATIENCE) == b"x"
