"""Several calls become one run, and its results are split into every call's own rows.

    calls -> assemble -> Batch -> Model.run(signature, batch.inputs, batch.outputs) -> split_outputs -> answers

Rows are in the order of the calls, one call after the other; padding comes last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np

from tfs_lite.core.model import Model, PredictCall, Shapes
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one run. ``outputs`` is empty if some call wants all. ``rows`` counts those of the calls,
    ``padding`` those added; ``filled`` says that an input of some call is longer here than the call sent it."""

    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    rows: int
    padding: int
    filled: bool = False


def assemble(
    rule: BatchRule | None,
    model: Model,
    signature_key: str,
    calls: Sequence[PredictCall],
    sizes: Sequence[int],
    settings: BatchSettings,
) -> Batch:
    """Stacks the inputs of calls with equal keys (``rule.key``). ``sizes`` are their rows (``rule.rows``), 0 included.

    A call alone that needs no padding is passed on as it is, and so is the only call where there is no rule. Else rows
    are copied into the memory that ``model.stage`` gives: call ``model.run`` next, on this thread, with
    ``batch.inputs``. Raises what ``model.stage`` raises.
    """
    rows = sum(sizes)
    padding = 0 if rule is None else _padding(rule, rows, settings)
    if padding and rule is not None and not rule.takes([call.inputs for call in calls], rows + padding):
        padding = 0
    if rule is None or (len(calls) == 1 and not padding):
        (call,) = calls
        return Batch(call.inputs, call.outputs, rows, 0)
    sent = [cast("Mapping[str, Array]", call.inputs) for call in calls]
    columns = {name: [inputs[name] for inputs in sent] for name in rule.names or sent[0]}
    tails = {name: _tail(column, name in rule.padded) for name, column in columns.items()}
    shapes = {name: ((rows + padding, *tails[name]), column[0].dtype) for name, column in columns.items()}
    arrays = batch_memory(model, signature_key, shapes)
    last = rows - next((size for size in reversed(sizes) if size), 0)
    filled = False
    for name, column in columns.items():
        array = arrays[name]
        target = array[:rows] if padding else array
        if name not in rule.padded or all(part.shape[1:] == tails[name] for part in column):
            np.concatenate(column, out=target)
        else:
            _fill_up(target, column)
            filled = True
        if padding:
            array[rows:] = array[last : last + 1]
    return Batch(arrays, wanted_outputs(calls), rows, padding, filled)


def split_outputs(
    rule: BatchRule | None,
    batch: Batch,
    results: Mapping[str, Tensor],
    calls: Sequence[PredictCall],
    sizes: Sequence[int],
) -> list[Mapping[str, Tensor] | Status]:
    """The answers of the calls, in their order: views of their rows in the results of ``batch``, which was assembled
    from the same calls. An output's dimension that has the symbol of a filled-up input dimension is cut to the call's
    own length.

    FAILED_PRECONDITION for all if the results cannot be told apart by rows, or cannot be cut.
    """
    if len(calls) == 1 and not batch.padding:
        return [results]
    arrays = cast("Mapping[str, Array]", results)
    fault = rows_fault(arrays, batch.rows + batch.padding)
    if fault is not None:
        return [fault] * len(calls)
    if batch.filled and rule is not None and (fault := _length_fault(rule, batch, arrays)) is not None:
        return [fault] * len(calls)
    answers = _rows_of_each(arrays, calls, sizes)
    if batch.filled and rule is not None:
        for call, answer in zip(calls, answers, strict=True):
            _trim(rule, call, answer)
    return cast("list[Mapping[str, Tensor] | Status]", answers)


def rows_fault(results: Mapping[str, Tensor], rows: int) -> Status | None:
    """Returns FAILED_PRECONDITION unless every result has ``rows`` rows."""
    for name, result in results.items():
        if not result.shape:
            reason = f"Batched output tensor has 0 dimensions: output {name}, expected {rows} rows"
        elif result.shape[0] != rows:
            reason = (
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input "
                f"tensors: output {name} has {result.shape[0]}, expected {rows}"
            )
        else:
            continue
        return Status(StatusCode.FAILED_PRECONDITION, reason)
    return None


