"""What the fuzz targets send their bytes to: every gRPC handler and the HTTP application, in front of one model that
answers at once. The same parts as in a server, put together without sockets, disk and torch models.

    handlers().grpc("Predict", data)      the answer's bytes; raises what the handler raises
    handlers().http(data)                 an HTTP/1.1 request as it comes from a socket -> Reply

Everything runs on one event loop, which only runs while a request is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import h11
import numpy as np
from prometheus_client import CollectorRegistry

from tests.support.servers.http_handlers import response_to
from tfs_lite.config.model_server import ModelServerConfig, from_proto
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import LoadProgress
from tfs_lite.core.model import JudgesCalls, PredictCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId, VersionState, VersionStatus
from tfs_lite.core.signature import CLASSIFY_METHOD, REGRESS_METHOD, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.state import ReplicaReport
from tfs_lite.core.status import OK, Status, StatusCode, not_found
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.messages import Message
from tfs_lite.server.grpc.health_service import HealthService
from tfs_lite.server.http.message import Handler, Headers, HttpHead, IncomingBody, Request, Response
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http_app import http_app
from tfs_lite.server.inference.classify_regress import Inferences
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.metrics_pages import MetricsPages
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import ChangeSignal, Health
from tfs_lite.server.tensorflow.model_service import ModelService
from tfs_lite.server.tensorflow.prediction_service import PredictionService
from tfs_lite.server.tensorflow.rest_models import ModelPages
from tfs_lite.server.tensorflow.rest_routes import RestApi
from tfs_lite.server.tensorflow.rest_service import RestService
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.serving.config_checks import check_models
from tfs_lite.serving.model_states import ModelReport
from tfs_lite.serving.options import ServerOptions
from tfs_lite.transport.table import CallContext, UnaryHandler

T = TypeVar("T")


async def answer_to(handler: UnaryHandler, data: bytes) -> bytes:
    """The answer of a handler, which is called on the loop."""
    return await handler(data, CallContext(None))


MODEL, VERSION = "m", 7
MAX_BYTES = 1 << 20
"""What a small request may be filled up to."""
MAX_BODY_BYTES = 1 << 18
MAX_ROWS = 1 << 20
"""What the model answers; rows without values cost a request nothing."""
PATIENCE = 8.0
"""Seconds for one request. Nothing here waits for anything, so this is for ever."""
ROOT = "/srv"
PLATFORMS = ("python", "pytorch_export")

_BATCH = SymbolicDim("batch")
_TYPES = [dtype for dtype in DataType if dtype is not DataType.INVALID]
Outputs = dict[str, Any]


def _spec(name: str, dtype: DataType = DataType.FLOAT, *shape: Any) -> TensorSpec:
    return TensorSpec(name, dtype, (_BATCH, *shape))


def _echo(names: Mapping[str, str]) -> Callable[[Mapping[str, Any]], Outputs]:
    """Output -> the input that it repeats."""
    return lambda inputs: {output: inputs[name] for output, name in names.items()}


def _inferred(inputs: Mapping[str, Any]) -> Outputs:
    """What classify and regress look for. Labels are whatever the client sent."""
    x = np.asarray(inputs["x"], np.float32)
    labels = np.asarray(inputs.get("name", np.full(len(x), b"label", object)), object)
    return {
        "classes": np.stack([labels, np.full(len(x), b"other", object)], axis=1),
        "scores": np.stack([x, x], axis=1),
        "outputs": x[:, np.newaxis],
    }


def _serialized(inputs: Mapping[str, Any]) -> Outputs:
    lengths = np.array([[len(text)] for text in inputs["inputs"].flat], np.float32).reshape(-1, 1)
    return {"scores": lengths, "outputs": lengths}


_NAME = np.array(b"nobody", object)
_X, _Y = _spec("x"), _spec("y")
_CLASSES, _SCORES = _spec("classes", DataType.STRING, 2), _spec("scores", DataType.FLOAT, 2)
FUNCTIONS: dict[str, tuple[Signature, Callable[[Mapping[str, Any]], Outputs]]] = {
    "serving_default": (
        Signature((_spec("x", DataType.FLOAT, 3),), (_spec("y", DataType.FLOAT, 3),)),
        _echo({"y": "x"}),
    ),
    "two": (
        Signature((_spec("a"), _spec("b", DataType.STRING)), (_spec("c"), _spec("d_bytes", DataType.STRING))),
        _echo({"c": "a", "d_bytes": "b"}),
    ),
    "open": (Signature((TensorSpec("x"),), (TensorSpec("y"),)), _echo({"y": "x"})),
    "open_two": (Signature((TensorSpec("a"), TensorSpec("b")), (TensorSpec("y"),)), _echo({"y": "a", "z": "b"})),
    "shapes": (
        Signature(
            (
                _spec("x", DataType.INT64, SymbolicDim("n", 4), 2),
                TensorSpec("k", DataType.DOUBLE, (2, SymbolicDim("n"))),
            ),
            (_spec("y", DataType.INT64, SymbolicDim("n"), 2), TensorSpec("k", DataType.DOUBLE, (2, SymbolicDim("n")))),
        ),
        _echo({"y": "x", "k": "k"}),
    ),
    "scalar": (
        Signature((TensorSpec("x", DataType.INT32, ()),), (TensorSpec("y", DataType.INT32, ()),)),
        _echo({"y": "x"}),
    ),
    "defaults": (
        Signature(
            (_spec("x"), _spec("k", DataType.FLOAT, 2), TensorSpec("f", DataType.INT64, (2,))),
            (_spec("y"), _spec("k", DataType.FLOAT, 2), TensorSpec("f", DataType.INT64, (2,))),
            defaults={"k": np.array([1, 2], np.float32), "f": np.array([3, 4])},
        ),
        _echo({"y": "x", "k": "k", "f": "f"}),
    ),
    "empty_default": (
        Signature(
            (_spec("x", DataType.FLOAT, SymbolicDim("n")), _spec("k", DataType.FLOAT, SymbolicDim("m"))),
            (_spec("y", DataType.FLOAT, SymbolicDim("n")),),
            defaults={"k": np.empty(0, np.float32)},
        ),
        _echo({"y": "x", "k": "k"}),
    ),
    "all_defaults": (
        Signature((_X, _spec("s", DataType.STRING)), (_Y,), defaults={"x": np.array(5, np.float32), "s": _NAME}),
        _echo({"y": "x"}),
    ),
    "nothing": (Signature((), (TensorSpec("y", DataType.INT32, ()),)), lambda inputs: {"y": np.array(1, np.int32)}),
    "classify": (
        Signature((_X, _spec("name", DataType.STRING)), (_CLASSES, _SCORES), CLASSIFY_METHOD, {"name": _NAME}),
        _inferred,
    ),
    "regress": (Signature((_X,), (_spec("outputs", DataType.FLOAT, 1),), REGRESS_METHOD), _inferred),
    "lax": (Signature((_X,), ()), _inferred),
    "wide": (
        Signature((_spec("x", DataType.DOUBLE, SymbolicDim("n")), TensorSpec("any")), (_SCORES, _spec("outputs"))),
        lambda inputs: _inferred({"x": np.zeros(len(inputs["x"]), np.float32)}),
    ),
    "serialized": (
        Signature((_spec("inputs", DataType.STRING),), (_spec("scores", DataType.FLOAT, 1), _spec("outputs"))),
        _serialized,
    ),
    **{dtype.text: (Signature((_spec("x", dtype),), (_spec("y", dtype),)), _echo({"y": "x"})) for dtype in _TYPES},
    **{
        f"classify_{dtype.text}": (
            Signature((_spec("x", dtype, SymbolicDim("n")),), (_spec("scores", DataType.FLOAT, 1),), CLASSIFY_METHOD),
            lambda inputs: {"scores": np.zeros((len(inputs["x"]), 1), np.float32)},
        )
        for dtype in _TYPES
    },
}


class Model(JudgesCalls):
    """Answers on the caller's thread."""

    traits = Traits("test")
    signatures = {key: signature for key, (signature, _) in FUNCTIONS.items()}  # noqa: RUF012

    def submit(self, call: PredictCall) -> None:
        if any(max(array.shape, default=0) > MAX_ROWS for array in call.inputs.values()):
            call.on_done(Status(StatusCode.INVALID_ARGUMENT, "too many rows for this model"))
            return
        answers = FUNCTIONS[call.signature][1](call.inputs)
        call.on_done({name: answers[name] for name in call.outputs or answers})

    def cancel(self, call: PredictCall) -> None:
        """Every call is answered by now."""

    def close(self) -> None:
        """Nothing to close."""


