"""The report of the first minutes on a GPU: what it promises of its rows, apart from what they measure."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator

import gpu_first
import gpu_models
import gpu_served
import pytest
import torch
from gpu_first import ROWS, Row, chosen, limit, line, run
from gpu_rows import Bench, Result


def test_the_eleven_rows_have_their_order_and_fit_into_eight_minutes() -> None:
    assert [row.number for row in ROWS] == list(range(1, 12))
    assert [row.cap for row in ROWS] == [100, 10, 45, 60, 45, 25, 30, 40, 20, 25, 80]
    assert sum(row.cap for row in ROWS) <= gpu_first.BUDGET_SECONDS


@pytest.mark.parametrize(
    ("cap", "left", "seconds"), [(90, 480, 90), (90, 40, 40), (25, 2.0, 2.0), (25, 1.9, 0), (25, -3, 0)]
)
def test_a_row_gets_its_cap_or_what_is_left_and_none_begins_at_the_end(cap: float, left: float, seconds: float) -> None:
    assert limit(cap, left) == seconds


def test_rows_are_chosen_by_number_and_keep_the_order_of_the_table() -> None:
    assert [row.number for row in chosen("9,2")] == [2, 9]
    assert chosen("") == list(ROWS)
    with pytest.raises(ValueError, match="there is no row 12"):
        chosen("2,12")


def test_a_line_is_json_whatever_was_measured() -> None:
    results = [{"p99": float("nan"), "met": True, "each": [{"seconds": 1 / 3}], "most": float("inf"), "rows": 8}]
    text = line(ROWS[1], results, 1.23456, "stopped")
    assert "\n" not in text
    assert json.loads(text) == {
        "row": 2,
        "name": "ceilings",
        "aim": "reference",
        "cap": 10,
        "seconds": 1.23,
        "results": [{"p99": None, "met": True, "each": [{"seconds": 0.33333}], "most": None, "rows": 8}],
        "error": "stopped",
    }
    assert "error" not in json.loads(line(ROWS[1], [], 0.0))


def test_each_model_that_a_row_asks_for_is_written_under_a_name_of_its_own() -> None:
    names = [job.name for job in gpu_models.jobs(quick=True)]
    assert len(set(names)) == len(names)
    assert {*gpu_served.SERVED, "mlp-fp32", "convnet-fp32", "wide", "small", "swapped", "huge"} == set(names)


def _fails(bench: Bench) -> Iterator[Result]:
    yield {"first": 1}
    raise RuntimeError("no\nmore")


def _hangs(bench: Bench) -> Iterator[Result]:
    threading.Event().wait()
    yield {}


def _dies(bench: Bench) -> Iterator[Result]:
    yield {"first": 1}
    os._exit(7)


def _works(bench: Bench) -> Iterator[Result]:
    yield {"first": 1}
    yield {"second": 2}


@pytest.mark.parametrize(
    ("measure", "seconds", "results", "error"),
    [
        (_works, 60, [{"first": 1}, {"second": 2}], ""),
        (_fails, 60, [{"first": 1}], "RuntimeError: no more"),
        (_dies, 60, [{"first": 1}], "its process ended with 7"),
        (_hangs, 0.2, [], "stopped at its cap of 0 s"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_row_that_ends_early_leaves_what_it_had_measured_and_the_reason(
    measure: object, seconds: float, results: list[Result], error: str, tmp_path: object
) -> None:
    row = Row(1, "a row", "", seconds, measure)  # type: ignore[arg-type]
    assert run(row, Bench(torch.device("cpu"), True, tmp_path, seconds), seconds) == (results, error)  # type: ignore[arg-type]
