"""Language models, as what the fuzz targets send their bytes to: OpenAI's API, V2's generate, and TensorFlow's messages
in front of real engines whose models need no network.

    handlers_generation().post(path, body)       -> Reply
    handlers_generation().predict(data), .streamed([data, ...])

Everything but the engines' threads runs on one event loop, which only runs while a request is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from handlers import MAX_BODY_BYTES, MAX_BYTES, PATIENCE, Reply, answer_to, reply_of

from tests.support.language.byte_codec import END, VOCABULARY, ByteCodec
from tests.support.language.hash_model import HashModel
from tests.support.servers.process import wait_until
from tests.support.servers.v2_fixture import V2Fixture
from tests.support.servers.v2_http_fixture import FixtureControl
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.generation import GenerationLimits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError
from tfs_lite.schedulers.generation.servable import GenerativeServable
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.server.http.message import Headers, HttpHead, IncomingBody, Request
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import Router
from tfs_lite.server.inference.classify_regress import Inferences
from tfs_lite.server.openai.app import OpenAiApp
from tfs_lite.server.openai.routes import OpenAiApi
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.tensorflow.generation_service import PredictStreamedService
from tfs_lite.server.tensorflow.prediction_service import PredictionService
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.server.v2.http_app import V2HttpApp
from tfs_lite.server.v2.shared_memory import SharedRegions
from tfs_lite.transport.table import CallContext

T = TypeVar("T")
SLOTS, LENGTH, QUEUE = 8, 64, 128


class GenerationHandlers:
    """``lm`` has a tokenizer and a template, ``bare`` no template, ``ids`` neither; ``simple`` is another model."""

    def __init__(self) -> None:
        self._inside = ExitStack()
        self._unseen: list[str] = []
        self.loop = asyncio.new_event_loop()
        self._inside.callback(self.loop.close)
        self.loop.set_exception_handler(lambda loop, context: self._unseen.append(repr(context)))
        self._watch_log()
        regions = SharedRegions(max_bytes=MAX_BYTES)
        self._inside.callback(regions.close)
        self.fixture = V2Fixture(regions)
        self._inside.callback(self.fixture.close)
        self.models = {
            "lm": self._add("lm", ByteCodec()),
            "bare": self._add("bare", ByteCodec(has_chat_template=False)),
            "ids": self._add("ids", None),
        }
        self.fixture.add_simple()
        slow = BackgroundRunner("generation", 1, 8)
        self._inside.callback(slow.close)
        self.http = HttpResources(HttpLimits(MAX_BODY_BYTES, timeout_seconds=PATIENCE / 2), slow)
        fixture = self.fixture
        openai = OpenAiApp(fixture.predictor, fixture.lookup, self._listing, fixture.metrics, self.http)
        control = FixtureControl(fixture, regions)
        apis = (OpenAiApi(openai), V2HttpApp(fixture.infer, control, self.http, fixture.fast))
        self._router = Router(apis, self.http.bodies)
        inferences = Inferences(fixture.predictor, max_bytes=MAX_BYTES)
        settings = PredictSettings(MAX_BYTES)
        self._predict = PredictionService(fixture.predictor, inferences, fixture.lookup, fixture.metrics, settings)
        self._streamed = PredictStreamedService(fixture.predictor, fixture.metrics, settings)

    def post(self, path: str, body: bytes) -> Reply:
        arrived = IncomingBody()
        arrived.feed(body)
        arrived.end()
        request = Request(HttpHead("POST", path, Headers()), arrived, time.monotonic())
        return self._run(reply_of(self._router, request))

    def predict(self, data: bytes) -> bytes:
        return self._run(answer_to(self._predict.predict, data))

    def streamed(self, requests: Sequence[bytes]) -> list[bytes]:
        """Raises what ends the stream."""

        async def sent() -> AsyncIterator[bytes]:
            for request in requests:
                yield request

        async def run() -> list[bytes]:
            return [answer async for answer in self._streamed.predict_streamed(sent(), CallContext(None))]

        return self._run(run())

    def left(self) -> list[str]:
        """What a request has left behind that has to be gone, and what nobody was told of."""
        found, self._unseen = self._unseen, []
        if self.fixture.handles:
            found.append(f"{self.fixture.handles} handles are not given back")
        if self.http.bodies.numbers.held_bytes:
            found.append("the room of a body is not given back")
        for name, (model, servable) in self.models.items():
            if not self._is_idle(servable):
                found.append(f"texts of {name} are left: {servable.state()}")
            found += model.complaints
        return found

    def close(self) -> None:
        self._inside.close()

    def _is_idle(self, servable: GenerativeServable) -> bool:
        """Texts that were cancelled leave with the engine's next turn."""

        def idle() -> bool:
            state = servable.state()
            return not (state.running or state.waiting)

        with contextlib.suppress(TimeoutError):
            return wait_until(idle, "the engine is idle", PATIENCE, 0.001) is not None
        return False

    def _add(self, name: str, codec: ByteCodec | None) -> tuple[HashModel, GenerativeServable]:
        model = HashModel(GenerationLimits(SLOTS, LENGTH, VOCABULARY, frozenset({END})), codec)
        settings = EngineSettings(SLOTS, LENGTH, SLOTS + 32, 32, QUEUE, 1 << 16, PATIENCE)
        clock = SystemClock()
        self._inside.callback(clock.close)
        servable = GenerativeServable(model, ServableId(name, 1), settings, clock=clock)
        self.fixture.add(name, servable)
        return model, servable

    def _listing(self) -> list[tuple[str, list[int], float]]:
        return [(name, [version], 0.0) for name, version in self.fixture.servables]

    def _run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    def _watch_log(self) -> None:
        """Exceptions that were logged, by anybody in the package."""
        watch = logging.Handler(logging.ERROR)
        watch.emit = lambda record: self._unseen.append(repr(record.exc_info)) if record.exc_info else None  # type: ignore[method-assign]
        logger = logging.getLogger("tfs_lite")
        logger.addHandler(watch)
        self._inside.callback(logger.removeHandler, watch)


@functools.cache
def handlers_generation() -> GenerationHandlers:
    """Those of this process."""
    return GenerationHandlers()


def close_handlers_generation() -> None:
    if handlers_generation.cache_info().currsize:
        handlers_generation().close()
        handlers_generation.cache_clear()


def refusal_of(act: Callable[[], T]) -> tuple[T | None, ServingError | None]:
    """What came back, or what was raised."""
    try:
        return act(), None
    except ServingError as error:
        return None, error
