"""The one path of a prediction, whatever protocol it came by.

    which version -> which signature -> are the names right -> decode -> which outputs -> do dtypes and shapes fit
    -> hand the call to the servable -> wait for the answer, the deadline or the client's going

Decoding is passed in, so that a request whose names are wrong costs nothing. The handle is held until the servable
has answered, also when the client has gone in the meantime: the model may still be reading the inputs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    Signature,
    Tensor,
    check_input_names,
    check_inputs,
    check_output_filter,
    find_signature,
)
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.protocols.dtypes import from_numpy
from tfs_lite.protocols.serving import ModelRef
from tfs_lite.server.request_metrics import RequestMetrics

logger = logging.getLogger(__name__)

Lookup = Callable[[ModelRef], ServableHandle]
"""Resolves name, version or label to a handle; raises ServingError."""


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """What a protocol hands over. ``inputs`` are still in the protocol's form; ``decode(raw, name)`` makes an array of
    one. ``deadline`` is in seconds of the event loop's clock, which is ``time.monotonic``."""

    model: ModelRef
    inputs: Mapping[str, Any]
    decode: Callable[[Any, str], Tensor]
    wanted: tuple[str, ...] = ()
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer of exactly one version."""

    id: ServableId
    signature: str
    outputs: Mapping[str, Tensor]


class Predictor:
    """Used on the event loop only."""

    def __init__(self, lookup: Lookup, metrics: RequestMetrics) -> None:
        self._lookup = lookup
        self._metrics = metrics

    async def predict(self, request: PredictionRequest) -> Prediction:
        """Raises ServingError; CancelledError when the client has gone, after which the answer is dropped."""
        with self._metrics.record("Predict", request.model.name) as record:
            handle = self._lookup(request.model)
            record.version = handle.id.version
            try:
                call, answer = _prepare(handle, request)
            except BaseException:
                handle.release()
                raise
            servable_id, servable = handle.id, handle.servable
            self._metrics.entered(servable_id)
            call.on_done = _when_done(asyncio.get_running_loop(), handle, answer, self._metrics)
            servable.submit(call)
            outputs = await _answer_or_deadline(call, answer)
            return Prediction(servable_id, call.signature, outputs)


Answer = asyncio.Future[Mapping[str, Tensor]]


def _prepare(handle: ServableHandle, request: PredictionRequest) -> tuple[PredictCall, Answer]:
    """Every check that needs no model, in the order in which clients know them."""
    servable: Servable = handle.servable
    signature = find_signature(servable.signatures, request.model.signature)
    check_input_names(signature, tuple(request.inputs))
    arrays = {name: request.decode(request.inputs[name], name) for name in signature.input_names}
    check_output_filter(signature, request.wanted)
    _check_tensors(signature, arrays)
    key = request.model.signature or DEFAULT_SIGNATURE
    call = PredictCall(key, arrays, request.wanted, request.deadline, on_done=lambda result: None)
    return call, asyncio.get_running_loop().create_future()


def _check_tensors(signature: Signature, arrays: Mapping[str, Tensor]) -> None:
    check_inputs(signature, {name: (from_numpy(array.dtype), array.shape) for name, array in arrays.items()})


def _when_done(
    loop: asyncio.AbstractEventLoop, handle: ServableHandle, answer: Answer, metrics: RequestMetrics
) -> Callable[[Mapping[str, Tensor] | Status], None]:
    """Called by the servable, on any thread: the model is done with the inputs."""

    def done(result: Mapping[str, Tensor] | Status) -> None:
        servable_id = handle.id
        metrics.left(servable_id)
        handle.release()
        try:
            loop.call_soon_threadsafe(_settle, answer, result)
        except RuntimeError:
            logger.debug("an answer of %s came after the event loop had closed", servable_id)

    return done


def _settle(answer: Answer, result: Mapping[str, Tensor] | Status) -> None:
    if answer.done():
        return
    if isinstance(result, Status):
        answer.set_exception(ServingError(result.code, result.message))
    else:
        answer.set_result(result)


async def _answer_or_deadline(call: PredictCall, answer: Answer) -> Mapping[str, Tensor]:
    timer = None
    if call.deadline is not None:
        timer = asyncio.get_running_loop().call_at(call.deadline, _expire, answer)
    try:
        return await answer
    finally:
        if timer is not None:
            timer.cancel()
        call.cancelled = True  # without effect on a call that was answered


def _expire(answer: Answer) -> None:
    if not answer.done():
        answer.set_exception(
            ServingError(StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the model had answered")
        )
