from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.support.servers.in_process import ROW, ServerFixture, config_text, entry, serving
from tests.support.servers.models import gated_source, waiting_source
from tests.support.servers.process import wait_until
from tfs_lite.client import Client
from tfs_lite.core.servable import ModelRef, VersionState
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import HealthCheckRequest, HealthCheckResponse
from tfs_lite.server.server import Server
from tfs_lite.serving.options import ServerOptions

AVAILABLE, END, LOADING, START = (VersionState.AVAILABLE, VersionState.END, VersionState.LOADING, VersionState.START)
Publish = Callable[[str, int], Path]
PublishPython = Callable[[str, int, str], Path]

NO_DATABASE = """
class Model:
    def __init__(self, context):
        raise OSError("no database")

    def predict(self, inputs):
        return {}
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The directory that a gated model watches."""
    path = tmp_path / "gate"
    path.mkdir()
    return path


def one(root: Path, **rest: Any) -> dict[str, Any]:
    return {"model_name": "m", "model_base_path": str(root / "m"), **rest}


def configured(root: Path, *models: str, **rest: Any) -> dict[str, Any]:
    file = root / "models.config"
    file.write_text(config_text(root, *models))
    return {"model_config_file": str(file), **rest}


def health(served: ServerFixture, name: str) -> str:
    with grpc.insecure_channel(served.target) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        status = check(HealthCheckRequest(service=name), timeout=20).status
        text: str = HealthCheckResponse.ServingStatus.Name(status)
        return text


