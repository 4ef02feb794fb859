"""The static source and the prefix adapter."""

from __future__ import annotations

from typing import Any

import pytest

from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.source import connect
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.sources.prefix_adapter import PrefixStoragePathSourceAdapter
from tfs_lite.sources.static_source import StaticStoragePathSource


def test_the_static_source_emits_its_version_when_the_callback_is_set(target: Any) -> None:
    StaticStoragePathSource("m", 3, "/models/m/3").set_aspired_versions_callback(target.aspire)
    assert target.lists == {"m": [ServableData.ok(ServableId("m", 3), "/models/m/3")]}


@pytest.mark.parametrize(
    ("prefix", "path", "joined"),
    [
        ("", "bar", "bar"),
        ("", "/bar", "/bar"),
        ("/baz", "bar", "/baz/bar"),
        ("/baz/", "bar", "/baz/bar"),
        ("/baz", "/bar", "/baz/bar"),
        ("/", "bar", "/bar"),
    ],
)
def test_the_prefix_is_joined_to_every_path(target: Any, prefix: str, path: str, joined: str) -> None:
    adapter = PrefixStoragePathSourceAdapter(prefix)
    adapter.set_aspired_versions_callback(target.aspire)
    connect(StaticStoragePathSource("m", 3, path), adapter)
    assert [item.payload for item in target.lists["m"]] == [joined]


def test_errored_items_pass_through_the_prefix_adapter() -> None:
    failed: ServableData[str] = ServableData.error(ServableId("m", 1), Status(StatusCode.UNKNOWN, "no"), "r")
    assert PrefixStoragePathSourceAdapter("/baz").adapt_one_version(failed) == failed
