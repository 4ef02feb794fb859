"""The check of a program or a script at the load, by runs on made-up inputs of one row and more.

One that gives something else than it declares answers no request: it is refused. One that does so for some numbers of
rows, such as one with a bare ``squeeze()`` and a trace that kept the rows of its example, takes requests of the others,
which becomes a condition of its signature. One whose answer for a row depends on the other rows (a batch norm in
training, a mean over the rows) gets no rows of other requests. One that answers is right: what it fails on later is the
request. One that fails on made-up inputs shows nothing, because they may be no inputs for it.

One row comes first, because it costs least and because torch has not seen it: its trace stands for two rows and more,
and the declared shapes are those of the trace. Where the row is answered, more rows are run only for scripts, for
operators whose shapes torch does not know by itself, and where requests may share runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
import torch

from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.pytorch.tensors import TORCH_DTYPES, as_array, check_tensors, to_arrays
from tfs_lite.adapters.results import DEPENDS, alike
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, TensorSpec, common_batch, example_shapes
from tfs_lite.core.status import ServingError, failed_precondition
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.protocols.dtypes import Array

SIZES = (2, 8, 64)
"""The sizes to try for all those that requests choose, but for the rows: the first ones that the program takes
count."""
INTEGERS = (1, 0)
"""Values of integers: as good a divisor as a place in a table, and a good begin of places."""
MANY = 2
MORE = 3
"""Rows."""
MAX_ELEMENTS = 1 << 22
"""The most elements of made-up inputs: larger ones are not made."""
CPU = torch.device("cpu")
logger = logging.getLogger(__name__)

Run = Callable[[Mapping[str, Array]], Mapping[str, object]]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The result of the check. ``signature``: the program's, with the conditions that were found. ``answers``: it has
    answered made-up inputs."""

    signature: Signature
    answers: bool = False


def check_itself(
    servable_id: ServableId,
    signature: Signature,
    run: Run,
    *,
    several: bool = False,
    traced: bool = False,
    shares: bool = True,
) -> SelfCheck:
    """Runs the program for each of :data:`SIZES` and :data:`INTEGERS` until it answers. ``several``: two rows are run
    also where one row is answered. ``traced``: it may know nothing of the rows that it was made with, and answer only
    so many. ``shares``: requests may share runs, so that rows must not depend on one another.
    FAILED_PRECONDITION if it can answer no request."""
    tried = set[tuple[int, ...]]()
    has_integers = any(not _is_continuous(spec) for spec in signature.inputs)
    has_batch = common_batch(signature) is not None
    for size, integer in product(SIZES, INTEGERS if has_integers else INTEGERS[:1]):
        shapes = {rows: _shapes(signature, size, rows) for rows in ((1, MANY, MORE) if has_batch else (1,))}
        one, many = shapes[1], shapes.get(MANY)
        key = (integer, *(length for shape in (many or one or {}).values() for length in shape))
        if key in tried or not (one or many):
            continue
        tried.add(key)
        asked = _Asked(signature, shapes, integer, run)
        single = fault = asked.fault(1)
        if many and many != one and (several or traced or single or not one):
            fault = asked.fault(MANY)
        if fault is None:
            return SelfCheck(_conditioned_by_rows(servable_id, signature, asked, traced, shares), answers=True)
        if traced and one and many and single is None:
            return SelfCheck(_at_most(servable_id, signature, 1, fault), answers=True)
        if isinstance(fault, ServingError) and (many or not has_batch):
            raise failed_precondition(f"it cannot answer any request: on made-up inputs {fault.status.message}")
    return SelfCheck(signature)


