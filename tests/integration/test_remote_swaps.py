"""Many swaps of a model in a bucket while clients call without pause: no request fails, none is answered by half a
version, and nothing is withdrawn by what the storage does meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.profiles import scaled
from tests.support.remote.moto import Moto
from tests.support.remote.served import serving_bucket
from tests.support.servers.models import TaggedArchives
from tests.support.servers.probe import Traffic
from tests.support.servers.process import wait_until
from tfs_lite.core.servable import VersionState

FAULTS = (
    {"kind": "status", "status": 503, "times": 2},
    {"kind": "cut", "after": 1000, "times": 2, "operation": "get", "path": "model.pt2"},
    {"kind": "reset", "times": 2},
    {"kind": "status", "status": 403, "code": "AccessDenied", "times": 1, "operation": "list"},
)


@pytest.mark.parametrize(
    ("swaps", "clients", "faults"),
    [
        pytest.param(4, 2, (), id="a_few"),
        pytest.param(scaled(100), 8, (), id="a_hundred", marks=pytest.mark.load),
        pytest.param(scaled(100), 8, FAULTS, id="a_hundred_through_faults", marks=pytest.mark.load),
    ],
)
def test_swaps_from_a_bucket_lose_nothing(
    moto: Moto, archives: TaggedArchives, tmp_path: Path, swaps: int, clients: int, faults: tuple[dict, ...]
) -> None:
    with serving_bucket(moto, archives, tmp_path) as place:
        core = place.served.server.core
        place.publish("m", 1)
        place.serve("m")
        place.proxy.forget()
        with Traffic(place.served.target, "m", clients) as traffic:
            for version in range(2, swaps + 2):
                if faults:
                    place.proxy.fail(**faults[version % len(faults)])
                place.publish("m", version)
                core.sources.wake({"m"})
                place.wait_version("m", version)
        assert traffic.failures == []
        assert traffic.wrong == []
        assert traffic.backwards == 0
        assert len(traffic.answers) > swaps / 4, "the clients saw too few of the versions to prove anything"
        ended = dict.fromkeys(range(swaps - 1, swaps + 1), VersionState.END)
        wait_until(lambda: ended.items() <= place.served.states("m").items(), "the old versions are gone", 30)
        assert place.proxy.sent("get", "/m/2/model.pt2") >= len(place.bucket.read("m/2/model.pt2"))
        if not faults:  # each version's files are fetched once, and a poll is one LIST
            assert all(place.proxy.count("get", f"/m/{v}/model.pt2") == 1 for v in range(2, swaps + 2))
            assert place.proxy.count("list") <= 8 * swaps + 20
