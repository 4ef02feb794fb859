"""Classify, Regress and MultiInference over the one predict path, for gRPC and REST.

The conversions are in ``protocols.tensorflow.examples`` and ``classify_regress``; this file connects them with the
Predictor. Reading thousands of examples and writing thousands of classes takes Python milliseconds, so large requests
do that on a background thread, if there is one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, named
from tfs_lite.core.status import ServingError
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES, Array
from tfs_lite.protocols.messages import ClassificationResponse, Message, MultiInferenceResponse, RegressionResponse
from tfs_lite.protocols.runs import Run
from tfs_lite.protocols.tensorflow.classify_regress import (
    CLASSIFY,
    REGRESS,
    Kind,
    MultiInferenceTask,
    find_inference_signature,
    first_model_spec,
    read_tasks,
)
from tfs_lite.protocols.tensorflow.examples import example_count, tensors_of_input
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.server.inference.pending import Inference
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.runtime.event_loop import BackgroundRunner

COMFORTABLE_VALUES = 2048
"""The most features that are read, or numbers that are written, on the event loop: some milliseconds."""

T = TypeVar("T")


Infer: TypeAlias = Callable[[ModelRef, Message, RequestRecord, float | None], Awaitable[Message]]
"""``classify`` and ``regress``: the model, an Input, the record and the deadline -> the response."""


class Inferences:
    """Used on the event loop only. ``max_bytes`` bounds the tensors that values of the context are repeated into.
    ``on_examples`` is called with the model and the number of examples of every MultiInference that was answered."""

    def __init__(
        self,
        predictor: Predictor,
        check_method_names: bool = False,
        *,
        max_bytes: int = MAX_FILL_BYTES,
        on_examples: Callable[[str, int], None] = ignore,
        background: BackgroundRunner | None = None,
    ) -> None:
        self._predictor = predictor
        self._check_method_names = check_method_names
        self._max_bytes = max_bytes
        self._on_examples = on_examples
        self._background = background

    async def classify(self, model: ModelRef, input: Message, record: RequestRecord, deadline: float | None) -> Message:
        """The ClassificationResponse to an ``Input``. Raises ServingError; see :meth:`Predictor.infer`."""
        inference, result = await self._infer_one(CLASSIFY, model, input, record, deadline)
        return ClassificationResponse(result=result, model_spec=_answered(inference, inference.run.signature))

    async def regress(self, model: ModelRef, input: Message, record: RequestRecord, deadline: float | None) -> Message:
        """The RegressionResponse to an ``Input``."""
        inference, result = await self._infer_one(REGRESS, model, input, record, deadline)
        return RegressionResponse(result=result, model_spec=_answered(inference, inference.run.signature))

    async def multi_inference(self, request: Message, record: RequestRecord, deadline: float | None) -> Message:
        """The MultiInferenceResponse to a request: one version answers every task, in the order of the tasks, or the
        whole request fails."""
        tasks: list[MultiInferenceTask] = []

        async def plan(signatures: Mapping[str, Signature]) -> list[Run]:
            tasks[:] = read_tasks(request, signatures, self._check_method_names)
            return await self._runs(tasks, request.input)

        inference = await self._predictor.infer(first_model_spec(request), plan, record, deadline)
        count = example_count(request.input)
        response = MultiInferenceResponse()
        for task, outputs in zip(tasks, inference.outputs, strict=True):
            result = response.results.add(model_spec=_answered(inference, task.key))
            getattr(result, task.kind.field).CopyFrom(await self._result(inference, task.kind, outputs, count))
        self._on_examples(inference.id.name, count)
        return response

    async def _infer_one(
        self, kind: Kind, model: ModelRef, input: Message, record: RequestRecord, deadline: float | None
    ) -> tuple[Inference, Message]:
        async def plan(signatures: Mapping[str, Signature]) -> list[Run]:
            signature = find_inference_signature(signatures, model.signature)
            outputs = kind.check(signature, self._check_method_names)
            return [Run(model.signature or DEFAULT_SIGNATURE, await self._tensors(input, signature), outputs)]

        inference = await self._predictor.infer(model, plan, record, deadline)
        return inference, await self._result(inference, kind, inference.output, example_count(input))

    async def _runs(self, tasks: Sequence[MultiInferenceTask], input: Message) -> list[Run]:
        """Tasks whose signatures take the same inputs share the arrays."""
        read: list[tuple[Signature, dict[str, Array]]] = []
        runs = []
        for task in tasks:
            arrays = next((arrays for known, arrays in read if _take_the_same(known, task.signature)), None)
            if arrays is None:
                arrays = await self._tensors(input, task.signature)
                read.append((task.signature, arrays))
            runs.append(Run(task.key, arrays, task.outputs))
        return runs

    async def _tensors(self, input: Message, signature: Signature) -> dict[str, Array]:
        try:
            values = example_count(input) * len(signature.inputs)
            return await self._work(values, partial(tensors_of_input, input, signature, self._max_bytes))
        except ServingError as error:
            raise named(error, signature.model) from None

    async def _result(self, inference: Inference, kind: Kind, outputs: Mapping[str, Array], count: int) -> Message:
        values = sum(array.size for array in outputs.values())
        try:
            return await self._work(values, partial(kind.result, outputs, count))
        except ServingError as error:
            raise named(error, inference.id.name) from None

    async def _work(self, values: int, work: Callable[[], T]) -> T:
        if self._background is None or values <= COMFORTABLE_VALUES:
            return work()
        return await self._background.run(work)


def _take_the_same(one: Signature, other: Signature) -> bool:
    return one.inputs == other.inputs and (one.defaults is other.defaults or not (one.defaults or other.defaults))


def _answered(inference: Inference, signature: str) -> Message:
    return model_spec(ModelRef(inference.id.name, inference.id.version, signature=signature))
