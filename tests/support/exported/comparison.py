"""Runs an exported program loaded by torch and the same file loaded by the direct builder, and compares every bit.

A program is a function of its flat inputs that returns its flat results: the leaves of the trees, with constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfs_lite.adapters.exported.document import read_document
from tfs_lite.adapters.exported.program import build_program
from tfs_lite.adapters.exported.torch_loader import flat_forward
from tfs_lite.adapters.inspect.archive import open_archive

Forward = Callable[..., Sequence[Any]]


def open_with_torch(path: Path) -> Forward:
    """Loads the program with ``torch.export.load``. It runs without guards and checks of its inputs, as it did when it
    was served that way."""
    return flat_forward(torch.export.load(path))


def open_directly(path: Path) -> Forward:
    """Loads the program with the direct builder. Raises UnsupportedProgram for what it does not know."""
    with open_archive(str(path), path.name) as archive:
        return build_program(archive, read_document(archive, trusted=False), torch.device("cpu")).forward


def assert_same(expected: Forward, actual: Forward, inputs: Iterable[Callable[[], Sequence[Any]]], name: str) -> int:
    """Calls both programs with all ``inputs``, each made anew for either of them, and compares results, inputs
    afterwards, and at the end the results of all calls once more: a result that is the program's own buffer changes
    with it. An error of one is expected of the other. Returns how many calls had results.

    Raises AssertionError that begins with ``name``.
    """
    kept = list[tuple[str, Sequence[Any], Sequence[Any]]]()
    for number, make in enumerate(inputs):
        ours, theirs = make(), make()
        left, right = _outcome(expected, theirs), _outcome(actual, ours)
        call = f"{name}, call {number}"
        _assert_same_values(f"{call}: inputs afterwards", theirs, ours)
        failed = isinstance(left, Exception), isinstance(right, Exception)
        assert failed[0] == failed[1], f"{call}: {left!r:.2000}, {right!r:.2000}"
        if not (isinstance(left, Exception) or isinstance(right, Exception)):
            _assert_same_values(call, left, right)
            kept.append((f"{call}: its results at the end", left, right))
    for where, left, right in kept:
        _assert_same_values(where, left, right)
    return len(kept)


def _outcome(forward: Forward, inputs: Sequence[Any]) -> Sequence[Any] | Exception:
    with torch.inference_mode():
        try:
            return forward(*inputs)
        except Exception as error:
            return error


def _assert_same_values(where: str, left: Sequence[Any], right: Sequence[Any]) -> None:
    assert len(left) == len(right), f"{where}: {len(left)} and {len(right)} values"
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        assert same(one, other), f"{where}, value {number}:\n{one!r:.2000}\n{other!r:.2000}"


def same(one: object, other: object) -> bool:
    """Whether two values have the same type and bits. All NaN are the same."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if (one.dtype, one.shape, one.device, one.layout) != (other.dtype, other.shape, other.device, other.layout):
            return False
        left, right = _plain(one), _plain(other)
        return bool(((left == right) & (left.signbit() == right.signbit()) | (left.isnan() & right.isnan())).all())
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _plain(tensor: Tensor) -> Tensor:
    """The values as they are in memory, complex numbers as two, small floats wider."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.float() if plain.is_floating_point() and plain.element_size() < 2 else plain
