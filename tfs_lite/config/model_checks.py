"""What the parts of a model's settings must be to one another. Each part by itself was checked before.

Every function raises a :func:`~tfs_lite.config.settings.problem` whose path begins at the model's settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfs_lite.config.ensemble import PLATFORM, check_graph
from tfs_lite.config.settings import FieldPath, nearest, problem
from tfs_lite.config.tensors import Dims
from tfs_lite.core.signature import DataType

if TYPE_CHECKING:
    from tfs_lite.config.model import ModelSettings

SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
NOT_IN_ENSEMBLES = ("instance_group", "optimization", "model_warmup", "backend", "warmup", "signatures")
"""Fields that are for models which run themselves."""


def check_model(settings: ModelSettings) -> None:
    _check_schedulers(settings)
    _check_preferred_sizes(settings)
    _check_cache(settings)
    _check_sequence(settings)
    _check_ensemble(settings)
    _check_warmup(settings)


def _check_schedulers(settings: ModelSettings) -> None:
    given = [name for name in SCHEDULERS if getattr(settings, name) is not None]
    if len(given) > 1:
        raise problem(f"a model has one scheduler: {' and '.join(given)} exclude each other", given[-1])
    if given and settings.model_transaction_policy.decoupled:
        raise problem(f"is not possible with {given[0]}", "model_transaction_policy", "decoupled")


def _check_preferred_sizes(settings: ModelSettings) -> None:
    largest = settings.max_batch_size
    for sizes, path in _preferred_sizes(settings):
        for index, size in enumerate(sizes):
            if 0 < largest < size:
                raise problem(
                    f"must be at most max_batch_size, {largest}; got {size}", *path, "preferred_batch_size", index
                )


def _preferred_sizes(settings: ModelSettings) -> Iterator[tuple[tuple[int, ...], FieldPath]]:
    if settings.dynamic_batching:
        yield settings.dynamic_batching.preferred_batch_size, ("dynamic_batching",)
    if settings.sequence_batching and settings.sequence_batching.oldest:
        yield settings.sequence_batching.oldest.preferred_batch_size, ("sequence_batching", "oldest")


def _check_cache(settings: ModelSettings) -> None:
    if settings.response_cache is None or not settings.response_cache.enable:
        return
    if settings.sequence_batching is not None:
        raise problem("is not possible with sequence_batching", "response_cache", "enable")
    if settings.model_transaction_policy.decoupled:
        raise problem("is not possible for a decoupled model", "response_cache", "enable")


def _check_sequence(settings: ModelSettings) -> None:
    """Tensors that the scheduler feeds are no inputs; a state that clients get too is the same tensor."""
    batching = settings.sequence_batching
    if batching is None:
        return
    inputs = {tensor.name for tensor in settings.input}
    outputs = {tensor.name: tensor for tensor in settings.output}
    for index, control in enumerate(batching.control_input):
        if control.name in inputs:
            raise problem(
                f'"{control.name}" is an input too; the scheduler alone feeds it',
                *("sequence_batching", "control_input", index, "name"),
            )
    for index, state in enumerate(batching.state):
        if state.input_name in inputs:
            raise problem(
                f'"{state.input_name}" is an input too; the scheduler alone feeds it',
                *("sequence_batching", "state", index, "input_name"),
            )
        output = outputs.get(state.output_name)
        if output is not None and (output.data_type, output.dims) != (state.data_type, state.dims):
            raise problem(
                f'"{state.output_name}" is an output too, of another data_type or dims',
                *("sequence_batching", "state", index, "output_name"),
            )


def _check_ensemble(settings: ModelSettings) -> None:
    scheduling = settings.ensemble_scheduling
    if scheduling is None:
        if settings.platform == PLATFORM:
            raise problem('platform "ensemble" needs ensemble_scheduling', "platform")
        return
    if settings.platform != PLATFORM:
        raise problem('needs platform: "ensemble"', "ensemble_scheduling")
    for name in NOT_IN_ENSEMBLES:
        if getattr(settings, name):
            raise problem("is not possible for an ensemble: its models have it", name)
    for name in ("input", "output"):
        if not getattr(settings, name):
            raise problem(f"an ensemble needs its {name}s declared", "ensemble_scheduling")
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (settings.input, settings.output))
    check_graph(scheduling.step, inputs, outputs)


def _check_warmup(settings: ModelSettings) -> None:
    """Samples have no more rows than a run, and declared inputs as they are declared."""
    known = _inputs_of_the_model(settings)
    for index, sample in enumerate(settings.model_warmup):
        if 0 < settings.max_batch_size < sample.batch_size:
            raise problem(
                f"must be at most max_batch_size, {settings.max_batch_size}; got {sample.batch_size}",
                *("model_warmup", index, "batch_size"),
            )
        for name, tensor in sample.inputs.items() if settings.input else ():
            path = ("model_warmup", index, "inputs", name)
            if name not in known:
                raise problem(f"there is no such input{nearest(name, known)}", *path)
            data_type, dims = known[name]
            if tensor.data_type is not data_type:
                raise problem(f"expected {data_type.text}, got {tensor.data_type.text}", *path, "data_type")
            if not _fits(tensor.dims, dims):
                raise problem(f"expected {list(dims)}, got {list(tensor.dims)}", *path, "dims")


def _inputs_of_the_model(settings: ModelSettings) -> dict[str, tuple[DataType, Dims]]:
    """Declared inputs, controls and states."""
    known = {tensor.name: (tensor.data_type, tensor.dims) for tensor in settings.input}
    if settings.sequence_batching:
        known |= {each.name: (each.only.dtype, (1,)) for each in settings.sequence_batching.control_input}
        known |= {each.input_name: (each.data_type, each.dims) for each in settings.sequence_batching.state}
    return known


def _fits(dims: tuple[int, ...], declared: Dims) -> bool:
    return len(dims) == len(declared) and all(want in (-1, size) for size, want in zip(dims, declared, strict=True))
