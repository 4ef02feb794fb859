"""``tfs_lite.GenerationService``: texts of language models, streamed in the messages of TensorFlow Serving.

    PredictRequest -> Predictor -> PredictResponse (a piece), PredictResponse, ... -> the next PredictRequest

TensorFlow Serving's messages have fields for streams, but its PredictionService has no method for them; this is one.
Each request starts a text, and texts run one at a time. While a text runs, one more request is read: a CANCEL ends the
text, any other waits for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from tfs_lite.core.generation import Piece
from tfs_lite.core.model import Servable
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import GRPC, RequestMetrics
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.fields import names_at
from tfs_lite.protocols.generation_tensors import FINISH_REASON, TEXT_OUTPUT, piece_outputs
from tfs_lite.protocols.messages import Message, PredictRequest
from tfs_lite.protocols.runs import Run, run_of_predict
from tfs_lite.protocols.tensorflow.predict_answers import AnswerWriter
from tfs_lite.protocols.tensorflow.serving import parse, read_model_spec
from tfs_lite.protocols.v2.checks import check_one_text
from tfs_lite.server.inference.pending import PendingRequest, RequestCancelled
from tfs_lite.server.inference.predictor import CallOptions, Predictor
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.transport.table import CallContext, Method, Rights, Scope, bidi_stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SERVICE = "/tfs_lite.GenerationService"
METHOD = "PredictStreamed"
CANCELLED = b"cancelled"
"""The ``finish_reason`` of a text that its client has cancelled."""
_STARTS, _CANCELS = 0, 3
"""``PredictStreamedOptions.RequestState``: NONE and CANCEL."""


class PredictStreamedService:
    """PredictStreamed, on the event loop."""

    def __init__(self, predictor: Predictor, metrics: RequestMetrics, settings: PredictSettings) -> None:
        self._predictor = predictor
        self._metrics = metrics
        self._settings = settings
        self._answers = AnswerWriter(settings.as_tensor_content)

    def methods(self) -> list[Method]:
        rights = Rights(scope=Scope.PREDICT, models=names_at(1, 1))
        return [bidi_stream(f"{SERVICE}/{METHOD}", self.predict_streamed, **rights)]

    async def predict_streamed(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """Every piece of every text. The first failure ends the stream with its status; the end of the call cancels
        the text. A CANCEL while no text runs is late, not an error."""
        reader = _RequestReader(requests)
        try:
            while (request := await reader.next()) is not None:
                if _cancels(request):
                    continue
                text = cast("AsyncGenerator[bytes, None]", self._text(request, reader, context))
                async with aclosing(text) as answers:
                    async for answer in answers:
                        yield answer
        finally:
            await reader.close()

    async def _text(self, request: Message, reader: _RequestReader, context: CallContext) -> AsyncIterator[bytes]:
        """One text, counted under its final code."""
        try:
            with (
                self._metrics.record(METHOD, request.model_spec.name, GRPC, context) as record,
                self._begin(request, record, context.deadline) as pending,
            ):
                reader.cancel_later(pending)
                has_text = TEXT_OUTPUT in pending.servable.signatures[pending.runs[0].signature].output_names
                while (piece := await pending.next()) is not None:
                    yield self._write(pending, piece_outputs(cast("Piece", piece), has_text))
        except RequestCancelled:
            yield self._write(pending, {FINISH_REASON: _text_array(CANCELLED)})

    def _begin(self, request: Message, record: RequestRecord, deadline: float | None) -> PendingRequest:
        model, settings = read_model_spec(request), self._settings
        _check_state(request)

        def plan(servable: Servable) -> Sequence[Run]:
            if not servable.traits.generates:
                message = f"model '{model.name}' is no language model: it has no pieces to stream; call Predict"
                raise ServingError(StatusCode.UNIMPLEMENTED, message)
            run = run_of_predict(servable.signatures, request, settings.check_method_names, settings.max_bytes)
            check_one_text(run.inputs, model.name)
            return (run,)

        return self._predictor.begin(model, plan, record, deadline, CallOptions(in_pieces=True))

    def _write(self, pending: PendingRequest, outputs: Mapping[str, Array]) -> bytes:
        """The answer with those of the requested outputs that exist."""
        (run,) = pending.runs
        names = run.outputs or tuple(outputs)
        found = {name: outputs[name] for name in names if name in outputs}
        return self._answers.write(pending.id, run.signature, found)


class _RequestReader:
    """Reads the client's requests, at most one ahead."""

    def __init__(self, requests: AsyncIterator[bytes]) -> None:
        self._requests = aiter(requests)
        self._next: asyncio.Task[Message | None] | None = None

    async def next(self) -> Message | None:
        """The next request; None after the client's half-close. INVALID_ARGUMENT for malformed bytes."""
        request = await self._begin()
        if request is not None:
            self._next = None
        return request

    def cancel_later(self, pending: PendingRequest) -> None:
        """Cancels the request when the next message is a CANCEL. An error in that message is raised by ``next``."""
        self._begin().add_done_callback(partial(_cancel, pending))

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})
            if not self._next.cancelled():
                self._next.exception()  # retrieved, so that asyncio does not log it

    def _begin(self) -> asyncio.Task[Message | None]:
        if self._next is None:
            self._next = asyncio.create_task(self._read())
        return self._next

    async def _read(self) -> Message | None:
        data = await anext(self._requests, None)
        return None if data is None else parse(PredictRequest, data)


def _cancel(pending: PendingRequest, read: asyncio.Task[Message | None]) -> None:
    if read.cancelled() or read.exception() is not None:
        return
    request = read.result()
    if request is not None and _cancels(request):
        pending.cancel()


def _cancels(request: Message) -> bool:
    return bool(request.predict_streamed_options.request_state == _CANCELS)


def _check_state(request: Message) -> None:
    """INVALID_ARGUMENT for options that these streams do not support."""
    options = request.predict_streamed_options
    if options.request_state != _STARTS or options.split_dimensions:
        raise invalid_argument(
            "predict_streamed_options.request_state: expected NONE, which starts a text, or CANCEL, which ends it; "
            "requests in several messages are not supported"
        )
    if options.return_single_response:
        raise invalid_argument("predict_streamed_options.return_single_response is not supported here; call Predict")


def _text_array(text: bytes) -> Array:
    array = np.empty(1, object)
    array[0] = text
    return array
