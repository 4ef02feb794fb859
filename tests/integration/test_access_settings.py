"""Settings of access on real servers: closed scopes, tokens for some models, a file that changes, denials that show."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.errors import refusal
from tests.support.servers.access_fixture import (
    ELSEWHERE,
    LIMITED,
    READER,
    SECRET,
    UNKNOWN,
    access_line,
    bearer,
    managed,
)
from tests.support.servers.in_process import config_text, entry
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.client import Client
from tfs_lite.core.history import EventKind
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import PredictRequest
from tfs_lite.protocols.v2 import messages as v2


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and their config."""
    root, archives = tmp_path_factory.mktemp("models"), TaggedArchives()
    for name in ("m", "a-one"):
        archives.write_version(1, root / name)
    (root / "models.config").write_text(config_text(root, entry("m"), entry("a-one")))
    return root


@pytest.fixture(scope="module")
def start(root: Path) -> Callable[..., Any]:
    """Starts a server of both models."""
    return partial(managed, root, model_config_file=str(root / "models.config"))


def test_token_for_some_models_sees_no_others(start: Callable[..., Any]) -> None:
    with start(read_access="token", predict_access="token") as server:
        body = {"instances": [[1.0, 2.0, 3.0]]}

        def predict(model: str, token: str = LIMITED) -> int:
            headers = {**ELSEWHERE, **bearer(token)}
            return int(server.http.post(f"/v1/models/{model}:predict", json=body, headers=headers).status_code)

        assert (predict("a-one"), predict("m"), predict("nothing"), predict("m", SECRET)) == (200, 404, 404, 200)
        assert predict("m", "") == 401
        assert predict("m", READER) == 403
        listed = server.ask("GET", "/v1/models", LIMITED).json()["models"]
        assert [model["name"] for model in listed] == ["a-one"]
        assert server.ask("GET", "/v1/models/m", LIMITED).status_code == 404
        assert server.ask("GET", "/v1/models/a-one", LIMITED).status_code == 200
        assert server.ask("GET", "/v1/overview?model=m", LIMITED).status_code == 404
        assert server.ask("GET", "/v1/overview?model=a-one", LIMITED).status_code == 200
        assert server.ask("GET", "/v2/models/a-one/stats", LIMITED).status_code == 200
        assert server.ask("GET", "/v2/models/stats", LIMITED).status_code == 403
        assert server.ask("GET", "/metrics", LIMITED).status_code == 403
        assert server.ask("GET", "/metrics", READER).status_code == 200
        assert server.ask("POST", "/v2/models/a-one/trace/setting", LIMITED).status_code == 200
        assert server.ask("POST", "/v2/models/m/trace/setting", LIMITED).status_code == 404
        assert server.ask("POST", "/v2/trace/setting", LIMITED).status_code == 403
        assert server.ask("GET", "/v2", LIMITED).status_code == 200
        assert server.ask("GET", "/livez").status_code == 200
        openai = server.http.get("/openai/v1/models")
        assert openai.status_code == 401
        assert openai.json()["error"]["type"] == "invalid_request_error"
        ready = "/inference.GRPCInferenceService/ModelMetadata"
        for name, code in (("a-one", grpc.StatusCode.OK), ("m", grpc.StatusCode.NOT_FOUND)):
            data = v2.ModelMetadataRequest(name=name).SerializeToString()
            assert server.call(ready, data, LIMITED)[0] is code
        twice = v2.ModelMetadataRequest(name="m").SerializeToString() + data.replace(b"m", b"a-one")
        assert server.call(ready, twice, LIMITED)[0] is not grpc.StatusCode.OK, "a field that comes twice hides none"
        for name, code in (("a-one", grpc.StatusCode.INVALID_ARGUMENT), ("m", grpc.StatusCode.NOT_FOUND)):
            stream = v2.ModelInferRequest(model_name=name).SerializeToString()
            found, words = server.call("/inference.GRPCInferenceService/ModelInfer", stream, LIMITED)
            assert found is code, words
        for name, code in (("a-one", grpc.StatusCode.UNIMPLEMENTED), ("m", grpc.StatusCode.NOT_FOUND)):
            data = PredictRequest(model_spec={"name": name}).SerializeToString()
            found, words = server.call("/tfs_lite.GenerationService/PredictStreamed", data, LIMITED)
            assert found is code, words
        stream = v2.ModelInferRequest(model_name="m").SerializeToString()
        found, words = server.call("/inference.GRPCInferenceService/ModelStreamInfer", stream, LIMITED)
        assert found is grpc.StatusCode.NOT_FOUND, words
        with Client(server.served.target, token=LIMITED) as client:
            assert client.predict("a-one", {"x": [[1.0, 2.0, 3.0]]}).version == 1
            refusal(lambda: client.predict("m", {"x": [[1.0, 2.0, 3.0]]}), code=StatusCode.NOT_FOUND)
        with Client(server.served.target) as client:
            refusal(lambda: client.metadata("m"), code=StatusCode.UNAUTHENTICATED)


