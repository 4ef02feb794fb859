"""What comes over one connection, byte by byte: order, heads that nobody trusts, bounds; against a real HTTP server."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.rest_fixture import ANSWER, ROW, TIMEOUT, RestFixture, head
from tfs_lite.server.http.connection import MAX_DISCARDED
from tfs_lite.server.http.head_checks import MAX_HEAD_BYTES, MAX_HEADERS
from tfs_lite.server.http.request_reader import MAX_UNPARSED_BYTES

BODY = orjson.dumps(ROW)
BROKEN = b'{"error":"Invalid HTTP request received."}'
CLOSE = "Connection: close"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n%s\r\n"


def predict(*lines: str, body: bytes = BODY) -> bytes:
    return head(f"Content-Length: {len(body)}", *lines) + body


@pytest.mark.parametrize("cut", [1, 20, len(head("Content-Length: 33")), -1, -5])
def test_request_in_two_pieces_is_one_request(ask: Any, cut: int) -> None:
    request = predict(CLOSE)
    answer = ask(request[:cut], request[cut:])
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(orjson.dumps(ANSWER))


def test_requests_in_one_piece_are_answered_in_order(ask: Any) -> None:
    bodies = [orjson.dumps({"instances": [[float(n), 0.0, 0.0]]}) for n in range(300)]
    answer = ask(b"".join(predict(body=body) for body in bodies) + GET % b"Connection: close\r\n")
    texts = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert texts[-1] == b"ok\n"
    found = [orjson.loads(text)["predictions"][0][0] for text in texts[:-1]]
    assert found == [n + 7.0 for n in range(300)]


def test_requests_with_and_without_a_length_take_turns(ask: Any) -> None:
    chunked = head("Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    answer = ask(predict() + chunked + predict() + GET % b"" + chunked + predict(CLOSE))
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 6
    assert answer.count(orjson.dumps(ANSWER)) == 5


def test_requests_that_wait_for_one_inside_are_few(shared: RestFixture) -> None:
    servable = shared.servable
    servable.shut()
    with shared.raw(predict() + (GET % b"") * 50_000) as connection:
        assert servable.arrived.acquire(timeout=TIMEOUT)
        (inside,) = [item for item in shared.server.connections if item.busy]
        wait_until(lambda: inside.reading_paused, "no more is read", TIMEOUT)
        assert len(inside._reader.waiting) < 200
        assert len(inside._reader.unparsed) < MAX_UNPARSED_BYTES + (1 << 18)
        servable.open()
        received = b""
        while received.count(b"ok\n") < 50_000:
            piece = connection.recv(1 << 20)
            assert piece, "closed too early"
            received += piece


TE = "Transfer-Encoding: "
UNTRUSTED = {
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": GET % b"Host: y\r\n",
    "two lengths": head("Content-Length: 2", "Content-Length: 2") + b"{}",
    "other lengths": head("Content-Length: 2", "Content-Length: 3") + b"{}",
    "list of lengths": head("Content-Length: 2, 2") + b"{}",
    "signed length": head("Content-Length: +2") + b"{}",
    "length and chunks": head("Content-Length: 2", TE + "chunked") + b"2\r\n{}\r\n0\r\n\r\n",
    "chunks and length": head(TE + "chunked", "Content-Length: 2") + b"2\r\n{}\r\n0\r\n\r\n",
    "chunks twice": head(TE + "chunked", TE + "chunked") + b"0\r\n\r\n",
    "chunks behind another coding": head(TE + "x", TE + "chunked") + b"0\r\n\r\n",
    "another coding behind chunks": head(TE + "chunked", TE + "x") + b"0\r\n\r\n",
    "packed chunks": head(TE + "gzip, chunked") + b"0\r\n\r\n",
    "other coding": head(TE + "identity"),
    "nearly chunked": head(TE + "xchunked") + b"0\r\n\r\n",
    "old chunks": b"POST /x HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "zero byte": GET % b"X: a\0b\r\n",
    "control character": GET % b"X: a\x01b\r\n",
    "lone carriage return": GET % b"X: a\rb\r\n",
    "lone line feed": GET % b"X: a\nY: b\n",
    "folded line": GET % b"X: a\r\n b\r\n",
    "space before colon": GET % b"X : a\r\n",
    "no name": GET % b": a\r\n",
    "control character in path": b"GET /a\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes in path": b"GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no version": b"GET /livez\r\n\r\n",
    "next version": b"GET /livez HTTP/2.0\r\nHost: x\r\n\r\n",
    "small letters": b"get /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "tunnel": b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "long path": b"GET /" + b"a" * MAX_HEAD_BYTES * 2,
    "long header": b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * MAX_HEAD_BYTES * 2,
    "many headers": GET % (b"X: a\r\n" * MAX_HEADERS),
}


@pytest.mark.parametrize("sent", UNTRUSTED.values(), ids=UNTRUSTED)
def test_head_that_is_not_to_be_trusted_is_refused_and_the_connection_closed(ask: Any, sent: bytes) -> None:
    answer = ask(sent, GET % b"")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(BROKEN)
    assert answer.count(b"HTTP/1.1 ") == 1


CHUNKS = {
    "no number": b"ZZ\r\n",
    "negative": b"-2\r\n{}\r\n",
    "prefix": b"0x2\r\n{}\r\n",
    "longer than it says": b"2\r\n{}}\r\n",
    "lone line feed": b"2\n{}\n0\n\n",
    "endless trailers": b"0\r\n" + b"X: a\r\n" * MAX_HEAD_BYTES,
    "endless trailer": b"0\r\nX: " + b"a" * MAX_HEAD_BYTES * 2,
}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_body_that_is_broken_is_refused_and_the_connection_closed(ask: Any, chunks: bytes) -> None:
    answer = ask(head(TE + "chunked"), chunks, GET % b"")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(BROKEN)


@pytest.mark.parametrize("broken", [b"nonsense\r\n\r\n", head(TE + "chunked") + b"ZZ\r\n"], ids=["head", "body"])
@pytest.mark.parametrize("first", [predict(), GET % b"", predict() + GET % b""], ids=["short", "long", "both"])
def test_what_came_before_something_broken_is_answered_first(ask: Any, first: bytes, broken: bytes) -> None:
    answer = ask(first + broken)
    good = first.count(b" HTTP/1.1\r\n")
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == good
    assert answer.count(b"HTTP/1.1 ") == good + 1
    assert answer.endswith(BROKEN)


def test_trailers_are_read_and_forgotten(ask: Any) -> None:
    chunked = b"%x\r\n%s\r\n0\r\nHost: y\r\nX-Sum: 5\r\n\r\n" % (len(BODY), BODY)
    answer = ask(head(TE + "chunked") + chunked + GET % b"Connection: close\r\n")
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2


@pytest.mark.parametrize("whole", [True, False])
def test_client_that_would_like_another_protocol_is_answered_in_this_one(ask: Any, whole: bool) -> None:
    wish = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x")
    request = predict(*wish)
    pieces = [request + predict(CLOSE)] if whole else [request[:-5], request[-5:] + predict(CLOSE)]
    answer = ask(*pieces)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert answer.count(orjson.dumps(ANSWER)) == 2


def test_client_of_the_old_version_is_answered_and_the_connection_closed(ask: Any) -> None:
    request = predict().replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = ask(request)
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(orjson.dumps(ANSWER))


def test_answer_to_a_client_that_stays_does_not_close(shared: RestFixture) -> None:
    with shared.raw() as connection:
        for _ in range(3):
            connection.sendall(predict())
            received = b""
            while not received.endswith(orjson.dumps(ANSWER)):
                received += connection.recv(65536)
            assert b"connection: close" not in received


@pytest.mark.parametrize(
    "lines", [(), ("Accept: application/json",), ("X: 1", "X: 2"), ("Expect: 100-continue",)], ids=str
)
def test_both_ways_give_the_same_answers(ask: Any, lines: tuple[str, ...]) -> None:
    """Headers that come twice, and a client that asks for leave, take the long way."""
    for body in (BODY, b"{", b"[]", b'{"signature_name": "broken", "inputs": [1]}'):
        short, other = ask(predict(CLOSE, body=body)), ask(predict(CLOSE, *lines, body=body))
        other = other.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert _without_own_lines(short) == _without_own_lines(other)


def _without_own_lines(answer: bytes) -> tuple[bytes, set[bytes], bytes]:
    top, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = top.split(b"\r\n")
    return status, {line for line in lines if not line.startswith((b"date:", b"x-request-id:"))}, body


def test_client_that_goes_with_requests_in_line_leaves_nothing(shared: RestFixture) -> None:
    servable = shared.servable
    servable.shut()
    before = shared.count("CANCELLED", "Predict")
    with shared.raw(predict() + GET % b"" + predict()):
        assert servable.arrived.acquire(timeout=TIMEOUT)
    wait_until(lambda: shared.count("CANCELLED", "Predict") == before + 1, "it is counted", TIMEOUT)


def test_client_that_goes_on_sending_what_was_refused_is_cut_off(shared: RestFixture) -> None:
    with shared.raw(head("Content-Length: 9999999999")) as connection:
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"\r\nconnection: close\r\n" in answer.lower()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(bytes(4 * MAX_DISCARDED))
