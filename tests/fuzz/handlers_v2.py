"""The KServe V2 side of what the fuzz targets send their bytes to: both services before models that answer at once.

    handlers_v2().grpc("ModelInfer", data)         the answer's bytes; raises what the handler raises
    handlers_v2().stream(messages, metadata)       every answer of one ModelStreamInfer
    handlers_v2().http(data)                       an HTTP/1.1 request as it comes from a socket -> Reply
    handlers_v2().load(name, parameters)           what a load call checks and writes before it loads anything

What goes wrong where no client sees it, on the event loop or in the log, is kept in ``unseen``.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
from handlers import MAX_BODY_BYTES, MAX_BYTES, MAX_ROWS, PATIENCE, Reply, answer_to, parse_http, reply_of

from tests.support.servers.v2_fixture import V2Fixture
from tests.support.servers.v2_http_fixture import FixtureControl
from tfs_lite.config.model_export import config_message
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import JudgesCalls, PredictCall, Traits
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.core.threads import BoundedCalls
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2.message_json import message_json
from tfs_lite.protocols.v2.tensors import name_of
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import Router
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.v2.grpc_service import V2GrpcService
from tfs_lite.server.v2.http_app import V2HttpApp
from tfs_lite.server.v2.shared_memory import FOLDER, RegionStatus, SharedRegions
from tfs_lite.serving.config_sources import ModelLocator
from tfs_lite.serving.opening.model_configs import ConfigOverride, ModelConfigs
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.repository.control import ModelOfCalls, RepositoryControl
from tfs_lite.serving.repository.plan import FoundVersion
from tfs_lite.serving.repository.requests import RepositoryValue
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.serving.statistics.trace_settings import LOG_DEFAULTS
from tfs_lite.transport.table import CallContext

T = TypeVar("T")
REGION, REGION_BYTES = "r", 64
MAX_PARTS = 32
"""Answers of the model with several. More wait for the client, and these models run on the loop's thread."""
MODEL_CONFIG = """platform: "python" max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }"""

_BATCH = SymbolicDim("batch")
_N = SymbolicDim("n")
Outputs = Mapping[str, Any]


def _spec(name: str, dtype: DataType = DataType.FLOAT, *shape: Any) -> TensorSpec:
    return TensorSpec(name, dtype, (_BATCH, *shape))


def _same(names: Mapping[str, str]) -> Callable[[Mapping[str, Any]], Outputs]:
    return lambda inputs: {output: inputs[name] for output, name in names.items()}


def _echo(dtype: DataType, *shape: Any) -> tuple[Signature, Callable[[Mapping[str, Any]], Outputs], int]:
    batched = shape[:1] == (_BATCH,)
    signature = Signature((TensorSpec("IN", dtype, shape),), (TensorSpec("OUT", dtype, shape),))
    return signature, _same({"OUT": "IN"}), 4 if batched else 0


FUNCTIONS: dict[str, tuple[Signature, Callable[[Mapping[str, Any]], Outputs], int]] = {
    "m": (Signature((_spec("x", DataType.FLOAT, 3),), (_spec("y", DataType.FLOAT, 3),)), _same({"y": "x"}), 8),
    "two": (
        Signature((_spec("a"), _spec("b", DataType.STRING)), (_spec("c"), _spec("d", DataType.STRING))),
        _same({"c": "a", "d": "b"}),
        8,
    ),
    "shapes": (
        Signature(
            (_spec("x", DataType.INT64, SymbolicDim("n", 4), 2), TensorSpec("k", DataType.DOUBLE, (2, _N))),
            (_spec("y", DataType.INT64, _N, 2),),
        ),
        _same({"y": "x"}),
        0,
    ),
    "open": (Signature((TensorSpec("x"),), (TensorSpec("y"),)), _same({"y": "x"}), 0),
    "row": _echo(DataType.INT32, 4),
    "text": _echo(DataType.STRING, 1),
    "any": _echo(DataType.INT16, _N, _N),
    "classes": (
        Signature((_spec("x", DataType.FLOAT, _N),), (_spec("y", DataType.FLOAT, _N), _spec("s", DataType.INT64, _N))),
        lambda inputs: {"y": inputs["x"], "s": np.zeros(inputs["x"].shape, np.int64)},
        8,
    ),
    "defaults": (
        Signature(
            (_spec("x"), _spec("k", DataType.FLOAT, 2), TensorSpec("f", DataType.INT64, (2,))),
            (_spec("y"), _spec("k", DataType.FLOAT, 2)),
            defaults={"k": np.array([1, 2], np.float32), "f": np.array([3, 4])},
        ),
        _same({"y": "x", "k": "k"}),
        8,
    ),
    "chat": (
        Signature(
            (TensorSpec("text_input", DataType.STRING, (1,)), TensorSpec("max_tokens", DataType.INT32, (1,))),
            (TensorSpec("text_output", DataType.STRING, (1,)),),
            defaults={"max_tokens": np.array([3], np.int32)},
        ),
        _same({"text_output": "text_input"}),
        0,
    ),
    **{name_of(dtype): _echo(dtype, _BATCH) for dtype in DataType if name_of(dtype) != "INVALID"},
}
MODELS = (*FUNCTIONS, "repeat", "nobody")


