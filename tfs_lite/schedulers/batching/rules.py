"""The rule which calls of a signature may share a run: worked out once per signature, asked once per request.

Calls can share a run only if all that goes in and comes out is one row for each of theirs: every input and output has
the same symbolic first dimension, and that symbol decides no other dimension (rows times rows would mix the calls).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tfs_lite.config.model import BATCH_SYMBOL
from tfs_lite.core.signature import (
    DataType,
    Dim,
    ShapeContract,
    Signature,
    SizeConditions,
    SymbolicDim,
    Tensor,
    TensorSpec,
)
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.schedulers.calls import rows_of

InputAxis: TypeAlias = tuple[str, int]
"""The name and axis of an input, where a size is read."""

Trim: TypeAlias = tuple[str, int, InputAxis]
"""(output, axis, input axis)."""

MAX_PADDED_RANK = 6
_ONE_SYMBOL = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class BatchRule:
    """The scheduler's knowledge of one signature whose calls may share a run. Pure; any thread.

    Every method takes inputs that were checked against the signature. Make it with :meth:`of`.
    """

    settings: BatchSettings
    """The settings it was made from, within what the model's batch dimension allows. Batches are formed by these."""
    names: tuple[str, ...]
    """Inputs, in the signature's order; empty if calls may differ in what they send."""
    max_rows: int | None
    """The most rows that the model takes; None means any number."""
    max_call_rows: int
    """The most rows of one call."""
    sizes: tuple[InputAxis, ...]
    """One axis for every symbol other than the batch: calls can be stacked as they are if all these sizes are equal."""
    untyped: tuple[str, ...]
    """Inputs without a declared dtype."""
    padded: frozenset[str]
    """Inputs that are filled up to the longest of a run."""
    trims: tuple[Trim, ...]
    """Triples of output, axis and input axis: the output is as long in that axis as the filled-up input, and is trimmed
    to the length that the call itself had."""
    too_deep: str = ""
    """An input that would have to be filled up, but has too many dimensions for that."""
    conditions: SizeConditions | None = None
    """The conditions that the sizes of every run have to meet, the rows among them."""

    @classmethod
    def of(cls, signature: Signature, settings: BatchSettings) -> BatchRule | None:
        """Returns None if every call of this signature runs alone."""
        batch = _batch_symbol(signature)
        if batch is None or not settings.merges:
            return None
        differ = bool(signature.optional)
        sizes = {} if differ else _first_axes(signature)
        fill = settings.pad_variable_length and not differ and not _has_derived(signature, sizes)
        padded = frozenset(spec.name for spec in signature.inputs if fill and any(_later(spec)))
        deep = (
            spec.name for spec in signature.inputs if spec.name in padded and len(spec.shape or ()) > MAX_PADDED_RANK
        )
        max_rows = _max_rows(signature)
        settings = _within(settings, max_rows)
        return cls(
            settings=settings,
            names=() if differ else signature.input_names,
            max_rows=max_rows,
            max_call_rows=_max_call_rows(settings, max_rows),
            sizes=tuple(sizes.values()),
            untyped=tuple(spec.name for spec in signature.inputs if spec.dtype is DataType.INVALID and not differ),
            padded=padded,
            trims=tuple(_trims(signature, sizes)) if fill else (),
            too_deep=next(deep, ""),
            conditions=signature.conditions,
        )

    def rows(self, inputs: Mapping[str, Tensor]) -> int:
        """How many rows the call has; 0 is possible."""
        return inputs[self.names[0]].shape[0] if self.names else rows_of(inputs)

    def key(self, inputs: Mapping[str, Tensor], exact: bool = False) -> Hashable:
        """The key of a call: only calls with equal keys may share a run. None for every call where nothing but rows can
        differ. ``exact``: nothing is filled up.

        An input without elements has nothing to be filled up with: such a call shares a run only with calls of the very
        same sizes, so that it neither fails nor makes others fail. Where calls may differ in what they send, those that
        share a run agree in names, dtypes and the shape of a row; one that sends nothing runs alone.
        """
        if not self.names:
            return _row_shapes(inputs) or object()
        if not (self.sizes or self.untyped):
            return None
        dtypes = tuple([inputs[name].dtype for name in self.untyped])
        if self.padded and not exact and not any(0 in inputs[name].shape for name in self.padded):
            return dtypes or None
        return tuple([inputs[name].shape[axis] for name, axis in self.sizes]), dtypes

    def takes(self, calls: Sequence[Mapping[str, Tensor]], rows: int) -> bool:
        """Whether the model takes a run of calls with these inputs and equal keys, with so many rows in all."""
        if self.conditions is None:
            return True
        sizes = [
            max(inputs[name].shape[axis] for inputs in calls) if axis else rows for name, axis in self.conditions.axes
        ]
        return self.conditions.failing(tuple(sizes)) is None

    def part_rows(self, inputs: Mapping[str, Tensor], rows: int) -> int:
        """How many rows each run of a call with more rows than a run may have gets, the last one fewer: as many as the
        model takes. 0 if it takes the call in no such parts."""
        most = self.settings.max_batch_size
        sizes = (most,) if self.conditions is None else range(most, 0, -1)
        for size in sizes:
            if self.takes((inputs,), size) and (not rows % size or self.takes((inputs,), rows % size)):
                return size
        return 0

    def refusal(self, rows: int, model: str = "the model") -> Status | None:
        """Returns INVALID_ARGUMENT for a call that cannot be batched: too many rows, or an input too deep to be filled
        up. ``model`` is for the message."""
        if rows > self.max_call_rows:
            reason = f"Task size {rows} is larger than maximum input batch size {self.max_call_rows} of {model}"
        elif self.too_deep:
            reason = (
                f"Only tensors with rank from 1 to {MAX_PADDED_RANK} can be padded: input {self.too_deep} of {model} "
                "has a higher rank"
            )
        else:
            return None
        return Status(StatusCode.INVALID_ARGUMENT, reason)


