"""The chain from the sources of versions to the manager.

    sources -> [features may change the lists] -> [features hear and model states note what is wanted]
           -> [changed versions are followed]
           -> router -> one adapter per platform -> [features wrap the loader] -> [journal] -> manager
                     -> "no such platform"      ->

All of it is built once and stays; a new config only changes what the sources look at and where the router sends it.
There is one source for the directories of this machine, and one for each place of URLs, such as a bucket.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tfs_lite.adapters.loader import AdapterSettings
from tfs_lite.adapters.platforms import PLATFORMS, make_loader, make_source_adapter
from tfs_lite.adapters.replay.gate import ReplayGate
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_server import All, ModelConfig, ModelServerConfig, VersionPolicy
from tfs_lite.core.clock import Clock
from tfs_lite.core.loader import Loader, LoadProgress
from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ModelRef, ServableData, ServableId, StoragePath
from tfs_lite.core.source import ErrorInjectingSourceAdapter, SourceAdapter, SourceRouter, UnarySourceAdapter, connect
from tfs_lite.core.state import ServableState
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager
from tfs_lite.serving.config_checks import remote_config, source_config
from tfs_lite.serving.feature import Features
from tfs_lite.serving.lifecycle_events import (
    CacheEvicted,
    FetchBegun,
    FetchDone,
    FetchFailed,
    SourceReported,
    StorageAsked,
    VersionsAspired,
)
from tfs_lite.serving.load_journal import JournaledLoader, LoadJournal
from tfs_lite.serving.model_states import ModelStates
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.preloaded import PreloadedLoader, Preloads
from tfs_lite.serving.version_follower import VersionFollower
from tfs_lite.sources.disk import Disk, RealDisk
from tfs_lite.sources.explicit import ExplicitSource
from tfs_lite.sources.file_system_source import NOTHING_ENDS, FileSystemStoragePathSource
from tfs_lite.sources.look import FoundVersions, Look
from tfs_lite.sources.remote_sources import OneSourceEach, RemoteEffects, RemoteSources
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.storage.fetch import FetchEvent, FetchProgress, FetchStage
from tfs_lite.storage.store import StorageCondition

ReadSettings: TypeAlias = Callable[[str, str], ModelSettings | None]
"""Gives the config of a version by its directory and the model's name."""
NO_PLATFORM = Status(StatusCode.INTERNAL, "No platform found for model", Reason.NO_PLATFORM)
_HERE = ""
"""The name of the source of this machine's directories, among those that are named by their place."""
NO_MODELS = ModelServerConfig.model_validate({"model_config_list": {}})


def served_platforms() -> list[str]:
    """The platforms that this server can load, by the names that a config may give."""
    return sorted(name for name, platform in PLATFORMS.items() if platform.is_served)


