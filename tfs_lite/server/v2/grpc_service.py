"""``inference.GRPCInferenceService``: messages on the outside; V2Inference and V2Control on the inside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from tfs_lite.core.history import Cause, Origin, acting
from tfs_lite.core.signature import naming
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.request_records import RecordedRequest
from tfs_lite.metrics.requests import GRPC
from tfs_lite.protocols.fields import lacks, name_or_all, names_at
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.serving import parse
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.protocols.v2.grpc_request import read_message, read_request, read_version
from tfs_lite.protocols.v2.request import InferRequest
from tfs_lite.server.v2 import grpc_messages as translate
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.fast_path import V2FastPath
from tfs_lite.server.v2.grpc_stream import V2Stream
from tfs_lite.server.v2.inference import METHOD, V2Inference
from tfs_lite.transport.table import CallContext, Method, Rights, Scope, bidi_stream, unary

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
        """The name of a method is that of its request."""
        server, probes = Rights(scope=Scope.PREDICT, models=_no_model), Rights(scope=Scope.OPEN)
        model = Rights(scope=Scope.PREDICT, models=names_at(1))
        read, read_model = Rights(scope=Scope.READ), Rights(scope=Scope.READ, models=name_or_all(1))
        manage, manage_model = Rights(scope=Scope.MANAGE), Rights(scope=Scope.MANAGE, models=names_at(2))
        trace = Rights(scope=Scope.MANAGE, models=name_or_all(2), reads=lacks(1))
        logs = Rights(scope=Scope.MANAGE, reads=lacks(1))
        rows = (
            (v2.ServerLiveRequest, self.server_live, probes),
            (v2.ServerReadyRequest, self.server_ready, probes),
            (v2.ModelReadyRequest, self.model_ready, probes),
            (v2.ServerMetadataRequest, self.server_metadata, server),
            (v2.ModelMetadataRequest, self.model_metadata, model),
            (v2.ModelConfigRequest, self.model_config, model),
            (v2.ModelStatisticsRequest, self.model_statistics, read_model),
            (v2.RepositoryIndexRequest, self.repository_index, read),
            (v2.RepositoryModelLoadRequest, self.repository_model_load, manage_model),
            (v2.RepositoryModelUnloadRequest, self.repository_model_unload, manage_model),
            (v2.SystemSharedMemoryStatusRequest, self.system_shared_memory_status, read),
            (v2.SystemSharedMemoryRegisterRequest, self.system_shared_memory_register, manage),
            (v2.SystemSharedMemoryUnregisterRequest, self.system_shared_memory_unregister, manage),
            (v2.CudaSharedMemoryStatusRequest, self.cuda_shared_memory_status, read),
            (v2.CudaSharedMemoryRegisterRequest, self.cuda_shared_memory_register, manage),
            (v2.CudaSharedMemoryUnregisterRequest, self.cuda_shared_memory_unregister, manage),
            (v2.TraceSettingRequest, self.trace_setting, trace),
            (v2.LogSettingsRequest, self.log_settings, logs),
        )
        return [
            unary(f"{SERVICE}/{METHOD}", self.model_infer, refusable=True, **model),
            bidi_stream(f"{SERVICE}/ModelStreamInfer", self.model_stream_infer, **model),
            *[_method(kind, answer, rights) for kind, answer, rights in rows],
        ]

    # Inference.

    def model_infer(self, data: bytes, context: CallContext) -> Awaitable[bytes]:
        plain = self._fast.grpc.find(data)
        if plain is None:
            return self._infer_in_full(data, context)
        record = self._infer.metrics.record(METHOD, plain.model, GRPC, context)
        reply = self._fast.reply_plain(plain, record, context.deadline)
        return reply if reply is not None else self._answer(plain.in_full(), record, context)

    async def _infer_in_full(self, data: bytes, context: CallContext) -> bytes:
        with self._infer.metrics.reading(METHOD, context):
            sent = read_message(data)
        with self._infer.metrics.record(METHOD, sent.model, GRPC, context) as record:
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

    async def server_live(self, request: Message) -> Message:
        return v2.ServerLiveResponse(live=self._control.server_live())

    async def server_ready(self, request: Message) -> Message:
        return v2.ServerReadyResponse(ready=self._control.server_ready())

    async def model_ready(self, request: Message) -> Message:
        """A model that is not known is not ready: clients raise on any status but OK."""
        try:
            ready = self._control.model_ready(request.name, read_version(request.version))
        except ServingError as error:
            if error.code is not StatusCode.NOT_FOUND:
                raise
            ready = False
        return v2.ModelReadyResponse(ready=ready)

    async def server_metadata(self, request: Message) -> Message:
        return self._control.server_metadata()

    async def model_metadata(self, request: Message) -> Message:
        return self._control.model_metadata(request.name, read_version(request.version))

    async def model_config(self, request: Message) -> Message:
        config = self._control.model_config(request.name, read_version(request.version))
        return v2.ModelConfigResponse(config=config)

    async def model_statistics(self, request: Message) -> Message:
        return self._control.statistics(request.name or None, read_version(request.version))

    # The model repository.

    async def repository_index(self, request: Message) -> Message:
        _check_repository(request)
        return self._control.index(request.ready)

    async def repository_model_load(self, request: Message) -> Message:
        _check_repository(request)
        await self._control.load(request.model_name, translate.load_parameters(request))
        return v2.RepositoryModelLoadResponse()

    async def repository_model_unload(self, request: Message) -> Message:
        _check_repository(request)
        await self._control.unload(request.model_name, translate.unload_dependents(request))
        return v2.RepositoryModelUnloadResponse()

    # Shared memory.

    async def system_shared_memory_status(self, request: Message) -> Message:
        found = translate.regions(self._control.memory.system_status(request.name or None))
        return v2.SystemSharedMemoryStatusResponse(regions=found)

    async def system_shared_memory_register(self, request: Message) -> Message:
        self._control.memory.system_register(translate.system_region(request))
        return v2.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(self, request: Message) -> Message:
        self._control.memory.system_unregister(request.name or None)
        return v2.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(self, request: Message) -> Message:
        found = translate.regions(self._control.memory.cuda_status(request.name or None))
        return v2.CudaSharedMemoryStatusResponse(regions=found)

    async def cuda_shared_memory_register(self, request: Message) -> Message:
        self._control.memory.cuda_register(translate.cuda_region(request), request.raw_handle)
        return v2.CudaSharedMemoryRegisterResponse()

    async def cuda_shared_memory_unregister(self, request: Message) -> Message:
        self._control.memory.cuda_unregister(request.name or None)
        return v2.CudaSharedMemoryUnregisterResponse()

    # Settings.

    async def trace_setting(self, request: Message) -> Message:
        settings, model = self._control.settings, request.model_name or None
        changes = translate.trace_changes(request)
        found = settings.update_trace_settings(model, changes) if changes else settings.trace_settings(model)
        return translate.trace_settings(found)

    async def log_settings(self, request: Message) -> Message:
        changes, settings = translate.log_changes(request), self._control.settings
        return translate.log_settings(settings.update_log_settings(changes) if changes else settings.log_settings())


def _check_repository(request: Message) -> None:
    if request.repository_name:
        raise ServingError(StatusCode.UNIMPLEMENTED, "'repository_name' specification is not supported")


def _no_model(data: bytes) -> tuple[str, ...]:
    return ()


def _method(kind: Any, answer: Callable[[Message], Awaitable[Message]], rights: Rights) -> Method:
    """The method that answers requests of this kind. What one changes is the caller's wish."""

    async def handle(data: bytes, context: CallContext) -> bytes:
        with acting(Origin(Cause.REPOSITORY_CALL, context.caller)):
            encoded: bytes = (await answer(parse(kind, data))).SerializeToString()
        return encoded

    return unary(f"{SERVICE}/{kind.DESCRIPTOR.name.removesuffix('Request')}", handle, **rights)
