"""The source that offers what it is told to."""

from __future__ import annotations

from collections.abc import Sequence

from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.sources.explicit import ExplicitSource
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig


class Lists:
    def __init__(self) -> None:
        self.got: list[tuple[str, list[int]]] = []

    def __call__(self, name: str, versions: Sequence[ServableData[str]]) -> None:
        self.got.append((name, [item.id.version for item in versions]))


def versions(name: str, *numbers: int) -> list[ServableData[str]]:
    return [ServableData.ok(ServableId(name, number), f"/{name}/{number}") for number in numbers]


def config(*names: str) -> SourceConfig:
    return SourceConfig(tuple(ServableToMonitor(name, f"/{name}") for name in names))


def test_offers_go_out_as_they_come_also_those_before_the_start() -> None:
    source, lists = ExplicitSource(), Lists()
    source.offer("a", versions("a", 1))
    source.set_aspired_versions_callback(lists)
    source.offer("b", versions("b", 2, 3))
    assert lists.got == [("a", [1]), ("b", [2, 3])]


def test_models_that_leave_the_config_get_their_empty_list_and_no_others() -> None:
    source, lists = ExplicitSource(), Lists()
    source.set_aspired_versions_callback(lists)
    for name in ("a", "b"):
        source.offer(name, versions(name, 1))
    lists.got.clear()
    source.update_config(config("b", "c"))
    source.update_config(config("b"))
    assert lists.got == [("a", [])]


def test_nothing_goes_out_after_the_end() -> None:
    source, lists = ExplicitSource(), Lists()
    source.set_aspired_versions_callback(lists)
    source.close()
    source.offer("a", versions("a", 1))
    source.update_config(config())
    assert lists.got == []
