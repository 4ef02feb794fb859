"""What managers rely on, for loaders that need no model: the simple one and the fake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tfs_lite.core.loader import Loader, SimpleLoader
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.lifecycle.loader import FakeLoader

ID = ServableId("m", 1)


def simple(failures: int) -> Loader:
    """A simple loader whose creator fails that often first."""
    left = [failures]

    def create(servable_id: ServableId) -> object:
        if left[0]:
            left[0] -= 1
            raise ServingError(StatusCode.UNAVAILABLE, "not yet")
        return object()

    return SimpleLoader(create, lambda: main_ram(10), lambda servable: main_ram(4))


def fake(failures: int) -> Loader:
    return FakeLoader(failures=failures, estimate=main_ram(10), estimate_after_load=main_ram(4))


every_loader = pytest.mark.parametrize("make", [simple, fake])


@every_loader
def test_servable_is_there_between_load_and_unload_only(make: Callable[[int], Loader]) -> None:
    loader = make(0)
    assert loader.servable is None
    loader.load(ID)
    assert loader.servable is not None
    loader.unload()
    assert loader.servable is None


@every_loader
def test_failed_load_leaves_nothing_and_may_be_tried_again(make: Callable[[int], Loader]) -> None:
    loader = make(2)
    for _ in range(2):
        with pytest.raises(ServingError) as raised:
            loader.load(ID)
        assert raised.value.code is StatusCode.UNAVAILABLE
        assert loader.servable is None
    loader.load(ID)
    assert loader.servable is not None


@every_loader
def test_estimate_can_be_asked_at_any_time_and_never_grows(make: Callable[[int], Loader]) -> None:
    loader = make(1)
    assert loader.estimate_resources() == main_ram(10)
    with pytest.raises(ServingError):
        loader.load(ID)
    assert loader.estimate_resources() == main_ram(10)
    loader.load(ID)
    assert loader.estimate_resources() == main_ram(4)
