"""Heads that are not parsed again: requests with them are answered as before, and nothing else is taken for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.rest_fixture import ANSWER, ROW, TIMEOUT, RestFixture, head
from tfs_lite.server.http.known_heads import MAX_HEADS, MAX_KNOWN_BYTES, KnownHeads
from tfs_lite.server.http.message import Headers, HttpHead

BODY = orjson.dumps(ROW)
GOOD = orjson.dumps(ANSWER)
POST = head(f"Content-Length: {len(BODY)}", "X-Client: known-heads")
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture
def known(shared: RestFixture) -> Iterator[KnownHeads]:
    """The heads that the server knows: of a prediction, and of a request without a body."""
    heads = shared.server.heads
    heads.clear()
    with shared.raw(POST + BODY) as connection:
        assert GOOD in connection.recv(65536)
        connection.sendall(GET)
        assert connection.recv(65536).endswith(b"ok\n")
    assert set(heads) == {POST, GET}
    yield heads
    heads.clear()


@pytest.mark.parametrize("cut", [1, len(POST) - 1, len(POST), len(POST) + 1, -1])
def test_known_head_with_its_body_in_two_pieces_is_one_request(known: KnownHeads, ask: Any, cut: int) -> None:
    answer = ask((POST + BODY)[:cut], (POST + BODY)[cut:] + CLOSE)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert answer.count(GOOD) == 1


@pytest.mark.parametrize("first", [POST + BODY, GET])
@pytest.mark.parametrize("behind", [POST + BODY, GET, GET[:9]])
def test_requests_behind_a_known_head_are_answered_in_order(
    known: KnownHeads, ask: Any, first: bytes, behind: bytes
) -> None:
    rest = b"" if behind in GET and behind != GET else CLOSE
    answer = ask(first + behind, (GET[len(behind) :] if not rest else b"") + CLOSE)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert answer.count(GOOD) == (first + behind).count(BODY)


def test_connection_changes_between_known_and_unknown_heads(known: KnownHeads, ask: Any) -> None:
    chunked = head("Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    answer = ask(POST + BODY, chunked, POST + BODY, GET, chunked + POST + BODY + CLOSE)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 7
    assert answer.count(GOOD) == 5


@pytest.mark.parametrize(
    "sent",
    [
        POST.replace(b"\r\n\r\n", b"\r\nHost: y\r\n\r\n") + BODY,
        POST.replace(b"Content-Length: ", b"Content-Length: +") + BODY,
        POST.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + BODY,
        POST.replace(b"X-Client", b"X-Client ") + BODY,
    ],
)
def test_head_that_is_nearly_known_is_refused_like_any_other(known: KnownHeads, ask: Any, sent: bytes) -> None:
    answer = ask(sent, GET)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "sent",
    [
        head("Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head("Content-Length: 2", "Expect: 100-continue") + b"{}",
        head("Content-Length: 2", "Connection: close") + b"{}",
        head("Content-Length: 2", "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0") + b"{}",
        head("Content-Length: 2", "X: " + MAX_KNOWN_BYTES * "x") + b"{}",
        head("Content-Length: 2", "Host: y") + b"{}",
        b"GET /livez HTTP/1.1\nHost: x\n\n" + GET,
        b"\r\n\r\n",
    ],
)
def test_only_heads_of_whole_and_ordinary_requests_are_remembered(known: KnownHeads, ask: Any, sent: bytes) -> None:
    before = dict(known)
    assert ask(sent + CLOSE)  # in one piece: some of them end the connection
    assert known == before


def test_body_of_a_known_head_that_is_refused_is_skipped(shared: RestFixture, known: KnownHeads) -> None:
    refused = head("Content-Length: 600000").replace(b"/v1/models/", b"/v1/nothing/")
    with shared.raw(refused + bytes(600_000), refused + bytes(10)) as connection:
        received = b""
        while received.count(b"HTTP/1.1 400 ") < 2:
            received += connection.recv(65536)
        assert refused in known
        connection.sendall(bytes(600_000 - 10) + GET)
        while not received.endswith(b"ok\n"):
            received += connection.recv(65536)


def test_client_that_goes_in_the_middle_of_a_body_leaves_nothing(shared: RestFixture, known: KnownHeads) -> None:
    before = shared.count("CANCELLED", "Predict", version="")
    with shared.raw(POST + BODY[:-1]):
        wait_until(lambda: any(one.busy for one in shared.server.connections), "the request has begun", TIMEOUT)
    wait_until(lambda: shared.count("CANCELLED", "Predict", version="") == before + 1, "it is counted", TIMEOUT)


def test_number_of_known_heads_is_bounded() -> None:
    heads = KnownHeads()
    for number in range(3 * MAX_HEADS):
        heads.learn(b"%d" % number, HttpHead("GET", "/", Headers()))
        assert len(heads) <= MAX_HEADS
    assert len(heads) > 0
