"""The routes of the control: exact, before TensorFlow Serving's grammar, which stays as strict as it is."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest

from tests.support.servers.in_process import config_text, entry, serving
from tests.support.servers.models import write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.core.servable import MAX_VERSION, ModelRef
from tfs_lite.core.status import ServingError
from tfs_lite.managers.survey import ManagerView
from tfs_lite.operations.admin.grpc_service import read_question, read_ref
from tfs_lite.operations.admin.questions import MOST_MODELS, read_body
from tfs_lite.protocols.messages import AdminRequest

ASKED = ("model", "version", "label")


def test_routes_are_exact_and_every_answer_is_json(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with (
        serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m"), rest_api_enable_cors_support=True) as it,
        httpx.Client(base_url=it.url) as http,
    ):
        found = http.get("/v1/models/m:explain")
        assert (found.status_code, found.json()["verdict"]) == (200, "NOT_ON_DISK")
        assert found.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in found.headers
        assert http.get("/v1/models/m/versions/007:explain").json()["version"] == 7
        assert http.get("/v1/models/m/labels/x:explain").json()["label"] == "x"
        refused = http.post("/v1/models/m:explain")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
        assert http.get(f"/v1/models/m/versions/{MAX_VERSION + 1}:explain").status_code == 400
        assert "this page takes no query" in http.get("/v1/models/m:explain?a=1").json()["error"]
        for path in ("/v1/models/m:Explain", "/v1/Models/m:explain", "/v1/models/m:explain/", "/v1/models/m/:explain"):
            assert http.get(path).status_code == 400, path
            assert "Malformed request" in http.get(path).json()["error"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1]", "expected an object"),
        (b"{", "JSON Parse error"),
        (b'{"name": "m"}', "field 'name' is not known"),
        (b'{"model": 3}', "field model"),
        (b'{"model": "m", "version": -1}', "field version"),
        (b'{"model": "m", "version": true}', "field version"),
        (b'{"model": "m", "label": 1}', "field label"),
        (b'{"model": "m", "label": "a", "version": 1}', "both set"),
        (b'{"version": 1}', "model is missing"),
    ],
)
def test_a_question_over_grpc_that_is_wrong_says_where(text: bytes, message: str) -> None:
    with pytest.raises(ServingError, match=message):
        read_ref(read_question(AdminRequest(json=text).SerializeToString(), ASKED))


def test_null_is_absent_in_questions() -> None:
    asked = read_question(
        AdminRequest(json=b'{"model": "m", "version": null, "label": null}').SerializeToString(), ASKED
    )
    assert read_ref(asked) == ModelRef("m")
    assert read_question(AdminRequest(json=b'{"model": null}').SerializeToString(), ASKED) == {}
    body = b'{"publish": null, "model_config_list": {"config": [{"name": "m", "model_platform": null}]}}'
    assert read_body(body) == {"model_config_list": {"config": [{"name": "m"}]}}


def test_explaining_keeps_no_request_waiting(tmp_path: Path) -> None:
    """Not a line of it runs on the event loop."""
    (tmp_path / "m").mkdir()
    with serving(tmp_path, ready=False, model_repository=str(tmp_path)) as it, httpx.Client(base_url=it.url) as http:
        core, threads = it.server.core, list[str]()
        survey = core.manager.survey

        def seen() -> ManagerView:
            threads.append(threading.current_thread().name)
            return survey()

        core.manager.survey = seen  # type: ignore[method-assign]
        for path in ("/v1/models:explain", "/v1/models/m:explain", "/v1/overview"):
            before = len(threads)
            assert http.get(path).status_code == 200
            assert len(threads) > before or path == "/v1/overview", "an overview may be that of a moment ago"
        assert not [name for name in threads if name.startswith(("tfs-server", "MainThread"))]


def test_config_of_too_many_models_is_refused_before_it_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    models = [{"name": f"m{number}", "base_path": f"/{number}"} for number in range(MOST_MODELS + 1)]
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m")) as it, httpx.Client() as http:
        asked = {"model_config_list": {"config": models}}
        refused = http.post(f"{it.url}/v1/config:explain", json=asked, timeout=60)
        assert refused.status_code == 400
        assert "10001 models are too many" in refused.json()["error"]


def test_config_file_is_read_again_by_call_and_the_event_says_who_wished_so(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, entry("first")))
    with serving(tmp_path, ready=False, model_config_file=str(file)) as it, httpx.Client(base_url=it.url) as http:
        wait_until(lambda: http.get("/v1/models:explain").json()["models"], "the first config is applied")
        file.write_text(config_text(tmp_path, entry("second")))
        answer = http.post("/v1/config:reload")
        assert (answer.status_code, answer.json()["read"]) == (200, "the config file and the directories of its models")
        (event,) = http.get("/v1/events?kind=CONFIG_APPLIED").json()["events"][-1:]
        assert (event["cause"], event["by"]) == ("OPERATOR", "127.0.0.1")
        assert [line["model"] for line in http.get("/v1/models:explain").json()["models"]] == ["second"]
        file.write_text("no config")
        refused = http.post("/v1/config:reload")
        assert refused.status_code == 400
        assert "models.config" in refused.json()["error"]


def test_new_model_of_a_repository_is_found_by_call_when_nothing_polls(tmp_path: Path) -> None:
    source = "class Model:\n    def __init__(self, context): pass\n    def predict(self, x): return {'y': x}\n"
    write_python_version(tmp_path / "first", 1, source)
    options = {"model_repository": str(tmp_path), "file_system_poll_wait_seconds": 0}
    trusted = {"trusted_model_base_paths": (f"{tmp_path}/*",)}
    with serving(tmp_path, **options, **trusted) as it, httpx.Client(base_url=it.url) as http:
        write_python_version(tmp_path / "second", 1, source)
        assert [line["model"] for line in http.get("/v1/models:explain").json()["models"]] == ["first"]
        assert http.post("/v1/config:reload").status_code == 200
        assert "second" in [line["model"] for line in http.get("/v1/models:explain").json()["models"]]


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_nothing_is_read_again_where_nothing_is_followed(mode: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    options = {"model_repository": str(tmp_path), "model_control_mode": mode}
    with serving(tmp_path, ready=False, **options) as it, httpx.Client(base_url=it.url) as http:
        refused = http.post("/v1/config:reload")
        assert refused.status_code == 400
        assert f"model_control_mode {mode}" in refused.json()["error"]
