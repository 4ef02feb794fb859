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

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import Message, ModelServerConfig, PredictionLog
from tfs_lite.protocols.tensorflow.tensor_proto import decode
from tfs_lite.protocols.tfrecord import read_records
from tfs_lite.testing.servers.probe import ROW, Probe
from tfs_lite.testing.servers.process import ServerProcess, wait_until


class Setup:
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
def setup(archives, tmp_path_factory):
    setup = Setup(tmp_path_factory.mktemp("request_log"))
    for name in ("logged", "shared", "quiet"):
        archives.write_version(1, setup.root / name)
    config = setup.root / "models.config"
    config.write_text(setup.text("logged", "shared"))
    flags = (f"--model_config_file={config}", "--version_quiet_period_seconds=0.2", "--ready_requires_all_models")
    with ServerProcess(*flags) as server, Probe(server) as probe:
        setup.server, setup.probe = server, probe
        yield setup
    assert server.exit_code == 0
    assert setup.files(".open") == []


@pytest.fixture(autouse=True)
def fresh_logs(setup):
    """Each test starts with the logs of the start, in an empty directory, and whatever it did, all models answer."""
    setup.reload(setup.text())
    wait_until(lambda: not setup.files(".open"), "all files are finished")
    for path in setup.files(".tfrecord"):
        path.unlink()
    setup.reload(setup.text("logged", "shared"))
    yield
    assert setup.server.exit_code is None, setup.server.log()


def test_a_request_and_its_answer_are_logged_with_what_answered(setup):
    setup.probe.ask("logged")
    setup.probe.ask("quiet")
    (log,) = setup.wait_records(".open", 1)
    request, response = log.predict_log.request, log.predict_log.response
    assert request.model_spec.name == "logged"
    np.testing.assert_array_equal(decode(request.inputs["x"], "x"), ROW)
    np.testing.assert_array_equal(decode(response.outputs["y"], "y"), ROW + 1)
    spec = log.log_metadata.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("logged", 1, "serving_default")
    assert log.log_metadata.sampling_config.sampling_rate == 1.0
    assert log.log_metadata.timestamp_secs > 1_700_000_000


def test_requests_over_http_are_logged_alike(setup):
    setup.rest_predict("logged")
    (log,) = setup.wait_records(".open", 1)
    np.testing.assert_array_equal(decode(log.predict_log.request.inputs["x"], "x"), ROW)
    np.testing.assert_array_equal(decode(log.predict_log.response.outputs["y"], "y"), ROW + 1)
    assert log.log_metadata.model_spec.version.value == 1


def test_models_with_the_same_settings_share_a_file_and_a_reload_finishes_it(setup):
    for model in ("logged", "shared", "logged"):
        setup.probe.ask(model)
    setup.wait_records(".open", 3)
    assert len(setup.files(".open")) == 1
    setup.reload(setup.text())
    logs = setup.wait_records(".tfrecord", 3)
    assert [log.log_metadata.model_spec.name for log in logs] == ["logged", "shared", "logged"]
    assert setup.files(".open") == []


def test_a_reload_that_names_a_missing_directory_is_refused_and_logging_goes_on(setup):
    with pytest.raises(ServingError, match="filename_prefix") as caught:
        setup.reload(setup.text("logged", "shared", prefix="missing/ranker"))
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    setup.probe.ask("logged")
    setup.wait_records(".open", 1)


def test_a_sick_disk_fails_no_request(setup):
    (setup.logs / "gone").mkdir()
    setup.reload(setup.text("logged", prefix="gone/ranker"))
    shutil.rmtree(setup.logs / "gone")
    for _ in range(3):
        assert setup.probe.ask("logged") == 1
    wait_until(lambda: "gone/ranker" in setup.server.log(), "the log tells of it")
    assert setup.probe.ask("logged") == 1


def test_a_log_warms_up_a_later_version(setup, archives, tmp_path):
    setup.probe.ask("logged")
    setup.rest_predict("logged")
    setup.wait_records(".open", 2)
    setup.reload(setup.text())
    setup.wait_records(".tfrecord", 2)
    version = archives.write_version(2, tmp_path)
    (version / "assets.extra").mkdir()
    shutil.copy(*setup.files(".tfrecord"), version / "assets.extra" / "tf_serving_warmup_requests")
    version.rename(setup.root / "shared" / "2")
    setup.probe.wait_available("shared", 2)
    assert setup.probe.ask("shared") == 2
