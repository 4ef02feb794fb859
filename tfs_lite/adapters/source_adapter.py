"""Where the lifecycle meets the platforms: a version's path in, its loader out. No file is touched here."""

from __future__ import annotations

from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.core.loader import Loader
from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.source import UnarySourceAdapter

__all__ = ["AdapterSettings", "make_loader", "make_source_adapter"]


def make_source_adapter(platform: str | None, settings: AdapterSettings) -> UnarySourceAdapter[StoragePath, Loader]:
    """An adapter for versions of one platform; None finds it out for each version when it is loaded."""

    return UnarySourceAdapter(lambda item: make_loader(item, platform, settings))


def make_loader(item: ServableData[StoragePath], platform: str | None, settings: AdapterSettings) -> Loader:
    """The loader of one version."""
    return ArtifactLoader(item.payload, platform or "", settings, PLATFORMS, item.id.name)
