"""The comparison finds every difference: otherwise the proofs that stand on it prove nothing."""

import math

import pytest
import torch

from tests.support.exported.comparison import assert_same, same


def tensor(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tensor(1.0), tensor(math.nextafter(1.0, 2.0), dtype=torch.float64)),
        (tensor(1.0), torch.nextafter(tensor(1.0), tensor(2.0))),
        (tensor(0.0), tensor(-0.0)),
        (tensor(0.0), tensor(math.nan)),
        (tensor(1.0), tensor(1.0).reshape(1, 1)),
        (tensor(1 + 2j, dtype=torch.complex64), tensor(1 + 2j, dtype=torch.complex64).conj()),
        (tensor(0.5, dtype=torch.float8_e4m3fn), tensor(0.25, dtype=torch.float8_e4m3fn)),
        (tensor(1, dtype=torch.int64), tensor(1, dtype=torch.int32)),
        (tensor(1), 1),
        (1, True),
        (1, 1.0),
        (None, 0),
    ],
    ids=str,
)
def test_values_with_another_bit_type_or_shape_are_not_the_same(one, other):
    assert not same(one, other)


@pytest.mark.parametrize(
    "value",
    [tensor(math.nan, math.inf, -0.0), tensor(True, dtype=torch.bool), torch.empty(0, 3), math.nan, 7, None, "text"],
    ids=str,
)
def test_equal_values_are_the_same(value):
    again = value.clone() if isinstance(value, torch.Tensor) else value
    assert same(value, again)


def test_an_error_of_only_one_program_is_a_difference():
    def fails(x):
        raise RuntimeError("no")

    with pytest.raises(AssertionError, match="program, call 0"):
        assert_same(lambda x: (x,), fails, [lambda: [tensor(1.0)]], "program")
    assert assert_same(fails, fails, [lambda: [tensor(1.0)]], "program") == 0


def test_another_write_to_an_input_is_a_difference():
    with pytest.raises(AssertionError, match="inputs afterwards"):
        assert_same(lambda x: (x + 1,), lambda x: (x.add_(1),), [lambda: [tensor(1.0)]], "program")


def test_a_result_that_changes_with_the_state_is_not_the_same_as_one_that_stays():
    def counter(is_copied):
        state = torch.zeros(1)

        def forward(x):
            state.add_(1)
            return (state.clone() if is_copied else state,)

        return forward

    with pytest.raises(AssertionError, match="call 0: its results at the end"):
        assert_same(counter(True), counter(False), [lambda: [tensor(1.0)]] * 2, "program")
    assert assert_same(counter(True), counter(True), [lambda: [tensor(1.0)]] * 2, "program") == 2