def batch_memory(model: Model, signature_key: str, shapes: Shapes) -> dict[str, Array]:
    """The model's own memory where it has some. Texts are objects of this process: no model has memory for them."""
    numbers = {name: shape for name, shape in shapes.items() if not shape[1].hasobject}
    staged = cast("Mapping[str, Array]", (model.stage(signature_key, numbers) if numbers else None) or {})
    return {name: staged[name] if name in staged else np.empty(*shape) for name, shape in shapes.items()}


def _padding(rule: BatchRule, rows: int, settings: BatchSettings) -> int:
    """Rows up to the next allowed size. Without a row there is nothing to copy; what is larger than all sizes stays."""
    allowed = settings.allowed_sizes
    if not allowed or not rows:
        return 0
    index = bisect_left(allowed, rows)
    if index == len(allowed) or (rule.max_rows is not None and allowed[index] > rule.max_rows):
        return 0
    return allowed[index] - rows


def wanted_outputs(calls: Sequence[PredictCall]) -> tuple[str, ...]:
    """All outputs that some call wants; empty if one wants all."""
    wishes = {call.outputs for call in calls}
    if len(wishes) == 1:
        return calls[0].outputs
    return () if () in wishes else tuple(dict.fromkeys(chain.from_iterable(call.outputs for call in calls)))


def _tail(column: Sequence[Array], padded: bool) -> tuple[int, ...]:
    """The shape of one row: the largest of each dimension, where calls may differ."""
    if not padded:
        return tuple(column[0].shape[1:])
    return tuple(map(max, zip(*[array.shape[1:] for array in column], strict=True)))


def _fill_up(target: Array, column: Sequence[Array]) -> None:
    start = 0
    for array in column:
        end = start + array.shape[0]
        if array.shape[1:] == target.shape[1:]:
            target[start:end] = array
        else:
            _write(target[start:end], array)
        start = end


def _write(target: Array, array: Array) -> None:
    """Writes ``array`` into the corner of ``target``, and its first element everywhere else. Slices throughout: a text
    that numpy sees as a scalar would lose its trailing zero bytes."""
    first = array[(slice(1),) * array.ndim]
    for axis, size in enumerate(array.shape):
        if size < target.shape[axis]:
            target[(slice(None),) * axis + (slice(size, None),)] = first
    target[tuple(map(slice, array.shape))] = array


def _rows_of_each(
    arrays: Mapping[str, Array], calls: Sequence[PredictCall], sizes: Sequence[int]
) -> list[dict[str, Array]]:
    """The rows of each call, by plain loops: comprehensions would double the time, and there are as many of these as
    calls."""
    answers: list[dict[str, Array]] = []
    everything, names, start = tuple(arrays.items()), tuple(arrays), 0
    for call, size in zip(calls, sizes, strict=True):
        end = start + size
        answer: dict[str, Array] = {}
        if not call.outputs or call.outputs == names:
            for name, array in everything:
                answer[name] = array[start:end]
        else:
            for name in call.outputs:
                if name in arrays:
                    answer[name] = arrays[name][start:end]
        answers.append(answer)
        start = end
    return answers


def _length_fault(rule: BatchRule, batch: Batch, arrays: Mapping[str, Array]) -> Status | None:
    """FAILED_PRECONDITION unless the outputs that are to be cut are as long as the filled-up inputs."""
    for name, axis, (source, source_axis) in rule.trims:
        length = batch.inputs[source].shape[source_axis]
        if name in arrays and arrays[name].shape[axis : axis + 1] != (length,):
            reason = (
                f"output {name} of shape {arrays[name].shape} has not the length {length} of the padded input {source}"
            )
            return Status(StatusCode.FAILED_PRECONDITION, reason)
    return None


def _trim(rule: BatchRule, call: PredictCall, answer: dict[str, Array]) -> None:
    for name, axis, (source, source_axis) in rule.trims:
        if name in answer:
            own = call.inputs[source].shape[source_axis]
            answer[name] = answer[name][(slice(None),) * axis + (slice(own),)]
