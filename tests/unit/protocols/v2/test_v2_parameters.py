"""Parameters of V2 requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.v2.request import EMPTY_FINAL, InferRequest, ParameterType, take_parameters

Item = tuple[str, Any, ParameterType]


def taken(*items: Item, over_http: bool = False) -> InferRequest:
    request = InferRequest("m")
    take_parameters(request, items, over_http)
    return request


def test_known_parameters_become_fields() -> None:
    request = taken(
        ("sequence_id", 5, ParameterType.INT),
        ("sequence_start", True, ParameterType.BOOL),
        ("priority", 2**64 - 1, ParameterType.UINT),
        ("timeout", 1500, ParameterType.INT),
        (EMPTY_FINAL, True, ParameterType.BOOL),
        ("own", "x", ParameterType.TEXT),
        ("temperature", 0.5, ParameterType.FLOAT),
    )
    assert request.sequence == SequenceFlags(5, start=True)
    assert request.priority == 2**64 - 1
    assert request.timeout == 0.0015
    assert request.empty_final
    assert request.parameters == {"own": "x", "temperature": 0.5}


def test_a_sequence_has_a_text_or_a_number_of_64_bits_for_a_name() -> None:
    request = taken(("sequence_id", "five", ParameterType.TEXT), ("sequence_end", True, ParameterType.BOOL))
    assert request.sequence == SequenceFlags("five", end=True)
    assert taken(("sequence_id", -1, ParameterType.INT)).sequence == SequenceFlags(2**64 - 1)


@pytest.mark.parametrize(
    "nothing", [("sequence_id", 0, ParameterType.INT), ("sequence_id", "", ParameterType.TEXT)], ids=str
)
def test_zero_and_the_empty_text_are_no_sequence(nothing: Item) -> None:
    assert taken(nothing, ("sequence_start", True, ParameterType.BOOL)).sequence is None


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            ("sequence_id", True, ParameterType.BOOL),
            "parameter 'sequence_id' is of type bool, expected int64 or string",
        ),
        (("sequence_start", 1, ParameterType.INT), "parameter 'sequence_start' is of type int64, expected bool"),
        (("priority", "1", ParameterType.TEXT), "'priority'"),
        (("priority", -1, ParameterType.INT), "parameter 'priority' is -1"),
        (("timeout", 1, ParameterType.UINT), "parameter 'timeout' is of type uint64, expected int64"),
        (("timeout", -1, ParameterType.INT), "parameter 'timeout' is -1"),
        (("triton_mine", 1, ParameterType.INT), "parameter keys starting with 'triton_' are reserved"),
        (("own", 1, ParameterType.UINT), "parameter 'own' is of type uint64"),
        (("sequence_id", 2**64, ParameterType.INT), "more than 64 bits"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be_are_refused(item: Item, message: str) -> None:
    assert message in refusal(taken, item)


def test_an_id_of_too_many_characters_is_not_supported() -> None:
    assert taken(("sequence_id", "x" * 128, ParameterType.TEXT)).sequence is not None
    refusal(taken, ("sequence_id", "x" * 129, ParameterType.TEXT), code=StatusCode.UNIMPLEMENTED)


def test_binary_outputs_are_for_http_and_empty_finals_for_grpc() -> None:
    item = ("binary_data_output", True, ParameterType.BOOL)
    assert taken(item, over_http=True).binary_outputs
    assert taken(item).parameters == {"binary_data_output": True}
    assert "reserved" in refusal(taken, (EMPTY_FINAL, True, ParameterType.BOOL), over_http=True)
