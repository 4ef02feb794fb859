"""Random programs. ``python -m tests.support.exported.random_programs --seeds 0:5000`` tries many more."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.support.exported.random_programs import check
from tests.support.profiles import examples

pytestmark = pytest.mark.filterwarnings("ignore")


@examples(100)
@given(st.randoms(use_true_random=False))
def test_a_random_program_answers_as_torchs_own_loader_does(random):
    with tempfile.TemporaryDirectory(prefix="random-program-") as folder:
        event(check(random, Path(folder), "program"))
