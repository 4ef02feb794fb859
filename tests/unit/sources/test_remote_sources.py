"""The sources of URLs: whose lists count, and what has a lease."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.servers.process import wait_until
from tests.support.storage import MemoryStorage
from tfs_lite.adapters.opening import SeenFiles
from tfs_lite.config.model import files_beside
from tfs_lite.config.text import load_model_settings
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.manifest import has_state, have_same_configs
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.sources.remote_sources import Lease, OneSourceEach, RemoteEffects, RemoteSources, leases_to_drop
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.storage.fetch import FetchStage, has_all_files
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.storage.url import StorageUrl

M1, M2 = ServableId("m", 1), ServableId("m", 2)


def lease(id: ServableId, key: str = "k") -> Lease:
    path = f"/cache/{key}/{id.version}"
    return Lease(id, key, path, path, f"s3://b/{id.name}/{id.version}")


def item(id: ServableId) -> ServableData[str]:
    return ServableData.ok(id, f"/models/{id.version}")


@pytest.fixture
def lists() -> tuple[OneSourceEach, list[tuple[str, list[ServableId]]]]:
    given: list[tuple[str, list[ServableId]]] = []
    found = OneSourceEach()
    found.start(lambda name, versions: given.append((name, [item.id for item in versions])))
    return found, given


def test_list_of_the_source_that_has_the_model_is_passed_on(lists) -> None:
    found, given = lists
    found.assign({"m": "s3://b"})
    assert found.offer("s3://b", "m", [item(M1)])
    assert given == [("m", [M1])]


def test_lists_of_the_source_that_had_a_model_are_dropped_the_empty_one_too(lists) -> None:
    found, given = lists
    found.assign({"m": ""})
    found.offer("", "m", [item(M1)])
    found.assign({"m": "s3://b"})
    assert not found.offer("", "m", [])
    assert not found.offer("", "m", [item(M1)])
    assert found.offer("s3://b", "m", [item(M2)])
    assert given == [("m", [M1]), ("m", [M2])]


def test_empty_list_of_a_model_that_is_gone_is_passed_on_by_its_last_source_alone(lists) -> None:
    found, given = lists
    found.assign({"m": "s3://b"})
    found.assign({})
    assert not found.offer("", "m", [])
    assert found.offer("s3://b", "m", [])
    found.assign({})
    assert not found.offer("s3://b", "m", [])
    assert given == [("m", [])]


def test_version_that_was_ended_and_is_in_no_list_loses_its_lease() -> None:
    held = {lease(M1), lease(M2)}
    assert leases_to_drop(held, {lease(M2)}, {M1: "", M2: ""}) == {lease(M1)}


def test_version_of_which_nothing_is_known_keeps_its_lease() -> None:
    assert leases_to_drop({lease(M1)}, set(), {}) == frozenset()
    assert leases_to_drop({lease(M1)}, set(), {M2: ""}) == frozenset()


def test_version_that_was_loaded_anew_keeps_the_lease_of_what_serves_and_of_what_is_wanted() -> None:
    old, now, wanted = lease(M1, "a"), lease(M1, "b"), lease(M1, "c")
    assert leases_to_drop({old, now, wanted}, {wanted}, {M1: now.path}) == {old}


def test_two_models_of_one_base_have_a_lease_each() -> None:
    other = ServableId("n", 1)
    held = {lease(M1), Lease(other, "k", "/cache/k/1", "/cache/k/1", "s3://b/m/1")}
    assert leases_to_drop(held, set(), {M1: ""}) == {lease(M1)}


# Over a storage in memory.


class Remote:
    """Sources over storages in memory, and the lists that they have passed on. ``owned``: the models whose lists count;
    None: all."""

    def __init__(self, directory: Path, cache_bytes: int = 1 << 30) -> None:
        self.storages: dict[str, MemoryStorage] = {}
        self.lists: dict[str, list[ServableData[str]]] = {}
        self.fetches: list[tuple[ServableId, FetchStage]] = []
        self.requests: list[tuple[str, str, str]] = []
        self.evicted: list[str] = []
        self._directory = directory
        self._made = 0
        self._clock = SystemClock()
        self.cache_dir = directory / "cache"
        self.sources = RemoteSources(
            self._clock,
            self._offer,
            str(self.cache_dir),
            cache_bytes,
            RemoteEffects(
                on_request=lambda *asked: self.requests.append(asked),
                on_fetch=lambda id, event: self.fetches.append((id, event.stage)),
                on_evicted=lambda key, size: self.evicted.append(key),
            ),
            lambda url, on_request: self.storage(url.place),
        )

    def storage(self, place: str) -> MemoryStorage:
        return self.storages.setdefault(place, MemoryStorage())

    def _offer(self, place: str, name: str, versions: Sequence[ServableData[str]]) -> bool:
        self.lists[name] = list(versions)
        return True

    def put(self, url: str, version: int, data: bytes = b"weights", **beside: bytes) -> None:
        """Publishes a version of one file below a URL of ``s3://b``, and files beside the versions."""
        self._made += 1
        source = self._directory / f"source-{self._made}"
        source.mkdir()
        (source / "weights.bin").write_bytes(data)
        base = self._directory / f"base-{self._made}"
        directory = Path(publish(str(source), str(base), version).path)
        parsed = StorageUrl.parse(url)
        for name in ("weights.bin", "tfs_lite.manifest.json"):
            self.storage(parsed.place).set(f"{parsed.prefix}/{version}/{name}", (directory / name).read_bytes())
        for name, content in beside.items():
            self.storage(parsed.place).set(f"{parsed.prefix}/{name.replace('_', '.')}", content)

    def configure(self, **models: str) -> None:
        servables = tuple(ServableToMonitor(name, url) for name, url in models.items())
        self.sources.update_config(SourceConfig(servables, 0.05, 0.0))

    def wait_list(self, name: str, *versions: int) -> list[ServableData[str]]:
        def there() -> bool:
            return [item.id.version for item in self.lists.get(name, ())] == list(versions)

        wait_until(there, f"{name} has {versions}", 20)
        return self.lists[name]

    def tell(self, id: ServableId, state: ManagerState) -> None:
        self.sources.on_state(ServableState(id, state))

    def cache(self) -> FilesCache:
        """The cache as another process sees it."""
        return FilesCache(str(self.cache_dir), 1 << 30, has_all_files, lambda key, size: self.evicted.append(key))

    def close(self) -> None:
        self.sources.close()
        self._clock.close()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    found = Remote(tmp_path)
    yield found
    found.close()


