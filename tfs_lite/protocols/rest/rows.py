"""The row form of a REST body: ``instances``, a list with one element for each row.

The first element decides what the elements are: the rows of the only input, or objects with one value for each input.
All rows of an input have the same shape. An error about an element has its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

import numpy as np

from tfs_lite.core.signature import DataType, Signature
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES, Array
from tfs_lite.protocols.json.arrays import first_unfit, read_dense
from tfs_lite.protocols.json.tensors import RowChecker, element_error, infer_dtype, irregular, runs
from tfs_lite.protocols.json.values import is_base64, shorten, show, type_name


def read_rows(value: object, signature: Signature) -> dict[str, Array]:
    """The arrays of the inputs, by name, whose first dimension is the number of elements of ``value``.

    Objects may leave out an input that has a default, or is optional, if they all do; a null leaves it out.
    INVALID_ARGUMENT for whatever is malformed, also where an element alone would have another code.
    """
    if not isinstance(value, list | np.ndarray):
        raise invalid_argument(f"'instances' is expected to be an list/array, got {type_name(value)}: {show(value)}")
    if not len(value):
        raise invalid_argument("No values in 'instances' array")
    if isinstance(value, list) and _is_object(value[0]):
        return _object_rows(value, signature)
    if len(signature.inputs) > 1:
        raise invalid_argument(
            "instances is a plain list, but the signature has several inputs: "
            f"expected a list of objects with the keys {','.join(sorted(signature.input_names))}"
        )
    spec = signature.inputs[0]
    return {spec.name: _value_rows(value, spec.dtype or infer_dtype(value))}


def _value_rows(rows: list[Any] | Array, dtype: DataType) -> Array:
    array = read_dense(rows, dtype)
    if array is not None:
        return array
    if isinstance(rows, np.ndarray):
        position = first_unfit(rows, dtype) or 0
        raise _element_error(position * len(rows) // rows.size, element_error(rows, position, dtype))
    checker = RowChecker(dtype)
    for start, some in runs(rows):
        array = read_dense(some, dtype)
        if array is None or not checker.fits(array):
            _check_values(checker, some, start)
    raise irregular()


def _check_values(checker: RowChecker, rows: list[Any], start: int) -> None:
    """Raises the first thing that is wrong with the rows; ``start`` is the number of the first."""
    for number, row in enumerate(rows, start):
        if _is_object(row):
            raise invalid_argument(f"Expecting value/list but got object at item {number} of 'instances' list")
        try:
            checker.check(row)
        except ServingError as error:
            raise _element_error(number, error) from None


def _object_rows(rows: list[Any], signature: Signature) -> dict[str, Array]:
    if signature.defaults or signature.optional:
        dispensable = signature.dispensable
        rows = [_without_nulls(row, dispensable) for row in rows]
    names = [spec.name for spec in signature.inputs if spec.name in rows[0] or spec.name not in signature.dispensable]
    if not names and all(type(row) is dict and not row for row in rows):
        return _repeated_defaults(signature, len(rows))
    dtypes = {spec.name: spec.dtype or infer_dtype(_values(rows, spec.name)) for spec in signature.inputs}
    arrays = _dense_columns(rows, names, dtypes)
    if arrays is not None:
        return arrays
    checkers = {name: RowChecker(dtype) for name, dtype in dtypes.items()}
    for start, some in runs(rows):
        arrays = _dense_columns(some, names, dtypes)
        if arrays is None or not all(checkers[name].fits(array) for name, array in arrays.items()):
            _check_objects(checkers, set(names), signature, some, start)
    raise irregular()


def _dense_columns(rows: list[Any], names: Sequence[str], dtypes: dict[str, DataType]) -> dict[str, Array] | None:
    """The arrays of rows with nothing wrong; None for others."""
    keys = set(names)
    if set(map(type, rows)) != {dict} or any(row.keys() != keys for row in rows):
        return None
    if keys == {"b64"} and any(map(is_base64, rows)):
        return None
    arrays = {}
    for name in names:
        array = read_dense([row[name] for row in rows], dtypes[name])
        if array is None:
            return None
        arrays[name] = array
    return arrays


def _check_objects(
    checkers: dict[str, RowChecker], expected: set[str], signature: Signature, rows: list[Any], start: int
) -> None:
    """Raises the first thing that is wrong with the rows; ``start`` is the number of the first."""
    for number, row in enumerate(rows, start):
        if not _is_object(row):
            raise invalid_argument(f"Expecting object but got list at item {number} of 'instances' list")
        for key, value in row.items():
            try:
                if key not in checkers:
                    raise invalid_argument(f"JSON object: does not have named input: {shorten(key)}")
                checkers[key].check(value)
            except ServingError as error:
                raise _element_error(number, error, key) from None
        if row.keys() != expected:
            known = ",".join(sorted(expected))
            hint = _hint(row.keys() ^ expected, signature)
            message = f"JSON object: {show(row)} keys must be equal to: {known}{hint}"
            raise _element_error(number, invalid_argument(message))


def _hint(differing: Set[str], signature: Signature) -> str:
    """A hint for an element that has, or lacks, inputs unlike the first one, where each by itself would be right."""
    if not differing <= signature.dispensable:
        return ""
    names = ",".join(sorted(differing))
    return f"; every element has to have {names}, or none of them"


def _repeated_defaults(signature: Signature, rows: int) -> dict[str, Array]:
    """The arrays of rows without any value: the defaults, repeated for every row, up to the limit of repetition."""
    arrays = {}
    for spec in signature.inputs:
        if spec.name not in signature.defaults:
            continue
        default = np.asarray(signature.defaults[spec.name])
        if spec.batch is None:
            continue
        if default.nbytes * rows > MAX_FILL_BYTES:
            raise invalid_argument(
                f"the default of input {spec.name} would fill {default.nbytes * rows} bytes for {rows} rows, "
                f"at most {MAX_FILL_BYTES} are allowed"
            )
        arrays[spec.name] = np.repeat(default[np.newaxis], rows, axis=0)
    return arrays


def _without_nulls(row: Any, dispensable: Set[str]) -> Any:
    if not isinstance(row, dict):
        return row
    return {name: value for name, value in row.items() if value is not None or name not in dispensable}


def _values(rows: Iterable[Any], name: str) -> list[Any]:
    return [row[name] for row in rows if isinstance(row, dict) and name in row]


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def _element_error(number: int, error: ServingError, key: str | None = None) -> ServingError:
    place = f"element: {number}" if key is None else f"element: {number} key: {shorten(key)}"
    return invalid_argument(f"Failed to process {place} of 'instances' list. Error: {error.status}")
