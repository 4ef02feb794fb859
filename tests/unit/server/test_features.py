"""A feature of another distribution: its module and its ``dist-info`` lie on the path, as pip would put them."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.servers.explanations import Explanations
from tests.support.servers.in_process import serving
from tests.support.servers.models import TaggedArchives
from tfs_lite.cli.explain import Question, lines_of
from tfs_lite.server.features import FEATURES, GROUP, all_features, cluster
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.server_core import ServerCore

MODULE = "tfs_lite_arrivals"
FEATURE = '''
import json

from prometheus_client import Counter

from tfs_lite.core.state import ManagerState
from tfs_lite.server.feature import ServerFeature
from tfs_lite.server.http.message import Response
from tfs_lite.server.http.router import GET, About, OwnPages, Route
from tfs_lite.server.openapi import object_of
from tfs_lite.serving.lifecycle_events import ModelGone, StateChanged
from tfs_lite.transport.table import Scope


class Arrivals(ServerFeature):
    """Counts the versions of each model that became available."""

    def __init__(self, core):
        self.counts = {}
        self._counter = Counter("arrivals", "Versions that became available.", ["model"], registry=core.registry)

    def on_event(self, event):
        match event:
            case StateChanged(timed) if timed.state.state is ManagerState.AVAILABLE:
                name = timed.state.id.name
                self.counts[name] = self.counts.get(name, 0) + 1
                self._counter.labels(name).inc()
            case ModelGone(name) if self.counts.pop(name, 0):
                self._counter.remove(name)

    def explains(self, name, version):
        return {"notes": [f"{self.counts.get(name, 0)} of its versions became available"]}

    def http(self, resources):
        return (ArrivalsPage(self),)


class ArrivalsPage(OwnPages):
    def __init__(self, arrivals):
        self._arrivals = arrivals

    def routes(self):
        about = About("arrivals", "Versions that became available, by model.", "Arrivals", ("405",))
        yield Route("/v1/arrivals", GET, self.answer, about=about, scope=Scope.READ)

    def schemas(self):
        return {"Arrivals": object_of(())}

    def target(self, names):
        return None

    def answer(self, request, target):
        return Response(json.dumps(self._arrivals.counts).encode(), media_type="application/json")


def arrivals(core):
    return Arrivals(core) if core.options.rest_api_port is not None else None
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with one feature."""
    place = tmp_path / "site-packages"
    information = place / f"{MODULE}-1.0.dist-info"
    information.mkdir(parents=True)
    (place / f"{MODULE}.py").write_text(FEATURE)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{GROUP}]\narrivals = {MODULE}:arrivals\n")
    monkeypatch.syspath_prepend(str(place))
    yield
    sys.modules.pop(MODULE, None)


def test_without_other_distributions_a_server_has_the_features_of_this_one() -> None:
    others = importlib.metadata.entry_points(group=GROUP)
    assert all_features()[: len(FEATURES) + 1] == (*FEATURES, cluster)
    assert len(all_features()) == len(FEATURES) + 1 + len(others)


@pytest.mark.usefixtures("installed")
def test_a_feature_of_another_distribution_is_the_last_of_the_list() -> None:
    assert all_features()[-1].__module__ == MODULE


@pytest.mark.usefixtures("installed")
def test_a_feature_that_the_options_do_not_want_is_left_out() -> None:
    core = ServerCore(ServerOptions(model_repository="/nowhere", rest_api_port=None), all_features()[-1:])
    try:
        assert [type(feature).__name__ for feature in core.features if type(feature).__module__ == MODULE] == []
    finally:
        core.close(0.0)


@pytest.mark.usefixtures("installed")
def test_it_hears_what_happens_and_has_a_metric_a_route_and_a_line_in_explanations(
    tmp_path: Path, archives: TaggedArchives
) -> None:
    repository = tmp_path / "models"
    archives.write_version(1, repository / "m")
    with serving(repository, model_repository=str(repository)) as served:
        assert json.loads(httpx.get(f"{served.url}/v1/arrivals").content) == {"m": 1}
        refused = httpx.post(f"{served.url}/v1/arrivals")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
        assert 'arrivals_total{model="m"} 1.0' in httpx.get(f"{served.url}/metrics").text
        described = httpx.get(f"{served.url}/openapi.json").json()
        assert described["paths"]["/v1/arrivals"]["get"]["operationId"] == "arrivals"
        explanation = Explanations(served, tmp_path).ask("m")
        assert explanation["notes"] == ["1 of its versions became available"]
        assert "  1 of its versions became available" in lines_of(Question("m"), explanation)
