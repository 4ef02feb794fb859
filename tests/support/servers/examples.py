"""Inputs of Classify, Regress and MultiInference, written as dicts.

rows({"age": [3.5], "name": [b"x"]}, {"age": [4]}, context={"country": [b"NO"]})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfs_lite.protocols.messages import Example, Input, Message

Features = Mapping[str, Sequence[float] | Sequence[int] | Sequence[bytes] | None]
"""Name -> values; all of a feature have the type of the first. Without values: an empty float feature. None: a feature
of no kind."""

_KINDS: Mapping[type, str] = {bytes: "bytes_list", int: "int64_list", float: "float_list"}


def example(features: Features) -> Message:
    """One ``tensorflow.Example``."""
    found = Example()
    for name, values in features.items():
        feature = found.features.feature[name]
        if values is not None:
            sent = getattr(feature, _KINDS[type(values[0]) if values else float])
            sent.SetInParent()
            sent.value.extend(values)
    return found


def rows(*features: Features, context: Features | None = None) -> Message:
    """An ``Input`` with one example for each of ``features``."""
    examples = [example(row) for row in features]
    if context is None:
        return Input(example_list={"examples": examples})
    return Input(example_list_with_context={"examples": examples, "context": example(context)})
