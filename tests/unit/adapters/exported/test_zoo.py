"""The zoo, as three releases of torch saved it: the direct builder answers bit for bit as torch's own loader does.

``python -m tests.support.exported.saved FILE`` writes the archives of the release that runs it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from tests.support.exported.comparison import assert_same, open_directly, open_with_torch
from tests.support.exported.saved import unpack
from tests.support.exported.zoo import ZOO
from tests.support.exported.zoo_program import ZooProgram
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.core.status import ServingError

pytestmark = pytest.mark.filterwarnings("ignore")

INSTALLED = ".".join(torch.__version__.split("+")[0].split(".")[:2])
RELEASES = [release for release in ("2.11", "2.12", "2.13") if release <= INSTALLED]
SLOW = {"resnet", "bert", "bert_sdpa", "bert_lengths", "gpt2", "llama", "mixtral", "t5_encoder", "swin", "vit"} | {
    "deep_mlp",
    "transformer_encoder",
}
"""Programs of more than some 100 operators: torch takes up to a second to load one."""
NOT_DIRECT = {
    "scanned": "operator torch.ops.higher_order.scan is not among those that are built directly",
    "operator_of_another_library": "uses 'torch.ops.tfs_lite_zoo.twice.default', which is not one of PyTorch's own",
    "square_root_of_a_size": "has a size that is no plain arithmetic",
    "named_tuple_out": "has inputs or outputs that cannot be read",
}
"""The programs that the builder does not load, and why."""


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """``saved(release)`` is the folder of what that release of torch wrote."""

    @cache
    def unpacked(release: str) -> Path:
        folder = tmp_path_factory.mktemp(release)
        unpack(Path(__file__).with_name(f"saved_by_torch_{release}.tar.xz"), folder)
        return folder

    return unpacked


def assert_same_answers(program: ZooProgram, path: Path) -> None:
    """At every size twice, one after the other, so that state shows."""
    calls = [lambda size=size: program.flat_inputs(size) for size in program.sizes for _ in range(2)]
    answered = assert_same(open_with_torch(path), open_directly(path), calls, program.name)
    assert answered >= 2 * max(1, len(program.sizes) - 1)


DIRECT = [
    pytest.param(
        release,
        name,
        marks=[pytest.mark.load] if name in SLOW or release != RELEASES[-1] else [],
        id=f"{release}-{name}",
    )
    for release in RELEASES
    for name in sorted(ZOO.keys() - NOT_DIRECT)
]


@pytest.mark.parametrize(("release", "name"), DIRECT)
def test_a_program_answers_as_torchs_own_loader_does(release, name, saved):
    assert_same_answers(ZOO[name], saved(release) / f"{name}.pt2")


@pytest.mark.load
@pytest.mark.parametrize("name", sorted(ZOO.keys() - NOT_DIRECT))
def test_a_program_saved_just_now_answers_as_torchs_own_loader_does(name, tmp_path):
    assert_same_answers(ZOO[name], ZOO[name].save(tmp_path / f"{name}.pt2"))


@pytest.mark.parametrize("release", RELEASES)
def test_at_least_nine_in_ten_programs_are_built_directly(release, saved):
    found = {}
    for name in ZOO:
        try:
            open_directly(saved(release) / f"{name}.pt2")
        except (UnsupportedProgram, ServingError) as error:
            found[name] = str(error)
    assert found.keys() == NOT_DIRECT.keys()
    assert [name for name in found if NOT_DIRECT[name] not in found[name]] == []
    assert len(ZOO) >= 45
    assert len(found) <= len(ZOO) / 10
