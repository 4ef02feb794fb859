"""``tfs_lite.GenerationService``: texts of language models, streamed in the messages of TensorFlow Serving.

    PredictRequest -> Predictor -> PredictResponse (a piece), PredictResponse, ... -> the next PredictRequest

TensorFlow Serving's messages have fields for streams, but its PredictionService has no method for them; this is one.
Each request starts a text, and texts run one at a time. While a text runs, one more request is read: a CANCEL ends the
text, any other waits for its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tfs_lite.core.generation import Piece
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.metrics.requests import GRPC, RequestMetrics, RequestRecord
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.generation_tensors import FINISH_REASON, TEXT_OUTPUT, piece_outputs
from tfs_lite.protocols.messages import Message, PredictRequest
from tfs_lite.protocols.runs import Run, run_of_predict
from tfs_lite.protocols.tensorflow.predict_answers import AnswerWriter
from tfs_lite.protocols.tensorflow.serving import parse, read_model_spec
from tfs_lite.protocols.v2.checks import check_one_text
from tfs_lite.server.inference.predictor import CallOptions, PendingRequest, Predictor
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.transport.table import CallContext, Method, bidi_stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SERVICE = "/tfs_lite.GenerationService"
METHOD = "PredictStreamed"
CANCELLED = b"cancelled"
"""The ``finish_reason`` of a text that its client has cancelled."""
_STARTS, _CANCELS = 0, 3
"""``PredictStreamedOptions.RequestState``: NONE and CANCEL."""


class PredictStreamedService:
    """On the event loop."""

    def __init__(self, predictor: Predictor, metrics: RequestMetrics, settings: PredictSettings) -> None:
        self._predictor = predictor
        self._metrics = metrics
        self._settings = settings
        self._answers = AnswerWriter(settings.as_tensor_content)

    def methods(self) -> list[Method]:
        return [bidi_stream(f"{SERVICE}/{METHOD}", self.predict_streamed)]

    async def predict_streamed(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """Every piece of every text. The first failure ends the stream with its status; the end of the call cancels
        the text. A CANCEL while no text runs is late, not an error."""
        reader = _RequestReader(requests)
        try:
            while (request := await reader.next()) is not None:
                if _cancels(request):
                    continue
                text = cast("AsyncGenerator[bytes, None]", self._text(request, reader, context.deadline))
                async with aclosing(text) as answers:
                    async for answer in answers:
                        yield answer
        finally:
            await reader.close()

    async def _text(self, request: Message, reader: _RequestReader, deadline: float | None) -> AsyncIterator[bytes]:
        """One text, counted under its final code."""
        record, begun_at = RequestRecord(METHOD, request.model_spec.name, GRPC), perf_counter()
        code = StatusCode.CANCELLED  # unless the text ends by itself
        text = _Text(reader.changed)
        try:
            text.begin(self._begin(request, record, deadline, text))
            while not (text.finished or (reader.cancels and not text.complete)):
                await text.wait()
                while text.pieces and (text.complete or not reader.cancels):
                    yield self._write(text, text.pieces.popleft())
            if reader.cancels and not text.complete:
                yield self._write(text, {FINISH_REASON: _text_array(CANCELLED)})
            else:
                await text.end()
                code = StatusCode.OK
        except ServingError as error:
            code = error.code
            raise
        except Exception:
            code = StatusCode.INTERNAL
            raise
        finally:
            await text.close()
            self._metrics.observe(record, code, perf_counter() - begun_at)

    def _begin(self, request: Message, record: RequestRecord, deadline: float | None, text: _Text) -> PendingRequest:
        model, settings = read_model_spec(request), self._settings
        _check_state(request)

        def plan(servable: Servable) -> Sequence[Run]:
            if not servable.traits.generates:
                message = f"model '{model.name}' is no language model: it has no pieces to stream; call Predict"
                raise ServingError(StatusCode.UNIMPLEMENTED, message)
            signatures = servable.signatures
            run = run_of_predict(signatures, request, settings.check_method_names, settings.max_bytes)
            check_one_text(run.inputs, model.name)
            assert record.version is not None
            text.id, text.signature, text.wanted = ServableId(model.name, record.version), run.signature, run.outputs
            text.has_text = TEXT_OUTPUT in signatures[run.signature].output_names
            return (run,)

        return self._predictor.begin(model, plan, record, deadline, CallOptions(on_piece=text.add))

    def _write(self, text: _Text, outputs: Mapping[str, Array]) -> bytes:
        """The answer with those of the requested outputs that exist."""
        names = text.wanted or tuple(outputs)
        found = {name: outputs[name] for name in names if name in outputs}
        assert text.id is not None
        return self._answers.write(text.id, text.signature, found)


class _Text:
    """A running text and its pieces that wait for the client, at most one for each token. ``complete``: the last piece
    has arrived. ``begin`` -> ``wait`` until ``finished`` -> ``end``; ``close`` at any time."""

    def __init__(self, changed: asyncio.Event) -> None:
        self.id: ServableId | None = None
        self.signature = DEFAULT_SIGNATURE
        self.wanted: tuple[str, ...] = ()
        self.has_text = False
        self.complete = False
        self.pieces: deque[Mapping[str, Array]] = deque()
        self._changed = changed
        self._started: PendingRequest | None = None
        self._end: asyncio.Task[object] | None = None

    @property
    def finished(self) -> bool:
        """Whether every piece was taken and no more can arrive."""
        return not self.pieces and self._end is not None and self._end.done()

    def begin(self, started: PendingRequest) -> None:
        self._started = started
        self._end = asyncio.create_task(started.answer())
        self._end.add_done_callback(lambda end: self._changed.set())

    def add(self, servable_id: ServableId, piece: Piece) -> None:
        self.complete = piece.finish is not None
        self.pieces.append(piece_outputs(piece, self.has_text))
        self._changed.set()

    async def wait(self) -> None:
        """Waits for a change since the last call."""
        await self._changed.wait()
        self._changed.clear()

    async def end(self) -> None:
        """Raises the failure of the text, if it failed."""
        assert self._end is not None
        await self._end

    async def close(self) -> None:
        if self._started is not None:
            self._started.cancel()
        await _drop(self._end)


class _RequestReader:
    """Reads the client's requests, at most one ahead. ``changed`` is set when that one has arrived."""

    def __init__(self, requests: AsyncIterator[bytes]) -> None:
        self._requests = aiter(requests)
        self._next: asyncio.Task[Message | None] | None = None
        self.changed = asyncio.Event()

    @property
    def cancels(self) -> bool:
        """Whether the next request has arrived and is a CANCEL. ``next`` raises the error of a malformed one."""
        pending = self._begin()
        if not pending.done() or pending.cancelled() or pending.exception() is not None:
            return False
        request = pending.result()
        return request is not None and _cancels(request)

    async def next(self) -> Message | None:
        """The next request; None after the client's half-close. INVALID_ARGUMENT for malformed bytes."""
        pending = self._begin()
        request = await pending
        if request is not None:
            self._next = None
        return request

    async def close(self) -> None:
        await _drop(self._next)

    def _begin(self) -> asyncio.Task[Message | None]:
        if self._next is None:
            self._next = asyncio.create_task(self._read())
            self._next.add_done_callback(lambda task: self.changed.set())
        return self._next

    async def _read(self) -> Message | None:
        data = await anext(self._requests, None)
        return None if data is None else parse(PredictRequest, data)


async def _drop(task: asyncio.Task[Any] | None) -> None:
    """Cancels the task, waits for its end and ignores its failure."""
    if task is None:
        return
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


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
