"""Takes a V2 request to its model and makes the answer, the same for gRPC and HTTP.

    InferRequest -> version -> checks, shared memory -> Predictor
                                                        -> wanted outputs, classes, shared memory -> InferAnswer

A decoupled model may have several answers to a request, or none. A language model answers whole, or piece by piece
where the client takes pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from tfs_lite.core.generation import Piece
from tfs_lite.core.model import Servable, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import RequestMetrics, RequestRecord
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.generation_tensors import FINISH_REASON, TEXT_OUTPUT, TOKEN_IDS, piece_outputs
from tfs_lite.protocols.runs import Run
from tfs_lite.protocols.v2.checks import check_one_text, run_of
from tfs_lite.protocols.v2.classification import classes
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest, SentTensor, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import RawTensor, check_byte_size
from tfs_lite.server.inference.predictor import CallOptions, PendingRequest, Predictor
from tfs_lite.server.v2.index import lookup_error

METHOD = "ModelInfer"
"""What V2 requests are counted as."""


class SharedMemory(Protocol):
    """Regions that clients have registered. Any method raises ServingError."""

    def read(
        self, memory: SharedMemorySlice, datatype: str, shape: tuple[int, ...], name: str = "", model: str = ""
    ) -> Array:
        """The tensor that is there; it may be read-only. ``name`` and ``model`` are for messages."""

    def write(self, memory: SharedMemorySlice, array: Array) -> object: ...


OnAnswer = Callable[[InferAnswer], None]


class V2Inference:
    """Used on one event loop only. ``versions_of`` gives the versions of a model that the server has ever known.
    ``memory`` None means that there is no shared memory."""

    def __init__(
        self,
        predictor: Predictor,
        metrics: RequestMetrics,
        memory: SharedMemory | None = None,
        versions_of: Callable[[str], Collection[int]] = lambda model: (),
    ) -> None:
        self.metrics = metrics
        self._predictor = predictor
        self._memory = memory
        self._versions_of = versions_of

    def begin(
        self,
        request: InferRequest,
        record: RequestRecord,
        deadline: float | None,
        on_part: OnAnswer | None = None,
        *,
        in_pieces: bool = False,
        text_outputs_only: bool = False,
    ) -> PendingV2Request:
        """Queues the request before it returns. The caller then awaits the answer or cancels. ``on_part`` is called, on
        the loop, with each answer of a decoupled model; without it such a model is refused with UNIMPLEMENTED.
        ``deadline`` is in seconds of ``time.monotonic``. Raises ServingError.

        A language model gives its whole answer, or, ``in_pieces``, many parts, and then it takes one text only.
        ``text_outputs_only`` leaves out the outputs that count tokens, unless the request names them, and parts without
        text."""
        pending = PendingV2Request(request, self._memory, in_pieces, text_outputs_only)

        def plan(servable: Servable) -> Sequence[Run]:
            signatures = servable.signatures
            pending.traits = traits = servable.traits
            declared = signatures.get(DEFAULT_SIGNATURE)
            pending.outputs = declared.output_names if declared is not None else ()
            if traits.decoupled and not traits.generates and on_part is None:
                raise ServingError(StatusCode.UNIMPLEMENTED, _DECOUPLED)
            pending.model_found = True
            read = partial(self._read, request.model)
            if traits.generates and text_outputs_only:
                request.inputs = [tensor for tensor in request.inputs if not _is_left_out(tensor)]
            run = run_of(request, signatures, request.model, traits.max_batch_size, read)
            if traits.generates and in_pieces:
                check_one_text(run.inputs, request.model)
            return (run,)

        options = self._options(request, pending, on_part, in_pieces)
        try:
            pending.inner = self._predictor.begin(
                ModelRef(request.model, request.version), plan, record, deadline, options
            )
        except ServingError as error:
            if pending.model_found or error.code is not StatusCode.NOT_FOUND:
                raise
            raise self._not_found(request) from None
        return pending

    def _options(
        self, request: InferRequest, pending: PendingV2Request, on_part: OnAnswer | None, in_pieces: bool
    ) -> CallOptions:
        """Models ignore the options that are for other kinds of models."""
        return CallOptions(
            request.sequence,
            request.priority,
            request.timeout,
            partial(pending.deliver, on_part) if on_part is not None else None,
            request.parameters,
            on_piece=partial(pending.deliver_piece, on_part) if on_part is not None and in_pieces else None,
        )

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


class PendingV2Request:
    """A request that is queued. On the loop only. ``complete`` says that the last piece of a text was delivered."""

    __slots__ = (
        *("_failure", "_in_pieces", "_memory", "_request", "_text_outputs_only"),
        *("complete", "inner", "model_found", "outputs", "traits"),
    )

    def __init__(
        self, request: InferRequest, memory: SharedMemory | None, in_pieces: bool, text_outputs_only: bool
    ) -> None:
        self._request = request
        self._memory = memory
        self._in_pieces = in_pieces
        self._text_outputs_only = text_outputs_only
        self._failure: ServingError | None = None
        self.complete = False
        self.model_found = False
        self.traits = Traits("")
        self.outputs: tuple[str, ...] = ()
        self.inner: PendingRequest

    @property
    def decoupled(self) -> bool:
        """Whether the answers come in parts; then the last one has no outputs, as a rule."""
        return self.traits.decoupled

    @property
    def generates(self) -> bool:
        """Whether it is a text of a language model."""
        return self.traits.generates

    async def answer(self) -> InferAnswer:
        """Once. Raises ServingError; CancelledError cancels the request."""
        inference = await self.inner.answer()
        if self._failure is not None:
            raise self._failure
        return self.make_answer(inference.id, inference.output)

    def part_sent(self) -> None:
        """A part was sent to the client: a decoupled model that waits for that goes on. Language models never wait."""
        if not self.generates:
            self.inner.part_sent()

    def cancel(self) -> None:
        """The client does not wait any more. May be called at any time, also after the answer."""
        self.inner.cancel()

    def deliver(self, on_part: OnAnswer, servable_id: ServableId, outputs: Mapping[str, Array]) -> None:
        """Passes a part on. A part that cannot be delivered fails the request."""
        if self._failure is not None:
            return
        try:
            on_part(self.make_answer(servable_id, outputs))
        except ServingError as error:
            self._failure = error
            self.cancel()

    def deliver_piece(self, on_part: OnAnswer, servable_id: ServableId, piece: Piece) -> None:
        """Passes a piece of a text on as a part."""
        has_text = TEXT_OUTPUT in self.outputs
        self.complete = piece.finish is not None
        if self._text_outputs_only and not self.complete and not (piece.text if has_text else piece.tokens):
            return
        outputs = dict(piece_outputs(piece, has_text))
        if self._text_outputs_only and not self.complete:
            outputs.pop(FINISH_REASON)
        self.deliver(on_part, servable_id, outputs)

    def make_answer(self, servable_id: ServableId, outputs: Mapping[str, Array]) -> InferAnswer:
        """The wanted outputs that are there, in the order in which they were wanted, or in the model's."""
        request = self._request
        wanted = {output.name: output for output in request.outputs}
        names = wanted or self._text_outputs or self.outputs or outputs
        found = {name: self._finished(outputs[name], name, wanted.get(name)) for name in names if name in outputs}
        return InferAnswer(servable_id, request.id, found, wanted)

    @property
    def _text_outputs(self) -> Sequence[str]:
        """The outputs of an answer with text outputs only; empty for other answers."""
        if not (self._text_outputs_only and self.generates):
            return ()
        return (TEXT_OUTPUT if TEXT_OUTPUT in self.outputs else TOKEN_IDS, FINISH_REASON)

    def _finished(self, array: Array, name: str, wanted: WantedOutput | None) -> Array:
        if wanted is None:
            return array
        if wanted.classification > 0:
            labels = self.traits.labels.get(name, ())
            array = classes(array, wanted.classification, self.traits.max_batch_size > 0, labels, name)
        if wanted.memory is not None:
            if self._memory is None:
                raise _no_memory(wanted.memory)
            self._memory.write(wanted.memory, array)
        return array


_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


def _no_memory(memory: SharedMemorySlice) -> ServingError:
    return ServingError(StatusCode.UNIMPLEMENTED, f"Unable to find shared memory region: '{memory.region:.256}'")