def test_answers_name_their_version_and_a_new_version_takes_over(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    with serving(tmp_path, **one(tmp_path)) as served:
        assert served.version() == 1
        assert list(served.client.metadata("m").signatures["serving_default"].input_names) == ["x"]
        publish("m", 2)
        served.wait_states({2: AVAILABLE, 1: END})
        assert served.version() == 2


def test_no_request_fails_during_a_swap(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    versions, stop = Counter[int](), threading.Event()

    def client(target: str) -> None:
        with Client(target) as caller:
            while not stop.is_set():
                answer = caller.predict("m", {"x": ROW})
                assert (answer.outputs["y"] == ROW + answer.version).all()
                versions[answer.version] += 1

    with serving(tmp_path, **one(tmp_path)) as served, ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(client, served.target) for _ in range(3)]
        try:
            for version in (1, 2, 3, 4):
                if version > 1:
                    publish("m", version)
                served.wait_states({version: AVAILABLE, **dict.fromkeys(range(1, version), END)})
                seen = versions.total()
                wait_until(lambda: versions.total() > seen + 20, "the clients go on", 30)  # noqa: B023 - used at once
        finally:
            stop.set()
        for answered in clients:
            answered.result(30)
    assert set(versions) == {1, 2, 3, 4}


def test_ports_answer_before_the_first_model_is_loaded(
    tmp_path: Path, gate: Path, publish_python: PublishPython
) -> None:
    publish_python("m", 1, waiting_source(1, gate))
    with serving(tmp_path, ready=False, **one(tmp_path, trusted_model_base_paths=(str(tmp_path),))) as served:
        assert httpx.get(served.url + "/livez").status_code == httpx.get(served.url + "/startupz").status_code == 200
        assert httpx.get(served.url + "/readyz").status_code == 503
        assert health(served, "") == health(served, "m") == "NOT_SERVING"
        served.wait_states({1: LOADING})
        with pytest.raises(ServingError) as caught:
            served.server.wait_ready(0.01)
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        (gate / "open").touch()
        served.server.wait_ready(30)
        assert httpx.get(served.url + "/readyz").status_code == 200
        assert health(served, "") == health(served, "m") == "SERVING"
        assert served.version() == 1


def test_one_bad_model_does_not_disturb_another_and_each_comes_back_without_restart(
    tmp_path: Path, publish: Publish
) -> None:
    publish("fine", 1)
    (tmp_path / "corrupt" / "1").mkdir(parents=True)
    (tmp_path / "corrupt" / "1" / "model.pt2").write_bytes(b"not an archive")
    models = (entry("fine"), entry("corrupt"), entry("missing"))
    with serving(tmp_path, **configured(tmp_path, *models, load_retry_interval_micros=1000)) as served:
        assert served.version("fine") == 1
        reports = {model["name"]: model for model in httpx.get(served.url + "/v1/models").json()["models"]}
        assert "its base path does not exist" in reports["missing"]["reason"]
        with pytest.raises(ServingError, match="Could not find any versions of model missing: its base path") as caught:
            served.client.status("missing")
        assert str(tmp_path) not in str(caught.value)
        assert health(served, "missing") == health(served, "corrupt") == "NOT_SERVING"
        assert served.status("corrupt")[1].status.message
        publish("missing", 1)
        (tmp_path / "corrupt" / "1" / "model.pt2").unlink()
        (publish("other", 1) / "model.pt2").rename(tmp_path / "corrupt" / "1" / "model.pt2")
        served.wait_states({1: AVAILABLE}, "missing")
        served.wait_states({1: AVAILABLE}, "corrupt")
        assert served.version("missing") == served.version("corrupt") == 1


def test_half_copied_version_waits_and_says_why(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    whole = (publish("other", 2) / "model.pt2").read_bytes()
    with serving(tmp_path, **one(tmp_path)) as served:
        (tmp_path / "m" / "2").mkdir()
        (tmp_path / "m" / "2" / "model.pt2").write_bytes(whole[:-100])
        wait_until(lambda: 2 in served.status(), "version 2 is seen", 30)
        waiting = wait_until(lambda: served.status()[2], "")
        assert waiting.state is START
        assert waiting.status.code is StatusCode.UNAVAILABLE
        wait_until(lambda: "model.pt2" in served.status()[2].status.message, "the reason names the file", 30)
        assert served.version() == 1
        (tmp_path / "m" / "2" / "model.pt2").write_bytes(whole)
        served.wait_states({2: AVAILABLE, 1: END})


def test_failed_attempt_shows_at_once_while_the_next_is_to_come(tmp_path: Path, publish_python: PublishPython) -> None:
    publish_python("m", 1, NO_DATABASE)
    with serving(tmp_path, **one(tmp_path, trusted_model_base_paths=(str(tmp_path),))) as served:
        status = served.status()[1]
        assert status.state is LOADING
        assert "no database" in status.status.message


def test_models_of_a_repository_come_and_go(tmp_path: Path, publish: Publish) -> None:
    publish("a", 1)
    with serving(tmp_path, model_repository=str(tmp_path)) as served:
        assert served.version("a") == 1
        publish("b", 5)
        served.wait_states({5: AVAILABLE}, "b")
        (tmp_path / "a").rename(tmp_path / ".gone")
        served.wait_states({1: END}, "a")


def test_empty_repository_is_ready(tmp_path: Path) -> None:
    with serving(tmp_path, model_repository=str(tmp_path)) as served:
        assert httpx.get(served.url + "/v1/models").json() == {"models": []}


def test_config_file_is_followed(tmp_path: Path, publish: Publish) -> None:
    publish("a", 1)
    publish("b", 2)
    fields = configured(tmp_path, entry("a"), model_config_file_poll_wait_seconds=0.05)
    with serving(tmp_path, **fields) as served:
        (tmp_path / "models.config").write_text("this is no config")
        (tmp_path / "models.config").write_text(config_text(tmp_path, entry("b")))
        served.wait_states({2: AVAILABLE}, "b")
        served.wait_states({1: END}, "a")


def test_nothing_changes_in_control_mode_none(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    with serving(tmp_path, **one(tmp_path, model_control_mode="none")) as served:
        publish("m", 2)
        with pytest.raises(ServingError, match="model_control_mode none") as caught:
            served.reload()
        assert caught.value.code is StatusCode.FAILED_PRECONDITION
        assert served.states() == {1: AVAILABLE}


def test_labels_of_the_first_config_apply(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    publish("m", 2)
    policy = "model_version_policy { all {} }"
    labels = 'version_labels { key: "stable" value: 1 } version_labels { key: "next" value: 3 }'
    with serving(tmp_path, **configured(tmp_path, entry("m", policy + labels))) as served:
        served.wait_states({2: AVAILABLE, 1: AVAILABLE})
        assert served.version() == 2
        assert served.version(label="stable") == 1
        with pytest.raises(ServingError, match=r"Servable not found for request: Specific\(m, 3\)"):
            served.version(label="next")
        publish("m", 3)
        served.wait_states({3: AVAILABLE, 2: AVAILABLE, 1: AVAILABLE})
        assert served.version(label="next") == 3
        by_label = httpx.get(served.url + "/v1/models/m/labels/stable").json()["model_version_status"]
        assert [status["version"] for status in by_label] == ["1"]


def test_readiness_can_wait_for_every_model(tmp_path: Path, publish: Publish) -> None:
    publish("a", 1)
    fields = configured(tmp_path, entry("a"), entry("b"), ready_requires_all_models=True)
    with serving(tmp_path, ready=False, **fields) as served:
        served.wait_states({1: AVAILABLE}, "a")
        with pytest.raises(ServingError):
            served.server.wait_ready(1.5)
        publish("b", 1)
        served.server.wait_ready(30)


def test_failed_first_load_can_end_the_server(tmp_path: Path) -> None:
    server = Server(**one(tmp_path), exit_on_initial_load_failure=True).start()
    try:
        assert server.wait(30)
        assert server.failure is not None
        assert "its base path does not exist" in str(server.failure)
        with pytest.raises(ServingError, match="its base path does not exist"):
            server.wait_ready(30)
    finally:
        server.stop()


def test_failure_that_comes_before_the_report_of_readiness_stays(tmp_path: Path) -> None:
    """Requests are answered from the readiness on, and a GPU that fails under one ends the server with an error."""
    server, failure = Server(**one(tmp_path)), ServingError(StatusCode.UNAVAILABLE, "a GPU failed")
    server._on_decided(failure)
    server._on_decided(None)
    assert server.failure is failure
    assert server.wait(0)


def test_stop_answers_every_request_that_got_in(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    answered = threading.Semaphore(0)

    def client(target: str) -> str:
        with Client(target) as caller:
            while True:
                try:
                    caller.predict("m", {"x": ROW})
                    answered.release()
                except ServingError as error:
                    return error.code.name

    with serving(tmp_path, **one(tmp_path)) as served, ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(client, served.target) for _ in range(8)]
        for _ in range(100):
            assert answered.acquire(timeout=30)
        served.server.stop()
        assert [code.result() for code in clients] == ["UNAVAILABLE"] * 8


def test_stop_waits_for_a_request_that_takes_long(tmp_path: Path, gate: Path, publish_python: PublishPython) -> None:
    publish_python("m", 1, gated_source(1, gate))
    fields = one(tmp_path, trusted_model_base_paths=(str(tmp_path),))
    with serving(tmp_path, **fields) as served, ThreadPoolExecutor(2) as pool:
        answer = pool.submit(served.version)
        wait_until((gate / "entered-1").exists, "the request is inside", 30)
        stopping = pool.submit(served.server.stop)
        wait_until(lambda: httpx.get(served.url + "/readyz").status_code == 503, "not ready", 30)
        (gate / "open").touch()
        assert answer.result() == 1
        stopping.result()
        assert served.server.wait(0)


def test_pages_are_answered_until_everything_is_unloaded(tmp_path: Path, publish: Publish) -> None:
    publish("m", 1)
    with serving(tmp_path, **one(tmp_path)) as served:
        core = served.server.core
        with core.handle(ModelRef("m")):
            stopping = threading.Thread(target=served.server.stop)
            stopping.start()
            wait_until(lambda: core.states.reports()[0].versions[0].state is VersionState.UNLOADING, "it unloads", 30)
            assert httpx.get(served.url + "/livez").status_code == 200
            assert httpx.get(served.url + "/readyz").status_code == 503
            assert "tfs_lite_requests_total" in httpx.get(served.url + "/metrics").text
            (model,) = httpx.get(served.url + "/v1/models").json()["models"]
            assert model["model_version_status"][0]["state"] == "UNLOADING"
        stopping.join()
        with pytest.raises(httpx.ConnectError):
            httpx.get(served.url + "/livez")


def test_second_stop_does_not_wait_for_requests(tmp_path: Path, gate: Path, publish_python: PublishPython) -> None:
    publish_python("m", 1, gated_source(1, gate))
    fields = one(tmp_path, trusted_model_base_paths=(str(tmp_path),), drain_timeout_seconds=100.0)
    with serving(tmp_path, **fields) as served, ThreadPoolExecutor(3) as pool:
        request = pool.submit(served.version)
        wait_until((gate / "entered-1").exists, "the request is inside", 30)
        stops = [pool.submit(served.server.stop) for _ in range(2)]
        assert isinstance(request.exception(30), ServingError)
        (gate / "open").touch()
        for stop in stops:
            stop.result(30)


def test_stop_before_the_start_and_twice_during_a_start_that_hangs_is_fine(tmp_path: Path) -> None:
    Server(**one(tmp_path)).stop()
    with serving(tmp_path, ready=False, **one(tmp_path, ready_requires_all_models=True)) as served:
        served.server.stop()
        served.server.stop()
        with pytest.raises(ServingError, match="was stopped"):
            served.server.wait_ready(30)


@pytest.mark.parametrize(("field", "flag"), [("port", "--port"), ("rest_api_port", "--rest_api_port")])
def test_port_in_use_fails_the_start_in_one_line_and_leaves_nothing(tmp_path: Path, field: str, flag: str) -> None:
    before = set(threading.enumerate())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServingError) as caught:
            Server(**one(tmp_path, **{field: port})).start()
    assert f"port {port} of 127.0.0.1 is already in use ({flag})" in str(caught.value)
    wait_until(lambda: set(threading.enumerate()) <= before, "no thread is left", 20)


WRONG_STARTS = [
    ({}, "nothing to serve"),
    ({"model_config_file": "ROOT/none.config"}, "there is no such file"),
    ({"model_config_file": "ROOT/twice.config"}, "twice.config:1:.*Illegal to list model a multiple times"),
    (
        {"model_config_file": "ROOT/platform.config"},
        'platform.config:1:.*model a requests unsupported platform "pytorch_exportt"',
    ),
    ({"model_repository": "ROOT/none"}, "--model_repository"),
    ({"model_base_path": "/elsewhere", "allowed_model_base_paths": ("ROOT",)}, "outside the allowed roots"),
    ({"model_base_path": "/m", "device": "cuda:77"}, "cuda:77"),
    ({"model_base_path": "/m", "host": "203.0.113.7"}, "--host"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG_STARTS)
def test_start_that_cannot_work_is_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    (tmp_path / "twice.config").write_text(config_text(tmp_path, entry("a"), entry("a")))
    (tmp_path / "platform.config").write_text(config_text(tmp_path, entry("a", 'model_platform: "pytorch_exportt"')))
    before = set(threading.enumerate())

    def here(value: Any) -> Any:
        return tuple(map(here, value)) if isinstance(value, tuple) else value.replace("ROOT", str(tmp_path))

    with pytest.raises(ServingError, match=words):
        Server(**{name: here(value) for name, value in fields.items()}).start()
    wait_until(lambda: set(threading.enumerate()) <= before, "no thread is left", 20)


def test_server_is_started_once(tmp_path: Path) -> None:
    with serving(tmp_path, **one(tmp_path)) as served, pytest.raises(ServingError, match="started before"):
        served.server.start()
    with pytest.raises(ServingError, match="was not started"):
        _ = Server(**one(tmp_path)).port


def test_options_come_whole_or_in_parts_but_not_both() -> None:
    assert Server(ServerOptions(model_name="x")).options == Server(model_name="x").options
    with pytest.raises(TypeError):
        Server(ServerOptions(), model_name="x")
