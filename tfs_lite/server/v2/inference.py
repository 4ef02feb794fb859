"""Takes a V2 request to its model and makes the answer, the same for gRPC and HTTP.

    InferRequest -> version -> checks, shared memory -> Predictor
                                         PendingRequest -> wanted outputs, classes, shared memory -> InferAnswer

A decoupled model may have several answers to a request, or none. A language model answers whole, or piece by piece
where the client takes pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from tfs_lite.core.generation import Piece
from tfs_lite.core.model import Servable, Traits
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.generation_tensors import FINISH_REASON, TEXT_OUTPUT, TOKEN_IDS, piece_outputs
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.runs import Run
from tfs_lite.protocols.v2.checks import check_one_text, run_of
from tfs_lite.protocols.v2.classification import classes
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest, SentTensor, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import RawTensor, check_byte_size, decode_ahead, raw_texts
from tfs_lite.server.inference.pending import AnswerRoom, ClientRoom, PendingRequest, arrivals
from tfs_lite.server.inference.predictor import CallOptions, Predictor
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.v2.index import lookup_error

METHOD = "ModelInfer"
"""The method that V2 requests are counted as."""


class SharedMemory(Protocol):
    """Regions that clients have registered. Any method raises ServingError."""

    def read(
        self, memory: SharedMemorySlice, datatype: str, shape: tuple[int, ...], name: str = "", model: str = ""
    ) -> Array:
        """The tensor that is there; it may be read-only. ``name`` and ``model`` are for messages."""

    def write(self, memory: SharedMemorySlice, array: Array) -> object: ...


class V2Inference:
    """Used on one event loop only. ``versions_of`` gives the versions of a model that the server has ever known.
    ``memory`` None means that there is no shared memory. ``room`` is for the answers that wait for clients.
    ``background`` decodes large inputs of texts; without it nothing does that ahead."""

    def __init__(
        self,
        predictor: Predictor,
        metrics: RequestMetrics,
        memory: SharedMemory | None = None,
        versions_of: Callable[[str], Collection[int]] = lambda model: (),
        room: AnswerRoom | None = None,
        background: BackgroundRunner | None = None,
    ) -> None:
        self.metrics = metrics
        self.room = room or AnswerRoom()
        self._predictor = predictor
        self._memory = memory
        self._versions_of = versions_of
        self._background = background

    async def decode_texts(self, request: InferRequest) -> None:
        """Decodes large inputs of texts on a thread, so that ``begin`` does not hold up the loop for them; it does
        where the threads are busy."""
        large = raw_texts(request.inputs, COMFORTABLE_BYTES)
        if large and self._background is not None:
            with suppress(ServingError):
                await self._background.run(partial(decode_ahead, large))

    def admit(self, model: str, version: int | None, record: RequestRecord, deadline: float | None) -> None:
        """Checks a request that ``begin`` would get, like :meth:`Predictor.admit`."""
        self._predictor.admit(ModelRef(model, version), record, deadline)

    def begin(
        self,
        request: InferRequest,
        record: RequestRecord,
        deadline: float | None,
        room: ClientRoom | None = None,
        *,
        in_pieces: bool = False,
        text_outputs_only: bool = False,
    ) -> V2Answers:
        """Queues the request before it returns. The caller then awaits the one answer, or takes several; these wait in
        ``room``, and without one a decoupled model is refused with UNIMPLEMENTED. ``deadline`` is in seconds of
        ``time.monotonic``. Raises ServingError.

        A language model gives its whole answer, or, ``in_pieces``, many parts, and then it takes one text only.
        ``text_outputs_only`` leaves out the outputs that count tokens, unless the request names them, and parts without
        text."""

        def plan(servable: Servable) -> Sequence[Run]:
            traits = servable.traits
            if traits.decoupled and not traits.generates and room is None:
                raise ServingError(StatusCode.UNIMPLEMENTED, _DECOUPLED)
            if traits.generates and text_outputs_only:
                request.inputs = [tensor for tensor in request.inputs if not _is_left_out(tensor)]
            read = partial(self._read, request.model)
            run = run_of(request, servable.signatures, request.model, traits.max_batch_size, read)
            if traits.generates and in_pieces:
                check_one_text(run.inputs, request.model)
            return (run,)

        record.sent_id = request.id
        options = CallOptions(
            request.sequence,
            request.priority,
            request.timeout,
            request.parameters,
            in_parts=room is not None,
            in_pieces=in_pieces,
            room=room,
        )
        try:
            model = ModelRef(request.model, request.version)
            pending = self._predictor.begin(model, plan, record, deadline, options)
        except ServingError as error:
            if record.version is not None or error.code is not StatusCode.NOT_FOUND:
                raise
            raise self._not_found(request) from None
        return V2Answers(request, pending, self._memory, text_outputs_only)

    def _read(self, model: str, tensor: SentTensor) -> Array:
        memory = tensor.memory
        assert memory is not None
        if self._memory is None:
            raise _no_memory(memory)
        check_byte_size(tensor, memory.byte_size, model)
        return self._memory.read(memory, tensor.datatype, tensor.shape, tensor.name, model)

    def _not_found(self, request: InferRequest) -> ServingError:
        return lookup_error(request.model, request.version, self._versions_of(request.model))


def _is_left_out(tensor: SentTensor) -> bool:
    """Whether it is an empty list of ``generate``, which means no input where every input is optional."""
    return isinstance(tensor, RawTensor) and not tensor.shape and not len(tensor.data)


class V2Answers:
    """The answers to a request that is queued: one to await, or several to iterate over. On the loop only. Raises
    ServingError; the end of a ``with`` block cancels the request unless it has ended."""

    def __init__(
        self, request: InferRequest, pending: PendingRequest, memory: SharedMemory | None, text_outputs_only: bool
    ) -> None:
        self._request = request
        self._pending = pending
        self._memory = memory
        self._text_outputs_only = text_outputs_only and self._traits.generates
        self.final = False
        """Whether the answer that was taken last says that it is the last."""
        self.arrival = 0
        """Its number among the answers of all requests, by ``arrivals``."""

    @property
    def _traits(self) -> Traits:
        """Those of the version that answers, which is known when it has answered."""
        return self._pending.servable.traits

    @property
    def _outputs(self) -> tuple[str, ...]:
        declared = self._pending.servable.signatures.get(DEFAULT_SIGNATURE)
        return declared.output_names if declared is not None else ()

    @property
    def decoupled(self) -> bool:
        """Whether there may be several answers; after them no other one says that it is the last, as a rule."""
        return self._traits.decoupled

    @property
    def generates(self) -> bool:
        """Whether they are those of a language model."""
        return self._traits.generates

    async def answer(self) -> InferAnswer:
        """The whole answer. CancelledError cancels the request."""
        inference = await self._pending.answer()
        return self._format(inference.output)

    def __aiter__(self) -> V2Answers:
        return self

    async def __anext__(self) -> InferAnswer:
        """The next answer, when the one before is sent, which lets the model go on."""
        while (part := await self._pending.next()) is not None:
            answer = self._format_piece(part) if isinstance(part, Piece) else self._format(part)
            if answer is not None:
                self.arrival = self._pending.arrival
                return answer
        if not self.final:
            whole = await self.answer()
            if whole.outputs or not self.decoupled:
                self.final, self.arrival = True, next(arrivals)
                return whole
        raise StopAsyncIteration

    def keep(self) -> Callable[[], None]:
        """Does what :meth:`PendingRequest.keep` does."""
        return self._pending.keep()

    def empty(self) -> InferAnswer:
        """An answer without outputs."""
        return self._format({})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pending.cancel()

    def _format_piece(self, piece: Piece) -> InferAnswer | None:
        """None for a piece without text, where text is all that is wanted."""
        has_text = TEXT_OUTPUT in self._outputs
        self.final = piece.finish is not None
        if not self._text_outputs_only or self.final:
            return self._format(piece_outputs(piece, has_text))
        if not (piece.text if has_text else piece.tokens):
            return None
        outputs = dict(piece_outputs(piece, has_text))
        outputs.pop(FINISH_REASON)
        return self._format(outputs)

    def _format(self, outputs: Mapping[str, Array]) -> InferAnswer:
        """The wanted outputs that are there, in the order in which they were wanted, or in the model's."""
        request = self._request
        wanted = {output.name: output for output in request.outputs}
        names = wanted or self._text_outputs or self._outputs or outputs
        found = {name: self._finished(outputs[name], name, wanted.get(name)) for name in names if name in outputs}
        return InferAnswer(self._pending.id, request.id, found, wanted)

    @property
    def _text_outputs(self) -> Sequence[str]:
        """The outputs of an answer with text outputs only; empty for other answers."""
        if not self._text_outputs_only:
            return ()
        return (TEXT_OUTPUT if TEXT_OUTPUT in self._outputs else TOKEN_IDS, FINISH_REASON)

    def _finished(self, array: Array, name: str, wanted: WantedOutput | None) -> Array:
        if wanted is None:
            return array
        if wanted.classification > 0:
            labels = self._traits.labels.get(name, ())
            array = classes(array, wanted.classification, self._traits.max_batch_size > 0, labels, name)
        if wanted.memory is not None:
            if self._memory is None:
                raise _no_memory(wanted.memory)
            self._memory.write(wanted.memory, array)
        return array


_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


def _no_memory(memory: SharedMemorySlice) -> ServingError:
    return ServingError(StatusCode.UNIMPLEMENTED, f"Unable to find shared memory region: '{memory.region:.256}'")