class _Asked:
    """The answers of a program to made-up inputs of several numbers of rows, which begin alike. ``shapes``: of those
    that the signature takes, None for others."""

    def __init__(self, signature: Signature, shapes: Mapping[int, Shapes | None], integer: int, run: Run) -> None:
        self._signature, self._run, self._integer = signature, run, integer
        self.most, largest = max((rows, shape) for rows, shape in shapes.items() if shape is not None)
        self._shapes, self._inputs = shapes, made_up(signature, largest, integer)
        self._answers: dict[int, Mapping[str, Array] | Exception] = {}

    def fault(self, rows: int) -> Exception | None:
        """Why the program does not answer so many rows: a ServingError if it gives something else than it declares, the
        error itself if it fails. None if it answers, and if the signature takes no such inputs."""
        if rows not in self._answers and self._shapes.get(rows) is not None:
            try:
                self._answers[rows] = self._answer(self._inputs, rows)
            except Exception as error:
                self._answers[rows] = error
        found = self._answers.get(rows)
        return found if isinstance(found, Exception) else None

    def merges(self) -> str:
        """The first output of floating-point numbers whose rows depend on the other rows. Empty if there is none, if
        outputs have no row for each row, and if the program answers differently from call to call."""
        few = 1 if isinstance(self._answers.get(1), Mapping) else MANY
        if self.most <= few or any(spec.batch != common_batch(self._signature) for spec in self._signature.outputs):
            return ""
        inputs = [value.clone() for value in self._inputs]
        for spec, value in zip(self._signature.inputs, inputs, strict=True):
            if not _is_continuous(spec):
                value[few:] = 1 - self._integer  # or company would be alike
        known = self._answers.get(few)  # the rows that come first are as they were
        try:
            alone = known if isinstance(known, Mapping) else self._answer(inputs, few)
            together = self._answer(inputs, self.most)
            for name, answer in alone.items():
                if answer.shape[1:] != together[name].shape[1:]:
                    return ""  # as similarities of all rows with all: their signature says it
                if answer.dtype.kind in "fc" and not alike(answer, together[name][:few]):
                    again = self._answer(inputs, few)[name], self._answer(inputs, self.most)[name]
                    return name if alike(answer, again[0]) and alike(together[name], again[1]) else ""
        except Exception:
            return ""
        return ""

    def _answer(self, inputs: Sequence[torch.Tensor], rows: int) -> dict[str, Array]:
        if common_batch(self._signature) is not None:
            inputs = [value[:rows] for value in inputs]
        named = dict(zip(self._signature.input_names, map(as_array, inputs), strict=True))
        results = self._run(named)
        check_tensors(self._signature, named, results)
        given = {name: results[name] for name in self._signature.output_names or results}
        return {name: np.asarray(array) for name, array in to_arrays(given, CPU).items()}


def made_up(signature: Signature, shapes: Shapes, integer: int = 1) -> list[torch.Tensor]:
    """Inputs that most models take: random numbers between 0 and 1, integers and truth values of 1."""
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for spec in signature.inputs:
        shape, dtype = shapes[spec.name], TORCH_DTYPES[spec.dtype]
        value = torch.rand(shape, generator=generator) if _is_continuous(spec) else torch.full(shape, float(integer))
        inputs.append(value.to(dtype))
    return inputs


def _conditioned_by_rows(
    servable_id: ServableId, signature: Signature, asked: _Asked, traced: bool, shares: bool
) -> Signature:
    """The signature of a program that answers the rows which it was asked for last."""
    alone = asked.fault(1)
    if alone is not None:
        signature = _at_least_two(servable_id, signature, alone)
    more = asked.fault(MORE) if traced else None
    if more is not None:
        return _at_most(servable_id, signature, MANY, more)
    output = asked.merges() if shares else ""
    if output:
        logger.warning(DEPENDS, servable_id, output)
        return _conditioned(signature, (), complete=False)
    return signature


def _at_least_two(servable_id: ServableId, signature: Signature, fault: Exception) -> Signature:
    logger.warning(
        "%s takes no request of one row: on made-up inputs of one row %s. Save the model again without a bare "
        "squeeze(), or whatever else makes one row another case",
        servable_id,
        _reason(fault),
    )
    return _conditioned(signature, (f">= {MANY}",))


def _at_most(servable_id: ServableId, signature: Signature, rows: int, fault: Exception) -> Signature:
    logger.warning(
        "%s takes no request of more than %d rows: on made-up inputs of %d rows %s. A trace keeps the number of rows "
        "of its example where Python counts them: save the model again with tfs_lite.save",
        servable_id,
        rows,
        rows + 1,
        _reason(fault),
    )
    return _conditioned(signature, (f"<= {rows}",))


def _reason(fault: Exception) -> str:
    return fault.status.message if isinstance(fault, ServingError) else sentence(fault)


def _conditioned(signature: Signature, rows: Sequence[str], complete: bool = True) -> Signature:
    """The signature with these conditions on the number of rows. Without ``complete``, calls run alone."""
    known = signature.conditions
    axes, texts = (known.axes, known.texts) if known is not None else ((), ())
    conditions = read_conditions(
        (*axes, (signature.inputs[0].name, 0)) if rows else axes,
        (*texts, *(f"n{len(axes)} {condition}" for condition in rows)),
        complete and (known is None or known.complete),
    )
    return replace(signature, conditions=conditions)


def _is_continuous(spec: TensorSpec) -> bool:
    dtype = TORCH_DTYPES[spec.dtype]
    return dtype.is_floating_point or dtype.is_complex


def _shapes(signature: Signature, size: int, rows: int) -> Shapes | None:
    """The shapes of made-up inputs; None if the signature takes no such inputs, or they would be too large."""
    shapes = example_shapes(signature, size, rows)
    return shapes if shapes is not None and sum(map(prod, shapes.values())) <= MAX_ELEMENTS else None
