"""The parts of an ensemble, values made once when it is loaded; and how a tensor passes between its models.

A *tensor* here is one of the ensemble's own: a name that inputs of the ensemble, outputs of steps and inputs of steps
share. An *interface* is what a model shows to its neighbours.

Two models that both batch, or both do not, hand tensors on as they are. Otherwise the shape decides: a whole batch may
be one tensor for the next model, or one tensor a batch of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tfs_lite.config.model import ModelSettings, signature_of
from tfs_lite.core.signature import Dim, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import Array


@dataclass(frozen=True, slots=True)
class Interface:
    """A model as its neighbours see it. ``batched`` says that the first dimension of every input and output is one
    batch. ``max_rows`` is the most rows of a request (None means any number). ``optional`` are inputs that may be left
    out."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    batched: bool = False
    max_rows: int | None = None
    optional: frozenset[str] = frozenset()

    def one(self, spec: TensorSpec) -> tuple[Dim, ...] | None:
        """The shape of one tensor without the batch; None if it is not declared."""
        return spec.shape[1:] if self.batched and spec.shape is not None else spec.shape


def interface_of(signature: Signature) -> Interface:
    """A model is batched if all its inputs and outputs begin with the same symbol."""
    specs = (*signature.inputs, *signature.outputs)
    symbols = {spec.batch for spec in specs}
    batched = bool(signature.inputs) and len(symbols) == 1 and None not in symbols
    firsts = [spec.shape[0] for spec in signature.inputs if batched and spec.shape]
    most = [dim.maximum for dim in firsts if isinstance(dim, SymbolicDim) and dim.maximum is not None]
    if signature.max_rows:
        most.append(signature.max_rows)
    return Interface(
        {spec.name: spec for spec in signature.inputs},
        {spec.name: spec for spec in signature.outputs},
        batched,
        min(most, default=None),
        frozenset(signature.dispensable),
    )


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One model of an ensemble. ``version`` None means the newest. ``inputs`` and ``outputs`` map the model's names to
    tensors."""

    index: int
    model: str
    version: int | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __str__(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        return f"step {self.index} (model {self.model}{version})"


@dataclass(frozen=True, slots=True)
class EnsembleGraph:
    """A whole ensemble. ``makers`` maps a tensor to the step that makes it and that model's name for it; all other
    tensors are inputs of the ensemble."""

    name: str
    signature: Signature
    interface: Interface
    max_batch_size: int
    steps: tuple[ModelStep, ...]
    makers: Mapping[str, tuple[ModelStep, str]]


def graph_of(name: str, settings: ModelSettings) -> EnsembleGraph:
    """The ensemble that a config describes. INVALID_ARGUMENT if it describes none."""
    signature = signature_of(settings)
    if settings.ensemble_scheduling is None or signature is None or not signature.inputs or not signature.outputs:
        raise invalid_argument("platform ensemble needs ensemble_scheduling, input and output in the config")
    steps = tuple(
        ModelStep(
            index,
            step.model_name,
            None if step.model_version == -1 else step.model_version,
            dict(step.input_map),
            dict(step.output_map),
        )
        for index, step in enumerate(settings.ensemble_scheduling.step)
    )
    makers = {tensor: (step, output) for step in steps for output, tensor in step.outputs.items()}
    return EnsembleGraph(name, signature, interface_of(signature), settings.max_batch_size, steps, makers)


def adapt_batch_dimension(tensor: Tensor, batched: bool, to: Interface, spec: TensorSpec) -> Tensor:
    """Adapts the batch dimension of a tensor whose maker is ``batched`` or not, for ``to``, which gets it as its input
    (or an ensemble as its output) ``spec``: gives the tensor, or a view of it with one dimension of size 1 more or
    less."""
    if batched == to.batched:
        return tensor
    dims = to.one(spec)
    if dims is None:
        return tensor
    array = cast(Array, tensor)
    fits = agree(tensor.shape, dims)
    if to.batched:
        return array.reshape(1, *array.shape) if fits else tensor
    return array.reshape(array.shape[1:]) if not fits and tensor.shape[:1] == (1,) else tensor


def consistent(maker: Interface, made: TensorSpec, user: Interface, used: TensorSpec) -> bool:
    """Whether some tensor can pass: their shapes agree without the batch dimensions, or with them."""
    if made.shape is None or used.shape is None:
        return True
    return agree(maker.one(made) or (), user.one(used) or ()) or agree(made.shape, used.shape)


def agree(shape: tuple[Dim, ...], other: tuple[Dim, ...]) -> bool:
    """Whether both may be the same; a size that a request chooses may be any."""
    return len(shape) == len(other) and all(
        not isinstance(a, int) or not isinstance(b, int) or a == b for a, b in zip(shape, other, strict=True)
    )