def test_list_has_paths_of_the_cache_whose_origin_is_known(remote: Remote) -> None:
    remote.put("s3://b/m", 1)
    remote.configure(m="s3://b/m")
    (item,) = remote.wait_list("m", 1)
    assert Path(item.payload, "weights.bin").read_bytes() == b"weights"
    assert remote.sources.origin_of(os.path.realpath(item.payload)) == "s3://b/m/1"
    assert remote.sources.origin_of(os.path.realpath(f"{item.payload}/weights.bin")) == "s3://b/m/1"
    assert remote.sources.origin_of(f"{os.path.realpath(remote.cache_dir)}/other/1") == ""
    assert remote.sources.origin_of("/models/m/1") is None
    assert remote.fetches == [(M1, FetchStage.BEGUN), (M1, FetchStage.FETCHED)]


def test_revision_is_that_of_the_copies_so_that_loaders_see_the_same(remote: Remote) -> None:
    config = b'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }'
    remote.put("s3://b/m", 1, config_pbtxt=config, labels_txt=b"a\nb\n")
    remote.configure(m="s3://b/m")
    (item,) = remote.wait_list("m", 1)
    settings = load_model_settings(Path(item.payload), "m")
    assert files_beside(settings) == {"labels.txt"}
    assert has_state(item.revision, SeenFiles.look(item.payload, settings).state)
    remote.storage("s3://b").set("m/labels.txt", b"c\nd\n")
    wait_until(lambda: remote.lists["m"][0].revision != item.revision, "the labels are others", 20)
    after = remote.lists["m"][0]
    assert after.payload == item.payload
    assert have_same_configs(after.revision, item.revision)
    assert has_state(after.revision, SeenFiles.look(item.payload, settings).state)


def test_what_is_listed_or_loaded_is_not_evicted_and_goes_afterwards(remote: Remote) -> None:
    remote.put("s3://b/m", 1)
    remote.configure(m="s3://b/m")
    remote.wait_list("m", 1)
    remote.tell(M1, ManagerState.AVAILABLE)
    remote.put("s3://b/m", 2)
    first = remote.lists["m"][0].payload
    remote.wait_list("m", 2)
    cache = remote.cache()
    cache.evict(1 << 30)
    assert remote.evicted == []
    remote.tell(M1, ManagerState.END)
    assert remote.sources.origin_of(os.path.realpath(first)) == ""
    cache.evict(1 << 30)
    assert len(remote.evicted) == 1
    assert not os.path.exists(first)
    assert os.path.exists(remote.lists["m"][0].payload)


def test_version_that_is_loaded_anew_from_other_files_gives_the_first_ones_free(remote: Remote) -> None:
    remote.put("s3://b/m", 1)
    remote.configure(m="s3://b/m")
    (before,) = remote.wait_list("m", 1)
    remote.tell(M1, ManagerState.AVAILABLE)
    remote.put("s3://b/m", 1, b"others")
    wait_until(lambda: remote.lists["m"][0].payload != before.payload, "other files are offered", 20)
    after = remote.lists["m"][0]
    remote.cache().evict(1 << 30)
    assert os.path.exists(before.payload)
    remote.sources.on_replaced(M1, after.payload)
    remote.cache().evict(1 << 30)
    assert not os.path.exists(before.payload)
    assert os.path.exists(after.payload)


