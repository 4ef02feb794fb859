"""What the fuzz targets send their bytes to: every gRPC handler and the HTTP application, in front of one model that
answers at once. The same parts as in a server, put together without sockets, disk and torch models.

    handlers().grpc("Predict", data)      the answer's bytes; raises what the handler raises
    handlers().http(data)                 an HTTP/1.1 request as it comes from a socket -> Reply

Everything runs on one event loop, which only runs while a request is answered.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import h11
import numpy as np
from prometheus_client import CollectorRegistry

from tfs_lite.config.model_server import ModelServerConfig, from_proto
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId, VersionState, VersionStatus
from tfs_lite.core.signature import CLASSIFY_METHOD, REGRESS_METHOD, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import OK, Status, StatusCode, not_found
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.messages import Message
from tfs_lite.server.grpc.health_service import HealthService
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http_app import HttpApp
from tfs_lite.server.inference.classify_regress import Inferences
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.metrics_pages import MetricsPages
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import ChangeSignal, Health
from tfs_lite.server.tensorflow.model_service import ModelService
from tfs_lite.server.tensorflow.prediction_service import PredictionService
from tfs_lite.server.tensorflow.rest_models import ModelPages
from tfs_lite.server.tensorflow.rest_service import RestService
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.serving.config_checks import check_models
from tfs_lite.serving.model_states import ModelReport
from tfs_lite.serving.options import ServerOptions
from tfs_lite.transport.table import CallContext

T = TypeVar("T")
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


class Model:
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
    """What the application sent, and what it was asked. ``broken_off``: the client had gone before its request was
    whole."""

    method: str
    target: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    starts: int = 0
    ended: bool = False
    broken_off: bool = False


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
        pages = ModelPages(core)
        self._app = HttpApp(rest, pages, self._health, self._metrics, resources, self._pages, enable_cors=True)
        self._handlers = {row.name: row.handler for service in services for row in service.methods()}

    def grpc(self, method: str, data: bytes) -> bytes:
        answer: bytes = self._run(self._handlers[method](data, CallContext(None)))  # type: ignore[arg-type]
        return answer

    def predict_anew(self, data: bytes) -> bytes:
        """As ``Predict``, by a service that has not seen a request yet."""
        return self._run(self._predictions().predict(data, CallContext(None)))

    def http(self, data: bytes) -> Reply | None:
        """None if there is no request in the bytes, so that no application ever hears of them."""
        parsed = parse_http(data)
        if parsed is None:
            return None
        scope, messages, whole = parsed
        reply = Reply(scope["method"], data.split(b"\n")[0].decode("latin-1"), broken_off=not whole)
        self._run(self._app(scope, receiver(messages, whole), sender(reply)))
        return reply

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

    request_metrics: RequestMetrics
    handle: Callable[[ModelRef], ServableHandle]
    options: ServerOptions = ServerOptions(model_config_list_root_dir=ROOT)  # noqa: RUF009 - frozen

    def status(self, ref: ModelRef) -> list[VersionStatus]:
        if ref.name != MODEL:
            raise not_found(f"Could not find any versions of model {ref.name}")
        return [VersionStatus(VERSION, VersionState.AVAILABLE, OK)]

    def models(self) -> list[ModelReport]:
        available = VersionStatus(VERSION, VersionState.AVAILABLE, OK)
        return [ModelReport(MODEL, (available,)), ModelReport("n", (), Status(StatusCode.NOT_FOUND, "no directory"))]

    def counter_value(self, name: str) -> float:
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


def parse_http(data: bytes) -> tuple[dict[str, Any], list[bytes], bool] | None:
    """The scope as the HTTP server makes it, the pieces of the body, and whether the request came to its end."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        request = connection.next_event()
        if not isinstance(request, h11.Request):
            return None
        scope, pieces = _scope(request), []
        while isinstance(event := connection.next_event(), h11.Data):
            pieces.append(bytes(event.data))
    except h11.RemoteProtocolError:
        return None
    return scope, pieces, isinstance(event, h11.EndOfMessage)


def _scope(request: h11.Request) -> dict[str, Any]:
    path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8501),
        "client": ("127.0.0.1", 50000),
        "scheme": "http",
        "method": request.method.decode("ascii"),
        "root_path": "",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "headers": [(name.lower(), value) for name, value in request.headers],
        "state": {},
    }


def receiver(pieces: list[bytes], whole: bool) -> Callable[[], Awaitable[dict[str, Any]]]:
    """The body, and then nothing more: the client waits for its answer, unless it has gone."""
    left = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    left.append({"type": "http.request", "body": b"", "more_body": False} if whole else {"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.get_running_loop().create_future()
        return left.pop(0)

    return receive


def sender(reply: Reply) -> Callable[[dict[str, Any]], Awaitable[None]]:
    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.starts += 1
            reply.status = message["status"]
            reply.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")
            reply.ended = not message.get("more_body", False)

    return send
