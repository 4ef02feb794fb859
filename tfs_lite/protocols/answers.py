"""Two answers to one request, compared: the one that was recorded, and the one that another version gives.

    recorded, got, the outputs of the other version's signature, tolerances  ->  Comparison

Pure, for any thread. Numbers of floating types are the same within ``atol`` + ``rtol`` times the recorded one, NaN is
the same as NaN, and all else has to be equal.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tfs_lite.core.signature import Dim, TensorSpec, format_shape
from tfs_lite.protocols.dtypes import Array, from_numpy


class Likeness(enum.Enum):
    """In the order of their weight."""

    SAME = "same"
    CHANGED = "changed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``output``: the one that the likeness is about, and ``what``: a sentence about it; both are empty for SAME.
    ``difference``: the largest difference of two numbers in all outputs, in float64; inf where one of them is infinite
    or NaN."""

    likeness: Likeness = Likeness.SAME
    output: str = ""
    what: str = ""
    difference: float = 0.0

    def __str__(self) -> str:
        return f"output {self.output}: {self.what}" if self.output else self.what


def compare(
    recorded: Mapping[str, Array],
    got: Mapping[str, Array],
    outputs: Iterable[TensorSpec] = (),
    rtol: float = 0.01,
    atol: float = 0.0001,
) -> Comparison:
    """FAILED: a recorded output is missing, its dtype, rank or a fixed size is another, or it is NaN or infinite where
    the recorded one is not. CHANGED: other values, or another size where ``outputs`` leave it open. Outputs that were
    not recorded do not count."""
    shapes = {spec.name: spec.shape for spec in outputs}
    found = [_compare(name, array, got.get(name), shapes.get(name), rtol, atol) for name, array in recorded.items()]
    if not found:
        return Comparison()
    worst = max(found, key=lambda one: (_WEIGHTS[one.likeness], one.difference))
    return Comparison(worst.likeness, worst.output, worst.what, max(one.difference for one in found))


def nonfinite(got: Mapping[str, Array]) -> Comparison:
    """FAILED if a number is NaN or infinite: for an answer that there is no recorded one for."""
    for name, array in got.items():
        count = 0 if not _is_inexact(array) else int(np.count_nonzero(~np.isfinite(_wide(array))))
        if count:
            return Comparison(Likeness.FAILED, name, f"{count} of {array.size} values are NaN or infinite", np.inf)
    return Comparison()


_WEIGHTS = {likeness: weight for weight, likeness in enumerate(Likeness)}


def _compare(
    name: str, recorded: Array, got: Array | None, shape: tuple[Dim, ...] | None, rtol: float, atol: float
) -> Comparison:
    if got is None:
        return Comparison(Likeness.FAILED, name, "it was recorded, and is missing")
    what = f"recorded {_shown(recorded)}, got {_shown(got)}"
    if from_numpy(recorded.dtype) is not from_numpy(got.dtype) or recorded.ndim != got.ndim:
        return Comparison(Likeness.FAILED, name, what)
    if recorded.shape == got.shape:
        return _numbers(name, recorded, got, rtol, atol) if _is_number(recorded) else _values(name, recorded, got)
    fixed = [isinstance(dim, int) for dim in shape] if shape is not None else []
    sizes = zip(recorded.shape, got.shape, fixed, strict=False)
    if any(before != now and is_fixed for before, now, is_fixed in sizes):
        return Comparison(Likeness.FAILED, name, what)
    if nonfinite({name: recorded}).likeness is Likeness.SAME and nonfinite({name: got}).likeness is Likeness.FAILED:
        return nonfinite({name: got})
    return Comparison(Likeness.CHANGED, name, what)


def _values(name: str, recorded: Array, got: Array) -> Comparison:
    other = np.asarray(recorded != got, bool)
    count = int(np.count_nonzero(other))
    if not count:
        return Comparison()
    first = int(np.argmax(other))
    return Comparison(Likeness.CHANGED, name, _difference(count, "the first", recorded, got, first))


def _numbers(name: str, recorded: Array, got: Array, rtol: float, atol: float) -> Comparison:
    before, now, is_exact = _wide(recorded), _wide(got), not _is_inexact(recorded)
    with np.errstate(all="ignore"):
        broken = np.isfinite(before) & ~np.isfinite(now)
        alike = (recorded == got) if is_exact else (before == now) | (np.isnan(before) & np.isnan(now))
        by = np.nan_to_num(np.abs(now - before), nan=np.inf, posinf=np.inf)
        by = np.where(alike, 0.0, np.maximum(by, 1.0) if is_exact else by)
        other = ~alike & (is_exact | (by > atol + rtol * np.abs(np.where(np.isfinite(before), before, 0.0))))
    largest = float(by.max(initial=0.0))
    if broken.any():
        what = f"{np.count_nonzero(broken)} of {broken.size} values are NaN or infinite, and were not recorded so"
        return Comparison(Likeness.FAILED, name, what, largest)
    count = int(np.count_nonzero(other))
    if not count:
        return Comparison(difference=largest)
    worst = int(np.argmax(by))
    return Comparison(Likeness.CHANGED, name, _difference(count, "the most", recorded, got, worst), largest)


def _difference(count: int, which: str, recorded: Array, got: Array, index: int) -> str:
    pair = f"recorded {_short(recorded, index)}, got {_short(got, index)}"
    return f"{count} of {recorded.size} values differ, {which}: {pair}"


def _is_inexact(array: Array) -> bool:
    """Whether its numbers are floating or complex; numpy knows bfloat16 and float8 as no numbers of its own."""
    return array.dtype.kind in "fc" or (array.dtype.kind == "V" and array.dtype.isbuiltin == 2)


def _is_number(array: Array) -> bool:
    return array.dtype.kind in "iu" or _is_inexact(array)


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _shown(array: Array) -> str:
    """``float[1,10]``"""
    return f"{from_numpy(array.dtype).text}{format_shape(array.shape)}"


def _short(array: Array, index: int) -> str:
    value = array.reshape(-1)[index]
    return f"{float(value):.6g}" if _is_inexact(array) and array.dtype.kind != "c" else f"{value!s:.60}"