class SourceChain:
    """``start`` -> ``reconfigure``* -> ``close``. The manager is closed later, by its owner.

    In the control mode explicit the disk is not looked at: versions come by :meth:`offer` only.
    """

    def __init__(
        self,
        options: ServerOptions,
        manager: AspiredVersionsManager,
        states: ModelStates,
        journal: LoadJournal,
        settings: AdapterSettings,
        clock: Clock,
        features: Features,
        follower: VersionFollower | None = None,
    ) -> None:
        """``features`` hear of lists and wrap loaders; ``follower`` follows the changes of versions that serve (None:
        they are not followed)."""
        self._options = options
        self._states = states
        self._journal = journal
        self._features = features
        self._lists = OneSourceEach()
        self._remote = RemoteSources(
            clock,
            self._lists.offer,
            options.model_cache_dir,
            options.model_cache_bytes,
            RemoteEffects(
                on_report=self._on_report,
                on_request=lambda *asked: features.publish(StorageAsked(*asked)),
                on_fetch=self._on_fetch,
                on_evicted=lambda key, size: features.publish(CacheEvicted(key, size)),
            ),
        )
        gate = ReplayGate(
            lambda name: manager.get_servable_handle(ModelRef(name)),
            features.accepted,
            bake_seconds=options.bake_seconds,
            check_method_names=options.enable_signature_method_name_check,
        )
        trusted = replace(settings.trusted, origin_of=self._remote.origin_of)
        self._settings = replace(settings, trusted=trusted, gate=gate)
        self._follower = follower
        self._preloads = Preloads()
        self._explicit = ExplicitSource()
        self._source: ExplicitSource | FileSystemStoragePathSource = self._explicit
        if not options.is_explicit:
            config = source_config(NO_MODELS, options)
            watch = options.follows_changes
            self._source = FileSystemStoragePathSource(
                config, RealDisk(), clock, self._on_report, watch, disk_timeout=options.disk_timeout_seconds
            )
        self._config = NO_MODELS
        self._configs: Mapping[str, ModelConfig] = {}
        self._router = self._connect(manager)

    def _connect(self, manager: AspiredVersionsManager) -> SourceRouter[str | None, StoragePath]:
        """Everything from the router down. The adapter of the platform None finds the platform of each version out."""
        journaled = UnarySourceAdapter(self._journaled)
        connect(journaled, manager)
        adapters: dict[str | None, SourceAdapter[StoragePath, Loader]] = {
            platform: make_source_adapter(platform, self._settings) for platform in (None, *served_platforms())
        }
        no_platform: ErrorInjectingSourceAdapter[StoragePath] = ErrorInjectingSourceAdapter(NO_PLATFORM)
        for adapter in (*adapters.values(), no_platform):
            connect(adapter, journaled)
        return SourceRouter(adapters, no_platform)

    def _journaled(self, item: ServableData[Loader]) -> Loader:
        loader = self._features.wrap(item.id, item.payload)
        if self._options.is_explicit:
            loader = PreloadedLoader(item.id, item.revision, loader, self._preloads)
        return JournaledLoader(item.id, loader, self._journal)

    def _on_report(self, report: SourceReport) -> None:
        self._features.publish(SourceReported(report))
        self._states.on_source_report(report)

    def _on_fetch(self, servable_id: ServableId, event: FetchEvent) -> None:
        """One that was cancelled is not told: nobody wants the version any more."""
        size, status = event.version.size, Status(event.code, event.sentence)
        if event.stage is FetchStage.BEGUN:
            self._features.publish(FetchBegun(servable_id, size))
        elif event.stage is FetchStage.FETCHED:
            self._features.publish(FetchDone(servable_id, size, event.fetched_bytes, event.seconds, event.attempts))
        elif event.code is not StatusCode.CANCELLED:
            self._features.publish(FetchFailed(servable_id, status, event.fetched_bytes, event.attempts))

    def start(self) -> None:
        """The sources begin to look at what they were given."""
        callback = self._router.aspired_versions_callback()
        if self._follower is not None:
            callback = self._follower.observe(callback)
            self._follower.start()
        offer = self._states.observe(callback)

        def tell_and_offer(name: str, versions: Sequence[ServableData[StoragePath]]) -> None:
            self._features.publish(VersionsAspired(name, versions))
            offer(name, versions)

        observed = self._features.observe(tell_and_offer)
        if isinstance(self._source, ExplicitSource):
            self._source.set_aspired_versions_callback(observed)
            return

        def offer_from_here(name: str, versions: Sequence[ServableData[StoragePath]]) -> None:
            self._lists.offer(_HERE, name, versions)

        self._lists.start(observed)
        self._source.set_aspired_versions_callback(offer_from_here)

    def reconfigure(self, config: ModelServerConfig) -> None:
        """Models that are gone get their empty list before this returns; the rest follows with the poll that this
        causes. A model that is gone keeps its route until the next config, for a list that is on its way. One whose
        base path moves from one source to another keeps what serves until the new one has something to offer."""
        self._router.update_routes({model.name: model.platform for model in (*self._config.models, *config.models)})
        here, remote = source_config(config, self._options), remote_config(config, self._options)
        self._lists.assign(dict.fromkeys(here.by_name, _HERE) | self._remote.places_of(remote))
        self._source.update_config(here)
        self._remote.update_config(remote)
        before, self._configs = self._configs, {model.name: model for model in config.models}
        self._config = config
        self.wake({name for name, model in self._configs.items() if before.get(name) != model})

    def wake(self, names: Collection[str] | None = None) -> None:
        """The sources look again soon at these models (None: at all) and say what they find; nothing happens where
        versions come by calls."""
        if isinstance(self._source, FileSystemStoragePathSource):
            self._source.wake(names)
            self._remote.wake(names)

    def hanging(self) -> dict[str, float]:
        """The models whose disk or storage does not answer, and for how many seconds it has not."""
        here = self._source.hanging() if isinstance(self._source, FileSystemStoragePathSource) else {}
        return here | self._remote.hanging()

    def on_event(self, event: ServableState) -> None:
        """Takes an event of the manager: a version has reached a state."""
        if self._follower is not None:
            self._follower.on_event(event)
        if isinstance(self._source, FileSystemStoragePathSource):
            self._source.on_state(event)
        self._remote.on_state(event)

    def on_replaced(self, item: ServableData[StoragePath]) -> None:
        """Another load of a version that serves, from what this item has, has taken its place."""
        self._remote.on_replaced(item.id, item.payload)

    def on_failed_attempt(self, servable_id: ServableId) -> None:
        """A load of the version has failed; it may be tried again."""
        if isinstance(self._source, FileSystemStoragePathSource):
            self._source.on_failed_attempt(servable_id)
        self._remote.on_failed_attempt(servable_id)

    def reject(self, name: str, versions: Collection[int]) -> None:
        """Has others stand in for these versions from now on, and for no others; see
        :meth:`FileSystemStoragePathSource.reject`. Nothing happens where versions come by calls."""
        if isinstance(self._source, FileSystemStoragePathSource):
            self._source.reject(name, versions)
            self._remote.reject(name, versions)

    def found(self, name: str) -> FoundVersions | None:
        """The findings of its source about the model; None where versions come by calls."""
        if not isinstance(self._source, FileSystemStoragePathSource):
            return None
        return self._remote.found(name) or self._source.found(name)

    def complete(self, name: str) -> Mapping[int, ServableData[StoragePath]] | None:
        """Every version of the model that is complete, wanted or not, as its source would offer it; also one whose
        digests are not checked yet, because nothing has wanted it. None where that cannot be told: its disk does not
        answer, its base path is empty, or versions come by calls. Asks the disk."""
        model = self._configs.get(name)
        if model is None or isinstance(self._source, ExplicitSource) or name in self.hanging():
            return None
        every = model.model_copy(update={"model_version_policy": VersionPolicy(all=All())})
        found = self.look_ahead(self._config.only(every), takes_unchecked=True)
        aspired = found[name].aspired if name in found else None
        return None if aspired is None else {item.id.version: item for item in aspired}

    def checking(self) -> dict[ServableId, LoadProgress]:
        """The progress of the versions whose files are checked, or fetched, before anything is loaded."""
        here = self._source.checking() if isinstance(self._source, FileSystemStoragePathSource) else {}
        return here | self._remote.checking()

    # Of models whose base path is a URL.

    def conditions(self) -> Mapping[str, StorageCondition]:
        """The state of the storage of each model whose base path is a URL, by name."""
        return self._remote.conditions()

    def fetches(self) -> Mapping[ServableId, FetchProgress]:
        """The attempts of each version that is being fetched; :meth:`checking` has their bytes."""
        return self._remote.fetches()

    def cache_use(self) -> tuple[int, int] | None:
        """The bytes in the cache of files, and the most that it may hold; None where there is no such cache."""
        return self._remote.cache_use()

    def origin_of(self, directory: StoragePath) -> str | None:
        """The URL that the version in a directory was fetched from; None for a directory that nothing fetched."""
        return self._remote.origin_of(os.path.realpath(directory))

    @property
    def trusted(self) -> TrustedPaths:
        """The places whose versions may bring code."""
        return self._settings.trusted

    @property
    def configs(self) -> Mapping[str, ModelConfig]:
        """The config of each model; empty where versions come by calls."""
        return self._configs

    def make_loader(self, item: ServableData[StoragePath]) -> Loader:
        """Another loader of a version, of the platform that the config names, as the manager gets them: it takes over
        what was preloaded for this revision."""
        platforms = {model.name: model.platform for model in self._config.models}
        loader = make_loader(item, platforms.get(item.id.name), self._settings)
        return self._journaled(ServableData.ok(item.id, loader, item.revision))

    # Without effects.

    def look_ahead(
        self,
        config: ModelServerConfig,
        disk: Disk | None = None,
        outcomes: Mapping[ServableId, bool] = NOTHING_ENDS,
        *,
        takes_unchecked: bool = False,
    ) -> dict[str, Look]:
        """The findings, by model, that the source would have now with this config; see
        :meth:`FileSystemStoragePathSource.look_ahead`. Empty where versions come by calls."""
        if not isinstance(self._source, FileSystemStoragePathSource):
            return {}
        wanted = source_config(config, self._options)
        here = self._source.look_ahead(wanted, disk, outcomes, takes_unchecked=takes_unchecked)
        return here | self._remote.look_ahead(remote_config(config, self._options), outcomes)

    def estimate(self, item: ServableData[StoragePath], platform: str | None, read: ReadSettings) -> ResourceAllocation:
        """The resources that a load of the version would reserve; ``read`` finds its config. Raises the loader's
        error."""
        return make_loader(item, platform, replace(self._settings, model_settings=read)).estimate_resources()

    # For versions that come by calls.

    def offer(self, name: str, versions: Sequence[ServableData[StoragePath]]) -> None:
        """Offers exactly these versions of the model from now on. Only in the control mode explicit."""
        self._explicit.offer(name, versions)

    def preload(self, item: ServableData[StoragePath], platform: str | None) -> None:
        """Loads the version on this thread, for the moment when it is offered with this revision. Raises the loader's
        error."""
        loader = self._features.wrap(item.id, make_loader(item, platform, self._settings))
        with self._journal.loading(item.id, loader):
            loader.load(item.id)
        self._preloads.put(item.id, item.revision, loader)

    def drop_preloads(self, name: str) -> None:
        """Unloads what was preloaded for the model and not offered."""
        self._preloads.drop(name)

    def close(self) -> None:
        """Afterwards no list reaches the manager."""
        self._source.close()
        self._remote.close()
        if self._follower is not None:
            self._follower.close()
        self._router.detach()