class Answerer(JudgesCalls):
    """Answers on the caller's thread."""

    def __init__(
        self,
        signature: Signature,
        function: Callable[[Mapping[str, Any]], Outputs],
        max_batch_size: int,
        decoupled: bool = False,
    ) -> None:
        self.signatures = {DEFAULT_SIGNATURE: signature}
        self.traits = Traits("test", max_batch_size, {"y": ("zero", "", "two")}, decoupled)
        self._function = function

    def submit(self, call: PredictCall) -> None:
        if any(max(array.shape, default=0) > MAX_ROWS for array in call.inputs.values()):
            call.on_done(Status(StatusCode.INVALID_ARGUMENT, "too many rows for this model"))
            return
        answers = self._function(call.inputs)
        call.on_done({name: answers[name] for name in call.outputs or answers})

    def cancel(self, call: PredictCall) -> None:
        """Every call is answered by now."""

    def close(self) -> None:
        """Nothing to close."""


class Repeat(Answerer):
    """An answer for each number of the request, up to ``MAX_PARTS``; a negative number is a failure."""

    def __init__(self) -> None:
        signature = Signature((TensorSpec("IN", DataType.INT32, (_N,)),), (TensorSpec("OUT", DataType.INT32, (1,)),))
        super().__init__(signature, dict, 0, decoupled=True)

    def submit(self, call: PredictCall) -> None:
        numbers = cast("Any", call.inputs["IN"])
        if len(numbers) > MAX_PARTS or (numbers < 0).any():
            call.on_done(Status(StatusCode.INVALID_ARGUMENT, "these numbers cannot be repeated"))
            return
        assert call.on_part is not None
        for number in numbers:
            call.on_part({"OUT": np.array([number], np.int32)})
        call.on_done({})


class LoadChecks(RepositoryControl):
    """A load call up to the point where something would be loaded."""

    def __init__(self, root: str) -> None:
        options = ServerOptions(model_repository=root, model_control_mode="explicit", max_message_bytes=MAX_BYTES)
        core = SimpleNamespace(
            options=options,
            clock=SystemClock(),
            model_configs=ModelConfigs(),
            is_idle=lambda name: True,
            view=SimpleNamespace(live_versions=lambda name: set()),
            manager=SimpleNamespace(available_versions=lambda name: set()),
            reloader=SimpleNamespace(refused=ignore),
            waiter=SimpleNamespace(closed=False),
            disk_calls=BoundedCalls(60.0),
        )
        super().__init__(cast("ServerCore", core), ModelLocator(options))
        self.loaded: list[tuple[ModelOfCalls, list[FoundVersion]]] = []

    def _bring_up(
        self, model: ModelOfCalls, found: list[FoundVersion], old: ModelOfCalls | None, override: ConfigOverride | None
    ) -> None:
        self._require_whole(model.config.name, found)
        message_json(config_message(model.settings, model.config.name, "python"))
        self.loaded.append((model, found))
        if model.upload:
            outside = [item.path for item in found if not item.path.startswith(model.upload + os.sep)]
            if outside:
                raise RuntimeError("a version of a load call is not among its files")
            self._uploads.remove(model.upload)

    def left(self) -> list[str]:
        """What is still there of files that calls brought."""
        root = self._uploads._root
        return os.listdir(root) if root else []


class Control(FixtureControl):
    """Of the models of the handlers; loads are checked, not done."""

    def __init__(self, fixture: V2Fixture, regions: SharedRegions, checks: LoadChecks) -> None:
        super().__init__(fixture, regions)
        self._checks = checks

    def model_config(self, name: str, version: int | None) -> Message:
        self._signature(name, version)
        return super().model_config(name, version)

    async def load(self, name: str, parameters: Mapping[str, RepositoryValue]) -> None:
        self._checks.load(name, parameters)

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        self._checks.unload(name, unload_dependents)


