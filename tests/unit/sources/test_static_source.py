"""The static source."""

from __future__ import annotations

from typing import Any

from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.sources.static_source import StaticStoragePathSource


def test_the_static_source_emits_its_version_when_the_callback_is_set(target: Any) -> None:
    StaticStoragePathSource("m", 3, "/models/m/3").set_aspired_versions_callback(target.aspire)
    assert target.lists == {"m": [ServableData.ok(ServableId("m", 3), "/models/m/3")]}
