"""Each list goes as a whole to the target that the table names."""

from __future__ import annotations

import pytest

from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.source import SourceRouter, TargetBase

Seen = list[tuple[str, str]]


class Recorder(TargetBase):
    """Writes down what reaches it, under its own name."""

    def __init__(self, own: str, seen: Seen) -> None:
        super().__init__()
        self._own, self._seen = own, seen

    def set_aspired_versions(self, name, versions) -> None:
        self._seen.append((self._own, name))


@pytest.fixture
def seen() -> Seen:
    return []


@pytest.fixture
def router(seen: Seen) -> SourceRouter:
    return SourceRouter({"x": Recorder("x", seen), None: Recorder("none", seen)}, Recorder("rest", seen))


def send(router: SourceRouter, *names: str) -> None:
    emit = router.aspired_versions_callback()
    for name in names:
        emit(name, [ServableData.ok(ServableId(name, 1), "path")])


def test_lists_follow_the_newest_table(router: SourceRouter, seen: Seen) -> None:
    send(router, "a")
    router.update_routes({"a": "x", "b": None})
    send(router, "a", "b", "c")
    router.update_routes({"c": "x"})
    send(router, "a", "c")
    assert seen == [("rest", "a"), ("x", "a"), ("none", "b"), ("rest", "c"), ("rest", "a"), ("x", "c")]


def test_table_in_force_does_not_change_under_the_router(router: SourceRouter, seen: Seen) -> None:
    routes = {"a": "x"}
    router.update_routes(routes)
    routes["a"] = "y"
    send(router, "a")
    assert seen == [("x", "a")]


def test_detached_router_passes_nothing_on(router: SourceRouter, seen: Seen) -> None:
    router.detach()
    send(router, "a")
    assert seen == []