class V2Handlers:
    """Every way to its models. ``unseen``: what nobody was told of, since the last call of ``take_unseen``."""

    def __init__(self) -> None:
        self._inside = ExitStack()
        self.root = self._inside.enter_context(tempfile.TemporaryDirectory(prefix="tfs-lite-fuzz-"))
        self._make_repository(Path(self.root))
        self._unseen: list[str] = []
        self.loop = asyncio.new_event_loop()
        self._inside.callback(self.loop.close)
        self.loop.set_exception_handler(lambda loop, context: self._unseen.append(repr(context)))
        self._watch_log()
        self.regions = SharedRegions(max_bytes=MAX_BYTES)
        self._inside.callback(self.regions.close)
        self.fixture = V2Fixture(self.regions)
        for name, function in FUNCTIONS.items():
            self.fixture.add(name, Answerer(*function))
        self.fixture.add("m", Answerer(*FUNCTIONS["m"]), version=3)
        self.fixture.add("repeat", Repeat())
        self.checks = LoadChecks(self.root)
        self._inside.callback(self.checks.close)
        self.control = Control(self.fixture, self.regions, self.checks)
        self._inside.callback(self.control.settings.close)
        slow = BackgroundRunner("V2", 1, 8)
        self._inside.callback(slow.close)
        self.http_resources = HttpResources(HttpLimits(MAX_BODY_BYTES, timeout_seconds=PATIENCE / 2), slow)
        self.room = self.fixture.infer.room
        self._app = V2HttpApp(self.fixture.infer, self.control, self.http_resources, self.fixture.fast)
        self._router = Router([self._app], self.http_resources.bodies)
        rows = V2GrpcService(self.fixture.infer, self.control, self.fixture.fast).methods()
        self._handlers: dict[str, Any] = {row.name: row.handler for row in rows}
        self._memory = -1
        self._make_region()
        self._inside.callback(lambda: os.close(self._memory))
        self.reset_settings()

    def grpc(self, method: str, data: bytes) -> bytes:
        return self._run(answer_to(self._handlers[method], data))

    def stream(self, requests: Sequence[bytes], metadata: Mapping[str, str]) -> list[bytes]:
        """Raises what ends the stream."""

        async def sent() -> AsyncIterator[bytes]:
            for request in requests:
                yield request

        async def run() -> list[bytes]:
            context = CallContext(None, metadata)
            return [answer async for answer in self._handlers["ModelStreamInfer"](sent(), context)]

        return self._run(run())

    def http(self, data: bytes) -> Reply | None:
        """None if there is no request for V2 in the bytes."""
        request = parse_http(data)
        if request is None or not self._app.owns(request.head.path):
            return None
        return self._run(reply_of(self._router, request))

    def load(self, name: str, parameters: Mapping[str, RepositoryValue]) -> None:
        self.checks.load(name, parameters)

    def take_unseen(self) -> list[str]:
        found, self._unseen = self._unseen, []
        return found

    def reset(self) -> None:
        """What is shared between requests as at the start."""
        if [region.name for region in self.regions.system_status(None)] != [REGION]:
            self.regions.system_unregister(None)
            self._make_region()
        os.pwrite(self._memory, bytes(range(REGION_BYTES)), 0)

    def reset_settings(self) -> None:
        log = {name: value for name, value in LOG_DEFAULTS.items() if name != "log_file"}
        self.control.settings.update_log_settings(log)
        trace: dict[str, tuple[str, ...]] = dict.fromkeys(
            ("trace_level", "trace_rate", "trace_count", "log_frequency"), ()
        )
        for model in (None, *dict.fromkeys(name for name, _ in self.fixture.servables)):
            self.control.settings.update_trace_settings(model, trace)

    def close(self) -> None:
        self._inside.close()

    def _run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    def _watch_log(self) -> None:
        """Exceptions that were logged, by anybody in the package."""
        watch = logging.Handler(logging.ERROR)
        watch.emit = lambda record: self._unseen.append(repr(record.exc_info)) if record.exc_info else None  # type: ignore[method-assign]
        logger = logging.getLogger("tfs_lite")
        logger.addHandler(watch)
        self._inside.callback(logger.removeHandler, watch)

    def _make_region(self) -> None:
        """Its file has no name any more when this returns, so nothing is left of it, however the process ends."""
        if self._memory >= 0:
            os.close(self._memory)
        self._memory, path = tempfile.mkstemp(prefix="tfs-lite-fuzz-", dir=FOLDER)
        os.pwrite(self._memory, bytes(range(REGION_BYTES)), 0)
        self.regions.system_register(RegionStatus(REGION, os.path.basename(path), 0, REGION_BYTES))
        os.unlink(path)

    def _make_repository(self, root: Path) -> None:
        for name in ("m", "n"):
            (root / name / "1").mkdir(parents=True)
            (root / name / "config.pbtxt").write_text(MODEL_CONFIG)
            (root / name / "1" / "model.py").write_text("")


@functools.cache
def handlers_v2() -> V2Handlers:
    """Those of this process."""
    return V2Handlers()


def close_handlers_v2() -> None:
    if handlers_v2.cache_info().currsize:
        handlers_v2().close()
        handlers_v2.cache_clear()


def refusal(act: Callable[[], object]) -> ServingError | None:
    """None if it went well."""
    try:
        act()
    except ServingError as error:
        return error
    return None
