"""What an exported program shows about itself at the load, by runs on made-up inputs of one row, and of two if need be.

A program that gives something else than it declares answers no request: it is refused. One that does so for one row
only, such as one with a bare ``squeeze()``, takes requests of at least two, which becomes a condition of its signature.
One that answers is right: what it fails on later is the request. A program that fails on made-up inputs shows nothing,
because they may be no inputs for it.

One row comes first, because it costs least and because torch has not seen it: its trace stands for two rows and more,
and the declared shapes are those of the trace. Where the row is answered, two rows are run only for programs with
operators whose shapes torch does not know by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import torch

from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.pytorch.tensors import TORCH_DTYPES, as_array, check_tensors, to_arrays
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, example_shapes
from tfs_lite.core.status import ServingError, failed_precondition
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.protocols.dtypes import Array

SIZES = (2, 8, 64)
"""Of all sizes that requests choose, but for the rows: the first ones are tried that the program takes."""
INTEGERS = (1, 0)
"""Values of integers: as good a divisor as a place in a table, and a good begin of places."""
MANY = 2
"""Rows."""
MAX_ELEMENTS = 1 << 22
"""Of made-up inputs: larger ones are not made."""
CPU = torch.device("cpu")
logger = logging.getLogger(__name__)

Run = Callable[[Mapping[str, Array]], Mapping[str, object]]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """``signature``: the program's, with the conditions that were found. ``answers``: it has answered made-up
    inputs."""

    signature: Signature
    answers: bool = False


def check_itself(servable_id: ServableId, signature: Signature, run: Run, several: bool = False) -> SelfCheck:
    """Runs the program for each of :data:`SIZES` and :data:`INTEGERS` until it answers. ``several``: two rows are run
    also where one row is answered. FAILED_PRECONDITION if it can answer no request."""
    tried = set[tuple[int, ...]]()
    has_integers = any(not TORCH_DTYPES[spec.dtype].is_floating_point for spec in signature.inputs)
    for size, integer in product(SIZES, INTEGERS if has_integers else INTEGERS[:1]):
        one, many = (_shapes(signature, size, rows) for rows in (1, MANY))
        key = (integer, *(size for shape in (many or one or {}).values() for size in shape))
        if key in tried or not (one or many):
            continue
        tried.add(key)
        single = fault = _fault(signature, one, integer, run) if one else None
        if many and many != one and (several or fault or not one):
            fault = _fault(signature, many, integer, run)
        if fault is None:
            return SelfCheck(signature if single is None else _without_one_row(servable_id, signature, single), True)
        if many and isinstance(fault, ServingError):
            raise failed_precondition(f"it cannot answer any request: on made-up inputs {fault.status.message}")
    return SelfCheck(signature)


def made_up(signature: Signature, shapes: Shapes, integer: int = 1) -> list[torch.Tensor]:
    """Inputs that most models take: random numbers between 0 and 1, integers and truth values of 1."""
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for spec in signature.inputs:
        shape, dtype = shapes[spec.name], TORCH_DTYPES[spec.dtype]
        floats = dtype.is_floating_point or dtype.is_complex
        value = torch.rand(shape, generator=generator) if floats else torch.full(shape, float(integer))
        inputs.append(value.to(dtype))
    return inputs


def _without_one_row(servable_id: ServableId, signature: Signature, fault: Exception) -> Signature:
    """The signature for two rows and more, because of the ``fault`` of one row."""
    reason = fault.status.message if isinstance(fault, ServingError) else sentence(fault)
    logger.warning(
        "%s takes no request of one row: on made-up inputs of one row %s. Save the model again without a bare "
        "squeeze(), or whatever else makes one row another case",
        servable_id,
        reason,
    )
    known = signature.conditions
    axes, texts = (known.axes, known.texts) if known is not None else ((), ())
    conditions = read_conditions(
        (*axes, (signature.inputs[0].name, 0)), (*texts, f"n{len(axes)} >= 2"), known is None or known.complete
    )
    return replace(signature, conditions=conditions)


def _fault(signature: Signature, shapes: Shapes, integer: int, run: Run) -> Exception | None:
    """Why the program does not answer made-up inputs of these shapes: a ServingError if it gives something else than it
    declares, the error itself if it fails; None if it answers."""
    inputs = dict(zip(signature.input_names, map(as_array, made_up(signature, shapes, integer)), strict=True))
    try:
        results = run(inputs)
        check_tensors(signature, inputs, results)
        to_arrays({name: results[name] for name in signature.output_names}, CPU)
    except Exception as error:
        return error
    return None


def _shapes(signature: Signature, size: int, rows: int) -> Shapes | None:
    """None if the signature takes no such inputs, or they would be too large."""
    shapes = example_shapes(signature, size, rows)
    return shapes if shapes is not None and sum(map(prod, shapes.values())) <= MAX_ELEMENTS else None
