"""What people see of a model in a bucket: states, explanations, events and metrics of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.remote.moto import Moto
from tests.support.remote.served import ServedBucket, serving_bucket
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.cli.main import main


@pytest.fixture(scope="module")
def place(moto: Moto, archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBucket]:
    with serving_bucket(moto, archives, tmp_path_factory.mktemp("words"), rest_api_port=0) as found:
        yield found


def asked(place: ServedBucket, path: str) -> Any:
    return httpx.get(f"{place.served.url}{path}", timeout=60).json()


def causes(place: ServedBucket, model: str, version: int | None = None) -> dict[str, dict[str, Any]]:
    which = "" if version is None else f"/versions/{version}"
    return {link["cause"]: link for link in asked(place, f"/v1/models/{model}{which}:explain")["because"]}


def events(place: ServedBucket, model: str, version: int) -> list[str]:
    found = asked(place, f"/v1/events?model={model}&limit=100")["events"]
    return [event["text"] for event in found if event["version"] == version]


def metric(place: ServedBucket, name: str, **labels: str) -> float | None:
    return place.served.server.core.registry.get_sample_value(f"tfs_lite_{name}", labels)


def test_a_version_that_is_being_fetched_is_start_with_its_bytes_and_explained_with_its_pace(
    place: ServedBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    place.publish("slow", 1)
    place.serve("slow")
    place.publish("slow", 2, **{"weights.safetensors.bak": bytes(4 << 20)})
    place.proxy.fail("slow", operation="get", path="weights")
    link = wait_until(lambda: causes(place, "slow", 2).get("FETCHING"), "it is being fetched")
    assert link["text"].startswith("its files are fetched: ")
    assert link["doc"] == "remote.md"
    (model,) = [model for model in asked(place, "/v1/models")["models"] if model["name"] == "slow"]
    assert model["model_version_status"][0]["state"] == "START"
    assert model["load_progress"][0]["phase"] == "fetching the files"
    assert model["load_progress"][0]["expected_bytes"] > 4 << 20
    main(["status", "slow", "--server", place.served.url.removeprefix("http://")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 START fetching the files: " in shown
    assert "1 AVAILABLE" in shown
    place.proxy.heal()
    place.wait_version("slow", 2)
    told = events(place, "slow", 2)
    begun = [text.split(":")[0].split(" after")[0] for text in told[:4]]
    assert sorted(begun[:2]) == ["fetch begun", "found, not complete"], "they come from two threads"
    assert begun[2:] == ["fetched", "files complete"]
    assert metric(place, "fetches_total", model="slow", result="ok") == 2
    assert metric(place, "fetches_total", model="slow", result="failed") == 0
    assert (metric(place, "fetched_bytes_total", model="slow") or 0) > 4 << 20
    assert metric(place, "fetch_seconds_count", model="slow") == 2


def test_a_storage_that_fails_is_explained_and_its_last_listing_keeps_its_time(place: ServedBucket) -> None:
    place.publish("away", 1)
    place.serve("away")
    listed = wait_until(lambda: metric(place, "storage_listed_timestamp_seconds", model="away"), "it was listed")
    place.proxy.fail("status", path="away", status=503, code="SlowDown")
    link = wait_until(lambda: causes(place, "away").get("STORAGE_UNREACHABLE"), "the storage is away")
    assert f"the storage answers 503 SlowDown ({place.bucket.url}/away); since " in link["text"]
    assert link["since"] is not None
    wait_until(lambda: "tried 1 " not in causes(place, "away")["STORAGE_UNREACHABLE"]["text"], "it is tried again")
    silent = metric(place, "storage_listed_timestamp_seconds", model="away")
    place.proxy.heal()
    wait_until(lambda: not causes(place, "away"), "all is well again")
    assert listed <= (silent or 0) <= (metric(place, "storage_listed_timestamp_seconds", model="away") or 0)
    requests = {"scheme": "s3", "operation": "list"}
    assert (metric(place, "storage_requests_total", result="ok", **requests) or 0) > 1
    assert (metric(place, "storage_requests_total", result="unavailable", **requests) or 0) > 1


def test_a_fetch_that_is_refused_is_a_failed_one_with_an_event_that_counts(place: ServedBucket) -> None:
    place.publish("refused", 1)
    place.serve("refused")
    place.proxy.fail("status", path="refused/2/model.pt2", operation="get", status=403, code="AccessDenied")
    place.publish("refused", 2)
    link = wait_until(lambda: causes(place, "refused", 2).get("FETCH_FAILED"), "it cannot be fetched")
    assert link["text"] == "its files cannot be fetched: the storage refuses (403 AccessDenied)"
    wait_until(lambda: (metric(place, "fetches_total", model="refused", result="failed") or 0) > 1, "tried again")
    place.proxy.heal()
    place.wait_version("refused", 2)
    failed = [text for text in events(place, "refused", 2) if "fetched: the storage" in text]
    assert failed == ["its files cannot be fetched: the storage refuses (403 AccessDenied)"]


def test_a_publication_that_was_killed_names_what_to_delete(place: ServedBucket) -> None:
    place.publish("claimed", 1)
    place.serve("claimed")
    claim = {"host": "host-7", "time": "2026-11-28T03:12:09Z", "token": "0" * 32}
    place.bucket.set("claimed/2/tfs_lite.uploading", json.dumps(claim).encode())
    link = wait_until(lambda: causes(place, "claimed", 2).get("INCOMPLETE"), "it is being published")
    assert link["text"] == "its files are not complete: being published since 2026-11-28T03:12:09Z by host-7"
    assert f"delete everything below {place.bucket.url}/claimed/2/ and publish again" in link["fix"]


def test_a_version_that_is_not_there_is_not_looked_for_on_the_disk_of_this_machine(place: ServedBucket) -> None:
    place.publish("absent", 1)
    place.serve("absent")
    answer = asked(place, "/v1/models/absent/versions/7:explain")
    assert answer["verdict"] == "NOT_ON_DISK"


def test_what_leaves_the_cache_is_an_event_and_counted(moto: Moto, archives: TaggedArchives, tmp_path: Path) -> None:
    size = 1 << 20
    with serving_bucket(moto, archives, tmp_path, rest_api_port=0, model_cache_bytes=4 * size) as place:
        for version in (1, 2, 3, 4):
            place.publish("m", version, **{"weights.bak": bytes(size + (size >> 1))})
            if version == 1:
                place.serve("m")
            place.wait_version("m", version)
        assert (metric(place, "model_cache_evictions_total") or 0) >= 1
        assert metric(place, "model_cache_limit_bytes") == 4 * size
        assert 0 < (metric(place, "model_cache_bytes") or 0) <= 4 * size
        texts = [event["text"] for event in asked(place, "/v1/events?model=&limit=100")["events"]]
        assert any(text.startswith("files that nothing uses were removed from the cache: 1.5") for text in texts)
