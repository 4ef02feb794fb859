"""Models of the hub, served: each commit is a version, and a hub that refuses or is silent takes nothing away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.remote.hub import FakeHub, fake_hub
from tests.support.remote.served import REMOTE
from tests.support.servers.in_process import ROW, TIMEOUT, ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.core.servable import VersionState

TOKEN = "hf_canary"
NUMBERS = {1: 1772366400, 2: 1772452800, 3: 1772539200}
DATES = {1: "2026-03-01T12:00:00.000Z", 2: "2026-03-02T12:00:00.000Z", 3: "2026-03-03T12:00:00.000Z"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as found:
        found.token = TOKEN
        monkeypatch.setenv("HF_ENDPOINT", found.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield found


def push(hub: FakeHub, archives: TaggedArchives, root: Path, tag: int) -> str:
    """A commit whose model answers with ``tag``, and code that nobody may fetch."""
    file = root / f"{tag}.pt2"
    archives.write(tag, file)
    files = {"model.pt2": file.read_bytes(), "model.py": b"raise SystemExit", "README.md": b"# Model"}
    return hub.push("ada/digits", DATES[tag], files, frozenset({"model.pt2"}))


def serving_hub(root: Path, *entries: str) -> dict[str, Any]:
    file = root / "models.config"
    file.write_text(config_text(root, *entries))
    return {**REMOTE, "model_cache_dir": str(root / "cache"), "model_config_file": str(file)}


def tag_of(served: ServerFixture, model: str) -> int:
    """The tag of the version that answers, after checking that its number is that of the tag."""
    answer = served.predict(model)
    tag = int(answer.outputs["y"][0, 0] - ROW[0, 0])
    assert answer.version == NUMBERS[tag]
    return tag


def wait_available(served: ServerFixture, model: str, tag: int) -> None:
    wait_until(lambda: served.states(model).get(NUMBERS[tag]) is VersionState.AVAILABLE, f"{model} {tag}", TIMEOUT)
    assert tag_of(served, model) == tag


def test_commits_are_versions_and_a_hub_that_refuses_or_is_gone_takes_nothing_away(
    hub: FakeHub, archives: TaggedArchives, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pinned = push(hub, archives, tmp_path, 1)
    fields = serving_hub(
        tmp_path, entry("m", path="hf://ada/digits"), entry("pinned", path=f"hf://ada/digits@{pinned}")
    )
    with serving(tmp_path, **fields) as served:
        wait_available(served, "m", 1)
        push(hub, archives, tmp_path, 2)
        wait_available(served, "m", 2)
        hub.status = lambda side, path: 403
        words = (
            "its base path cannot be read: the hub refuses (403): accept the terms of the repository and set HF_TOKEN"
        )
        wait_until(lambda: words in (served.problem("m") or ""), words, TIMEOUT)
        assert tag_of(served, "m") == 2
        assert tag_of(served, "pinned") == 1
        hub.status = lambda side, path: 0
        push(hub, archives, tmp_path, 3)
        wait_available(served, "m", 3)
        assert served.states("pinned") == {NUMBERS[1]: VersionState.AVAILABLE}
        assert served.problem("m") == served.problem("pinned")
    asked = hub.paths()
    assert [path for path in asked if f"revision/{pinned}" in path] == [
        f"/api/models/ada/digits/revision/{pinned}?blobs=true"
    ]
    assert not [path for path in (*asked, *hub.paths("store")) if path.endswith((".py", ".md"))]
    assert {request.headers.get("authorization") for request in hub.asked if request.side == "store"} == {None}
    assert TOKEN not in caplog.text
    hub.status = lambda side, path: 503
    with serving(tmp_path, **fields) as again:
        assert (tag_of(again, "m"), tag_of(again, "pinned")) == (3, 1)
