"""Readers of language models' streams, many at once or asleep, and what the server's metrics say meanwhile.

with Audience(server, [("openai", Asked("m", "hello")), ...]) as audience:
    audience.wait_begun()
assert audience.failures == []
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tfs_lite.testing.language.language_clients import (
    PATIENCE,
    Asked,
    Bit,
    LanguageClient,
    openai_body,
    path_of,
    v2_body,
)
from tfs_lite.testing.servers.process import ServerProcess, wait_until


@dataclass(slots=True, eq=False)
class Heard:
    """What one stream has brought. ``begun``: the first piece is there, or the failure."""

    door: str
    asked: Asked
    bits: list[Bit] = field(default_factory=list)
    failure: Exception | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        return "".join(bit.text for bit in self.bits)

    @property
    def versions(self) -> set[int]:
        return {bit.version for bit in self.bits}

    @property
    def finish(self) -> str:
        return self.bits[-1].finish if self.bits else ""


class ConcurrentReaders:
    """Streams that are asked for and read at the same time, each by a thread and a connection of its own. In a ``with``
    block, which ends when all of them have."""

    def __init__(self, server: ServerProcess, asked: Sequence[tuple[str, Asked]]) -> None:
        self.heard = [Heard(door, each) for door, each in asked]
        self._server = server
        self._together = threading.Barrier(len(asked), timeout=PATIENCE)
        self._threads = [threading.Thread(target=self._listen, args=(heard,)) for heard in self.heard]

    def __enter__(self) -> ConcurrentReaders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.wait()

    def wait_begun(self) -> None:
        """Until every stream has brought something."""
        for heard in self.heard:
            assert heard.begun.wait(PATIENCE), f"{heard.door} brought nothing"

    def wait(self) -> None:
        for heard, thread in zip(self.heard, self._threads, strict=True):
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), f"{heard.door} did not end: {heard.text[-100:]!r}"

    @property
    def over(self) -> int:
        return sum(heard.over.is_set() for heard in self.heard)

    @property
    def failures(self) -> list[str]:
        return [f"{heard.door}: {heard.failure!r}" for heard in self.heard if heard.failure is not None]

    def _listen(self, heard: Heard) -> None:
        try:
            with LanguageClient(self._server) as client:
                self._together.wait()
                for bit in client.pieces(heard.door, heard.asked):
                    heard.bits.append(bit)
                    heard.begun.set()
        except Exception as error:
            heard.failure = error
        finally:
            heard.begun.set()
            heard.over.set()


class StalledReader:
    """A client that has asked for a stream of events and reads nothing until it is told to; what the system keeps for
    it is little, and the events of OpenAI's door are large. A context manager."""

    def __init__(self, server: ServerProcess, door: str, asked: Asked) -> None:
        openai = door == "openai"
        path = "/openai/v1/completions" if openai else f"/v2/models/{path_of(asked)}/generate_stream"
        body = json.dumps(openai_body(asked, stream=True, logprobs=5) if openai else v2_body(asked)).encode()
        self._connection = socket.socket()
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self._connection.settimeout(PATIENCE)
        self._connection.connect(("127.0.0.1", server.http_port))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        self._connection.sendall(head.encode() + body)

    def __enter__(self) -> StalledReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def events(self) -> list[Any]:
        """Reads to the end, and returns the events, without ``[DONE]``. OSError if it was cut off."""
        data = b"".join(iter(lambda: self._connection.recv(65536), b""))
        _, _, body = data.partition(b"\r\n\r\n")
        content = b"".join(_chunks(body))
        found = [event.removeprefix(b"data: ") for event in content.split(b"\n\n") if event.startswith(b"data: ")]
        return [json.loads(event) for event in found if event != b"[DONE]"]


def _chunks(body: bytes) -> Iterator[bytes]:
    while True:
        size, _, body = body.partition(b"\r\n")
        if not size:
            raise ConnectionError("the answer was cut off")
        count = int(size, 16)
        if count == 0:
            return
        yield body[:count]
        body = body[count + 2 :]


class Page:
    """The metrics of one server."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def total(self, name: str, **labels: str) -> float:
        """Over all series with these labels."""
        return sum(self.values(name, **labels))

    def values(self, name: str, **labels: str) -> list[float]:
        status, body = self._server.get("/metrics", timeout=60.0)
        assert status == 200
        wanted = labels.items()
        return [
            sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
            if sample.name == name and wanted <= sample.labels.items()
        ]

    def outcomes(self, model: str) -> Counter[str]:
        """How many texts of the model have ended how."""
        found: Counter[str] = Counter()
        for outcome in ("stop", "length", "cancelled", "deadline", "timeout", "error"):
            found[outcome] = int(self.total("tfs_lite_generation_text_seconds_count", model=model, outcome=outcome))
        return +found

    def state(self, model: str, **labels: str) -> tuple[float, ...]:
        """Running, waiting, reserved, written, and requests in flight."""
        generation = ("running", "waiting", "cache_tokens_reserved", "cache_tokens_written")
        names = (*(f"tfs_lite_generation_{name}" for name in generation), "tfs_lite_requests_in_flight")
        return tuple(self.total(name, model=model, **labels) for name in names)

    def wait_idle(self, model: str) -> None:
        wait_until(lambda: not any(self.state(model)), f"nothing of {model} is left", PATIENCE)
        assert len(self.values("tfs_lite_generation_running", model=model)) >= 1
