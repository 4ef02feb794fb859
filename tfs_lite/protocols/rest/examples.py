"""The bodies of REST ``:classify`` and ``:regress``: JSON examples <-> the messages of the gRPC methods.

An example is an object of features; a feature is a value or a flat list of values. The first value fixes the feature's
kind: integers and booleans, other numbers, or strings and binary data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.text import Json
from tfs_lite.protocols.json.values import (
    body_members,
    is_base64,
    present,
    read_base64,
    read_signature_name,
    shorten,
    show,
    type_name,
)
from tfs_lite.protocols.messages import Input, Message
from tfs_lite.protocols.tensorflow.examples import MAX_EXAMPLES
from tfs_lite.protocols.varints import encode_varints

_INT64_MAX = 2**63 - 1
_PACKED_VALUES = 1 << 3 | 2
"""The tag of the field ``value`` of FloatList and Int64List."""


@dataclass(frozen=True, slots=True)
class ExamplesBody:
    """A request before its model is known. ``input`` is an Input message with at least one example."""

    signature_name: str
    input: Message


def read_examples_body(tree: Json) -> ExamplesBody:
    """The parts of a body: ``signature_name``, ``examples`` and, optionally, a ``context`` that all examples share.

    INVALID_ARGUMENT for whatever is malformed, with the feature and the example that it is in.
    """
    members = present(body_members(tree))
    name = read_signature_name(members)
    message = Input()
    target = message.example_list
    if "context" in members:
        target = message.example_list_with_context
        target.context.SetInParent()
        _read_example(members["context"], target.context, "context")
    for number, example in enumerate(_examples(members)):
        _read_example(example, target.examples.add(), f"examples[{number}]")
    return ExamplesBody(name, message)


def classification_tree(result: Message) -> dict[str, Any]:
    """The answer for a ClassificationResult: for each example a list of pairs, label and score.

    Scores are numpy's float32, so that they are printed as such. INVALID_ARGUMENT if there are no examples.
    """
    if not result.classifications:
        raise invalid_argument("Cannot convert empty ClassificationResults to JSON")
    return {
        "results": [
            [[item.label, np.float32(item.score)] for item in classes.classes] for classes in result.classifications
        ]
    }


def regression_tree(result: Message) -> dict[str, Any]:
    """The answer for a RegressionResult: a float32 array, one value for each example. INVALID_ARGUMENT without any."""
    if not result.regressions:
        raise invalid_argument("Cannot convert empty RegressionResults to JSON")
    return {"results": np.array([item.value for item in result.regressions], np.float32)}


def _examples(members: dict[str, Any]) -> Sequence[Any]:
    if "examples" not in members:
        raise invalid_argument("key 'examples' is expected and was not found")
    examples = members["examples"]
    if not isinstance(examples, list | np.ndarray):
        raise invalid_argument(f"'examples' is expected to be a list/array, got {type_name(examples)}")
    if not len(examples):
        raise invalid_argument("'examples' value is an empty array")
    if len(examples) > MAX_EXAMPLES:
        raise invalid_argument(f"'examples' has {len(examples)} elements, at most {MAX_EXAMPLES} are allowed")
    return examples if isinstance(examples, list) else [examples[0].tolist()]


def _read_example(value: object, example: Message, place: str) -> None:
    """Fills an Example message. ``place`` says in errors which one it is."""
    if not isinstance(value, dict):
        raise invalid_argument(f"Example must be JSON object but got JSON {type_name(value)} ({place})")
    example.features.SetInParent()
    for name, values in value.items():
        feature = example.features.feature[name]
        try:
            _read_feature(shorten(name), values, feature)
        except ServingError as error:
            raise invalid_argument(f"{error} ({place})") from None


def _read_feature(name: str, values: object, feature: Message) -> None:
    """Fills a Feature message; an empty list leaves it without a kind."""
    if isinstance(values, np.ndarray):
        _read_numbers(name, values, feature)
        return
    elements = values if isinstance(values, list) else [values]
    kind = _kind(name, elements)
    if kind == "float":
        feature.float_list.value.extend(elements)
    elif kind == "int64":
        feature.int64_list.value.extend(map(int, elements))
    elif kind == "bytes":
        feature.bytes_list.value.extend(map(_bytes, elements))


def _read_numbers(name: str, numbers: Array, feature: Message) -> None:
    """The same for an array, which stands for a list that is not empty."""
    if numbers.ndim > 1:
        raise _unexpected_type(name, numbers[0])
    if numbers.dtype.kind == "f":
        with np.errstate(over="ignore"):
            packed = numbers.astype(np.float32).tobytes()
        target = feature.float_list
    else:
        if int(numbers.max()) > _INT64_MAX:
            raise _too_large(name, numbers[np.argmax(numbers > _INT64_MAX)].item())
        packed = encode_varints(numbers)
        target = feature.int64_list
    target.MergeFromString(encode_varints(np.array([_PACKED_VALUES, len(packed)])) + packed)


def _kind(name: str, elements: Sequence[object]) -> str:
    """The kind of a feature with these elements, empty if there are none. INVALID_ARGUMENT if they are of several."""
    types = set(map(type, elements))
    if types <= {float}:
        return "float" if types else ""
    kind = ""
    for element in elements:
        of_element = _kind_of(name, element)
        kind = kind or of_element
        if of_element != kind:
            raise invalid_argument(
                f"Unexpected element type in feature: {name} expecting type: {kind}, got {show(element)}"
            )
    return kind


def _kind_of(name: str, element: object) -> str:
    if isinstance(element, bool):
        return "int64"
    if isinstance(element, int):
        if element > _INT64_MAX:
            raise _too_large(name, element)
        return "int64"
    if isinstance(element, float):
        return "float"
    if isinstance(element, str | bytes) or is_base64(element):
        return "bytes"
    raise _unexpected_type(name, element)


def _bytes(element: object) -> bytes:
    if isinstance(element, str):
        return element.encode()
    return element if isinstance(element, bytes) else read_base64(element)


def _unexpected_type(name: str, element: object) -> ServingError:
    return invalid_argument(f"Feature: {name} has element with unexpected JSON type: {type_name(element)}")


def _too_large(name: str, value: int) -> ServingError:
    return invalid_argument(f"Feature: {name} has element {value}. Only int64_t is supported")
