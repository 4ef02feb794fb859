"""A feature of another distribution: its module and its ``dist-info`` lie on the path, as pip would put them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers.explanations import Explanations
from tests.support.servers.in_process import serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.cli.explain import Question, lines_of
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.feature import ServerFeature
from tfs_lite.server.features import FEATURES, GROUP, all_features, cluster
from tfs_lite.server.server import Server
from tfs_lite.serving.feature import starting
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


def distribution(directory: Path, text: str) -> Path:
    """The place of a distribution with one feature, whose module has this text."""
    place = directory / "site-packages"
    information = place / f"{MODULE}-1.0.dist-info"
    information.mkdir(parents=True)
    (place / f"{MODULE}.py").write_text(text)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{GROUP}]\narrivals = {MODULE}:arrivals\n")
    return place


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(distribution(tmp_path, FEATURE)))
    yield
    sys.modules.pop(MODULE, None)


def test_without_other_distributions_a_server_has_the_features_of_this_one() -> None:
    others = importlib.metadata.entry_points(group=GROUP)
    assert all_features()[: len(FEATURES) + 1] == (*FEATURES, cluster)
    assert len(all_features()) == len(FEATURES) + 1 + len(others)


@pytest.mark.usefixtures("installed")
def test_a_feature_of_another_distribution_is_the_last_of_the_list() -> None:
    assert all_features()[-1].__module__ == MODULE


@pytest.mark.parametrize("step", ["make", "attach", "grpc", "http", "start"])
def test_a_server_with_a_feature_that_cannot_start_does_not_start_and_names_it(tmp_path: Path, step: str) -> None:
    def fail(*arguments: Any) -> None:
        raise ValueError("a defect")

    broken = type("Broken", (ServerFeature,), {"__init__" if step == "make" else step: fail})
    before = set(threading.enumerate())
    server = Server(model_repository=str(tmp_path), port=0, rest_api_port=0, features=[lambda core: broken()])
    if step == "make":
        server = Server(model_repository=str(tmp_path), port=0, rest_api_port=0, features=[broken])
    with pytest.raises(ServingError, match=r"the feature Broken cannot .*: ") as found, server:
        server.wait_ready(60)
    assert found.value.code is StatusCode.FAILED_PRECONDITION
    wait_until(lambda: set(threading.enumerate()) <= before, "no thread is left", 60)


def test_a_feature_that_ends_the_process_as_it_is_imported_is_named() -> None:
    named = pytest.raises(ServingError, match="the feature arrivals cannot be imported: SystemExit: 5")
    with named, starting("arrivals", "be imported"):
        raise SystemExit(5)


def test_a_process_with_a_feature_that_cannot_be_imported_ends_and_names_it(tmp_path: Path) -> None:
    place = distribution(tmp_path, "raise OSError('no such card')")
    server = ServerProcess(f"--model_repository={tmp_path}", env={**os.environ, "PYTHONPATH": str(place)})
    with pytest.raises(RuntimeError, match="ended with 1") as found, server:
        pass
    assert "tfs-lite: the feature arrivals cannot be imported: OSError: no such card" in str(found.value)


def test_a_feature_that_fails_while_the_server_serves_costs_no_request(
    tmp_path: Path, archives: TaggedArchives, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise ValueError("a defect")

    serves = ("on_event", "wrap", "silence", "explains", "replicas", "first_load_ended", "on_run", "on_call")
    broken = type("Broken", (ServerFeature,), dict.fromkeys((*serves, "drained", "close_doors"), staticmethod(fail)))
    archives.write_version(1, tmp_path / "models" / "m")
    with serving(
        tmp_path / "models", model_repository=str(tmp_path / "models"), features=[*FEATURES, lambda core: broken()]
    ) as served:
        assert served.version() == 1
        assert served.version() == 1
        assert httpx.get(f"{served.url}/v2/models/m/ready").status_code == 200
        assert Explanations(served, tmp_path).ask("m")["verdict"] == "SERVING"
        page = httpx.get(f"{served.url}/metrics").text
    assert 'tfs_lite_feature_failures_total{feature="Broken",what="wrap"}' in page
    assert "the feature Broken failed on close_doors" in caplog.text


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
