"""Rows of a client that has tokenised its texts itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.adapters.encoders.tokens import rows_of_ids

IDS = np.array([[2, 4, 3]], np.int64)


@pytest.mark.parametrize("wrong", [2, 7, -1])
def test_a_type_that_the_network_does_not_have_is_refused_before_it_runs(wrong: int) -> None:
    message = refusal(rows_of_ids, IDS, None, np.array([[0, wrong, 1]], np.int64), 9, 2)
    assert message == "token_type_ids has a type that is not among the 2 of the model"


def test_types_of_the_network_are_kept() -> None:
    (row,) = rows_of_ids(IDS, None, np.array([[0, 1, 1]], np.int64), 9, 2)
    assert list(row.types) == [0, 1, 1]
