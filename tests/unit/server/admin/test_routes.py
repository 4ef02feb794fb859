"""The routes of the control: exact, before TensorFlow Serving's grammar, which stays as strict as it is."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.messages import AdminRequest
from tfs_lite.server.admin.grpc_service import read_question, read_ref
from tfs_lite.server.admin.questions import MOST_MODELS
from tfs_lite.testing.servers.in_process import serving


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
        read_ref(read_question(AdminRequest(json=text).SerializeToString(), ("model", "version", "label")))


def test_config_of_too_many_models_is_refused_before_it_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    models = [{"name": f"m{number}", "base_path": f"/{number}"} for number in range(MOST_MODELS + 1)]
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m")) as it, httpx.Client() as http:
        asked = {"model_config_list": {"config": models}}
        refused = http.post(f"{it.url}/v1/config:explain", json=asked, timeout=60)
        assert refused.status_code == 400
        assert "10001 models are too many" in refused.json()["error"]
