"""``inference.GRPCInferenceService``: messages on the outside; V2Inference and V2Control on the inside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from tfs_lite.core.signature import naming
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import RecordedRequest
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.serving import parse
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.protocols.v2.grpc_request import parse_version, read_message, read_request
from tfs_lite.protocols.v2.request import InferRequest
from tfs_lite.server.v2 import grpc_messages as translate
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.fast_path import V2FastPath
from tfs_lite.server.v2.grpc_stream import V2Stream
from tfs_lite.server.v2.inference import METHOD, V2Inference
from tfs_lite.transport.table import CallContext, Method, bidi_stream, unary

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SERVICE = "/inference.GRPCInferenceService"


class V2GrpcService:
    """A table of every method of the service. On the event loop only."""

    def __init__(self, infer: V2Inference, control: V2Control, fast: V2FastPath) -> None:
        self._infer = infer
        self._control = control
        self._fast = fast

    def methods(self) -> list[Method]:
        rows = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            METHOD: self.model_infer,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.repository_model_load,
            "RepositoryModelUnload": self.repository_model_unload,
            "SystemSharedMemoryStatus": self.system_shared_memory_status,
            "SystemSharedMemoryRegister": self.system_shared_memory_register,
            "SystemSharedMemoryUnregister": self.system_shared_memory_unregister,
            "CudaSharedMemoryStatus": self.cuda_shared_memory_status,
            "CudaSharedMemoryRegister": self.cuda_shared_memory_register,
            "CudaSharedMemoryUnregister": self.cuda_shared_memory_unregister,
            "TraceSetting": self.trace_setting,
            "LogSettings": self.log_settings,
        }
        table = [unary(f"{SERVICE}/{name}", handler, refusable=name == METHOD) for name, handler in rows.items()]
        return [*table, bidi_stream(f"{SERVICE}/ModelStreamInfer", self.model_stream_infer)]

    # Inference.

    def model_infer(self, data: bytes, context: CallContext) -> Awaitable[bytes]:
        plain = self._fast.grpc.find(data)
        if plain is None:
            return self._infer_in_full(data, context)
        record = self._infer.metrics.record(METHOD, plain.model)
        reply = self._fast.reply_plain(plain, record, context.deadline)
        return reply if reply is not None else self._answer(plain.in_full(), record, context)

    async def _infer_in_full(self, data: bytes, context: CallContext) -> bytes:
        sent = read_message(data)
        with self._infer.metrics.record(METHOD, sent.model) as record:
            with naming(sent.model):
                request = read_request(sent)
            self._fast.learn_grpc(data, request)
            return self._fast.grpc_answers.write(await self._fast.answer(request, record, context.deadline))

    async def _answer(self, request: InferRequest, record: RecordedRequest, context: CallContext) -> bytes:
        with record:
            return self._fast.grpc_answers.write(await self._fast.answer(request, record, context.deadline))

    async def model_stream_infer(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        answers = cast("AsyncGenerator[bytes, None]", V2Stream(self._infer, context).run(requests))
        async with aclosing(answers):
            async for answer in answers:
                yield answer

    # Health and metadata.

    async def server_live(self, data: bytes, context: CallContext) -> bytes:
        parse(v2.ServerLiveRequest, data)
        return _bytes(v2.ServerLiveResponse(live=self._control.server_live()))

    async def server_ready(self, data: bytes, context: CallContext) -> bytes:
        parse(v2.ServerReadyRequest, data)
        return _bytes(v2.ServerReadyResponse(ready=self._control.server_ready()))

    async def model_ready(self, data: bytes, context: CallContext) -> bytes:
        """A model that is not known is not ready: clients raise on any status but OK."""
        request = parse(v2.ModelReadyRequest, data)
        try:
            ready = self._control.model_ready(request.name, parse_version(request.version))
        except ServingError as error:
            if error.code is not StatusCode.NOT_FOUND:
                raise
            ready = False
        return _bytes(v2.ModelReadyResponse(ready=ready))

    async def server_metadata(self, data: bytes, context: CallContext) -> bytes:
        parse(v2.ServerMetadataRequest, data)
        return _bytes(self._control.server_metadata())

    async def model_metadata(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.ModelMetadataRequest, data)
        return _bytes(self._control.model_metadata(request.name, parse_version(request.version)))

    async def model_config(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.ModelConfigRequest, data)
        config = self._control.model_config(request.name, parse_version(request.version))
        return _bytes(v2.ModelConfigResponse(config=config))

    async def model_statistics(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.ModelStatisticsRequest, data)
        return _bytes(self._control.statistics(request.name or None, parse_version(request.version)))

    # The model repository.

    async def repository_index(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.RepositoryIndexRequest, data)
        _check_repository(request)
        return _bytes(self._control.index(request.ready))

    async def repository_model_load(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.RepositoryModelLoadRequest, data)
        _check_repository(request)
        await self._control.load(request.model_name, translate.load_parameters(request))
        return _bytes(v2.RepositoryModelLoadResponse())

    async def repository_model_unload(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.RepositoryModelUnloadRequest, data)
        _check_repository(request)
        await self._control.unload(request.model_name, translate.unload_dependents(request))
        return _bytes(v2.RepositoryModelUnloadResponse())

    # Shared memory.

    async def system_shared_memory_status(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.SystemSharedMemoryStatusRequest, data)
        found = translate.regions(self._control.memory.system_status(request.name or None))
        return _bytes(v2.SystemSharedMemoryStatusResponse(regions=found))

    async def system_shared_memory_register(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.SystemSharedMemoryRegisterRequest, data)
        self._control.memory.system_register(translate.system_region(request))
        return _bytes(v2.SystemSharedMemoryRegisterResponse())

    async def system_shared_memory_unregister(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.SystemSharedMemoryUnregisterRequest, data)
        self._control.memory.system_unregister(request.name or None)
        return _bytes(v2.SystemSharedMemoryUnregisterResponse())

    async def cuda_shared_memory_status(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.CudaSharedMemoryStatusRequest, data)
        found = translate.regions(self._control.memory.cuda_status(request.name or None))
        return _bytes(v2.CudaSharedMemoryStatusResponse(regions=found))

    async def cuda_shared_memory_register(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.CudaSharedMemoryRegisterRequest, data)
        self._control.memory.cuda_register(translate.cuda_region(request), request.raw_handle)
        return _bytes(v2.CudaSharedMemoryRegisterResponse())

    async def cuda_shared_memory_unregister(self, data: bytes, context: CallContext) -> bytes:
        request = parse(v2.CudaSharedMemoryUnregisterRequest, data)
        self._control.memory.cuda_unregister(request.name or None)
        return _bytes(v2.CudaSharedMemoryUnregisterResponse())

    # Settings.

    async def trace_setting(self, data: bytes, context: CallContext) -> bytes:
        request, settings = parse(v2.TraceSettingRequest, data), self._control.settings
        model = request.model_name or None
        changes = translate.trace_changes(request)
        found = settings.update_trace_settings(model, changes) if changes else settings.trace_settings(model)
        return _bytes(translate.trace_settings(found))

    async def log_settings(self, data: bytes, context: CallContext) -> bytes:
        changes, settings = translate.log_changes(parse(v2.LogSettingsRequest, data)), self._control.settings
        return _bytes(
            translate.log_settings(settings.update_log_settings(changes) if changes else settings.log_settings())
        )


def _check_repository(request: Message) -> None:
    if request.repository_name:
        raise ServingError(StatusCode.UNIMPLEMENTED, "'repository_name' specification is not supported")


def _bytes(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
