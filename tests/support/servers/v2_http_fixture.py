"""The HTTP side of the V2 protocol in front of a :class:`V2Fixture`: real sockets, predictor, settings, memory, codecs.

with serving_v2() as served:
    served.models.add_simple()
    assert served.client.get("/v2/models/simple/ready").status_code == 200

What there is no server for, loading and unloading, is noted in ``control``. Needs httpx.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import orjson

from tests.support.servers.process import wait_until
from tests.support.servers.v2_fixture import V2Fixture
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_export import config_message
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature
from tfs_lite.core.status import not_found
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server.http.connection import Waits
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import Router
from tfs_lite.server.http.server import HttpServer
from tfs_lite.server.inference.pending import AnswerRoom
from tfs_lite.server.runtime.event_loop import BackgroundRunner, LoopThread
from tfs_lite.server.v2.control import EXTENSIONS, V2Control, tensor_metadata
from tfs_lite.server.v2.http_app import V2HttpApp
from tfs_lite.server.v2.index import lookup_error
from tfs_lite.server.v2.shared_memory import SharedRegions
from tfs_lite.serving.repository.requests import RepositoryValue
from tfs_lite.serving.statistics.statistics import InferenceStatistics
from tfs_lite.serving.statistics.trace_settings import V2Settings

TIMEOUT = 30.0


class FixtureControl(V2Control):
    """Of the models of a fixture, without a core. ``live`` and ``ready`` are what they are set to."""

    def __init__(self, models: V2Fixture, regions: SharedRegions) -> None:
        self._models = models
        self.settings = V2Settings(models.is_known)
        self.memory = regions
        self.live = self.ready = True
        self.unready: set[str] = set()
        self.asked: list[tuple[Any, ...]] = []
        self.book = InferenceStatistics()

    def server_live(self) -> bool:
        return self.live

    @property
    def ready_headers(self) -> dict[str, str]:
        return {"x-models-answering": "1/1"}

    def server_ready(self) -> bool:
        return self.ready

    def model_ready(self, name: str, version: int | None) -> bool:
        self._signature(name, version)
        return name not in self.unready

    def server_metadata(self) -> Message:
        extensions = EXTENSIONS + self.memory.extensions
        return v2.ServerMetadataResponse(name="tfs_lite", version="1.0", extensions=extensions)

    def model_metadata(self, name: str, version: int | None) -> Message:
        signature = self._signature(name, version)
        versions = [other for known, other in self._models.servables if known == name and version in (None, other)]
        return v2.ModelMetadataResponse(
            name=name,
            versions=map(str, versions),
            platform="test",
            inputs=map(tensor_metadata, signature.inputs),
            outputs=map(tensor_metadata, signature.outputs),
        )

    def model_config(self, name: str, version: int | None) -> Message:
        servable = self._models.servables[name, version or 1]
        settings = ModelSettings(max_batch_size=servable.traits.max_batch_size)
        message: Message = config_message(settings, name, "test", self._signature(name, version))
        return message

    def statistics(self, name: str | None, version: int | None) -> Message:
        ids = [ServableId(*key) for key in self._models.servables if name in (None, key[0])]
        wanted = [one for one in ids if version in (None, one.version)]
        return v2.ModelStatisticsResponse(model_stats=self.book.statistics(wanted))

    def index(self, ready: bool) -> Message:
        loaded = [
            v2.ModelIndex(name=name, version=str(version), state="READY") for name, version in self._models.servables
        ]
        broken = v2.ModelIndex(name="broken", version="1", state="UNAVAILABLE", reason="its file is cut")
        return v2.RepositoryIndexResponse(models=loaded if ready else [*loaded, broken])

    async def load(self, name: str, parameters: Mapping[str, RepositoryValue]) -> None:
        if name == "nobody":
            raise not_found("failed to load 'nobody', no such model")
        self.asked.append(("load", name, dict(parameters)))

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        self.asked.append(("unload", name, unload_dependents))

    def _signature(self, name: str, version: int | None) -> Signature:
        if not any(name == known and version in (None, other) for known, other in self._models.servables):
            raise lookup_error(name, version, self._models.versions_of(name))
        with self._models.lookup(ModelRef(name, version)) as handle:
            signature: Signature = handle.servable.signatures[DEFAULT_SIGNATURE]
            return signature


class V2HttpFixture:
    """A started server, its port and a client of it. One thread."""

    def __init__(
        self,
        timeout_seconds: float | None = TIMEOUT,
        max_body_bytes: int = 8 << 20,
        room: AnswerRoom | None = None,
        write_timeout: float = TIMEOUT,
    ) -> None:
        """``write_timeout``: seconds for a client to read on."""
        regions = SharedRegions()
        self.models = V2Fixture(regions, room)
        self.control = FixtureControl(self.models, regions)
        self.loop = LoopThread("tfs-v2-fixture")
        self.slow = BackgroundRunner("V2", 2, 8)
        self.http = HttpResources(HttpLimits(max_body_bytes, timeout_seconds=timeout_seconds), self.slow)
        self.room = self.models.infer.room
        self.app = Router([V2HttpApp(self.models.infer, self.control, self.http, self.models.fast)], self.http.bodies)
        self._regions = regions
        self._server = HttpServer(self.app, Waits(write=write_timeout))
        self.port = self.loop.run(self._server.start("127.0.0.1", 0))
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT)

    def post(self, path: str, body: Any = b"", **headers: str) -> httpx.Response:
        """Sends bytes as they are, anything else as JSON. Underscores in names of headers are hyphens."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, content=content, headers=named)

    def is_empty(self) -> bool:
        """Whether no trace of a request is left."""
        return self.models.handles == 0 and self.http.bodies.numbers.held_bytes == 0 and self.room.held == 0

    def close(self) -> None:
        self.client.close()
        self.loop.run(self._server.stop(TIMEOUT))
        self.models.close()
        self.loop.loop.call_soon_threadsafe(self.http.close)
        self.loop.close()
        self.slow.close()
        self.control.settings.close()
        self._regions.close()


@contextlib.contextmanager
def serving_v2(**options: Any) -> Iterator[V2HttpFixture]:
    """``options`` are those of :class:`V2Served`. When the block ends, it is checked that no request has left anything
    behind."""
    served = V2HttpFixture(**options)
    try:
        yield served
        wait_until(served.is_empty, "no trace of a request is left", TIMEOUT)
    finally:
        served.close()


def error(answer: httpx.Response) -> str:
    """The message of an answer that has to be an error of V2."""
    if answer.headers["content-type"] != "application/json" or list(answer.json()) != ["error"]:
        raise AssertionError(f"not an error: {answer.headers} {answer.text:.200}")
    text: str = answer.json()["error"]
    return text


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """What the events of a stream say."""
    *found, rest = answer.content.split(b"\n\n")
    complete = rest == b"" and all(one.startswith(b"data: ") for one in found)
    if answer.headers["content-type"] != "text/event-stream; charset=utf-8" or not complete:
        raise AssertionError(f"not events: {answer.headers} {answer.text:.200}")
    return [orjson.loads(one.removeprefix(b"data: ")) for one in found]
