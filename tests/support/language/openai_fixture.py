"""OpenAI's API for language models without a network: real sockets, predictor, engines and codecs.

with serving_openai() as served:
    served.add("m", script="Hello")
    assert served.post("/completions", {"model": "m", "prompt": "x"}).json()["choices"][0]["text"] == "Hello"

A model with a script says it, to every prompt, and ends; one without says what its hash says. Needs httpx.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx
import orjson
from prometheus_client import CollectorRegistry

from tests.support.language.byte_codec import END, VOCABULARY, ByteCodec
from tests.support.language.hash_model import Choose, HashModel
from tests.support.language.language_servables import Gate
from tests.support.servers.process import wait_until
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.generation import GenerationLimits, SamplingRequest
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import invalid_argument, not_found
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.schedulers.generation.servable import GenerativeServable
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.server.http.connection import Waits
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import Router
from tfs_lite.server.http.server import HttpServer
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.openai.app import OpenAiApp, OpenAiSettings
from tfs_lite.server.openai.routes import OpenAiApi
from tfs_lite.server.runtime.event_loop import BackgroundRunner, LoopThread

PATIENCE = 30.0
CREATED = 1_700_000_000.5
"""When every model became available, and NOW."""
ROOT = "/openai/v1"


def spelling(script: str) -> Callable[[Sequence[int], SamplingRequest], int]:
    data = script.encode()
    return lambda tokens, draw: data[draw.index] if draw.index < len(data) else END


class OpenAiServed:
    """A started server, its port and a client of it. One thread. ``labels`` may be changed: model and label ->
    version."""

    def __init__(
        self, settings: OpenAiSettings | None = None, max_body_bytes: int = 8 << 20, patience: float = PATIENCE
    ) -> None:
        """``patience``: seconds for a client to read on."""
        self.servables: dict[str, dict[int, Any]] = {}
        self.labels: dict[tuple[str, str], int] = {}
        self.gates: list[Gate] = []
        self.handles = 0
        self._lock = threading.Lock()  # guards handles
        self.registry = CollectorRegistry()
        self.metrics = RequestMetrics(self.registry, self.servables.__contains__)
        self.loop = LoopThread("tfs-openai-fixture")
        self.slow = BackgroundRunner("OpenAI", 2, 8)
        self.http = HttpResources(HttpLimits(max_body_bytes, timeout_seconds=PATIENCE), self.slow)
        self.app = OpenAiApp(
            Predictor(self.lookup, self.metrics),
            self.lookup,
            self.models,
            self.metrics,
            self.http,
            settings,
            now=lambda: CREATED,
        )
        self._server = HttpServer(Router([OpenAiApi(self.app)], self.http.bodies), Waits(write=patience))
        self.port = self.loop.run(self._server.start("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.port}{ROOT}"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def add(
        self,
        name: str,
        version: int = 1,
        script: str | None = None,
        slots: int = 4,
        length: int = 64,
        max_queue: int = 16,
        codec: ByteCodec | None = None,
        text: bool = True,
        choose: Choose | None = None,
        steps: int | None = None,
    ) -> Gate:
        """A language model, and its gate, which lets ``steps`` pass, or all. Without ``text`` it has no tokenizer.
        ``choose`` takes the place of a script."""
        gate = Gate()
        if steps is not None:
            gate.shut()
            gate.let(steps)
        model = HashModel(
            GenerationLimits(slots, length, VOCABULARY, frozenset({END})),
            (codec or ByteCodec()) if text else None,
            choose=spelling(script) if script is not None else choose,
            before=gate,
        )
        settings = EngineSettings(slots, length, slots + 32, 32, max_queue, 1 << 20, PATIENCE)
        servable = GenerativeServable(model, ServableId(name, version), settings, clock=SystemClock())
        self.servables.setdefault(name, {})[version] = servable
        self.gates.append(gate)
        return gate

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Sends bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        return self.client.post(path, content=content, headers=headers)

    def raw(self, path: str, body: Any, read_bytes: int | None = None) -> socket.socket:
        """A connection on which a request was sent and nothing is read. ``read_bytes``: about as many as the system
        keeps for who reads."""
        content = orjson.dumps(body)
        connection = socket.socket()
        connection.settimeout(PATIENCE)
        if read_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
        connection.connect(("127.0.0.1", self.port))
        head = f"POST {ROOT}{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        return connection

    def lookup(self, ref: ModelRef) -> ServableHandle:
        versions = self.servables.get(ref.name, {})
        version = ref.version if ref.version is not None else max(versions, default=-1)
        if ref.label is not None:
            if (ref.name, ref.label) not in self.labels:
                raise invalid_argument(f"Unrecognized servable version label: {ref.label}")
            version = self.labels[ref.name, ref.label]
        if version not in versions:
            raise not_found(f"Servable not found for request: {ref.name}")
        with self._lock:
            self.handles += 1
        return ServableHandle(ServableId(ref.name, version), versions[version], self._release)

    def _release(self) -> None:
        with self._lock:
            self.handles -= 1

    def models(self) -> list[tuple[str, Sequence[int], float]]:
        return [(name, list(versions), CREATED) for name, versions in self.servables.items()]

    def count(self, method: str, code: str, model: str = "m", version: str = "1") -> float:
        """How many requests were counted so."""
        labels: Mapping[str, str] = {"model": model, "version": version, "method": method, "code": code}
        return self.registry.get_sample_value("tfs_lite_requests_total", dict(labels)) or 0

    def is_empty(self) -> bool:
        """Whether no trace of a request is left."""
        states = [
            servable.state()
            for versions in self.servables.values()
            for servable in versions.values()
            if isinstance(servable, GenerativeServable)
        ]
        idle = all(state.running == 0 and state.waiting == 0 for state in states)
        return idle and self.handles == 0 and self.http.bodies.numbers.held_bytes == 0

    def close(self) -> None:
        for gate in self.gates:
            gate.open()
        self.client.close()
        self.loop.run(self._server.stop(PATIENCE))
        for versions in self.servables.values():
            for servable in versions.values():
                servable.close()
        self.loop.loop.call_soon_threadsafe(self.http.close)
        self.loop.close()
        self.slow.close()


@contextlib.contextmanager
def serving_openai(**options: Any) -> Iterator[OpenAiServed]:
    """``options`` are those of :class:`OpenAiServed`. When the block ends, it is checked that no request has left
    anything behind."""
    served = OpenAiServed(**options)
    try:
        yield served
        for gate in served.gates:
            gate.open()
        wait_until(served.is_empty, "no trace of a request is left", PATIENCE)
    finally:
        served.close()


def error(answer: httpx.Response) -> dict[str, Any]:
    """What an answer complains about."""
    if answer.headers["content-type"] != "application/json" or list(answer.json()) != ["error"]:
        raise AssertionError(f"not an error: {answer.headers} {answer.text:.200}")
    found: dict[str, Any] = answer.json()["error"]
    if list(found) != ["message", "type", "param", "code"]:
        raise AssertionError(f"not OpenAI's error: {found}")
    return found
