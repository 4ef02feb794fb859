"""Clients of every protocol ask for a model whose newest version fails on trial: the version before it answers, and the
answer says so. The trials are those of a feature of this test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from tests.support.servers.examples import rows
from tests.support.servers.in_process import ROW, ServerFixture, serving
from tests.support.servers.process import wait_until
from tests.support.servers.v2_client import V2Client
from tfs_lite.core.status import ServingError
from tfs_lite.core.trial import Ending, Trial, TrialEnding
from tfs_lite.protocols.messages import (
    ClassificationRequest,
    ClassificationResponse,
    MultiInferenceRequest,
    MultiInferenceResponse,
    PredictionLog,
    RegressionRequest,
    RegressionResponse,
)
from tfs_lite.protocols.tfrecord import read_records
from tfs_lite.server.features import FEATURES
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.server_core import ServerCore

NEW, OLD = 8, 7
MODEL = """
import numpy as np

class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        {fails}
        return {answer}
"""
PREDICTS = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] label_filename: "names.txt" }
"""
CLASSIFIES = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ -1, 2 ] }
output { name: "outputs" data_type: TYPE_FP32 dims: [ -1 ] }
"""
EMBEDS = """
platform: "python"
input { name: "text" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "embeddings" data_type: TYPE_FP32 dims: [ -1, 2 ] }
"""
MODELS = {
    "m": (PREDICTS, '{"y": inputs["x"] + 7}'),
    "c": (CLASSIFIES, '{"scores": np.stack([inputs["x"]] * 2, 1), "outputs": inputs["x"] + 7}'),
    "renamed": (CLASSIFIES, '{"scores": np.stack([inputs["x"]] * 2, 1), "outputs": inputs["x"] + 7}'),
    "e": (EMBEDS, '{"embeddings": np.full((len(inputs["text"]), 2), 7, np.float32)}'),
}


class OnTrial(Feature):
    """The version 8 of every model is on trial."""

    def __init__(self, core: ServerCore) -> None:
        self.heard: list[TrialEnding] = []
        self.trials = {name: {NEW: Trial(OLD, self.heard.append)} for name in MODELS}


class Shielded:
    def __init__(self, served: ServerFixture, logs: Path) -> None:
        self.served = served
        self.logs = logs
        trial = served.server.core.find(OnTrial)
        assert trial is not None
        self.heard = trial.heard
        self.channel = grpc.insecure_channel(served.target)
        self.v2 = V2Client(self.channel)

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(f"{self.served.url}{path}", json=body, timeout=30)

    def call(self, method: str, request: Any) -> bytes:
        send = self.channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
        answer: bytes = send(request.SerializeToString(), timeout=30)
        return answer

    def one_ending(self) -> TrialEnding:
        """Of the one request that has ended since the last look."""
        (ending,) = self.heard
        self.heard.clear()
        return ending

    def counted(self, model: str, version: int, method: str) -> float:
        """Requests that were answered, by any protocol."""
        labels = {"model": model, "version": str(version), "method": method, "code": "OK"}
        return self.served.server.core.registry.get_sample_value("tfs_lite_requests_total", labels) or 0.0


@pytest.fixture(scope="module")
def shielded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shielded]:
    root = tmp_path_factory.mktemp("shield")
    for name, (config, answer) in MODELS.items():
        for version, fails in ((OLD, "pass"), (NEW, "raise ValueError('the new one is broken')")):
            directory = root / name / str(version)
            directory.mkdir(parents=True)
            own = config.replace('"x"', '"z"') if (name, version) == ("renamed", NEW) else config
            (directory / "config.pbtxt").write_text(own)
            (directory / "model.py").write_text(MODEL.format(fails=fails, answer=answer))
            if name == "m":
                names = [f"{'new' if version == NEW else 'old'}{number}" for number in range(3)]
                (directory / "names.txt").write_text("\n".join(names))
    both = f"model_version_policy {{ specific {{ versions: {OLD} versions: {NEW} }} }}"
    log = f'log_collector_config {{ type: "file" filename_prefix: "{root}/log" }}'
    logging_config = f"logging_config {{ {log} sampling_config {{ sampling_rate: 1.0 }} }}"
    entries = [
        f'config {{ name: "{name}" base_path: "{root}/{name}" {both} {logging_config if name == "m" else ""} }}'
        for name in MODELS
    ]
    (root / "models.config").write_text(f"model_config_list {{ {' '.join(entries)} }}")
    with serving(
        root,
        model_config_file=str(root / "models.config"),
        trusted_model_base_paths=(str(root / "**"),),
        features=(OnTrial, *FEATURES),
        access_log="all",
        rest_api_port=0,
        port=0,
    ) as served:
        yield Shielded(served, root)


@pytest.fixture(autouse=True)
def nothing_heard(shielded: Shielded) -> None:
    shielded.heard.clear()


def test_predict_over_grpc_names_the_version_that_answered(
    shielded: Shielded, caplog: pytest.LogCaptureFixture
) -> None:
    before = shielded.counted("m", OLD, "Predict")
    with caplog.at_level(logging.INFO, "tfs_lite.access"):
        for _ in range(3):  # the layout of the request is learned from answers
            answer = shielded.served.predict()
            assert answer.version == OLD
            np.testing.assert_array_equal(answer.outputs["y"], ROW + 7)
    assert {ending.ending for ending in shielded.heard} == {Ending.FAULT}
    assert all(ending.shielded for ending in shielded.heard)
    assert shielded.counted("m", OLD, "Predict") == before + 3
    lines = [record for record in caplog.records if getattr(record, "shielded_from", None) == "m@8"]
    assert len(lines) == 3  # a request of the test before may be logged late
    assert all("Predict m@7" in line.getMessage() for line in lines)
    assert all("shielded_from=m@8" in line.getMessage() for line in lines)


def test_the_request_log_names_the_version_that_answered(shielded: Shielded) -> None:
    shielded.served.predict()
    shielded.post("/v1/models/m:predict", {"instances": ROW.tolist()})
    wait_until(lambda: _versions(shielded.logs), "there is a record")
    assert _versions(shielded.logs) == {OLD}


def _versions(logs: Path) -> set[int]:
    """Those that the answers in the log name; none while a record is being written."""
    with suppress(ServingError):
        return {log.response.model_spec.version.value for log in _logged(logs)}
    return set()


def _logged(logs: Path) -> list[Any]:
    found = []
    for path in logs.glob("log*"):
        with path.open("rb") as file:
            found += [PredictionLog.FromString(data).predict_log for data in read_records(file, 1 << 20)]
    return found


@pytest.mark.parametrize("size", [1, 20_000], ids=["small", "large"])
def test_predict_over_rest(shielded: Shielded, size: int) -> None:
    body = {"instances": [[1, 2, 3]] * size}
    answer = shielded.post("/v1/models/m:predict", body)
    assert answer.status_code == 200
    assert answer.json()["predictions"] == [[8, 9, 10]] * size
    assert shielded.one_ending().shielded


@pytest.mark.parametrize("size", [1, 20_000], ids=["small", "large"])
def test_predict_over_rest_whose_plan_for_the_new_version_fails(shielded: Shielded, size: int) -> None:
    answer = shielded.post("/v1/models/renamed:predict", {"inputs": {"x": [3.0] * size}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"]["outputs"] == [10.0] * size
    ending = shielded.one_ending()
    assert (ending.ending, ending.shielded, len(ending.runs)) == (Ending.REFUSAL, True, 1)


def test_v2_over_http_names_version_and_labels_of_the_version_that_answered(shielded: Shielded) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    wanted = {"name": "y", "parameters": {"classification": 1}}
    for _ in range(3):  # plain requests are recognised after the first
        answer = shielded.post("/v2/models/m/infer", {"inputs": [tensor]}).json()
        assert (answer["model_version"], answer["outputs"][0]["data"]) == ("7", [8, 9, 10])
        assert shielded.one_ending().shielded
    answer = shielded.post("/v2/models/m/infer", {"inputs": [tensor], "outputs": [wanted]}).json()
    assert answer["outputs"][0]["data"] == ["10.000000:2:old2"]
    assert shielded.one_ending().shielded


def test_v2_over_grpc_and_its_statistics(shielded: Shielded) -> None:
    def inferences(version: int) -> tuple[int, int]:
        (found,) = shielded.v2.call("ModelStatistics", name="m", version=str(version)).model_stats
        return found.inference_stats.success.count, found.inference_stats.fail.count

    new, old = inferences(NEW), inferences(OLD)
    for _ in range(3):
        answer = shielded.v2.call("ModelInfer", **_infer_request())
        assert answer.model_version == "7"
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [8, 9, 10]
        assert shielded.one_ending().shielded
    assert inferences(NEW) == (new[0], new[1] + 3)
    assert inferences(OLD) == (old[0] + 3, old[1])


def test_v2_streams(shielded: Shielded) -> None:
    stream = shielded.v2.stream()
    for number in range(2):
        stream.send(**_infer_request(), id=str(number))
    stream.end()
    answers = stream.rest()
    assert [answer.error_message for answer in answers] == ["", ""]
    assert [answer.infer_response.model_version for answer in answers] == ["7", "7"]
    assert all(ending.shielded for ending in shielded.heard)
    assert len(shielded.heard) == 2


def _infer_request() -> dict[str, Any]:
    data = np.array([1, 2, 3], np.float32).tobytes()
    return {
        "model_name": "m",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3]}],
        "raw_input_contents": [data],
    }


@pytest.mark.parametrize("method", ["Classify", "Regress"])
def test_classify_and_regress(shielded: Shielded, method: str) -> None:
    classifies = method == "Classify"
    kind, answer_kind = (
        (ClassificationRequest, ClassificationResponse) if classifies else (RegressionRequest, RegressionResponse)
    )
    request = kind(model_spec={"name": "c"}, input=rows({"x": [3.0]}, {"x": [4.0]}))
    response = answer_kind.FromString(shielded.call(method, request))
    assert response.model_spec.version.value == OLD
    assert shielded.one_ending().shielded
    body = {"examples": [{"x": 3.0}]}
    answer = shielded.post(f"/v1/models/c:{method.lower()}", body)
    assert answer.status_code == 200
    assert shielded.one_ending().shielded


@pytest.mark.parametrize("model", ["c", "renamed"])
def test_multi_inference(shielded: Shielded, model: str) -> None:
    task = {"model_spec": {"name": model}, "method_name": "tensorflow/serving/regress"}
    request = MultiInferenceRequest(tasks=[task], input=rows({"x": [3.0]}))
    response = MultiInferenceResponse.FromString(shielded.call("MultiInference", request))
    (result,) = response.results
    assert result.model_spec.version.value == OLD
    assert result.regression_result.regressions[0].value == 10
    ending = shielded.one_ending()
    assert (ending.shielded, len(ending.runs)) == (True, 1)


def test_embeddings_over_openai(shielded: Shielded) -> None:
    answer = shielded.post("/openai/v1/embeddings", {"model": "e", "input": ["a", "b"]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-model-version"] == "7"
    assert [each["embedding"] for each in answer.json()["data"]] == [[7, 7], [7, 7]]
    assert shielded.one_ending().shielded


def test_a_request_by_number_gets_the_error_of_the_version_that_it_names(shielded: Shielded) -> None:
    answer = shielded.post("/v1/models/m/versions/8:predict", {"instances": [[1, 2, 3]]})
    assert answer.status_code == 500
    assert "the new one is broken" in answer.text
    ending = shielded.one_ending()
    assert (ending.ending, ending.shielded, ending.old_failed) == (Ending.FAULT, False, False)