class MakeLog:
    """A request log that makes every message at once, as the thread of a real one would."""

    def offer(self, servable_id: ServableId, signature: str, size: int, make: Callable[[], Message]) -> None:
        make().SerializeToString()


@dataclass(slots=True)
class Reply:
    """What the application answered. ``gone``: nothing, because the client had gone before its request was whole."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    gone: bool = False


class Handlers:
    """One model, ``m`` version 7, and every way to it."""

    def __init__(self) -> None:
        self.handles = 0
        self.loop = asyncio.new_event_loop()
        self._registry = CollectorRegistry()
        self._metrics = RequestMetrics(self._registry, lambda name: name == MODEL)
        self._slow = BackgroundRunner("REST", 1, 8)
        predictor, settings = Predictor(self._lookup, self._metrics, MAX_BYTES), PredictSettings(MAX_BYTES)
        core: Any = _Core(self._metrics, self._lookup)
        inferences = Inferences(predictor, max_bytes=MAX_BYTES)
        self._health = Health(lambda name: True if name == MODEL else None)
        self._health.set_ready()
        self._predictions = lambda: PredictionService(
            predictor, inferences, self._lookup, self._metrics, settings, MakeLog()
        )
        services = (
            self._predictions(),
            ModelService(core, self._slow),
            HealthService(self._health, ChangeSignal(self.loop)),
        )
        self._resources = resources = HttpResources(
            HttpLimits(MAX_BODY_BYTES, timeout_seconds=PATIENCE / 2), self._slow
        )
        self.bodies = resources.bodies
        rest = RestService(predictor, inferences, self._metrics, resources, settings, MakeLog())
        self._pages = MetricsPages(self._registry, self._metrics.tensorflow, None)
        apis = (RestApi(rest, ModelPages(core), self._metrics),)
        self._app = http_app(apis, self._health, self._pages, resources, enable_cors=True)
        self._handlers = {row.name: row.handler for service in services for row in service.methods()}

    def grpc(self, method: str, data: bytes) -> bytes:
        return self._run(answer_to(cast("UnaryHandler", self._handlers[method]), data))

    def predict_anew(self, data: bytes) -> bytes:
        """As ``Predict``, by a service that has not seen a request yet."""
        return self._run(answer_to(self._predictions().predict, data))

    def http(self, data: bytes) -> Reply | None:
        """None if there is no request in the bytes, so that no application ever hears of them."""
        request = parse_http(data)
        return None if request is None else self._run(reply_of(self._app, request))

    def close(self) -> None:
        self._slow.close()
        self._pages.close()
        self.loop.close()

    def _run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    def _lookup(self, ref: ModelRef) -> ServableHandle:
        if ref.name != MODEL or ref.version not in (None, VERSION) or ref.label not in (None, "stable"):
            raise not_found(f"Servable not found for request: {ref.name} {ref.version} {ref.label}")
        self.handles += 1
        return ServableHandle(ServableId(MODEL, VERSION), Model(), self._release)

    def _release(self) -> None:
        self.handles -= 1


@dataclass(frozen=True, slots=True)
class _Core:
    """What services ask of a ServerCore."""

    requests: RequestMetrics
    handle: Callable[[ModelRef], ServableHandle]
    options: ServerOptions = ServerOptions(model_config_list_root_dir=ROOT)  # noqa: RUF009 - frozen
    config: None = None

    @property
    def metrics(self) -> _Core:
        return self

    view = states = refusals = reloader = metrics

    def status(self, ref: ModelRef) -> list[VersionStatus]:
        if ref.name != MODEL:
            raise not_found(f"Could not find any versions of model {ref.name}")
        return [VersionStatus(VERSION, VersionState.AVAILABLE, OK)]

    def reports(self) -> list[ModelReport]:
        available = VersionStatus(VERSION, VersionState.AVAILABLE, OK)
        return [ModelReport(MODEL, (available,)), ModelReport("n", (), Status(StatusCode.NOT_FOUND, "no directory"))]

    def replicas(self) -> list[ReplicaReport]:
        return []

    def workers(self) -> list[WorkerState]:
        return []

    def loads(self) -> dict[ServableId, LoadProgress]:
        return {}

    def refused(self, status: Status) -> None: ...

    def value(self, name: str) -> float:
        return 0.0

    def reload(self, config: ModelServerConfig) -> str:
        check_models(config, PLATFORMS, (ROOT,))
        if _meaning(from_proto(config.to_proto(), Path(ROOT))) != _meaning(config):
            raise RuntimeError("a config changes on its way")
        return ""


@functools.cache
def handlers() -> Handlers:
    """Those of this process."""
    return Handlers()


def close_handlers() -> None:
    if handlers.cache_info().currsize:
        handlers().close()
        handlers.cache_clear()


def _meaning(config: ModelServerConfig) -> list[Any]:
    return [
        (model.name, model.base_path, model.platform, model.model_version_policy.choice, model.logging_config)
        for model in config.models
    ]


def parse_http(data: bytes) -> Request | None:
    """The request as the HTTP server makes it. Its body is not complete if the bytes end too early."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    body = IncomingBody()
    try:
        head = connection.next_event()
        if not isinstance(head, h11.Request):
            return None
        while isinstance(event := connection.next_event(), h11.Data):
            body.feed(bytes(event.data))
    except h11.RemoteProtocolError:
        return None
    if isinstance(event, h11.EndOfMessage):
        body.end()
    headers = Headers([(name.lower(), value) for name, value in head.headers])
    parsed = HttpHead(head.method.decode("ascii"), head.target.decode("ascii"), headers)
    return Request(parsed, body, time.monotonic())


async def reply_of(handler: Handler, request: Request) -> Reply:
    """The whole answer. The client goes when the handler waits for a body that does not come."""
    work = asyncio.ensure_future(_answer(handler, request))
    request.body.on_wanted = work.cancel
    try:
        return await work
    except asyncio.CancelledError:
        if request.body.complete:
            raise
        return Reply(gone=True)


async def _answer(handler: Handler, request: Request) -> Reply:
    answer = await response_to(handler, request)
    if isinstance(answer, Response):
        return Reply(answer.status, answer.headers, answer.body)
    chunks = cast(AsyncGenerator[bytes, None], answer.chunks)
    async with contextlib.aclosing(chunks):
        return Reply(answer.status, answer.headers, b"".join([chunk async for chunk in chunks]))