def _row_shapes(inputs: Mapping[str, Tensor]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple(sorted((name, array.shape[1:], str(array.dtype)) for name, array in inputs.items()))


def _batch_symbol(signature: Signature) -> str | None:
    """The symbol that is the first dimension, and only that, of every input and output."""
    specs = (*signature.inputs, *signature.outputs)
    symbols = {spec.batch for spec in specs}
    if not signature.inputs or len(symbols) != 1:
        return None
    (batch,) = symbols
    if signature.conditions is not None and not signature.conditions.complete:
        return None  # nobody knows which sizes a run may have
    if batch is None or not _ONE_SYMBOL.fullmatch(batch):
        return None
    return None if any(_depends(symbol, batch) for spec in specs for _, symbol in _later(spec)) else batch


def why_alone(signature: Signature) -> str:
    """The reason why the calls of a signature never share a run, whatever the settings say; empty if they may."""
    specs = (*signature.inputs, *signature.outputs)
    if _batch_symbol(signature) is not None:
        return ""
    if signature.conditions is not None and not signature.conditions.complete:
        return "a row's answer depends on the rows beside it, or the sizes that a run may have are not known"
    if fixed := next((spec.name for spec in specs if spec.shape and isinstance(spec.shape[0], int)), ""):
        return f"the first dimension of {fixed} is fixed"
    return "its inputs and outputs have no open first dimension in common"


def with_batch(signature: Signature) -> Signature:
    """The signature of a model that has a batch by its config, whatever it declares itself: open first dimensions are
    the batch, and so are those of tensors of unknown shape. Of outputs that is not sure then."""
    specs = (*signature.inputs, *signature.outputs)
    firsts = {spec.batch for spec in specs}
    if signature.outputs and len(firsts) == 1:
        return signature
    if any(_depends(symbol, first) for spec in specs for _, symbol in _later(spec) for first in firsts if first):
        return signature
    sure = ShapeContract.INPUTS if signature.contract is ShapeContract.ALL else signature.contract
    inputs, outputs = (tuple(map(_with_batch, found)) for found in (signature.inputs, signature.outputs))
    return replace(signature, inputs=inputs, outputs=outputs, contract=sure)


def _with_batch(spec: TensorSpec) -> TensorSpec:
    first: Dim = SymbolicDim(BATCH_SYMBOL)
    if spec.shape:
        declared = spec.shape[0]
        first = replace(declared, symbol=BATCH_SYMBOL) if isinstance(declared, SymbolicDim) else declared
    return spec if spec.shape == () else replace(spec, shape=(first, *(spec.shape or ())[1:]))


def _depends(symbol: str, batch: str) -> bool:
    """Whether a size follows from the number of rows. Exporters name symbols ``s0`` and write sizes that follow as
    expressions such as ``2*s0``; a symbol without a number is a name that an operator gave."""
    if symbol == batch:
        return True
    return batch[-1].isdigit() and re.search(rf"\b{batch}\b", symbol) is not None


def _later(spec: TensorSpec) -> Iterator[tuple[int, str]]:
    """Yields axis and symbol of the symbolic dimensions after the first."""
    for axis, dim in enumerate(spec.shape or ()):
        if axis and isinstance(dim, SymbolicDim):
            yield axis, dim.symbol


def _first_axes(signature: Signature) -> dict[str, InputAxis]:
    """Maps every symbol other than the batch to the first input that has it; equal symbols have equal sizes in one
    call."""
    axes: dict[str, InputAxis] = {}
    for spec in signature.inputs:
        for axis, symbol in _later(spec):
            axes.setdefault(symbol, (spec.name, axis))
    return axes


def _has_derived(signature: Signature, axes: Mapping[str, InputAxis]) -> bool:
    """Whether an output has a size such as ``2*s1``: the part of a call that was filled up could not be told."""
    symbols = {symbol for spec in signature.outputs for _, symbol in _later(spec)} - axes.keys()
    return any(_depends(symbol, one) for symbol in symbols for one in axes)


def _trims(signature: Signature, axes: Mapping[str, InputAxis]) -> Iterator[Trim]:
    for spec in signature.outputs:
        for axis, symbol in _later(spec):
            if symbol in axes:
                yield spec.name, axis, axes[symbol]


def _max_rows(signature: Signature) -> int | None:
    firsts = [spec.shape[0] for spec in signature.inputs if spec.shape]
    return min(
        (dim.maximum for dim in firsts if isinstance(dim, SymbolicDim) and dim.maximum is not None), default=None
    )


def _within(settings: BatchSettings, max_rows: int | None) -> BatchSettings:
    if max_rows is None or max_rows >= settings.max_batch_size:
        return settings
    return replace(
        settings,
        max_batch_size=max_rows,
        preferred=tuple(size for size in settings.preferred if size <= max_rows),
        allowed_sizes=tuple(size for size in settings.allowed_sizes if size <= max_rows),
    )


def _max_call_rows(settings: BatchSettings, max_rows: int | None) -> int:
    most = settings.max_request_rows or settings.max_batch_size
    if not settings.split_large:
        most = min(most, settings.max_batch_size)
    return most if max_rows is None else min(most, max_rows)
