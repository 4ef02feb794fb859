"""Conditions on sizes: what their texts may say, and what is said of sizes that break them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec, check_inputs, example_shapes
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.conditions import MAX_CONDITIONS, MAX_LENGTH, check_condition, read_conditions

AXES = [("x", 0), ("x", 1), ("mask", 0)]


def fault(text: str, rows: int = 4, width: int = 3, masks: int = 4) -> str:
    return read_conditions(AXES, [text]).fault({"x": (rows, width), "mask": (masks,)})


@pytest.mark.parametrize(
    "text",
    [
        "n0 >= 3",
        "n0 % 4 == 0 and (not n1 == 4)",
        "n0 == n2",
        "trunc(1.5 * float(n1)) == 4",
        "max(n0, n1, 7) == 7 or min(n0, n1) < 0",
        "power(n0, 2) == 16",
        "(n0 if n1 > 2 else n1) == 4",
        "-3 + n0 >= 1",
        "n0 // 2 / 2 == 1.0",
        "round(n0 / 3) == 1",
    ],
)
def test_a_condition_that_holds_has_no_fault(text: str) -> None:
    assert fault(text) == ""


def test_a_fault_names_the_input_the_condition_and_the_sizes() -> None:
    assert fault("n0 >= 5") == "input x has size 4 in dimension 0, at least 5 is needed"
    assert fault("n2 % 8 == 0") == "input mask has size 4 in dimension 0, which has to be a multiple of 8"
    assert fault("n1 > n0 // 1") == (
        "the sizes do not fit: x.shape[1] > x.shape[0] // 1 is needed, x.shape[1] is 3 and x.shape[0] is 4"
    )


def test_a_condition_that_cannot_be_computed_does_not_hold() -> None:
    assert "n1" not in fault("n0 // n1 == 1", width=0)
    assert "is needed" in fault("n0 % (n1 // 8) == 0")
    assert "is needed" in fault("power(n0, 60) > 0")
    assert "is needed" in fault("sqrt(n1 - 5) > 0")


def test_the_first_condition_that_does_not_hold_is_named() -> None:
    conditions = read_conditions(AXES, ["n0 >= 2", "n1 >= 9", "n2 >= 9"])
    assert "input x has size 3 in dimension 1" in conditions.fault({"x": (2, 3), "mask": (4,)})


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "n0.real == 1",
        "n3 == 1",
        "n00 == 1",
        "x == 1",
        "open(n0)",
        "(lambda: 1)()",
        "[n0][0] == 1",
        "n0 ** 9999999",
        "n0 << 99",
        "'a' == 'b'",
        "max(*[1])",
        "max(n0, key=n1)",
        "n0 is n1",
        "n0 in n1",
        "f'{n0}'",
        "99999999999999999999 == n0",
        "(n0 := 3)",
        "n0 ==",
        "",
        "n0 +" * 3000 + "n0",
        "-" * 5000 + "n0",
        "(" * 300 + "n0" + ")" * 300,
        "n0 == 1\0",
    ],
)
def test_a_text_that_is_no_plain_arithmetic_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match="condition"):
        read_conditions(AXES, [text])


def test_texts_are_bounded_in_length_and_number() -> None:
    with pytest.raises(ValueError, match="characters"):
        check_condition("n0 == " + "1" * MAX_LENGTH)
    with pytest.raises(ValueError, match="at most"):
        read_conditions(AXES, ["n0 == 1"] * (MAX_CONDITIONS + 1))


@given(st.lists(st.sampled_from(["n0", "n1", "(", ")", "%", "//", "==", "and", "max(", ",", "0", "2", "import", "."])))
def test_any_text_is_read_or_refused(words: list[str]) -> None:
    try:
        found = read_conditions(AXES, [" ".join(words)])
    except ValueError:
        return
    found.fault({"x": (4, 3), "mask": (4,)})


SIGNATURE = Signature(
    (TensorSpec("x", DataType.FLOAT, (SymbolicDim("s0", 16), 3)),),
    (),
    conditions=read_conditions([("x", 0)], ["n0 % 8 == 0", "n0 >= 8"]),
)


def test_a_request_is_checked_against_the_conditions_of_the_signature() -> None:
    check_inputs(SIGNATURE, {"x": (DataType.FLOAT, (8, 3))})
    with pytest.raises(ServingError, match="multiple of 8") as caught:
        check_inputs(SIGNATURE, {"x": (DataType.FLOAT, (9, 3))})
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_made_up_inputs_have_sizes_that_the_signature_takes() -> None:
    assert example_shapes(SIGNATURE, 8) == {"x": (8, 3)}
    assert example_shapes(SIGNATURE, 99) == {"x": (16, 3)}
    assert example_shapes(SIGNATURE, 2) is None


def test_conditions_are_equal_by_what_they_say_and_follow_their_inputs_names() -> None:
    conditions = read_conditions([("x", 0)], ["n0 >= 5"])
    assert conditions == read_conditions([("x", 0)], ["n0 >= 5"])
    assert conditions != read_conditions([("x", 0)], ["n0 >= 6"])
    assert conditions.renamed({"x": "images"}).shown() == ("images.shape[0] >= 5",)
