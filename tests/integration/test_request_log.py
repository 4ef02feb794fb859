"""Requests of a model with a ``logging_config`` end up in files, which are good for warming up a later version."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from tests.support.servers.probe import ROW, Probe
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import Message, ModelServerConfig, PredictionLog
from tfs_lite.protocols.tensorflow.tensor_proto import decode
from tfs_lite.protocols.tfrecord import read_records


class RequestLogFixture:
    """A server with three models, of which ``logged`` and ``shared`` are logged in one log and ``quiet`` is not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self.logs.mkdir()
        self.server: ServerProcess
        self.probe: Probe

    def text(self, *logged: str, prefix: str = "ranker") -> str:
        entries = [
            f'config {{ name: "{name}" base_path: "{self.root}/{name}" {self.logging(prefix) * (name in logged)} }}'
            for name in ("logged", "shared", "quiet")
        ]
        return f"model_config_list {{ {' '.join(entries)} }}"

    def logging(self, prefix: str) -> str:
        collector = f'log_collector_config {{ type: "file" filename_prefix: "{self.logs}/{prefix}" }}'
        return f"logging_config {{ {collector} sampling_config {{ sampling_rate: 1.0 }} }}"

    def reload(self, text: str) -> None:
        self.probe.client.reload(text_format.Parse(text, ModelServerConfig()))

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.logs.glob(f"*{suffix}"))

    def wait_records(self, suffix: str, count: int) -> list[Message]:
        """The records, once there are so many. A file that is being written may end inside one, or be renamed."""

        def enough() -> list[Message] | None:
            try:
                records = read(self.files(suffix))
            except (ServingError, FileNotFoundError):
                return None
            return records if len(records) == count else None

        return wait_until(enough, f"{count} records in files *{suffix}")

    def rest_predict(self, model: str) -> Any:
        body = json.dumps({"instances": ROW.tolist()}).encode()
        url = f"http://127.0.0.1:{self.server.http_port}/v1/models/{model}:predict"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
            return json.load(answer)


def read(paths: list[Path]) -> list[Message]:
    found = []
    for path in paths:
        with path.open("rb") as file:
            found += [PredictionLog.FromString(data) for data in read_records(file, 1 << 20)]
    return found


@pytest.fixture(scope="module")
def fixture(archives, tmp_path_factory):
    fixture = RequestLogFixture(tmp_path_factory.mktemp("request_log"))
    for name in ("logged", "shared", "quiet"):
        archives.write_version(1, fixture.root / name)
    config = fixture.root / "models.config"
    config.write_text(fixture.text("logged", "shared"))
    flags = (f"--model_config_file={config}", "--version_quiet_period_seconds=0.2", "--ready_requires_all_models")
    with ServerProcess(*flags) as server, Probe(server) as probe:
        fixture.server, fixture.probe = server, probe
        yield fixture
    assert server.exit_code == 0
    assert fixture.files(".open") == []


@pytest.fixture(autouse=True)
def fresh_logs(fixture):
    """Each test starts with the logs of the start, in an empty directory, and whatever it did, all models answer."""
    fixture.reload(fixture.text())
    wait_until(lambda: not fixture.files(".open"), "all files are finished")
    for path in fixture.files(".tfrecord"):
        path.unlink()
    fixture.reload(fixture.text("logged", "shared"))
    yield
    assert fixture.server.exit_code is None, fixture.server.log()


def test_a_request_and_its_answer_are_logged_with_what_answered(fixture):
    fixture.probe.ask("logged")
    fixture.probe.ask("quiet")
    (log,) = fixture.wait_records(".open", 1)
    request, response = log.predict_log.request, log.predict_log.response
    assert request.model_spec.name == "logged"
    np.testing.assert_array_equal(decode(request.inputs["x"], "x"), ROW)
    np.testing.assert_array_equal(decode(response.outputs["y"], "y"), ROW + 1)
    spec = log.log_metadata.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("logged", 1, "serving_default")
    assert log.log_metadata.sampling_config.sampling_rate == 1.0
    assert log.log_metadata.timestamp_secs > 1_700_000_000


def test_requests_over_http_are_logged_alike(fixture):
    fixture.rest_predict("logged")
    (log,) = fixture.wait_records(".open", 1)
    np.testing.assert_array_equal(decode(log.predict_log.request.inputs["x"], "x"), ROW)
    np.testing.assert_array_equal(decode(log.predict_log.response.outputs["y"], "y"), ROW + 1)
    assert log.log_metadata.model_spec.version.value == 1


def test_models_with_the_same_settings_share_a_file_and_a_reload_finishes_it(fixture):
    for model in ("logged", "shared", "logged"):
        fixture.probe.ask(model)
    fixture.wait_records(".open", 3)
    assert len(fixture.files(".open")) == 1
    fixture.reload(fixture.text())
    logs = fixture.wait_records(".tfrecord", 3)
    assert [log.log_metadata.model_spec.name for log in logs] == ["logged", "shared", "logged"]
    assert fixture.files(".open") == []


def test_a_reload_that_names_a_missing_directory_is_refused_and_logging_goes_on(fixture):
    with pytest.raises(ServingError, match="filename_prefix") as caught:
        fixture.reload(fixture.text("logged", "shared", prefix="missing/ranker"))
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    fixture.probe.ask("logged")
    fixture.wait_records(".open", 1)


def test_a_sick_disk_fails_no_request(fixture):
    (fixture.logs / "gone").mkdir()
    fixture.reload(fixture.text("logged", prefix="gone/ranker"))
    shutil.rmtree(fixture.logs / "gone")
    for _ in range(3):
        assert fixture.probe.ask("logged") == 1
    wait_until(lambda: "gone/ranker" in fixture.server.log(), "the log tells of it")
    assert fixture.probe.ask("logged") == 1


def test_a_log_warms_up_a_later_version(fixture, archives, tmp_path):
    fixture.probe.ask("logged")
    fixture.rest_predict("logged")
    fixture.wait_records(".open", 2)
    fixture.reload(fixture.text())
    fixture.wait_records(".tfrecord", 2)
    version = archives.write_version(2, tmp_path)
    (version / "assets.extra").mkdir()
    shutil.copy(*fixture.files(".tfrecord"), version / "assets.extra" / "tf_serving_warmup_requests")
    version.rename(fixture.root / "shared" / "2")
    fixture.probe.wait_available("shared", 2)
    assert fixture.probe.ask("shared") == 2
