"""Single values of a body: their names, how messages show them, binary data."""

from __future__ import annotations

import base64
import textwrap
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.status import ServingError
from tfs_lite.protocols.json.values import read_base64, shorten, show, type_name, write_base64


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (None, "Null", "null"),
        (True, "True", "true"),
        (False, "False", "false"),
        (1, "Number", "1"),
        (1.0, "Number", "1.0"),
        (float("nan"), "Number", "NaN"),
        (float("-inf"), "Number", "-Infinity"),
        ('a"ä\n', "String", '"a\\"ä\\n"'),
        (b"\xff", "Binary", '{"b64":"/w=="}'),
        ([], "Array", "[]"),
        ([1, [2.5, "a"]], "Array", '[1,[2.5,"a"]]'),
        (np.array([[1, 2], [3, 4]]), "Array", "[[1,2],[3,4]]"),
        ({}, "Object", "{}"),
        ({"a": [None], "b": {"c": True}}, "Object", '{"a":[null],"b":{"c":true}}'),
    ],
)
def test_a_value_is_named_and_shown_as_json(value: Any, name: str, text: str) -> None:
    assert type_name(value) == name
    assert show(value) == text


@pytest.mark.parametrize("value", ["x" * 10**7, [1] * 10**6, np.zeros((10**4, 100)), {"k" * 10**7: 1}, b"x" * 10**7])
def test_a_large_value_is_cut(value: Any) -> None:
    assert len(show(value)) == 259
    assert show(value).endswith("...")


def test_a_name_is_cut() -> None:
    assert shorten("x" * 256) == "x" * 256
    assert shorten("x" * 257) == "x" * 256 + "..."


@given(st.binary(), st.booleans())
def test_binary_data_comes_back_with_and_without_padding(data: bytes, padded: bool) -> None:
    wrapper = write_base64(data)
    assert read_base64(wrapper if padded else {"b64": wrapper["b64"].rstrip("=")}) == data


@given(st.text("AZaz09+/=-_ \n", max_size=12))
def test_whatever_is_read_as_binary_data_is_made_of_whole_bytes_of_the_alphabet(text: str) -> None:
    without_space = "".join(text.split())
    digits = without_space.rstrip("=")
    padding = len(without_space) - len(digits)
    fits = not set(digits) & set("=-_") and len(digits) % 4 != 1 and (padding == 0 or (len(digits) + padding) % 4 == 0)
    if fits and padding < 4:
        assert len(read_base64({"b64": text})) == len(digits) * 3 // 4
    else:
        with pytest.raises(ServingError, match="Unable to base64 decode"):
            read_base64({"b64": text})


@pytest.mark.parametrize(
    "text",
    [
        base64.encodebytes(bytes(range(256))).decode(),
        "\r\n".join(textwrap.wrap(base64.b64encode(bytes(range(256))).decode(), 64)) + "\r\n",
        " \t\n\v\f\r".join(base64.b64encode(bytes(range(256))).decode()),
        base64.b64encode(bytes(range(256))).decode().replace("=", "."),
    ],
    ids=["lines of 76", "lines of 64", "space everywhere", "dots as padding"],
)
def test_binary_data_may_have_line_breaks_as_in_tensorflow_serving(text: str) -> None:
    assert read_base64({"b64": text}) == bytes(range(256))


@pytest.mark.parametrize("text", ["YQ\u00a0==", "YQ\u2003==", "YQ=", "YQ==\x00", "YQ==YQ=="])
def test_other_characters_are_refused_in_binary_data(text: str) -> None:
    with pytest.raises(ServingError, match="Unable to base64 decode"):
        read_base64({"b64": text})
