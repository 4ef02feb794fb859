"""The base class of models whose results are torch's tensors, on a device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch

from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.pytorch.tensors import check_tensors, is_typed, to_arrays
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor
from tfs_lite.protocols.dtypes import Array


class TorchModel(LoadedModel):
    """A model with one signature, ``serving_default``."""

    def __init__(self, request: OpenRequest, platform: str, signature: Signature) -> None:
        super().__init__(request.id, platform, {DEFAULT_SIGNATURE: signature})
        self._device = torch.device(request.device)

    @abstractmethod
    def call(self, inputs: Mapping[str, Array]) -> Mapping[str, object]:
        """Runs the model; results by name, still on the device. May raise anything."""

    def compute(self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, object]:
        return self.call(inputs)

    def to_arrays(
        self, declared: Signature, inputs: Mapping[str, Tensor], results: Mapping[str, object]
    ) -> dict[str, Tensor]:
        """Copies results to arrays; what a result shows of its type is checked before."""
        check_tensors(declared, inputs, results)
        arrays = to_arrays(results, self._device)
        if not all(map(is_typed, results.values())):
            check_tensors(declared, inputs, arrays)
        return arrays
