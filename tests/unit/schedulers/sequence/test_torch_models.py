"""Real models: an exported accumulator with implicit state, and a module that keeps a sum for each row by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.schedulers.interleaving import no_threads_left
from tests.support.schedulers.sequence_models import SequenceRequest, sum_settings
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.sequence.servable import SequenceServable

ROWS = torch.export.Dim("batch", max=4)
ID = ServableId("sums", 1)
STATE = {"input_name": "SUM_IN", "output_name": "SUM_OUT", "data_type": "TYPE_INT32", "dims": [1]}


class Accumulator(torch.nn.Module):
    """Adds to the state that it is given; a row that is not ready writes a nonsense."""

    def forward(
        self, INPUT: torch.Tensor, START: torch.Tensor, READY: torch.Tensor, SUM_IN: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        total = torch.where(READY == 1, INPUT + SUM_IN, -7)
        return {"OUTPUT": total, "SUM_OUT": total.clone()}


class RowSums(torch.nn.Module):
    """A sum for each of four rows, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(4, 1, dtype=torch.int32))

    def forward(
        self, INPUT: torch.Tensor, START: torch.Tensor, READY: torch.Tensor, END: torch.Tensor, CORRID: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        rows = INPUT.shape[0]
        sums = self.sums[:rows]
        after = torch.where(READY == 1, torch.where(START == 1, INPUT, sums + INPUT), sums)
        self.sums[:rows] = after
        return {"OUTPUT": after.clone()}


def column(dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros((2, 1), dtype=dtype)


def export(module: torch.nn.Module, inputs: dict[str, torch.Tensor], directory: Path) -> None:
    shapes = {name: {0: ROWS} for name in inputs}
    program = torch.export.export(module.eval(), (), inputs, dynamic_shapes=shapes)
    torch.export.save(program, directory / "model.pt2")


@pytest.fixture
def serve(tmp_path: Path) -> Any:
    """A servable of two instances of the exported model in ``tmp_path``."""
    made: list[SequenceServable] = []
    clock = SystemClock()

    def make(settings: ModelSettings) -> Callable[..., SequenceRequest]:
        request = OpenRequest(ID, read_version(str(tmp_path)), "cpu", False, settings)
        servable = SequenceServable([open_exported(request) for _ in range(2)], ID, settings, clock)
        made.append(servable)

        def ask(number: int, id: int, start: bool = False, end: bool = False) -> SequenceRequest:
            request = SequenceRequest([[number]], id, start, end)
            servable.submit(request.call)
            return request

        return ask

    with no_threads_left():
        yield make
        for servable in made:
            servable.close()
        clock.close()


def ask_all(ask: Callable[..., SequenceRequest]) -> list[list[int]]:
    """Six sequences of five requests each, side by side."""
    request = {id: [] for id in range(1, 7)}  # type: dict[int, list[SequenceRequest]]
    for turn in range(5):
        for id, calls in request.items():
            calls.append(ask(id * 10**turn, id, start=turn == 0, end=turn == 4))
    return [[each.sum for each in calls] for calls in request.values()]


EXPECTED = [[id * int("1" * (turn + 1)) for turn in range(5)] for id in range(1, 7)]


@pytest.mark.parametrize("how", [{}, {"oldest": {"max_candidate_sequences": 3}}], ids=["direct", "oldest"])
def test_exported_accumulator_with_implicit_state(serve: Any, tmp_path: Path, how: dict[str, Any]) -> None:
    names = ("INPUT", "START", "READY", "SUM_IN")
    export(Accumulator(), {name: column() for name in names}, tmp_path)
    assert ask_all(serve(sum_settings(4, states=(STATE,), **how))) == EXPECTED


def test_exported_module_that_keeps_a_sum_for_each_row(serve: Any, tmp_path: Path) -> None:
    inputs = {name: column() for name in ("INPUT", "START", "READY", "END")}
    export(RowSums(), {**inputs, "CORRID": column(torch.int64)}, tmp_path)
    assert ask_all(serve(sum_settings(4, corrid="TYPE_INT64"))) == EXPECTED