def test_list_whose_files_have_gone_is_not_passed_on_and_they_are_fetched_again(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfs_lite.sources.remote_sources.AGAIN_SECONDS", 0.05)
    hold, refused = FilesCache.hold, list[str]()

    def gone(cache: FilesCache, key: str) -> bool:
        if not refused:
            refused.append(key)
            shutil.rmtree(os.path.join(cache.directory, key))
        return hold(cache, key)

    monkeypatch.setattr(FilesCache, "hold", gone)
    remote.put("s3://b/m", 1)
    remote.configure(m="s3://b/m")
    (item,) = remote.wait_list("m", 1)
    assert os.path.exists(item.payload)
    wait_until(lambda: [stage for _, stage in remote.fetches].count(FetchStage.FETCHED) == 2, "they have come again")


def test_model_that_moves_to_another_place_and_back_is_offered_from_there(remote: Remote) -> None:
    remote.put("s3://b/m", 1)
    remote.put("s3://c/m", 1, b"others")
    remote.configure(m="s3://b/m")
    (before,) = remote.wait_list("m", 1)
    remote.configure(m="s3://c/m")
    wait_until(lambda: remote.lists["m"] and remote.lists["m"][0].payload != before.payload, "it has moved", 20)
    assert remote.sources.origin_of(os.path.realpath(remote.lists["m"][0].payload)) == "s3://c/m/1"
    remote.configure(m="s3://b/m")
    wait_until(lambda: remote.lists["m"] and remote.lists["m"][0].payload == before.payload, "it is back", 20)
    remote.configure()
    remote.wait_list("m")
    assert remote.sources.conditions() == {}


def test_place_that_hangs_holds_up_no_other(remote: Remote) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang(operation: str, path: str) -> None:
        hangs.set()
        released.wait(30)

    remote.storage("s3://a").fault = hang
    remote.put("s3://b/m", 1)
    remote.configure(n="s3://a/n", m="s3://b/m")
    try:
        remote.wait_list("m", 1)
        assert hangs.is_set()
        assert "n" not in remote.lists
    finally:
        released.set()


def test_version_that_another_server_on_this_cache_fetches_says_so(remote: Remote, tmp_path: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    def hang(operation: str, path: str) -> None:
        if path.endswith("weights.bin"):
            begun.set()
            released.wait(30)

    remote.storage("s3://b").fault = hang
    remote.put("s3://b/m", 1)
    second = Remote(tmp_path)
    second.storages = remote.storages
    remote.configure(m="s3://b/m")
    try:
        assert begun.wait(20)
        second.configure(m="s3://b/m")
        words = "another process of this machine fetches the files for "
        wait_until(lambda: any(str(each).startswith(words) for each in second.sources.checking().values()), "it waits")
        assert str(remote.sources.checking()[M1]).startswith("fetching the files: ")
        released.set()
        assert second.wait_list("m", 1)
    finally:
        released.set()
        second.close()


def test_two_models_of_one_base_share_files_and_each_is_told_of_the_fetch(remote: Remote) -> None:
    remote.put("s3://b/m", 1)
    remote.configure(m="s3://b/m", n="s3://b/m")
    (first,), (second,) = remote.wait_list("m", 1), remote.wait_list("n", 1)
    assert first.payload == second.payload
    assert {id.name for id, _ in remote.fetches} == {"m", "n"}
    assert [stage for id, stage in remote.fetches if id.name == "m"].count(FetchStage.FETCHED) == 1
    assert remote.sources.conditions().keys() == {"m", "n"}
    assert remote.sources.cache_use() is not None


def test_nothing_is_made_before_a_url_is_in_a_config(remote: Remote) -> None:
    remote.configure()
    assert not remote.cache_dir.exists()
    assert remote.sources.cache_use() is None
    assert remote.sources.origin_of("/models/m/1") is None
    assert remote.sources.found("m") is None


def test_look_ahead_has_paths_of_the_cache_and_asks_no_place_that_is_not_served(remote: Remote) -> None:
    remote.put("s3://b/m", 1)
    remote.configure(m="s3://b/m")
    (item,) = remote.wait_list("m", 1)
    wanted = SourceConfig((ServableToMonitor("m", "s3://b/m"), ServableToMonitor("n", "s3://other/n")), 0.05, 0.0)
    looks = remote.sources.look_ahead(wanted)
    assert [found.payload for found in looks["m"].aspired or ()] == [item.payload]
    assert looks["n"].aspired is None
    assert "no model at its place yet" in looks["n"].report.problem.message
    assert "s3://other" not in remote.storages


def test_version_that_is_rejected_before_its_place_is_known_is_not_fetched_and_another_one_is(remote: Remote) -> None:
    for version in (1, 2):
        remote.put("s3://b/m", version)
    remote.sources.reject("m", {2})
    remote.configure(m="s3://b/m")
    remote.wait_list("m", 1)
    assert remote.fetches == [(M1, FetchStage.BEGUN), (M1, FetchStage.FETCHED)]
    remote.sources.reject("m", ())
    remote.wait_list("m", 2)
    remote.sources.reject("m", {2})
    (given_up, instead) = remote.wait_list("m", 2, 1)
    assert (given_up.given_up, instead.given_up) == (True, False)
