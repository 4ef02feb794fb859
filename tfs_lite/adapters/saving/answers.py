"""Compares what an exported program answers with what its module answers, as far as the module answers twice the same.

Asked for are the example and other values of its shapes: an exporter that takes one input for another, or a value for a
constant, may well be right about the example.
"""

from __future__ import annotations

import contextlib

import numpy as np
import torch

from tfs_lite.adapters.opening import OpenedModel
from tfs_lite.adapters.pytorch.tensors import to_arrays
from tfs_lite.adapters.results import by_name
from tfs_lite.adapters.saving.examples import Example
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Tensor
from tfs_lite.core.status import ServingError, failed_precondition

_REASON = (
    "Usual reasons are what Python does on the side in forward, such as a list on self to which it appends (a program "
    "keeps what was there during the export: use buffers), and a forward that asks whether it is being exported"
)
_NOISE = 1e-9
_CPU = torch.device("cpu")


def check_answers(saved: OpenedModel, module: torch.nn.Module, example: Example) -> None:
    """FAILED_PRECONDITION unless the program does what the module does.

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
