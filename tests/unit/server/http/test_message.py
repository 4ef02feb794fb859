"""The values that handlers get: headers, and a body that is still arriving."""

from __future__ import annotations

import asyncio

from tfs_lite.server.http.message import Headers, HttpHead, IncomingBody


def test_first_of_two_headers_counts() -> None:
    headers = Headers([(b"accept", b"a"), (b"x", b"\xe4"), (b"accept", b"b")])
    assert headers.get("accept") == "a"
    assert headers.get("x") == "\xe4"
    assert headers.get("y") == ""
    assert "x" in headers
    assert "y" not in headers


def test_target_is_split_into_path_and_query() -> None:
    for target, path, query in (("/a%20b?c?d", "/a%20b", "c?d"), ("/a?", "/a", ""), ("*", "*", "")):
        head = HttpHead("GET", target, Headers())
        assert (head.target, head.path, head.query) == (target, path, query)


async def test_body_is_taken_in_the_order_in_which_it_comes() -> None:
    events: list[str] = []
    body = IncomingBody(lambda: events.append("wanted"), lambda: events.append("taken"))
    body.feed(b"ab")
    body.feed(b"cd")
    assert body.held == 4
    assert await body.next() == b"abcd"
    assert body.held == 0
    assert events == ["taken"]
    waiting = asyncio.create_task(body.next())
    await asyncio.sleep(0)
    assert events == ["taken", "wanted"]
    body.feed(b"ef")
    assert await waiting == b"ef"
    body.end()
    assert await body.next() == b""
    assert body.complete


async def test_reader_that_is_cancelled_leaves_the_body_to_the_next() -> None:
    body = IncomingBody()
    waiting = asyncio.create_task(body.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    body.feed(b"a")
    body.end()
    assert await body.next() == b"a"
