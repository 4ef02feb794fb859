"""``tensorflow.serving.ModelService``: states of versions, and a new config without a restart."""

from __future__ import annotations

from tfs_lite.config.model_server import from_proto
from tfs_lite.core.history import Cause, Origin, acting
from tfs_lite.core.status import OK, ServingError, invalid_argument
from tfs_lite.metrics.requests import GRPC
from tfs_lite.protocols.fields import names_at
from tfs_lite.protocols.messages import GetModelStatusRequest, Message, ReloadConfigRequest, ReloadConfigResponse
from tfs_lite.protocols.tensorflow.serving import model_status, parse, read_model_spec, status_proto
from tfs_lite.protocols.trailers import APPLIED, encode_trailer
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.serving.config_checks import base_directory
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.transport.table import CallContext, Method, Scope, unary

SERVICE = "/tensorflow.serving.ModelService"


class ModelService:
    """A reload may take minutes and runs on ``background``. The answer has no field for what was applied, so that goes
    into the trailer ``tfs-lite-applied``."""

    def __init__(self, core: ServerCore, background: BackgroundRunner) -> None:
        self._core = core
        self._background = background

    def methods(self) -> list[Method]:
        status, reload = self.get_model_status, self.handle_reload_config_request
        return [
            unary(f"{SERVICE}/GetModelStatus", status, scope=Scope.READ, models=names_at(1, 1)),
            unary(f"{SERVICE}/HandleReloadConfigRequest", reload, scope=Scope.MANAGE),
        ]

    async def get_model_status(self, data: bytes, context: CallContext) -> bytes:
        metrics = self._core.metrics.requests
        with metrics.reading("GetModelStatus", context):
            ref = read_model_spec(parse(GetModelStatusRequest, data), require_name=False)
        with metrics.record("GetModelStatus", ref.name, GRPC, context):
            return _bytes(model_status(self._core.view.status(ref)))

    async def handle_reload_config_request(self, data: bytes, context: CallContext) -> bytes:
        """The reload goes on when the client cancels: a config is applied whole."""
        message = parse(ReloadConfigRequest, data)
        if message.config.WhichOneof("config") != "model_config_list":
            raise invalid_argument("Only ModelConfigList is currently supported")
        with acting(Origin(Cause.RELOAD_RPC, context.caller)):
            answer, applied = await self._background.run(lambda: self._reload(message))
        context.trailers.append((APPLIED, encode_trailer(applied)))
        return answer

    def _reload(self, message: Message) -> tuple[bytes, str]:
        """The answer, with the increase of each counter that the client named, and what was applied."""
        core = self._core
        before = {name: core.metrics.value(name) for name in message.metric_names}
        try:
            config = from_proto(message.config, base_directory(core.options))
        except ServingError as error:
            core.reloader.refused(error.status)
            raise
        applied = core.reloader.reload(config)
        response = ReloadConfigResponse(status=status_proto(OK))
        for name, value in before.items():
            response.metric.add(name=name, int64_value_increase=int(core.metrics.value(name) - value))
        return _bytes(response), applied


def _bytes(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
