"""Concurrent and stalled readers of language models' streams, and the metrics of their server.

with ConcurrentReaders(server, [("openai", LanguageRequest("m", "hello")), ...]) as readers:
    readers.wait_begun()
assert readers.failures == []
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

from tests.support.language.language_clients import (
    PATIENCE,
    Chunk,
    LanguageClient,
    LanguageRequest,
    openai_body,
    path_of,
    v2_body,
)
from tests.support.servers.process import ServerProcess, wait_until


@dataclass(slots=True, eq=False)
class StreamedResponse:
    """What one stream has received. ``begun`` is set by the first piece or the failure."""

    api: str
    request: LanguageRequest
    chunks: list[Chunk] = field(default_factory=list)
    failure: Exception | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def versions(self) -> set[int]:
        return {chunk.version for chunk in self.chunks}

    @property
    def finish(self) -> str:
        return self.chunks[-1].finish if self.chunks else ""


class ConcurrentReaders:
    """Streams that are requested and read at the same time, each by a thread and a connection of its own. A context
    manager, which ends when all streams have ended."""

    def __init__(self, server: ServerProcess, requests: Sequence[tuple[str, LanguageRequest]]) -> None:
        self.responses = [StreamedResponse(api, each) for api, each in requests]
        self._server = server
        self._together = threading.Barrier(len(requests), timeout=PATIENCE)
        self._threads = [threading.Thread(target=self._listen, args=(response,)) for response in self.responses]

    def __enter__(self) -> ConcurrentReaders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.wait()

    def wait_begun(self) -> None:
        """Waits until every stream has received something."""
        for response in self.responses:
            assert response.begun.wait(PATIENCE), f"{response.api} brought nothing"

    def wait(self) -> None:
        for response, thread in zip(self.responses, self._threads, strict=True):
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), f"{response.api} did not end: {response.text[-100:]!r}"

    @property
    def over(self) -> int:
        return sum(response.over.is_set() for response in self.responses)

    @property
    def failures(self) -> list[str]:
        return [f"{response.api}: {response.failure!r}" for response in self.responses if response.failure is not None]

    def _listen(self, response: StreamedResponse) -> None:
        try:
            with LanguageClient(self._server) as client:
                self._together.wait()
                for chunk in client.pieces(response.api, response.request):
                    response.chunks.append(chunk)
                    response.begun.set()
        except Exception as error:
            response.failure = error
        finally:
            response.begun.set()
            response.over.set()


class StalledReader:
    """A client that has requested a stream and reads nothing until ``events`` is called. Its receive buffer is small,
    and OpenAI's events are large. A context manager."""

    def __init__(self, server: ServerProcess, api: str, request: LanguageRequest) -> None:
        openai = api == "openai"
        path = "/openai/v1/completions" if openai else f"/v2/models/{path_of(request)}/generate_stream"
        body = json.dumps(openai_body(request, stream=True, logprobs=5) if openai else v2_body(request)).encode()
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
        """Reads to the end, and returns the events without ``[DONE]``. OSError if the stream was cut off."""
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


class MetricsPage:
    """The metrics page of one server."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def total(self, name: str, **labels: str) -> float:
        """The sum over all series with these labels."""
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
        """How many texts of the model have ended with each outcome."""
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
