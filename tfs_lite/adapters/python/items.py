"""The handling of single items by a class ``Model``: ``Input``, ``preprocess`` and ``postprocess``.

    rows of a request -> [Input: is the item valid?] -> preprocess -> stacked: what predict is batched from
    rows of predict's outputs -> postprocess -> stacked: the outputs that the config declares

An item is one row of a request, its values without the batch dimension. A refused item makes its request fail; other
requests are not affected, because items are checked before batching.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError

from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.pytorch.tensors import TORCH_DTYPES, to_arrays, to_tensor
from tfs_lite.adapters.results import check_outputs
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, Tensor, format_shape
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import Array, from_numpy

MAX_WORDS = 500
"""Characters of a refusal's message."""
MAX_ERRORS_READ = 100
"""The most errors of one item whose messages are read: the validator would make one for each."""
MAX_ERRORS_SHOWN = 3
CPU = torch.device("cpu")

Item = dict[str, Any]
"""The values of one row by name: a tensor on the CPU; ``bytes``, or an array of them where a row has several."""


class ItemSteps:
    """The steps of one object ``Model``. False if it has none.

    Threads: any number may call ``preprocess`` and ``postprocess`` during the object's ``predict``. The caller's arrays
    are never written to; results belong to the caller. The deadline, in seconds of ``monotonic``, is checked before
    every item: DEADLINE_EXCEEDED. Other errors of the user's code pass through.
    """

    def __init__(
        self, name: str, model: object, signature: Signature, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Finds the steps of a model. INVALID_ARGUMENT if a step is not what it should be, or the ``signature`` of the
        clients has no rows. ``name`` is the model's, for messages."""
        self._name = name
        self._signature = signature
        self._monotonic = monotonic
        self._input = _input_class(model)
        self._preprocess = _step(model, "preprocess")
        self._postprocess = _step(model, "postprocess")
        if self:
            _check_has_rows(signature)

    def __bool__(self) -> bool:
        return any((self._input, self._preprocess, self._postprocess))

    @property
    def batch_signature(self) -> Signature:
        """The inputs and outputs of predict, undeclared where they come from ``preprocess`` or go to
        ``postprocess``."""
        return Signature(
            () if self._preprocess else self._signature.inputs, () if self._postprocess else self._signature.outputs
        )

    def preprocess(self, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Any]:
        """The inputs of predict, as many rows as there are items. INVALID_ARGUMENT, naming the first item that is
        refused; INTERNAL if the results of the items do not fit together."""
        items, count = self._rows_of(inputs)
        results = []
        for index, item in enumerate(items):
            self._check_time(deadline, "preprocess", index, count)
            results.append(self._prepared(index, item))
        return dict(inputs) if self._preprocess is None else _stacked(results, "preprocess")

    def postprocess(self, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Any]:
        """The outputs that the signature declares (all there are, if it declares none), row for row. INTERNAL if they
        are not as declared."""
        if self._postprocess is None:
            return dict(outputs)
        declared = {spec.name: spec.dtype for spec in self._signature.outputs}
        items, count = self._rows_of(outputs)
        results = []
        for index, item in enumerate(items):
            self._check_time(deadline, "postprocess", index, count)
            results.append(_arrays(self._postprocess(item), "postprocess", index, declared))
        stacked = _stacked(results, "postprocess")
        check_outputs(replace(self._signature, inputs=()), {}, stacked)
        return stacked

    def check_batch(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """INTERNAL unless every output of predict has a row for every row of the inputs: rows belong to requests."""
        rows = next(iter(inputs.values())).shape[0]
        for name, value in outputs.items():
            shape = tuple(value.shape if isinstance(value, torch.Tensor) else np.shape(value))
            if shape[:1] != (rows,):
                raise _broken(
                    f"predict() of model {self._name} returned {name} of shape {format_shape(shape)} "
                    f"for a batch of {rows}"
                )

    def _prepared(self, index: int, item: Item) -> dict[str, Array]:
        """The result of ``preprocess`` for the item; empty if the item is only validated."""
        try:
            given: object = item if self._input is None else self._input.model_validate(_plain_item(item))
            result = {} if self._preprocess is None else self._preprocess(given)
        except ValidationError as error:
            raise invalid_argument(f"model {self._name}: item {index}: {_words(error)}"[:MAX_WORDS]) from None
        except ValueError as error:
            raise invalid_argument(f"model {self._name}: item {index}: {sentence(error)}"[:MAX_WORDS]) from None
        return {} if self._preprocess is None else _arrays(result, "preprocess", index, {})

    def _rows_of(self, arrays: Mapping[str, Tensor]) -> tuple[Iterator[Item], int]:
        """The rows and their number. Values may be written to."""
        counts = {name: array.shape[0] for name, array in arrays.items()}
        count = next(iter(counts.values()), 0)
        for name, other in counts.items():
            if other != count:
                first = next(iter(counts))
                raise invalid_argument(f"input {name} has {other} items, but input {first} has {count}")
        if not count:
            raise invalid_argument(f"model {self._name} answers item by item, and the request has none")
        return _rows(arrays, count), count

    def _check_time(self, deadline: float | None, step: str, index: int, count: int) -> None:
        if deadline is not None and deadline <= self._monotonic():
            raise ServingError(
                StatusCode.DEADLINE_EXCEEDED,
                f"the deadline passed before {step}() of model {self._name} reached item {index} of {count}",
            )


def _input_class(model: object) -> type[BaseModel] | None:
    found = getattr(model, "Input", None)
    if found is None or (isinstance(found, type) and issubclass(found, BaseModel)):
        return found
    raise invalid_argument("Input of class Model is no subclass of pydantic.BaseModel")


def _step(model: object, name: str) -> Callable[[Any], object] | None:
    found = getattr(model, name, None)
    if found is None:
        return None
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise invalid_argument(f"{name} of class Model is no ordinary method")
    return found  # type: ignore[no-any-return]


def _check_has_rows(signature: Signature) -> None:
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            if spec.shape is not None and not isinstance(next(iter(spec.shape), None), SymbolicDim):
                raise invalid_argument(
                    f"class Model works on items, and {kind} {spec.name} of the config has none: "
                    f"set max_batch_size, or make -1 its first dimension"
                )


def _rows(arrays: Mapping[str, Tensor], count: int) -> Iterator[Item]:
    columns = {
        name: array if array.dtype == object else to_tensor(array, CPU, share=False)  # type: ignore[arg-type]
        for name, array in arrays.items()
    }
    for index in range(count):
        yield {name: _row(column, index) for name, column in columns.items()}


def _row(column: Any, index: int) -> Any:
    row = column[index]
    return row.copy() if isinstance(row, np.ndarray) else row


def _plain_item(item: Item) -> dict[str, object]:
    """The item as numbers, texts and lists, for the validator."""
    return {name: _plain(value if isinstance(value, bytes) else value.tolist()) for name, value in item.items()}


def _plain(value: object) -> object:
    """Texts are decoded where they are UTF-8."""
    if isinstance(value, list):
        return [_plain(part) for part in value] if value and isinstance(value[0], bytes | list) else value
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _words(error: ValidationError) -> str:
    """The validator's messages with their fields; some of them if there are many."""
    count = error.error_count()
    if count > MAX_ERRORS_READ:
        return f"{count} of its values are refused"
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [_fault(".".join(map(str, fault["loc"])), fault["msg"]) for fault in faults[:MAX_ERRORS_SHOWN]]
    return "; ".join(shown) + (f"; and {count - len(shown)} more" if count > len(shown) else "")


def _fault(place: str, words: str) -> str:
    line = " ".join(words.split())[: MAX_WORDS // (MAX_ERRORS_SHOWN + 1)]
    return f"{place[:40]}: {line}" if place else line


def _arrays(row: object, step: str, index: int, declared: Mapping[str, DataType]) -> dict[str, Array]:
    """The arrays that a step returned for one item. If names are ``declared``, exactly they are required and kept."""
    if not isinstance(row, Mapping):
        raise _broken(f"{step}() returned {type(row).__name__} for item {index}, expected a dict")
    for name in declared:
        if name not in row:
            raise _broken(f"{step}() did not return output {name} for item {index}; it returned: {_names(row)}")
    arrays: dict[str, Array] = {}
    for name in declared or row:
        try:
            value = _with_type(row[name], declared.get(name, DataType.INVALID))
            device = value.device if isinstance(value, torch.Tensor) else CPU
            arrays[str(name)] = to_arrays({name: value}, device)[name]  # type: ignore[assignment]
        except (ServingError, TypeError, ValueError, RuntimeError) as error:
            raise _broken(
                f"{step}() returned {name} for item {index}, which cannot be used: {error}"[:MAX_WORDS]
            ) from None
    return arrays


def _with_type(value: object, wanted: DataType) -> object:
    """Converts Python's numbers, and lists of them, to the declared type, or to torch's default type."""
    if isinstance(value, bytes | str):
        return np.array(value, dtype=object)
    if not isinstance(value, bool | int | float | complex | list | tuple):
        return value
    if np.asarray(value).dtype.kind in "SUO":
        return np.array(value, dtype=object)
    natural = torch.tensor(value)
    dtype = TORCH_DTYPES.get(wanted)
    return torch.tensor(value, dtype=dtype) if dtype and torch.can_cast(natural.dtype, dtype) else natural


def _stacked(rows: Sequence[Mapping[str, Array]], step: str) -> dict[str, Array]:
    """The rows of one request as arrays. INTERNAL unless they agree in names, types and shapes."""
    first = rows[0]
    for index, row in enumerate(rows):
        if row.keys() != first.keys():
            raise _broken(
                f"{step}() returned {_names(row)} for item {index}, but {_names(first)} for item 0; "
                f"the items of a request have to agree"
            )
        for name, array in row.items():
            if (array.dtype, array.shape) != (first[name].dtype, first[name].shape):
                raise _broken(
                    f"{step}() returned {name} as {_kind(array)} for item {index}, but as {_kind(first[name])} "
                    f"for item 0; the items of a request have to agree"
                )
    if not first:
        raise _broken(f"{step}() returned an empty dict")
    return {name: np.stack([row[name] for row in rows]) for name in first}


def _kind(array: Array) -> str:
    return f"{from_numpy(array.dtype).text}{format_shape(array.shape)}"


def _names(row: Mapping[Any, object]) -> str:
    return ", ".join(sorted(map(str, row)))[:100] or "nothing"


def _broken(message: str) -> ServingError:
    return ServingError(StatusCode.INTERNAL, message)
