"""Does an ensemble fit the models that its steps name? Pure, asked once, when the ensemble is loaded.

What the config alone can tell (does every tensor have a maker and a user, are there no cycles) was checked when it was
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfs_lite.core.signature import DataType, TensorSpec, format_shape
from tfs_lite.core.status import invalid_argument
from tfs_lite.schedulers.ensemble.shapes import consistent
from tfs_lite.schedulers.ensemble.types import Face, Graph, Step


def check_steps(graph: Graph, faces: Sequence[Face]) -> None:
    """``faces`` are those of the steps' models, in the order of the steps. INVALID_ARGUMENT names the step, its model
    and the tensor of the first problem."""
    for problem in _problems(graph, faces):
        raise invalid_argument(problem)


def _problems(graph: Graph, faces: Sequence[Face]) -> Iterator[str]:
    for step, face in zip(graph.steps, faces, strict=True):
        yield from _names(step, face)
        if face.batched and face.max_rows is not None and face.max_rows < graph.max_batch_size:
            yield (
                f"{step} takes at most {face.max_rows} rows, fewer than the max_batch_size {graph.max_batch_size} of "
                "the ensemble"
            )
    for step, face in zip(graph.steps, faces, strict=True):
        for name, tensor in step.inputs.items():
            maker, made, whose = _maker(graph, faces, tensor)
            yield from _edge(tensor, maker, made, whose, face, face.inputs[name], f'input "{name}" of {step}')
    for name, spec in graph.face.outputs.items():
        maker, made, whose = _maker(graph, faces, name)
        yield from _edge(name, maker, made, whose, graph.face, spec, f'the ensemble\'s output "{name}"')


def _names(step: Step, face: Face) -> Iterator[str]:
    for name, tensor in step.inputs.items():
        if name not in face.inputs:
            yield f'{step}: ensemble tensor "{tensor}" is mapping to non-existing input "{name}"{_known(face.inputs)}'
    for name, tensor in step.outputs.items():
        if name not in face.outputs:
            what = f'ensemble tensor "{tensor}" is mapped from non-existing output "{name}"'
            yield f"{step}: {what}{_known(face.outputs)}"
    for name in face.inputs:
        if name not in step.inputs and name not in face.optional:
            yield f'{step}: input "{name}" is not mapped to any ensemble tensors'


def _maker(graph: Graph, faces: Sequence[Face], tensor: str) -> tuple[Face, TensorSpec, str]:
    """Who makes a tensor, how it is declared there, and what that is called in messages."""
    made = graph.makers.get(tensor)
    if made is not None:
        step, name = made
        return faces[step.index], faces[step.index].outputs[name], f'output "{name}" of {step}'
    if tensor not in graph.face.inputs:
        raise invalid_argument(f'ensemble tensor "{tensor}" is not written: no step gives it, nor does a request')
    return graph.face, graph.face.inputs[tensor], f'the ensemble\'s input "{tensor}"'


def _edge(
    tensor: str, maker: Face, made: TensorSpec, whose: str, user: Face, used: TensorSpec, by: str
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
