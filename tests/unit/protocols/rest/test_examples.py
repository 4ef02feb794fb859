"""Examples in JSON <-> the messages of Classify and Regress. A table line is a body, and what is read or refused.

Every line is read twice: as parsed, and with numpy arrays in place of its lists of numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.protocols.json.text import dumps, loads
from tfs_lite.protocols.messages import ClassificationResult, RegressionResult
from tfs_lite.protocols.rest.examples import classification_tree, read_examples_body, regression_tree
from tfs_lite.protocols.tensorflow.examples import MAX_EXAMPLES

# fmt: off
READ: list[tuple[str, str]] = [
    ('{"examples": [{}]}', "[{}]"),
    ('{"examples": [{}, {}]}', "[{}, {}]"),
    ('{"examples": [{"a": 1}]}', "[{'a': ('int64', [1])}]"),
    ('{"examples": [{"a": [1, -2]}]}', "[{'a': ('int64', [1, -2])}]"),
    ('{"examples": [{"a": -9223372036854775808}]}', "[{'a': ('int64', [-9223372036854775808])}]"),
    ('{"examples": [{"a": 9223372036854775807}]}', "[{'a': ('int64', [9223372036854775807])}]"),
    ('{"examples": [{"a": true, "b": [false, true]}]}', "[{'a': ('int64', [1]), 'b': ('int64', [0, 1])}]"),
    ('{"examples": [{"a": [true, 7, false]}]}', "[{'a': ('int64', [1, 7, 0])}]"),
    ('{"examples": [{"a": 1.5, "b": [2.0, 1e3]}]}', "[{'a': ('float', [1.5]), 'b': ('float', [2.0, 1000.0])}]"),
    ('{"examples": [{"a": [NaN, Infinity, -Inf]}]}', "[{'a': ('float', [nan, inf, -inf])}]"),
    ('{"examples": [{"a": [1e39, 1e-60]}]}', "[{'a': ('float', [inf, 0.0])}]"),
    ('{"examples": [{"a": "x", "b": ["ä", ""]}]}', "[{'a': ('bytes', [b'x']), 'b': ('bytes', [b'\\xc3\\xa4', b''])}]"),
    ('{"examples": [{"a": {"b64": "/w=="}}]}', "[{'a': ('bytes', [b'\\xff'])}]"),
    ('{"examples": [{"a": ["x", {"b64": "/w"}]}]}', "[{'a': ('bytes', [b'x', b'\\xff'])}]"),
    ('{"examples": [{"a": []}]}', "[{'a': ('', [])}]"),
    ('{"examples": [{"b64": "aGk="}]}', "[{'b64': ('bytes', [b'aGk='])}]"),
    ('{"examples": [{"a": -9223372036854775809}]}', "[{'a': ('float', [-9.223372036854776e+18])}]"),
    ('{"examples": [{"a": 1}, {"a": 1.5}]}', "[{'a': ('int64', [1])}, {'a': ('float', [1.5])}]"),
    ('{"examples": [{"a": 1}], "context": {}}', "{} [{'a': ('int64', [1])}]"),
    ('{"examples": [{}], "context": {"c": ["x"]}}', "{'c': ('bytes', [b'x'])} [{}]"),
    ('{"examples": [{}], "instances": [1], "more": null}', "[{}]"),
    ('{"examples": [{}], "context": null, "signature_name": null}', "[{}]"),
]

REFUSED: list[tuple[str, str]] = [
    ("", "JSON Parse error: The document is empty"),
    ("[]", "Is not object"),
    ('{"examples": [{"a": 1, "a": 2}]}', "JSON Parse error: "),
    ('{"signature_name": 7, "examples": [{}]}', "'signature_name' key must be a string value"),
    ("{}", "key 'examples' is expected and was not found"),
    ('{"instances": [1]}', "key 'examples' is expected and was not found"),
    ('{"examples": {}}', "list/array"),
    ('{"examples": null}', "key 'examples' is expected and was not found"),
    ('{"examples": "a"}', "list/array"),
    ('{"examples": []}', "'examples' value is an empty array"),
    ('{"examples": [1]}', "Example must be JSON object but got JSON Number"),
    ('{"examples": [1.5, 2]}', "Example must be JSON object but got JSON Number"),
    ('{"examples": [[1]]}', "Example must be JSON object but got JSON Array"),
    ('{"examples": [null]}', "Example must be JSON object but got JSON Null"),
    ('{"examples": ["a"]}', "Example must be JSON object but got JSON String"),
    ('{"examples": [true]}', "Example must be JSON object but got JSON True"),
    ('{"examples": [{}, false]}', "Example must be JSON object but got JSON False (examples[1])"),
    ('{"examples": [{}], "context": [{}]}', "Example must be JSON object but got JSON Array"),
    ('{"context": 1}', "Example must be JSON object but got JSON Number"),
    ('{"examples": [{"a": [10, 10.0]}]}', "Unexpected element type in feature: a expecting type: int64"),
    ('{"examples": [{"a": [10.0, 10]}]}', "Unexpected element type in feature: a expecting type: float"),
    ('{"examples": [{"a": [1.5, true]}]}', "Unexpected element type in feature: a expecting type: float"),
    ('{"examples": [{"a": [1.5, "x"]}]}', "Unexpected element type in feature: a expecting type: float"),
    ('{"examples": [{"a": ["x", 1]}]}', "Unexpected element type in feature: a expecting type: bytes"),
    ('{"examples": [{"a": [1, "x"]}]}', "Unexpected element type in feature: a expecting type: int64"),
    ('{"examples": [{"a": [true, {"b64": "YQ"}]}]}', "Unexpected element type in feature: a expecting type: int64"),
    ('{"examples": [{"a": null}]}', "Feature: a has element with unexpected JSON type: Null"),
    ('{"examples": [{"a": [1, null]}]}', "Feature: a has element with unexpected JSON type: Null"),
    ('{"examples": [{"a": [[1]]}]}', "Feature: a has element with unexpected JSON type: Array"),
    ('{"examples": [{"a": [[]]}]}', "Feature: a has element with unexpected JSON type: Array"),
    ('{"examples": [{"a": {"b": 1}}]}', "Feature: a has element with unexpected JSON type: Object"),
    ('{"examples": [{"a": {"b64": 1}}]}', "Feature: a has element with unexpected JSON type: Object"),
    ('{"examples": [{"a": {"b64": "a"}}]}', "Unable to base64 decode"),
    ('{"examples": [{"a": 9223372036854775808}]}', "Only int64_t is supported"),
    ('{"examples": [{"a": [1, 9223372036854775808]}]}', "Only int64_t is supported"),
    ('{"examples": [{"a": [18446744073709551615, 9223372036854775808]}]}', "Only int64_t is supported"),
    ('{"examples": [{"a": 1}, {"a": null}]}', "(examples[1])"),
    ('{"examples": [{}], "context": {"c": null}}', "(context)"),
]
# fmt: on


def with_arrays(value: Any) -> Any:
    """The tree with arrays in place of lists, wherever a list is regular and has numbers of one kind only."""
    if isinstance(value, dict):
        return {key: with_arrays(member) for key, member in value.items()}
    if not isinstance(value, list):
        return value
    flat = [leaf for item in value for leaf in (item if isinstance(item, list) else [item])]
    if flat and {*map(type, flat)} in ({int}, {float}):
        return np.array(value, np.uint64 if type(flat[0]) is int and max(flat) >= 2**63 else None)
    return [with_arrays(item) for item in value]


def parsed(body: str, arrays: bool) -> Any:
    tree = loads(body.encode())
    return with_arrays(tree) if arrays else tree


def features(example: Any) -> dict[str, Any]:
    kinds = {"int64_list": "int64", "float_list": "float", "bytes_list": "bytes", None: ""}
    found = {}
    for name, feature in sorted(example.features.feature.items()):
        kind = feature.WhichOneof("kind")
        found[name] = (kinds[kind], list(getattr(feature, kind).value) if kind else [])
    return found


def text_of(message: Any) -> str:
    if message.WhichOneof("kind") == "example_list":
        return str([features(example) for example in message.example_list.examples])
    both = message.example_list_with_context
    return f"{features(both.context)} {[features(example) for example in both.examples]}"


@pytest.mark.parametrize("arrays", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize(("body", "expected"), READ)
def test_a_body_of_examples_is_read(body: str, expected: str, arrays: bool) -> None:
    assert text_of(read_examples_body(parsed(body, arrays)).input) == expected


@pytest.mark.parametrize("arrays", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize(("body", "marker"), REFUSED)
def test_a_body_of_examples_is_refused(body: str, marker: str, arrays: bool) -> None:
    assert marker in refusal(lambda: read_examples_body(parsed(body, arrays)))


def test_the_signature_is_named_in_the_body() -> None:
    assert read_examples_body({"examples": [{}]}).signature_name == ""
    assert read_examples_body({"examples": [{}], "signature_name": "s"}).signature_name == "s"


def test_binary_strings_of_msgpack_are_bytes_features() -> None:
    body = read_examples_body({"examples": [{"a": [b"\xff", "x"], "b": b"y"}]})
    assert text_of(body.input) == "[{'a': ('bytes', [b'\\xff', b'x']), 'b': ('bytes', [b'y'])}]"


def test_more_examples_than_a_model_takes_are_refused_at_once() -> None:
    assert "at most" in refusal(read_examples_body, {"examples": [{}] * (MAX_EXAMPLES + 1)})


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1) | st.lists(st.floats(), min_size=1))
def test_an_array_of_numbers_makes_the_feature_that_the_list_makes(numbers: list[Any]) -> None:
    as_list = read_examples_body({"examples": [{"a": numbers}]}).input
    as_array = read_examples_body({"examples": [{"a": np.array(numbers)}]}).input
    assert as_list.SerializeToString(deterministic=True) == as_array.SerializeToString(deterministic=True)


def test_classes_are_pairs_of_label_and_score() -> None:
    result = ClassificationResult()
    for label, score in (("cat", 0.2), ("", 1)):
        result.classifications.add().classes.add(label=label, score=score)
    result.classifications.add()
    tree = classification_tree(result)
    assert tree == {"results": [[["cat", np.float32(0.2)]], [["", 1]], []]}
    assert loads(dumps(tree)) == {"results": [[["cat", 0.2]], [["", 1.0]], []]}


def test_regressions_are_numbers_and_those_not_finite_bare_tokens() -> None:
    result = RegressionResult(regressions=[{"value": 0.2}, {"value": 1}, {"value": -1e-30}])
    tree = regression_tree(result)
    assert tree["results"].dtype == np.float32
    assert loads(dumps(tree)) == {"results": [0.2, 1.0, -1e-30]}
    result = RegressionResult(regressions=[{"value": float("nan")}, {"value": float("inf")}, {"value": float("-inf")}])
    assert dumps(regression_tree(result)).replace(b" ", b"") == b'{"results":[NaN,Infinity,-Infinity]}'


def test_an_answer_without_examples_is_refused() -> None:
    assert "Cannot convert empty ClassificationResults to JSON" in refusal(classification_tree, ClassificationResult())
    assert "Cannot convert empty RegressionResults to JSON" in refusal(regression_tree, RegressionResult())
