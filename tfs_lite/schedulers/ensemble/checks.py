"""The check that an ensemble fits the models that its steps name. Pure, asked once, when the ensemble is loaded.

What the config alone can tell (does every tensor have a maker and a user, are there no cycles) was checked when it was
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfs_lite.core.signature import DataType, TensorSpec, format_shape
from tfs_lite.core.status import invalid_argument
from tfs_lite.schedulers.ensemble.types import EnsembleGraph, Interface, ModelStep, consistent


def check_steps(graph: EnsembleGraph, interfaces: Sequence[Interface]) -> None:
    """Checks the steps against their models. ``interfaces`` are those of the steps' models, in the order of the steps.
    INVALID_ARGUMENT names the step, its model and the tensor of the first problem."""
    for problem in _problems(graph, interfaces):
        raise invalid_argument(problem)


def _problems(graph: EnsembleGraph, interfaces: Sequence[Interface]) -> Iterator[str]:
    for step, model in zip(graph.steps, interfaces, strict=True):
        yield from _names(step, model)
        if model.max_rows is not None and model.max_rows < graph.max_batch_size:
            yield (
                f"{step} takes at most {model.max_rows} rows, fewer than the max_batch_size {graph.max_batch_size} of "
                "the ensemble"
            )
    for step, model in zip(graph.steps, interfaces, strict=True):
        for name, tensor in step.inputs.items():
            maker, made, whose = _maker(graph, interfaces, tensor)
            yield from _edge(tensor, maker, made, whose, model, model.inputs[name], f'input "{name}" of {step}')
    for name, spec in graph.interface.outputs.items():
        maker, made, whose = _maker(graph, interfaces, name)
        yield from _edge(name, maker, made, whose, graph.interface, spec, f'the ensemble\'s output "{name}"')


def _names(step: ModelStep, model: Interface) -> Iterator[str]:
    for name, tensor in step.inputs.items():
        if name not in model.inputs:
            yield f'{step}: ensemble tensor "{tensor}" is mapping to non-existing input "{name}"{_known(model.inputs)}'
    for name, tensor in step.outputs.items():
        if name not in model.outputs:
            what = f'ensemble tensor "{tensor}" is mapped from non-existing output "{name}"'
            yield f"{step}: {what}{_known(model.outputs)}"
    for name in model.inputs:
        if name not in step.inputs and name not in model.optional:
            yield f'{step}: input "{name}" is not mapped to any ensemble tensors'


def _maker(graph: EnsembleGraph, interfaces: Sequence[Interface], tensor: str) -> tuple[Interface, TensorSpec, str]:
    """The interface that makes a tensor, its declaration there, and a name for it in messages."""
    made = graph.makers.get(tensor)
    if made is not None:
        step, name = made
        return interfaces[step.index], interfaces[step.index].outputs[name], f'output "{name}" of {step}'
    if tensor not in graph.interface.inputs:
        raise invalid_argument(f'ensemble tensor "{tensor}" is not written: no step gives it, nor does a request')
    return graph.interface, graph.interface.inputs[tensor], f'the ensemble\'s input "{tensor}"'


def _edge(
    tensor: str, maker: Interface, made: TensorSpec, whose: str, user: Interface, used: TensorSpec, by: str
) -> Iterator[str]:
    if DataType.INVALID not in (made.dtype, used.dtype) and made.dtype is not used.dtype:
        yield (
            f'ensemble tensor "{tensor}": inconsistent data type: {whose} is {made.dtype.text}, {by} expects '
            f"{used.dtype.text}"
        )
    if not consistent(maker, made, user, used):
        yield (
            f'ensemble tensor "{tensor}": inconsistent shape: {whose} has {format_shape(made.shape)}, {by} expects '
            f"{format_shape(used.shape)}"
        )


def _known(specs: Mapping[str, TensorSpec]) -> str:
    return f"; the model has: {', '.join(sorted(specs))}"
