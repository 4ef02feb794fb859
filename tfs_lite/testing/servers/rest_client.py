"""A :class:`RestFixture` on an event loop of its own, with the ways to ask it. Needs httpx.

with serving_rest(timeout_seconds=5) as served:
    assert served.post({"instances": [[1.0, 2.0, 3.0]]}).status_code == 200
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import orjson

from tfs_lite.server.runtime.event_loop import LoopThread
from tfs_lite.testing.servers.process import wait_until
from tfs_lite.testing.servers.rest_fixture import PATIENCE, RestFixture

PREDICT = "/v1/models/m:predict"
ROW = {"instances": [[1.0, 2.0, 3.0]]}
ANSWER = {"predictions": [[8.0, 9.0, 10.0]]}


class Served:
    """A started house, its port and a client of it. One thread, except ``post``."""

    def __init__(self, house: RestFixture, loop: LoopThread) -> None:
        self.house = house
        self.loop = loop
        self.port = loop.run(house.start())
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE)

    def post(self, body: Any, path: str = PREDICT, **headers: str) -> httpx.Response:
        """Sends bytes as they are, anything else as JSON. Underscores in names of headers are hyphens."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, content=content, headers=named)

    def raw(self, *sent: bytes) -> socket.socket:
        """A connection on which these bytes were sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        for piece in sent:
            connection.sendall(piece)
        return connection

    def is_empty(self) -> bool:
        """Whether no trace of a request is left."""
        return self.house.handles == 0 and self.house.rest.bodies.numbers.held_bytes == 0


@contextlib.contextmanager
def serving_rest(**options: Any) -> Iterator[Served]:
    """``options`` are those of :class:`RestHouse`. When the block ends, it is checked that no request has left anything
    behind."""
    house, loop = RestFixture(**options), LoopThread("tfs-rest-house")
    served = Served(house, loop)
    try:
        yield served
        house.servable.open()
        wait_until(served.is_empty, "no trace of a request is left", PATIENCE)
    finally:
        served.client.close()
        loop.run(house.stop())
        house.close()
        loop.close()


def error(response: httpx.Response) -> str:
    """What an answer in JSON complains about."""
    if response.headers["content-type"] != "application/json" or list(response.json()) != ["error"]:
        raise AssertionError(f"not an error: {response.headers} {response.text:.200}")
    text: str = response.json()["error"]
    return text


def head(*lines: str, path: str = PREDICT) -> bytes:
    """The head of a POST request."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()
