"""Compares what an exported program answers with what its module answers, as far as the module answers twice the same.

Asked for are the example, other values of its shapes, and other sizes of what may have any size, one row among them: an
exporter that takes one input for another, or a value or a size for a constant, may well be right about the example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.opening import OpenedModel
from tfs_lite.adapters.pytorch.tensors import DATA_TYPES, to_arrays
from tfs_lite.adapters.results import by_name
from tfs_lite.adapters.saving.examples import BATCH, Example
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Dim, Signature, Tensor, check_inputs, format_shape
from tfs_lite.core.status import ServingError, failed_precondition

_REASON = (
    "Usual reasons are what Python does on the side in forward, such as a list on self to which it appends (a program "
    "keeps what was there during the export: use buffers), and a forward that asks whether it is being exported"
)
_NOISE = 1e-9
_CPU = torch.device("cpu")


def check_answers(
    saved: OpenedModel, module: torch.nn.Module, example: Example, dims: Mapping[str, Sequence[tuple[str, int]]]
) -> None:
    """Raises FAILED_PRECONDITION unless the program does what the module does. ``dims``: the dimensions that may have
    any size, as (input, axis), by their name.

    The program is asked what the module was asked before, in the same order: both may have a state. A module that
    answers differently from call to call, and whose program does not, has lost what made the difference.
    """
    names, kind = saved.signatures[DEFAULT_SIGNATURE].output_names, type(module).__name__
    generator = torch.Generator().manual_seed(0)
    others = example.replace({name: _other_values(value, generator) for name, value in example.tensors.items()})
    expected = _answers(module, example, others, names)
    again = _answers(module, example, others, names)
    varying = [
        {name for name in names if not _close(first[name], second[name])}
        for first, second in zip(expected, again, strict=False)
    ]
    questions = [(example, "the example"), (others, "other values")][: len(varying)]
    answers = [_ask(saved, question, kind, what) for question, what in questions]
    for (_, what), first, answer in zip(questions, expected, answers, strict=False):
        for name in names:
            if not any(name in some for some in varying) and not _close(first[name], answer[name]):
                raise failed_precondition(f"the exported {kind} answers {what} differently: {name}. {_REASON}")
    if any(varying):
        later = [_ask(saved, question, kind, what) for question, what in questions]
        for some, before, after in zip(varying, answers, later, strict=True):
            for name in sorted(some):
                if np.array_equal(np.asarray(before[name]), np.asarray(after[name])):
                    raise failed_precondition(_lost(kind, name))
    for dim, places in dims.items():
        _check_sizes(saved, module, example, dim, places, any(varying))


def _check_sizes(
    saved: OpenedModel,
    module: torch.nn.Module,
    example: Example,
    dim: str,
    places: Sequence[tuple[str, int]],
    varies: bool,
) -> None:
    """Raises FAILED_PRECONDITION if the program and the module differ for one row, or for another size than the
    example's, or if the module itself fails for a number of rows. Answers that vary from call to call are compared by
    shape."""
    signature, kind = saved.signatures[DEFAULT_SIGNATURE], type(module).__name__
    size = example.tensors[places[0][0]].shape[places[0][1]]
    for wanted in (1, size + 1) if dim == BATCH else (size + 1,):
        question, what = _of_size(example, places, wanted), _text(dim, wanted)
        if not (dim == BATCH and wanted == 1) and not _takes(signature, question):
            continue  # the program says itself that it does not take this size
        try:
            first = _answer(module, question, signature.output_names)
        except Exception as error:
            if dim == BATCH:
                raise failed_precondition(
                    _few_rows(kind, what, f"the module itself fails: {sentence(error)}")
                ) from None
            continue
        for spec in signature.outputs:
            found = first[spec.name].shape
            if spec.shape is not None and len(spec.shape) != len(found):
                raise failed_precondition(_lost_rows(kind, what, spec.name, found, spec.shape))
        answer = _ask(saved, question, kind, what)
        for name, expected in first.items():
            alike = expected.shape == answer[name].shape if varies else _close(expected, answer[name])
            if not alike:
                raise failed_precondition(
                    f"the exported {kind} answers {what} differently: {name}. Usual reasons are Python code that "
                    "decides by a size (if x.shape[0] == 1), of which a program keeps the way that the example took: "
                    f"write one way for all sizes{'' if dim != BATCH else ', or save it with dynamic_batch=False'}"
                )


def _takes(signature: Signature, question: Example) -> bool:
    try:
        check_inputs(signature, {name: _type(value) for name, value in question.tensors.items()})
    except ServingError:
        return False
    return True


def _of_size(example: Example, places: Sequence[tuple[str, int]], size: int) -> Example:
    """The example with so many entries along a dimension: its own, from the first on, again and again."""
    tensors = example.tensors
    for name, axis in places:
        value = tensors[name]
        indices = torch.arange(size, device=value.device) % value.shape[axis]
        tensors[name] = value.index_select(axis, indices)
    return example.replace(tensors)


def _type(value: torch.Tensor) -> tuple[DataType, tuple[int, ...]]:
    return DATA_TYPES[value.dtype], tuple(value.shape)


def _text(dim: str, size: int) -> str:
    if dim != BATCH:
        return f'size {size} of "{dim}"'
    return "one row" if size == 1 else f"{size} rows"


def _few_rows(kind: str, what: str, reason: str) -> str:
    return (
        f"{kind} cannot take any number of rows: for {what}, {reason}. Let forward take any number of rows, or save it "
        "with dynamic_batch=False, and then it takes as many as the example has"
    )


def _lost_rows(kind: str, what: str, name: str, found: Sequence[int], expected: Sequence[Dim]) -> str:
    return (
        f"{kind} cannot take any number of rows: for {what} its output {name} has the shape {list(found)}, for others "
        f"{format_shape(tuple(expected))}. The reason is mostly squeeze(), which leaves out every dimension of size 1, "
        "that of the rows too: name the dimension that is to go, such as squeeze(-1). Else it is code that decides by "
        "the number of rows: write one way for all, or save it with dynamic_batch=False"
    )


def _lost(kind: str, name: str) -> str:
    return (
        f"{kind} cannot be exported: it answers the same inputs differently from call to call (output {name}), and its "
        "program would give the first answer for ever. Something that Python does on the side is the reason, such as a "
        "counter (self.calls += 1), a list or a tensor kept on self, or a random number of Python or NumPy: a program "
        "keeps the value that it had during the export. Keep what changes in a buffer (self.register_buffer in "
        "__init__, self.state.copy_(new) in forward), draw random numbers with torch, and leave the rest out"
    )


def _ask(saved: OpenedModel, question: Example, kind: str, what: str) -> dict[str, Tensor]:
    try:
        return saved.run(DEFAULT_SIGNATURE, to_arrays(question.tensors, _CPU), ())
    except ServingError as error:
        raise failed_precondition(f"the exported {kind} fails for {what}: {error}") from error


def _other_values(example: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Values that a module is likely to accept if it accepts the example.

    Integers may be places in a table: they are drawn from the example's own, and on an accelerator, where a place
    outside of a table ends all work of the process, they stay. Floating-point numbers lie between two of the example's;
    where it has only one, between 0 and 1.
    """
    count, dtype = example.numel(), example.dtype
    if not count or not (example.is_cpu or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        return example
    shares = torch.rand(count, generator=generator, dtype=torch.float64)
    left, right = torch.randint(count, (2, count), generator=generator)
    if dtype == torch.bool:
        others = shares < 0.5
    elif dtype.is_floating_point or dtype.is_complex:
        values = example.cpu().flatten().to(torch.complex128 if dtype.is_complex else torch.float64)
        between = values[left] + (values[right] - values[left]) * shares
        others = torch.where(between.isfinite(), between, values[left])
        others = shares if bool((values == values[0]).all()) else others
    else:
        others = example.flatten()[left]
    return others.reshape(example.shape).to(example)


def _answers(
    module: torch.nn.Module, example: Example, others: Example, names: tuple[str, ...]
) -> list[dict[str, Tensor]]:
    """The answers to the example and, if the module accepts them, to the other values."""
    answers = [_answer(module, example, names)]
    with contextlib.suppress(Exception):
        answers.append(_answer(module, others, names))
    return answers


def _answer(module: torch.nn.Module, example: Example, names: tuple[str, ...]) -> dict[str, Tensor]:
    own = example.replace({name: value.clone() for name, value in example.tensors.items()})
    with torch.no_grad():
        return to_arrays(by_name(module(*own.args, **own.kwargs), names), _CPU)


def _close(left: Tensor, right: Tensor) -> bool:
    """Whether two answers are the same: integers exactly, other numbers but for a thousandth, or for a ten-thousandth
    of the largest of them (of 1, if that is larger still)."""
    first, second = np.asarray(left), np.asarray(right)
    if first.shape != second.shape:
        return False
    if first.dtype.kind in "iub":
        return bool(np.array_equal(first, second))
    wide = np.complex128 if first.dtype.kind == "c" else np.float64
    first, second = np.asarray(first, wide), np.asarray(second, wide)
    largest = np.max(np.abs(first), initial=0.0, where=np.isfinite(first))
    return np.allclose(first, second, rtol=1e-3, atol=1e-4 * min(largest, 1.0) + _NOISE, equal_nan=True)
