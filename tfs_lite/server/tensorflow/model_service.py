"""``tensorflow.serving.ModelService``: states of versions, and a new config without a restart."""

from __future__ import annotations

from collections.abc import Callable

from tfs_lite.core.servable import ModelRef, VersionStatus
from tfs_lite.core.status import OK, invalid_argument
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.messages import GetModelStatusRequest, Message, ReloadConfigRequest, ReloadConfigResponse
from tfs_lite.protocols.tensorflow.serving import model_status, parse, read_model_spec, status_proto
from tfs_lite.protocols.trailers import APPLIED, encode_trailer
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.transport.table import CallContext, Method, unary

SERVICE = "/tensorflow.serving.ModelService"

CounterValue = Callable[[str], float]
"""The value of the first cell of a counter, 0 if there is no such counter."""


class ModelService:
    """``status`` answers GetModelStatus. ``reload`` may take minutes and runs on ``background``, never on the loop;
    what it says was applied goes into the trailer ``tfs-lite-applied``, since the answer itself has no place for it."""

    def __init__(
        self,
        status: Callable[[ModelRef], list[VersionStatus]],
        reload: Callable[[Message], str],
        background: BackgroundRunner,
        metrics: RequestMetrics,
        counter_value: CounterValue,
    ) -> None:
        self._status = status
        self._reload = reload
        self._background = background
        self._metrics = metrics
        self._counter_value = counter_value

    def methods(self) -> list[Method]:
        return [
            unary(f"{SERVICE}/GetModelStatus", self.get_model_status),
            unary(f"{SERVICE}/HandleReloadConfigRequest", self.handle_reload_config_request),
        ]

    async def get_model_status(self, data: bytes, context: CallContext) -> bytes:
        ref = read_model_spec(parse(GetModelStatusRequest, data), require_name=False)
        with self._metrics.record("GetModelStatus", ref.name):
            return _bytes(model_status(self._status(ref)))

    async def handle_reload_config_request(self, data: bytes, context: CallContext) -> bytes:
        """The reload goes on when the client loses patience: a config is applied whole."""
        message = parse(ReloadConfigRequest, data)
        if message.config.WhichOneof("config") != "model_config_list":
            raise invalid_argument("Only ModelConfigList is currently supported")
        answer, applied = await self._background.run(lambda: self._reload_and_measure(message))
        context.trailers.append((APPLIED, encode_trailer(applied)))
        return answer

    def _reload_and_measure(self, message: Message) -> tuple[bytes, str]:
        """The answer, and what was applied."""
        before = {name: self._counter_value(name) for name in message.metric_names}
        applied = self._reload(message.config)
        response = ReloadConfigResponse(status=status_proto(OK))
        for name, value in before.items():
            response.metric.add(name=name, int64_value_increase=int(self._counter_value(name) - value))
        return _bytes(response), applied


def _bytes(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
