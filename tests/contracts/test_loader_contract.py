"""What managers rely on, for the loader of tests."""

from __future__ import annotations

from tests.support.errors import refusal
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.testing.lifecycle.loader import FakeLoader

ID = ServableId("m", 1)


def fake(failures: int) -> Loader:
    return FakeLoader(failures=failures, estimate=main_ram(10), estimate_after_load=main_ram(4))


def test_servable_is_there_between_load_and_unload_only() -> None:
    loader = fake(0)
    assert loader.servable is None
    loader.load(ID)
    assert loader.servable is not None
    loader.unload()
    assert loader.servable is None


def test_failed_load_leaves_nothing_and_may_be_tried_again() -> None:
    loader = fake(2)
    for _ in range(2):
        refusal(loader.load, ID, code=StatusCode.UNAVAILABLE)
        assert loader.servable is None
    loader.load(ID)
    assert loader.servable is not None


def test_estimate_can_be_asked_at_any_time_and_never_grows() -> None:
    loader = fake(1)
    assert loader.estimate_resources() == main_ram(10)
    refusal(loader.load, ID, code=StatusCode.UNAVAILABLE)
    assert loader.estimate_resources() == main_ram(10)
    loader.load(ID)
    assert loader.estimate_resources() == main_ram(4)
