"""``reshape`` of a model's config: clients send ``dims``, the model gets other dimensions with as many elements.

    client's dims  ->  ReshapedModel  ->  reshape.shape, behind the batch if there is one  ->  the model, and back

The model is opened as if the config had its real dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import cast

import numpy as np

from tfs_lite.adapters.opening import OpenedModel, OpenedModelAround
from tfs_lite.config.model import ModelSettings, ModelTensor, signature_of
from tfs_lite.core.model import Shapes
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor, find_signature
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.protocols.dtypes import Array


def seen_by_model(settings: ModelSettings) -> ModelSettings:
    """The settings with the dimensions that the model itself takes and gives."""
    if not _reshapes(settings):
        return settings
    return settings.model_copy(update={"input": _inner(settings.input), "output": _inner(settings.output)})


def reshaped(model: OpenedModel, settings: ModelSettings) -> OpenedModel:
    """The model with the dimensions of clients; the model itself if nothing is reshaped. The result owns the model.
    INVALID_ARGUMENT for shapes with several sizes that requests choose, and then the caller still owns it."""
    for kind, tensors in (("input", settings.input), ("output", settings.output)):
        for index, tensor in enumerate(tensors):
            if tensor.reshape is not None and max(tensor.dims.count(-1), tensor.reshape.shape.count(-1)) > 1:
                raise invalid_argument(f"{kind}[{index}].reshape: at most one size may be -1")
    return ReshapedModel(model, settings) if _reshapes(settings) else model


class ReshapedModel(OpenedModelAround):
    """An opened model with other dimensions for clients, in its signature ``serving_default``. Threads and errors are
    the inner model's; in addition INVALID_ARGUMENT for sizes of a request (-1) that do not fit the inner dimensions.

    Dimensions are exchanged in ``run``; or, if the model has them, in ``preprocess`` and ``postprocess``.
    """

    def __init__(self, inner: OpenedModel, settings: ModelSettings) -> None:
        declared = signature_of(settings)
        assert declared is not None  # there is an input or an output with a reshape
        own = find_signature(inner.signatures, DEFAULT_SIGNATURE)
        # the model checks its conditions, which are about other shapes, on each run: its calls run alone
        conditions = None if own.conditions is None else read_conditions((), (), complete=False)
        outside = replace(
            own, inputs=declared.inputs or own.inputs, outputs=declared.outputs or own.outputs, conditions=conditions
        )
        super().__init__(inner)
        self._batched = settings.max_batch_size > 0
        self._signatures = {**inner.signatures, DEFAULT_SIGNATURE: outside}
        self._inward = {tensor.name: _shape(tensor) for tensor in settings.input if tensor.reshape is not None}
        self._outward = {tensor.name: tensor.dims for tensor in settings.output if tensor.reshape is not None}

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        if self.has_item_steps or not _is_default(signature):
            return self._inner.run(signature, inputs, outputs)
        return self._shaped(self._inner.run(signature, self._fed(inputs), outputs))

    def parts(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        exchanged = _is_default(signature)
        for results in self._inner.parts(signature, self._fed(inputs) if exchanged else inputs, outputs):
            yield self._shaped(results) if exchanged else results

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        """The inner model's memory, in the dimensions of clients."""
        if self.has_item_steps or not _is_default(signature):
            return self._inner.stage(signature, shapes)
        inner = dict(shapes)
        for name in self._inward.keys() & shapes.keys():
            sizes, dtype = shapes[name]
            inner[name] = self._resolved(sizes, self._inward[name]), dtype
        memory = self._inner.stage(signature, inner)
        if memory is None:
            return None
        return {name: np.reshape(cast(Array, array), shapes[name][0]) for name, array in memory.items()}

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return self._inner.preprocess(signature, self._fed(inputs) if _is_default(signature) else inputs, deadline)

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        results = self._inner.postprocess(signature, outputs, deadline)
        return self._shaped(results) if _is_default(signature) else results

    def _fed(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = dict(inputs)
        for name, shape in self._inward.items():
            if name in found:
                try:
                    found[name] = self._view(found[name], shape)
                except ValueError:
                    sizes = list(found[name].shape)
                    raise invalid_argument(f"input {name} of shape {sizes} cannot become {list(shape)}") from None
        return found

    def _shaped(self, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = dict(results)
        for name, shape in self._outward.items():
            if name in found:
                try:
                    found[name] = self._view(found[name], shape)
                except ValueError:
                    raise ServingError(
                        StatusCode.INTERNAL,
                        f"output {name} came as {list(found[name].shape)}, which cannot become {list(shape)}",
                    ) from None
        return found

    def _view(self, tensor: Tensor, shape: Sequence[int]) -> Array:
        """Views a tensor in another shape. ValueError if the elements do not fit."""
        array = cast(Array, tensor)
        return np.reshape(array, self._resolved(array.shape, shape))

    def _resolved(self, sizes: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
        """The ``shape`` behind the batch of ``sizes``, with the size for -1 that fits best."""
        rows = 1 if self._batched else 0
        fixed = prod(size for size in shape if size != -1)
        rest = prod(sizes[rows:]) // fixed if fixed else 0
        return (*sizes[:rows], *(rest if size == -1 else size for size in shape))


def _is_default(signature: str) -> bool:
    return signature in ("", DEFAULT_SIGNATURE)


def _reshapes(settings: ModelSettings) -> bool:
    return any(tensor.reshape is not None for tensor in (*settings.input, *settings.output))


def _inner(tensors: Sequence[ModelTensor]) -> tuple[ModelTensor, ...]:
    return tuple(tensor.model_copy(update={"dims": _shape(tensor), "reshape": None}) for tensor in tensors)


def _shape(tensor: ModelTensor) -> tuple[int, ...]:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape
