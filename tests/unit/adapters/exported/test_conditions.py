"""The conditions that are read from an archive: ranges, sizes that follow from others, guards, assertions."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

from tests.support.errors import refusal
from tests.support.exported.sized_programs import check
from tests.support.servers.platforms import rewrite_archive
from tfs_lite.adapters.exported.document import read_document
from tfs_lite.adapters.exported.signature import signature_of
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.adapters.opening import NeedsProcess
from tfs_lite.adapters.pytorch.export import open_by_torch, open_exported
from tfs_lite.core.signature import DEFAULT_SIGNATURE, SizeConditions
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings

pytestmark = pytest.mark.filterwarnings("ignore")
AUTO = Dim.AUTO
ROWS = Dim("rows")


class Calls(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        return self.function(x) if y is None else self.function(x, y)


def saved(folder: Path, function: Any, *args: torch.Tensor, dynamic: Any, **options: Any) -> Path:
    shapes = dict(zip("xy", dynamic, strict=False))
    torch.export.save(
        torch.export.export(Calls(function), args, dynamic_shapes=shapes, **options), folder / "model.pt2"
    )
    return folder / "model.pt2"


def conditions_in(path: Path) -> SizeConditions | None:
    with open_archive(str(path), path.name) as archive:
        return signature_of(read_document(archive, trusted=False)).conditions


def shown(path: Path) -> tuple[str, ...]:
    found = conditions_in(path)
    assert found is None or found.complete
    return found.shown() if found else ()


def test_a_minimum_is_a_condition_and_the_exporters_own_two_is_none(tmp_path: Path) -> None:
    x = torch.ones(6, 3)
    for dim, wanted in (
        (Dim("a", min=5), ("x.shape[0] >= 5",)),
        (Dim("b", min=2), ()),
        (Dim("c", max=9), ()),
        (Dim.DYNAMIC, ()),
    ):
        assert shown(saved(tmp_path, lambda x: x * 2, x, dynamic=[{0: dim}])) == wanted


def test_a_multiple_is_one_and_its_range_counts(tmp_path: Path) -> None:
    path = saved(tmp_path, lambda x: x * 2, torch.ones(40), dynamic=[{0: 8 * Dim("blocks", min=3, max=10)}])
    assert shown(path) == ("x.shape[0] % 8 == 0", "x.shape[0] >= 24")
    with open_archive(str(path), path.name) as archive:
        (spec,) = signature_of(read_document(archive, trusted=False)).inputs
    assert spec.shape is not None
    assert not isinstance(spec.shape[0], int)
    assert spec.shape[0].maximum == 80


def test_a_size_that_follows_from_another_is_computed(tmp_path: Path) -> None:
    x, y = torch.ones(6), torch.ones(13)
    path = saved(tmp_path, lambda x, y: (x + 1, y + 1), x, y, dynamic=[{0: ROWS}, {0: 2 * ROWS + 1}])
    assert "y.shape[0] == 2 * x.shape[0] + 1" in shown(path)


def test_a_symbol_that_is_no_size_itself_is_known_by_the_first_that_follows_from_it(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        lambda x, y: (x + 1, y + 1),
        torch.ones(13),
        torch.ones(18),
        dynamic=[{0: 2 * ROWS + 1}, {0: 3 * ROWS}],
    )
    assert shown(path) == ("(x.shape[0] - 1) % 2 == 0", "x.shape[0] >= 1", "y.shape[0] == 3 * ((x.shape[0] - 1) // 2)")


def test_guards_that_the_exporter_found_are_conditions(tmp_path: Path) -> None:
    x, y = torch.ones(1, 2, 8), torch.ones(1, 2, 12)
    wide = [{2: AUTO}, {2: AUTO}]
    path = saved(tmp_path, lambda x, y: torch.nn.functional.interpolate(x, scale_factor=1.5) + y, x, y, dynamic=wide)
    assert "trunc(1.5 * float(x.shape[2])) == y.shape[2]" in shown(path)
    path = saved(tmp_path, lambda x, y: x if x.shape[2] < y.shape[2] else y, x, y, dynamic=wide)
    assert "x.shape[2] < y.shape[2]" in shown(path)
    path = saved(tmp_path, lambda x: x.reshape(-1, 4), x, dynamic=wide[:1], strict=True)
    assert any("% 4" in text for text in shown(path))


def test_what_shapes_say_already_is_not_said_twice(tmp_path: Path) -> None:
    x = torch.ones(6, 3)
    assert conditions_in(saved(tmp_path, lambda x, y: x + y, x, x, dynamic=[{0: AUTO}, {0: AUTO}])) is None


def test_an_assertion_of_the_graph_that_follows_from_sizes_is_a_condition(tmp_path: Path) -> None:
    def checked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._check(2 * x.shape[0] <= y.shape[0] + 3)
        return x + y.sum()

    path = saved(
        tmp_path,
        checked,
        torch.ones(6),
        torch.ones(10),
        dynamic=[{0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}],
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    assert shown(path) == ("2 * x.shape[0] <= y.shape[0] + 3",)


def test_a_value_that_the_program_checks_is_the_requests_fault(tmp_path: Path, request_for: Any) -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        count = x[0].item()
        torch._check(count >= 0)
        torch._check(count < 6)
        return x.new_zeros(count)  # type: ignore[call-overload,no-any-return]

    saved(tmp_path, checked, torch.tensor([3, 4]), dynamic=[None])
    for open_model in (open_exported, open_by_torch):
        model = open_model(request_for(tmp_path))
        assert model.run("", {"x": np.array([2, 0])}, ())["output_0"].shape == (2,)
        message = refusal(model.run, "", {"x": np.array([9, 0])}, (), code=StatusCode.INVALID_ARGUMENT)
        assert message == (
            "model m version 1 refuses the inputs: u0 <= 5 does not hold, where u0 is what it computes from them"
        )


def test_an_assertion_about_a_tensor_says_what_the_author_wrote(tmp_path: Path, request_for: Any) -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "every number has to be positive")
        return x * 2

    saved(tmp_path, checked, torch.ones(3), dynamic=[{0: Dim.DYNAMIC}])
    model = open_exported(request_for(tmp_path))
    message = refusal(model.run, "", {"x": np.array([1, -1], np.float32)}, (), code=StatusCode.INVALID_ARGUMENT)
    assert message == "model m version 1 refuses the inputs: every number has to be positive"


def test_every_run_is_checked_whatever_was_checked_before(tmp_path: Path, request_for: Any) -> None:
    """A reshape in the config, or several requests together, make other sizes of it."""
    saved(tmp_path, lambda x: x * 2, torch.ones(6, 3), dynamic=[{0: Dim("a", min=5)}])
    model = open_exported(request_for(tmp_path))
    message = refusal(model.run, "", {"x": np.ones((4, 3), np.float32)}, (), code=StatusCode.INVALID_ARGUMENT)
    assert message.endswith("refuses the inputs: input x has size 4 in dimension 0, at least 5 is needed")


def with_guard(path: Path, guard: str) -> None:
    def edit(name: str, data: bytes) -> bytes:
        return json.dumps(json.loads(data) | {"guards_code": [guard]}).encode() if name == "models/model.json" else data

    rewrite_archive(path, path.with_name("new"), edit).replace(path)


UNREAD = "L['x'].size()[0] in (4, 5)"


def test_guards_that_cannot_be_read_are_checked_by_torch_and_its_calls_run_alone(
    tmp_path: Path, request_for: Any
) -> None:
    with_guard(saved(tmp_path, lambda x: x * 2, torch.ones(4, 3), dynamic=[{0: AUTO}]), UNREAD)
    request = request_for(tmp_path, trusted=True)
    with pytest.raises(NeedsProcess, match="guards that are no plain arithmetic on sizes"):
        open_exported(request)
    model = open_by_torch(request)
    assert model.run("", {"x": np.ones((5, 3), np.float32)}, ())["output_0"].tolist() == [[2, 2, 2]] * 5
    message = refusal(model.run, "", {"x": np.ones((6, 3), np.float32)}, (), code=StatusCode.INVALID_ARGUMENT)
    assert "Guard failed: x.size()[0] in (4, 5)" in message
    assert BatchRule.of(model.signatures[DEFAULT_SIGNATURE], BatchSettings(max_batch_size=8)) is None


@pytest.mark.parametrize(
    "guard", [UNREAD, "__import__('os').system('true')", "L['z'].size()[0] == 1", "L['x'] == (", ""]
)
def test_guards_that_cannot_be_read_are_refused_without_trust(tmp_path: Path, request_for: Any, guard: str) -> None:
    """torch would run them as Python."""
    with_guard(saved(tmp_path, lambda x: x * 2, torch.ones(4, 3), dynamic=[{0: AUTO}]), guard)
    for open_model in (open_exported, open_by_torch):
        message = refusal(open_model, request_for(tmp_path), code=StatusCode.PERMISSION_DENIED)
        assert "guard that is no plain arithmetic on sizes" in message


@pytest.mark.parametrize(
    "guard",
    ["L['x'].stride()[0] == 3", "L['x'].storage_offset() == 0", "L['flat_args'][0].size()[0] != 7", "max(3, 4) == 4"],
)
def test_inputs_are_contiguous_and_known_by_name_or_place(tmp_path: Path, request_for: Any, guard: str) -> None:
    with_guard(saved(tmp_path, lambda x: x * 2, torch.ones(4, 3), dynamic=[{0: AUTO}]), guard)
    model = open_exported(request_for(tmp_path))
    assert model.run("", {"x": np.ones((5, 3), np.float32)}, ())["output_0"].shape == (5, 3)
    if "!= 7" in guard:
        with pytest.raises(ServingError, match=r"x\.shape\[0\] != 7"):
            model.run("", {"x": np.ones((7, 3), np.float32)}, ())


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 2000), marks=pytest.mark.load)], ids=["few", "two thousand"]
)
def test_random_programs_with_conditions_answer_and_refuse_as_torchs_loader_does(tmp_path: Path, seeds: range) -> None:
    found = [check(Random(seed), tmp_path, f"seed {seed}") for seed in seeds]
    assert [line for tally in found for line in tally.differences] == []
    assert sum(tally.counts["programs: direct"] for tally in found) > len(seeds) / 3
    assert sum(tally.counts["same: answered"] for tally in found) > len(seeds)
