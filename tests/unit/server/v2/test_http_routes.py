"""The V2 routes over HTTP that are no inference, against a real HTTP server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.servers.v2_fixture import BATCH
from tests.support.servers.v2_http_fixture import V2HttpFixture, error, serving_v2
from tfs_lite.core.signature import DataType


@pytest.fixture
def served() -> Iterator[V2HttpFixture]:
    with serving_v2() as one:
        one.models.add_simple()
        one.models.add_simple(version=3)
        one.models.add_echo("a/b ü", DataType.FLOAT, BATCH, 2)
        yield one


def test_server_tells_who_it_is(served: V2HttpFixture) -> None:
    tree = served.client.get("/v2").json()
    assert (tree["name"], tree["version"]) == ("tfs_lite", "1.0")
    assert {"binary_tensor_data", "statistics"} < set(tree["extensions"])


@pytest.mark.parametrize("word", ["live", "ready"])
def test_health_is_a_status_and_a_word(served: V2HttpFixture, word: str) -> None:
    answer = served.client.get(f"/v2/health/{word}")
    assert (answer.status_code, answer.json()) == (200, {word: True})
    setattr(served.control, word, False)
    answer = served.client.get(f"/v2/health/{word}")
    assert (answer.status_code, error(answer)) == (400, f"server is not {word}")
    assert served.client.head(f"/v2/health/{word}").status_code == 400


def test_model_is_ready_or_not_or_unknown(served: V2HttpFixture) -> None:
    path = "/v2/models/simple/versions/3/ready"
    assert served.client.get(path).json() == {"name": "simple", "ready": True}
    served.control.unready.add("simple")
    assert (served.client.get(path).status_code, served.client.get("/v2/models/nobody/ready").status_code) == (400, 404)


def test_model_metadata_has_every_tensor(served: V2HttpFixture) -> None:
    tensor = {"datatype": "FP32", "shape": [-1, 2]}
    assert served.client.get("/v2/models/a%2Fb%20%C3%BC").json() == {
        "name": "a/b ü",
        "versions": ["1"],
        "platform": "test",
        "inputs": [{"name": "IN", **tensor}],
        "outputs": [{"name": "OUT", **tensor}],
    }
    assert served.client.get("/v2/models/simple/versions/3").json()["versions"] == ["3"]


def test_model_config_is_complete(served: V2HttpFixture) -> None:
    tree = served.client.get("/v2/models/simple/config").json()
    assert (tree["name"], tree["max_batch_size"]) == ("simple", 8)
    assert tree["input"][0]["data_type"] == "TYPE_INT32"


def test_statistics_are_of_one_version_of_all_or_of_everybody(served: V2HttpFixture) -> None:
    def names(path: str) -> list[tuple[str, str]]:
        return [(one["name"], one["version"]) for one in served.client.get(path).json()["model_stats"]]

    assert names("/v2/models/stats") == [("simple", "1"), ("simple", "3"), ("a/b ü", "1")]
    assert names("/v2/models/simple/stats") == [("simple", "1"), ("simple", "3")]
    assert names("/v2/models/simple/versions/3/stats") == [("simple", "3")]
    (one,) = served.client.get("/v2/models/simple/versions/3/stats").json()["model_stats"]
    assert one["inference_stats"]["success"] == {"count": 0, "ns": 0}
    assert (one["batch_stats"], one["response_stats"], one["memory_usage"]) == ([], {}, [])


def test_index_lists_what_there_is(served: V2HttpFixture) -> None:
    broken = {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "its file is cut"}
    assert served.post("/v2/repository/index").json()[-1] == broken
    assert served.post("/v2/repository/index", {"ready": False}).json()[-1] == broken
    assert served.post("/v2/repository/index", {"ready": None}).json()[-1] == broken
    ready = served.post("/v2/repository/index", {"ready": True}).json()
    assert ready[0] == {"name": "simple", "version": "1", "state": "READY"}
    assert broken not in ready


@pytest.mark.parametrize(
    "body",
    [{"ready": 1}, {"ready": "true"}, b'{"ready":' + b"[" * 250_000 + b"]" * 250_000 + b"}"],
    ids=["number", "text", "deep"],
)
def test_index_wants_a_flag(served: V2HttpFixture, body: Any) -> None:
    answer = served.post("/v2/repository/index", body)
    assert answer.status_code == 400
    assert "Invalid value for 'ready': expected a boolean" in error(answer)


def test_load_hands_on_config_and_files(served: V2HttpFixture) -> None:
    content = bytes(range(256)) * 1000
    files = {"config": "{}", "file:1/model.pt": base64.b64encode(content).decode()}
    assert served.post("/v2/repository/models/simple/load", {"parameters": files}).status_code == 200
    assert served.post("/v2/repository/models/a%2Fb/load").status_code == 200
    files = {"config": None, "file:1/model.pt": base64.encodebytes(content).decode()}
    for parameters in (files, None, {"config": None}):
        assert served.post("/v2/repository/models/simple/load", {"parameters": parameters}).status_code == 200
    assert served.control.asked == [
        ("load", "simple", {"config": "{}", "file:1/model.pt": content}),
        ("load", "a/b", {}),
        ("load", "simple", {"file:1/model.pt": content}),
        ("load", "simple", {}),
        ("load", "simple", {}),
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("nobody/load", b"", 404, "failed to load 'nobody'"),
        ("m/load", {"parameters": {"file:1/m.pt": "%%%"}}, 400, "failed to decode the content of 'file:1/m.pt'"),
        ("m/load", {"parameters": {"file:1/m.pt": 1}}, 400, "failed to decode the content of 'file:1/m.pt'"),
        ("m/load", {"parameters": {"config": {}}}, 400, "non-string as string: parameter 'config'"),
        ("m/load", {"parameters": []}, 400, "Expected JSON object for keyword: 'parameters'"),
        ("m/load", b"{", 400, "failed to parse the request JSON buffer"),
        ("m/unload", {"parameters": {"unload_dependents": 1}}, 400, "parameter 'unload_dependents' has invalid type"),
    ],
)
def test_call_to_the_repository_that_makes_no_sense_is_refused(
    served: V2HttpFixture, path: str, body: Any, status: int, words: str
) -> None:
    answer = served.post(f"/v2/repository/models/{path}", body)
    assert (answer.status_code, words in error(answer)) == (status, True)
    assert served.control.asked == []


def test_unload_says_what_becomes_of_dependents(served: V2HttpFixture) -> None:
    said = ({"unload_dependents": True}, {"unload_dependents": None}, None)
    for body in (b"", *({"parameters": parameters} for parameters in said)):
        assert served.post("/v2/repository/models/m/unload", body).status_code == 200
    assert served.control.asked == [("unload", "m", dependents) for dependents in (False, True, False, False)]


@pytest.mark.parametrize("path", ["index", "models/m/load", "models/m/unload"])
def test_repositories_have_no_names(served: V2HttpFixture, path: str) -> None:
    answer = served.post(f"/v2/repository/mine/{path}")
    assert (answer.status_code, "'repository_name'" in error(answer)) == (501, True)


def test_trace_settings_are_read_changed_and_cleared(served: V2HttpFixture) -> None:
    first = served.client.get("/v2/trace/setting").json()
    assert (first["trace_level"], first["trace_rate"]) == (["OFF"], "1000")
    own = served.post("/v2/models/simple/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "5"}).json()
    assert (own["trace_level"], own["trace_rate"]) == (["TIMESTAMPS"], "5")
    assert served.client.get("/v2/models/simple/trace/setting").json() == own
    assert served.client.get("/v2/trace/setting").json() == first
    cleared = {"trace_level": None, "trace_rate": None}
    assert served.post("/v2/models/simple/trace/setting", cleared).json() == first


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/v2/trace/setting", {"trace_rate": 5}),
        ("/v2/trace/setting", {"trace_rate": ["5"]}),
        ("/v2/trace/setting", {"trace_level": "OFF"}),
        ("/v2/trace/setting", {"trace_level": [1]}),
        ("/v2/trace/setting", {"trace_rate": "7", "unknown": "1"}),
        ("/v2/logging", {"log_info": []}),
        ("/v2/logging", {"log_info": False, "log_verbose_level": -1}),
        ("/v2/logging", {"log_info": False, "unknown": True}),
    ],
)
def test_settings_that_make_no_sense_change_nothing(served: V2HttpFixture, path: str, changes: dict[str, Any]) -> None:
    before = served.client.get(path).json()
    answer = served.post(path, changes)
    assert answer.status_code == 400
    assert error(answer)
    assert served.client.get(path).json() == before


def test_a_log_setting_that_is_null_stays_as_it_is(served: V2HttpFixture) -> None:
    before = served.client.get("/v2/logging").json()
    assert served.post("/v2/logging", dict.fromkeys(before)).json() == before


def test_a_model_called_stats_has_its_metadata_beside_the_statistics_of_all(served: V2HttpFixture) -> None:
    assert served.client.get("/v2/models/stats").json().keys() == {"model_stats"}
    served.models.add_simple("stats")
    both = served.client.get("/v2/models/stats").json()
    assert (both["name"], len(both["inputs"])) == ("stats", 2)
    assert {one["name"] for one in both["model_stats"]} >= {"simple", "stats"}
    assert served.client.get("/v2/models/stats/ready").status_code == 200
    (own,) = served.client.get("/v2/models/stats/stats").json()["model_stats"]
    assert own["name"] == "stats"


def test_trace_settings_of_an_unknown_model_are_refused(served: V2HttpFixture) -> None:
    assert "Request for unknown model" in error(served.client.get("/v2/models/nobody/trace/setting"))


def test_log_settings_are_read_and_changed(served: V2HttpFixture) -> None:
    before = served.client.get("/v2/logging").json()
    after = served.post("/v2/logging", {"log_warning": False, "log_verbose_level": 1}).json()
    assert after == {**before, "log_warning": False, "log_verbose_level": 1}
    assert served.post("/v2/logging").json() == after


def test_shared_memory_is_registered_used_and_forgotten(served: V2HttpFixture) -> None:
    key = f"/tfs_lite_{uuid4().hex}"
    file = Path("/dev/shm") / key[1:]
    file.write_bytes((b"\1\0\0\0" * 4) + bytes(16))
    try:
        region = {"name": "r 1", "key": key, "offset": 0, "byte_size": 32}
        body = {"key": key, "byte_size": 32}
        assert served.post("/v2/systemsharedmemory/region/r%201/register", body).status_code == 200
        assert served.client.get("/v2/systemsharedmemory/status").json() == [region]
        assert served.client.get("/v2/systemsharedmemory/region/r%201/status").json() == [region]
        place = {"shared_memory_region": "r 1", "shared_memory_byte_size": 16}
        inputs = [
            {"name": name, "shape": [1, 4], "datatype": "INT32", "parameters": place} for name in ("INPUT0", "INPUT1")
        ]
        outputs = [{"name": "OUTPUT0", "parameters": {**place, "shared_memory_offset": 16}}]
        answer = served.post("/v2/models/simple/infer", {"inputs": inputs, "outputs": outputs})
        parameters = {**place, "shared_memory_offset": 16, "binary_data_size": 0}
        assert answer.json()["outputs"][0]["parameters"] == parameters
        assert file.read_bytes()[16:] == b"\2\0\0\0" * 4
        assert served.post("/v2/systemsharedmemory/unregister").status_code == 200
        assert served.client.get("/v2/systemsharedmemory/status").json() == []
    finally:
        file.unlink()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/systemsharedmemory/region/r/register", {"byte_size": 32}, 400),
        ("/v2/systemsharedmemory/region/r/register", {"key": "/k", "byte_size": -1}, 400),
        ("/v2/systemsharedmemory/region/r/register", {"key": "/nothing-there", "byte_size": 8}, 400),
        ("/v2/cudasharedmemory/region/r/register", {"raw_handle": 1, "device_id": 0, "byte_size": 8}, 400),
        (
            "/v2/cudasharedmemory/region/r/register",
            {"raw_handle": {"b64": "aGFsbG8="}, "device_id": 0, "byte_size": 8},
            501,
        ),
    ],
)
def test_memory_that_cannot_be_shared_is_refused(served: V2HttpFixture, path: str, body: Any, status: int) -> None:
    answer = served.post(path, body)
    assert answer.status_code == status
    assert error(answer)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2/nothing", 404), ("POST", "/v2", 405), ("GET", "/v2/models/simple/infer", 405)],
)
def test_other_paths_and_methods_are_refused_in_json(served, method: str, path: str, status: int) -> None:
    answer = served.client.request(method, path)
    assert answer.status_code == status
    assert error(answer)


def test_failure_that_nobody_expected_tells_no_secret(served: V2HttpFixture, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bool:
        raise RuntimeError("the secret is in /etc/secret")

    served.control.server_live = fail  # type: ignore[method-assign]
    answer = served.client.get("/v2/health/live")
    assert (answer.status_code, error(answer)) == (500, "internal error")
    assert "GET /v2/health/live failed" in caplog.text