def test_next_call_follows_the_access_file(start: Callable[..., Any]) -> None:
    newer = "secret-of-newer-" * 2
    with start() as server:
        path = "/v2/logging"
        assert server.ask("POST", path, SECRET).status_code == 200
        server.file.write_text(access_line("newer", "manage", newer))
        # An unknown token is a guess, and after some guesses there is a pause.
        wait_until(lambda: server.ask("POST", path, newer).status_code == 200, "the new token works", 20.0, 0.25)
        assert server.ask("POST", path, SECRET).status_code == 401
        server.file.write_text("broken")
        assert server.ask("POST", path, newer).status_code == 200


def test_denials_are_counted_and_are_events(start: Callable[..., Any]) -> None:
    with start() as server:
        server.ask("POST", "/v2/logging")
        server.http.post("/v2/logging", headers={"origin": "http://evil.example"})
        page = server.http.get("/metrics").text
        events = server.served.server.core.history.of_model("")
    assert 'tfs_lite_access_denied_total{reason="no_token",scope="manage"} 1.0' in page
    assert 'tfs_lite_access_denied_total{reason="browser",scope="manage"} 1.0' in page
    assert 'tfs_lite_access_denied_total{reason="wrong_token",scope="predict"} 0.0' in page
    (event,) = [event for event in events if event.kind is EventKind.ACCESS_DENIED]
    assert event.by == "127.0.0.1"
    assert (event.details["scope"], event.details["reason"]) == ("manage", "no_token"), "one a second is enough"


def test_guessing_is_answered_with_a_pause(start: Callable[..., Any]) -> None:
    with start() as server:
        for _ in range(20):
            assert server.ask("POST", "/v2/logging", UNKNOWN).status_code == 401
        answer = server.ask("POST", "/v2/logging", SECRET)
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 10
        assert server.http.post("/v2/logging").status_code == 200, "from this machine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"management_access": "all"}, "management_access is 'all', expected one of: auto, open, token"),
        ({"read_access": "auto"}, "read_access is 'auto', expected one of: open, token"),
        ({"predict_access": "token"}, "predict_access is token and access_file is not set"),
        ({"access_file": "/nowhere"}, "/nowhere does not exist"),
    ],
)
def test_server_with_wrong_settings_of_access_does_not_start(
    start: Callable[..., Any], options: dict[str, str], words: str
) -> None:
    with pytest.raises(ServingError, match=words), start(**{"access_file": "", **options}):
        pass


def test_server_beyond_loopback_says_that_it_is_managed_from_here(
    start: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with start(host="0.0.0.0", access_file="") as server:
        answer = server.ask("POST", "/v2/logging", SECRET)
        assert (answer.status_code, "machine" in answer.json()["error"]) == (403, True)
    said = [record for record in caplog.records if "--management_access" in record.message]
    assert [(record.levelname, "POST /v2/logging" in record.message) for record in said] == [
        ("INFO", False),  # at the start
        ("INFO", True),
    ]


def test_no_token_comes_into_the_log(start: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = (SECRET, LIMITED, READER, UNKNOWN)
    with start() as server:
        for token in tokens:
            server.ask("POST", "/v2/logging", token)
            server.ask("POST", "/v2/models/m/trace/setting", token)
            server.call("/inference.GRPCInferenceService/LogSettings", b"\x0a\x00", token)
            server.http.post("/v2/logging", content=b"{", headers={**ELSEWHERE, **bearer(token)})
        server.file.write_text(f"someone manage {tokens[3]} more")
        answers = server.http.get("/metrics").text
    for token in tokens:
        assert token not in caplog.text
        assert token not in answers
