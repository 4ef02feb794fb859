"""What the log says of connections that were ended for what their clients did."""

from __future__ import annotations

import logging

import pytest

from tests.support.grpc.transport_fixture import TransportFixture
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.rate_limited_log import EVERY, QUIET, RateLimitedLog

PEER = ("192.0.2.7", 4711)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_first_of_a_kind_is_named_with_its_address_and_why(caplog: pytest.LogCaptureFixture) -> None:
    RateLimitedLog("gRPC", Clock()).connection_ended("rapid_reset", PEER, "too many resets")
    assert [record.message for record in caplog.records] == [
        "gRPC connection from 192.0.2.7:4711 ended, rapid_reset: too many resets"
    ]


def test_others_of_the_kind_are_one_line_with_their_number_later(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RateLimitedLog("gRPC", clock)
    for _ in range(1000):
        log.connection_ended("ping_flood", PEER, "")
    assert len(caplog.records) == 1
    clock.now += EVERY
    log.connection_ended("ping_flood", PEER, "")
    assert len(caplog.records) == 2
    assert "(999 more of this kind" in caplog.records[-1].message


def test_kinds_do_not_silence_one_another(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog("gRPC", Clock())
    for kind in ("protocol", "handshake", "slow_reader"):
        log.connection_ended(kind, "", "")
    assert len(caplog.records) == 3
    assert all("a UNIX socket" in record.message for record in caplog.records)


@pytest.mark.parametrize("kind", sorted(QUIET))
def test_ordinary_ends_are_not_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    RateLimitedLog("gRPC", Clock()).connection_ended(kind, PEER, "")
    assert not caplog.records


def test_server_names_the_client_that_broke_the_protocol(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), TransportFixture("asyncio", Limits()) as server:
        raw = server.dial()
        raw.send(b"\0\0\0\x09\0\0\0\0\0")  # CONTINUATION without HEADERS
        raw.rest()
    assert [record.message for record in caplog.records if "ended, protocol" in record.message]
