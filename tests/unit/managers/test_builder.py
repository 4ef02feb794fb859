"""Chains that are put together and taken apart in order."""

from __future__ import annotations

from tfs_lite.core.servable import ServableData, ServableId, ServableRequest
from tfs_lite.core.source import UnarySourceAdapter
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManagerOptions
from tfs_lite.managers.builder import AspiredVersionsManagerBuilder
from tfs_lite.managers.policies import POLICIES
from tfs_lite.testing.clock import VirtualClock
from tfs_lite.testing.executor import ManualExecutor
from tfs_lite.testing.loader import FakeLoader


class ListedSource:
    """Emits one list when it is connected."""

    def __init__(self, log: list[str], data: ServableData) -> None:
        self._log, self._data = log, data

    def set_aspired_versions_callback(self, callback) -> None:
        callback(self._data.id.name, [self._data])

    def close(self) -> None:
        self._log.append("source")


class LoggedAdapter(UnarySourceAdapter):
    """Notes when it is detached."""

    def __init__(self, log: list[str], name: str, convert) -> None:
        super().__init__(convert)
        self._log, self._name = log, name

    def detach(self) -> None:
        self._log.append(self._name)
        super().detach()


def builder() -> AspiredVersionsManagerBuilder:
    return AspiredVersionsManagerBuilder(
        AspiredVersionsManagerOptions(
            clock=VirtualClock(),
            load_executor=ManualExecutor(0),
            unload_executor=ManualExecutor(0),
            policy=POLICIES["availability"],
            tick_interval=None,
        )
    )


def test_chain_feeds_the_manager_and_ends_from_the_source_on() -> None:
    log: list[str] = []
    paths = []
    building = builder()
    building.own(lambda: log.append("first registered"))
    building.add_source_chain(
        ListedSource(log, ServableData.ok(ServableId("m", 1), "path")),
        LoggedAdapter(log, "prefix", lambda item: f"/base/{item.payload}"),
        LoggedAdapter(log, "loader", lambda item: paths.append(item.payload) or FakeLoader()),
    )
    wrapper = building.build()
    wrapper.manager.tick()
    assert paths == ["/base/path"]
    assert wrapper.list_available_servable_ids() == [ServableId("m", 1)]
    with wrapper.get_servable_handle(ServableRequest.latest("m")) as handle:
        assert handle.servable.id == ServableId("m", 1)
    for handle in wrapper.get_available_servable_handles().values():
        handle.release()
    wrapper.close()
    assert log == ["source", "prefix", "loader", "first registered"]
    assert wrapper.list_available_servable_ids() == []


def test_source_of_loaders_needs_no_adapter() -> None:
    log: list[str] = []
    building = builder()
    building.add_source(ListedSource(log, ServableData.ok(ServableId("m", 1), FakeLoader())))
    wrapper = building.build()
    wrapper.manager.tick()
    assert wrapper.list_available_servable_ids() == [ServableId("m", 1)]
    wrapper.close()
    assert log == ["source"]
