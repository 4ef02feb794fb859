"""The HTTP side of a server in front of one fake model: real sockets, predictor and codecs; no disk, no torch.

    with serving_rest(timeout_seconds=5) as server:
        assert server.post({"instances": [[1.0, 2.0, 3.0]]}).status_code == 200

The model is called ``m``, version 7. Its answers are simple sums; while its gate is closed they wait. Needs httpx.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import orjson
from prometheus_client import CollectorRegistry

from tests.support.servers.process import wait_until
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import LoadProgress
from tfs_lite.core.model import JudgesCalls, Model, PredictCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId, VersionState, VersionStatus
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.state import ReplicaReport
from tfs_lite.core.status import OK, Status, StatusCode, not_found
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import REST, RequestMetrics
from tfs_lite.protocols.messages import Message
from tfs_lite.server.http.connection import Waits
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import Overload
from tfs_lite.server.http.server import HttpServer
from tfs_lite.server.http_app import http_app
from tfs_lite.server.inference.classify_regress import Inferences
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.metrics_pages import MetricsPages
from tfs_lite.server.runtime.event_loop import BackgroundRunner, LoopThread
from tfs_lite.server.runtime.health import Health
from tfs_lite.server.tensorflow.rest_models import ModelPages
from tfs_lite.server.tensorflow.rest_routes import RestApi
from tfs_lite.server.tensorflow.rest_service import RestService
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.serving.model_states import ModelReport
from tfs_lite.transport.backlog import Backlog

AVAILABLE = VersionStatus(7, VersionState.AVAILABLE, OK)
FAILED = VersionStatus(8, VersionState.END, Status(StatusCode.DATA_LOSS, "model.pt2 is truncated"))
TIMEOUT = 30.0
PREDICT = "/v1/models/m:predict"
ROW = {"instances": [[1.0, 2.0, 3.0]]}
ANSWER = {"predictions": [[8.0, 9.0, 10.0]]}

_BATCH = SymbolicDim("batch")


def _floats(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, DataType.FLOAT, (_BATCH, *shape))


def _strings(name: str) -> TensorSpec:
    return TensorSpec(name, DataType.STRING, (_BATCH,))


Outputs = Mapping[str, Any]
_FUNCTIONS: Mapping[str, tuple[Signature, Callable[[Outputs], Outputs]]] = {
    "serving_default": (Signature((_floats("x", 3),), (_floats("y", 3),)), lambda x: {"y": x["x"] + np.float32(7)}),
    "two": (
        Signature((_floats("a"), _floats("b")), (_floats("sum"), _floats("difference"))),
        lambda x: {"sum": x["a"] + x["b"], "difference": x["a"] - x["b"]},
    ),
    "text": (
        Signature((_strings("text"),), (_strings("text"), _strings("as_bytes"))),
        lambda x: {"text": x["text"], "as_bytes": x["text"]},
    ),
    "classify": (
        Signature((_floats("x"),), (TensorSpec("scores", DataType.FLOAT, (_BATCH, 2)),)),
        lambda x: {"scores": np.stack([x["x"], -x["x"]], axis=1)},
    ),
    "regress": (Signature((_floats("x"),), (_floats("outputs"),)), lambda x: {"outputs": x["x"] / np.float32(2)}),
    "strange": (Signature((_floats("x"),), (_floats("y"),), "my/method"), lambda x: {"y": x["x"]}),
    "broken": (Signature((_floats("x"),), (_floats("y"),)), lambda x: {}),
}


class GatedServable(JudgesCalls):
    """Answers at once while its gate is open. ``waiting`` are the calls that came while it was closed and were not
    cancelled."""

    traits = Traits("test")
    models: tuple[Model, ...] = ()

    def __init__(self) -> None:
        self.signatures = {key: signature for key, (signature, _) in _FUNCTIONS.items()}
        self.waiting: list[PredictCall] = []
        self.arrived = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.answered = 0
        self._lock = threading.Lock()  # guards waiting and _open
        self._open = True

    def shut(self) -> None:
        self._open = False

    def open(self) -> None:
        """Answers what waits, and everything from now on."""
        with self._lock:
            self._open = True
            waiting, self.waiting = self.waiting, []
        for call in waiting:
            self._answer(call)

    def submit(self, call: PredictCall) -> None:
        with self._lock:
            if not self._open:
                self.waiting.append(call)
                self.arrived.release()
                return
        self._answer(call)

    def cancel(self, call: PredictCall) -> None:
        with self._lock:
            if call not in self.waiting:
                return
            self.waiting.remove(call)
        call.on_done(Status(StatusCode.CANCELLED, "cancelled"))
        self.cancelled.release()

    @property
    def pending(self) -> int:
        with self._lock:
            return len(self.waiting)

    @property
    def pending_rows(self) -> int:
        return self.pending

    def close(self) -> None:
        """Nothing to close."""

    def _answer(self, call: PredictCall) -> None:
        if call.signature == "broken":
            call.on_done(Status(StatusCode.UNAVAILABLE, "the queue is full"))
        else:
            self.answered += 1
            call.on_done(_FUNCTIONS[call.signature][1](call.inputs))


class ListLog:
    """A request log that makes every message at once."""

    def __init__(self) -> None:
        self.offers: list[tuple[ServableId, str, int, Message]] = []

    def offer(self, servable_id: ServableId, signature: str, size: int, make: Callable[[], Message]) -> None:
        self.offers.append((servable_id, signature, size, make()))


class RestFixture:
    """A started server, its port and a client of it. ``limits`` are those of :class:`HttpLimits`. One thread, except
    ``post``. ``handle``, ``view``, ``states``, ``refusals`` and ``metrics`` stand for those of a core."""

    def __init__(
        self,
        background: BackgroundRunner | None = None,
        *,
        servable: Any = None,
        metrics_path: str | None = None,
        enable_cors: bool = False,
        check_method_names: bool = False,
        backlog: Backlog | None = None,
        waits: Waits | None = None,
        **limits: Any,
    ) -> None:
        self.registry = CollectorRegistry()
        self.request_metrics = metrics = RequestMetrics(self.registry, lambda name: name == "m")
        self.metrics = SimpleNamespace(requests=metrics)
        self.states = SimpleNamespace(reports=self.models)
        self.refusals = SimpleNamespace(config=None)
        self.view = self
        self.health = Health(lambda name: None)
        self.servable = servable or GatedServable()
        self.handles = 0
        self.replica_reports: list[ReplicaReport] = []
        self.worker_states: list[WorkerState] = []
        self._lock = threading.Lock()  # guards handles
        self.log = ListLog()
        self.background = background or BackgroundRunner("REST", 2, 8)
        self.http = HttpResources(HttpLimits(**limits), self.background)
        self._pages = MetricsPages(self.registry, metrics.tensorflow, metrics_path)
        core: Any = self
        predictor = Predictor(self.handle, metrics)
        settings = PredictSettings(check_method_names=check_method_names)
        rest = RestService(predictor, Inferences(predictor), metrics, self.http, settings, self.log)
        apis = (RestApi(rest, ModelPages(core), metrics),)
        backlog = backlog or Backlog()
        overload = Overload(backlog, self.http.calls.timeout, self._count_refused)
        self.app = http_app(apis, self.health, self._pages, self.http, enable_cors, overload)
        self.server = HttpServer(self.app, waits, backlog=backlog, refusal=self.app.refusal)
        self.loop = LoopThread("tfs-rest-fixture")
        self.port = self.loop.run(self.server.start("127.0.0.1", 0))
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT)

    def post(self, body: Any, path: str = PREDICT, **headers: str) -> httpx.Response:
        """Sends bytes as they are, anything else as JSON. Underscores in names of headers are hyphens."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, content=content, headers=named)

    def raw(self, *sent: bytes) -> socket.socket:
        """A connection on which these bytes were sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)
        for piece in sent:
            connection.sendall(piece)
        return connection

    def begin_drain(self) -> Future[None]:
        """As a server does that is being stopped."""

        async def drain() -> None:
            await self.server.drain(TIMEOUT)
            await self.http.calls.drain(TIMEOUT)

        return asyncio.run_coroutine_threadsafe(drain(), self.loop.loop)

    def is_empty(self) -> bool:
        """Whether no trace of a request is left."""
        return self.handles == 0 and self.http.bodies.numbers.held_bytes == 0

    def close(self) -> None:
        self.client.close()
        self.loop.run(self.server.stop(TIMEOUT))
        self._pages.close()
        self.background.close()
        self.loop.close()

    def handle(self, ref: ModelRef) -> ServableHandle:
        if ref.name != "m" or ref.version not in (None, 7):
            which = f"Specific({ref.name}, {ref.version})" if ref.version is not None else f"Latest({ref.name})"
            raise not_found(f"Servable not found for request: {which}")
        with self._lock:
            self.handles += 1
        return ServableHandle(ServableId("m", 7), self.servable, self._release)

    def status(self, ref: ModelRef) -> list[VersionStatus]:
        if ref.name == "crash":
            raise RuntimeError("the secret is in /etc/secret")
        if ref.name != "m":
            raise not_found(f"Could not find any versions of model {ref.name}")
        return [status for status in (FAILED, AVAILABLE) if ref.version in (None, status.version)]

    def models(self) -> list[ModelReport]:
        missing = Status(StatusCode.NOT_FOUND, "its base path does not exist")
        return [ModelReport("m", (FAILED, AVAILABLE)), ModelReport("n", (), missing)]

    def replicas(self) -> list[ReplicaReport]:
        return self.replica_reports

    def workers(self) -> list[WorkerState]:
        return self.worker_states

    def loads(self) -> dict[ServableId, LoadProgress]:
        return {}

    def count(self, code: str, method: str, model: str = "m", version: str = "7") -> float:
        """How many requests were counted so."""
        labels = {"model": model, "version": version, "method": method, "code": code}
        return self.registry.get_sample_value("tfs_lite_requests_total", labels) or 0

    def _release(self) -> None:
        with self._lock:
            self.handles -= 1

    def _count_refused(self, method: str, model: str) -> None:
        self.request_metrics.observe(RequestRecord(method, model, REST), StatusCode.UNAVAILABLE, 0.0)


@contextlib.contextmanager
def serving_rest(**options: Any) -> Iterator[RestFixture]:
    """``options`` are those of :class:`RestFixture`. When the block ends, checks that no request has left a trace."""
    server = RestFixture(**options)
    try:
        yield server
        if isinstance(server.servable, GatedServable):
            server.servable.open()
        wait_until(server.is_empty, "no trace of a request is left", TIMEOUT)
    finally:
        server.close()


def error(response: httpx.Response) -> str:
    """The message of an error in JSON."""
    if response.headers["content-type"] != "application/json" or list(response.json()) != ["error"]:
        raise AssertionError(f"not an error: {response.headers} {response.text:.200}")
    text: str = response.json()["error"]
    return text


def head(*lines: str, path: str = PREDICT) -> bytes:
    """The head of a POST request."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()
