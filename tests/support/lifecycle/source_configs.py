"""Short configurations of the file-system source: models under ``/models``, polled by hand."""

from __future__ import annotations

from typing import Any

from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.sources.version_scan import LatestPolicy, VersionPolicy


def config(*servables: ServableToMonitor, **settings: Any) -> SourceConfig:
    return SourceConfig(servables, **{"poll_interval": None, **settings})


def model(name: str = "m", policy: VersionPolicy | None = None) -> ServableToMonitor:
    return ServableToMonitor(name, f"/models/{name}", policy or LatestPolicy())
