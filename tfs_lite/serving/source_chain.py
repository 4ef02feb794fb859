"""The chain that serves: who hands what to whom.

    source -> [view notes what is wanted] -> router -> one adapter per platform -> [journal] -> manager
                                                    -> "no such platform"      ->

All of it is built once and stays; a new config only changes what the source looks at and where the router sends it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tfs_lite.adapters.platforms import PLATFORMS, AdapterSettings, make_loader, make_source_adapter
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.clock import Clock
from tfs_lite.core.loader import Loader
from tfs_lite.core.router import DynamicSourceRouter
from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.source import ErrorInjectingSourceAdapter, SourceAdapter, UnarySourceAdapter, connect
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager
from tfs_lite.serving.load_journal import JournaledLoader, LoadJournal
from tfs_lite.serving.model_states import ModelStates
from tfs_lite.serving.preloaded import PreloadedLoader, Preloads
from tfs_lite.sources.disk import Disk
from tfs_lite.sources.explicit import ExplicitSource
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.source_config import SourceConfig

NO_PLATFORM = Status(StatusCode.INTERNAL, "No platform found for model")


@dataclass(frozen=True, slots=True)
class Platforms:
    """The platforms that this server can load, and the router's port of each. ``None`` finds the platform out per
    version."""

    names: tuple[str | None, ...]

    @classmethod
    def known(cls) -> Platforms:
        return cls((None, *sorted(name for name, platform in PLATFORMS.items() if platform.is_served)))

    @property
    def named(self) -> Collection[str]:
        return [name for name in self.names if name is not None]

    def routes(self, config: ModelServerConfig) -> dict[str, int]:
        return {model.name: self.names.index(model.platform) for model in config.models}


class SourceChain:
    """``start`` -> ``reconfigure``* -> ``close``. The manager belongs to whoever passes it in, and is closed later."""

    def __init__(
        self,
        manager: AspiredVersionsManager,
        view: ModelStates,
        journal: LoadJournal,
        platforms: Platforms,
        adapter_settings: AdapterSettings,
        source_config: SourceConfig,
        disk: Disk,
        clock: Clock,
        watch: bool,
        explicit: bool = False,
    ) -> None:
        """``explicit``: the disk is not looked at; versions come by :meth:`offer` only."""
        self._view = view
        self._platforms = platforms
        self._settings = adapter_settings
        self._prepared = Preloads()
        self._explicit = ExplicitSource()
        self._source: ExplicitSource | FileSystemStoragePathSource = (
            self._explicit
            if explicit
            else FileSystemStoragePathSource(source_config, disk, clock, view.on_source_report, watch)
        )
        self._router: DynamicSourceRouter[StoragePath] = DynamicSourceRouter(len(platforms.names) + 1, {})
        self._adapters: list[SourceAdapter[StoragePath, Loader]] = [
            *(make_source_adapter(platform, adapter_settings) for platform in platforms.names),
            ErrorInjectingSourceAdapter(NO_PLATFORM),
        ]
        self._journaled = _journaling(journal, self._prepared)
        connect(self._journaled, manager)
        for port, adapter in zip(self._router.ports, self._adapters, strict=True):
            connect(adapter, self._journaled)
            connect(port, adapter)

    def start(self) -> None:
        """The source begins to look at what it was given."""
        self._source.set_aspired_versions_callback(self._view.tap(self._router.aspired_versions_callback()))

    def reconfigure(
        self, config: ModelServerConfig, source_config: SourceConfig, old: ModelServerConfig | None
    ) -> None:
        """Models that are gone are un-aspired through their old route before this returns; the rest follows with the
        poll that this causes."""
        new_routes = self._platforms.routes(config)
        old_routes: Mapping[str, int] = self._platforms.routes(old) if old else {}
        self._router.update_routes({**old_routes, **new_routes})
        self._source.update_config(source_config)
        self._router.update_routes(new_routes)

    # For versions that come by calls.

    def offer(self, name: str, versions: Sequence[ServableData[StoragePath]]) -> None:
        """These versions of the model are wanted, and no others. Only without a source that looks at the disk."""
        self._explicit.offer(name, versions)

    def prepare(self, item: ServableData[StoragePath], platform: str | None) -> None:
        """Loads the version here and now, for the moment when it is offered with this revision. The loader's error."""
        loader = make_loader(item, platform, self._settings)
        loader.load(item.id)
        self._prepared.put(item.id, item.revision, loader)

    def drop_prepared(self, name: str) -> None:
        """Unloads what was prepared for the model and not offered."""
        self._prepared.drop(name)

    def close(self) -> None:
        """No list reaches the manager any more."""
        self._source.close()
        self._router.detach()
        for adapter in self._adapters:
            adapter.detach()
        self._journaled.detach()


def _journaling(journal: LoadJournal, prepared: Preloads) -> UnarySourceAdapter[Loader, Loader]:
    def wrap(item: ServableData[Loader]) -> Loader:
        return JournaledLoader(item.id, PreloadedLoader(item.id, item.revision, item.payload, prepared), journal)

    return UnarySourceAdapter(wrap)
