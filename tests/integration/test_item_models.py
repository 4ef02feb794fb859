"""Python models that work item by item, over the wire: what is valid is batched, what is not is refused in words."""

from __future__ import annotations

import json
import re
import runpy
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.support.servers.in_process import TIMEOUT, ServerFixture, serving
from tests.support.servers.process import wait_until
from tfs_lite.core.status import ServingError, StatusCode

GUIDE = Path(__file__).parents[2] / "docs" / "python-models.md"

PEOPLE = """
import pathlib
import time
from typing import Annotated

import torch
from pydantic import BaseModel, Field

GATE = pathlib.Path(GATE_PATH)


class Person(BaseModel):
    age: Annotated[int, Field(ge=0)]
    name: str


class Model:
    Input = Person

    def __init__(self, context):
        pass

    def preprocess(self, person):
        if person.name == "slow":
            (GATE / "entered").touch()
            latest = time.monotonic() + 60
            while not (GATE / "open").exists() and time.monotonic() < latest:
                time.sleep(0.005)
        return {"x": torch.tensor([person.age, len(person.name)], dtype=torch.float32)}

    def predict(self, inputs):
        total = inputs["x"].sum(1)
        return {"total": total, "rows": torch.full_like(total, len(total))}

    def postprocess(self, row):
        return {"score": float(row["total"]), "rows": float(row["rows"])}
"""
CONFIG = """
max_batch_size: 3
dynamic_batching: {max_queue_delay_microseconds: 60000000}
input: [{name: age, data_type: TYPE_INT64, dims: []}, {name: name, data_type: TYPE_STRING, dims: []}]
output: [{name: score, data_type: TYPE_FP32, dims: []}, {name: rows, data_type: TYPE_FP32, dims: []}]
"""
"""Batches of exactly three rows, however long that takes."""


def write(root: Path, name: str, source: str, config: str) -> None:
    directory = root / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(source)
    (directory / "config.yaml").write_text(config)


def people(*pairs: tuple[int, str]) -> dict[str, np.ndarray]:
    """A request: one row for each (age, name)."""
    return {
        "age": np.array([age for age, _ in pairs], np.int64),
        "name": np.array([name.encode() for _, name in pairs], object),
    }


def ask_rest(fixture: ServerFixture, *instances: dict[str, object]) -> httpx.Response:
    url = f"{fixture.url}/v1/models/people:predict"
    return httpx.post(url, json={"instances": instances}, timeout=TIMEOUT)


@pytest.fixture
def fixture(tmp_path):
    write(tmp_path, "people", PEOPLE.replace("GATE_PATH", repr(str(tmp_path))), CONFIG)
    fields = {"model_name": "people", "model_base_path": str(tmp_path / "people")}
    with serving(tmp_path, **fields, trusted_model_base_paths=str(tmp_path)) as found:
        yield found
        (tmp_path / "open").touch()


FLIPPED = """
class Model:
    def __init__(self, context):
        pass

    def preprocess(self, item):
        return {"x": item["x"].reshape(3, 2).T.reshape(6)}

    def predict(self, inputs):
        return {"y": inputs["x"]}
"""
RESHAPED = """
max_batch_size: 8
input: [{name: x, data_type: TYPE_FP32, dims: [3, 2], reshape: {shape: [6]}}]
output: [{name: y, data_type: TYPE_FP32, dims: [2, 3], reshape: {shape: [6]}}]
"""


def test_model_whose_config_reshapes_keeps_its_preprocess(tmp_path):
    write(tmp_path, "flipped", FLIPPED, RESHAPED)
    fields = {"model_name": "flipped", "model_base_path": str(tmp_path / "flipped")}
    with serving(tmp_path, **fields, trusted_model_base_paths=str(tmp_path)) as found:
        answer = found.client.predict("flipped", {"x": np.array([[[1, 2], [3, 4], [5, 6]]], np.float32)})
    assert answer.outputs["y"].tolist() == [[[1, 3, 5], [2, 4, 6]]]


@pytest.fixture
def hasty(tmp_path):
    """A server whose REST requests may take a fifth of a second."""
    write(tmp_path, "people", PEOPLE.replace("GATE_PATH", repr(str(tmp_path))), CONFIG)
    fields = {"model_name": "people", "model_base_path": str(tmp_path / "people"), "rest_api_timeout_in_ms": 200}
    with serving(tmp_path, **fields, trusted_model_base_paths=str(tmp_path)) as found:
        yield found
        (tmp_path / "open").touch()


def test_rows_of_several_requests_are_prepared_alone_and_run_together(fixture):
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(fixture.client.predict, "people", people((age, "Ada"))) for age in (1, 2, 3)]
        answers = [call.result(TIMEOUT).outputs for call in calls]
    assert [answer["score"].tolist() for answer in answers] == [[4], [5], [6]]
    assert [answer["rows"].tolist() for answer in answers] == [[3]] * 3


def test_invalid_item_is_refused_and_its_neighbours_are_answered(fixture):
    requests = [people((1, "Ada")), people((2, "Bo"), (-5, "Cy")), people((3, "Di"), (4, "Eve"))]
    with ThreadPoolExecutor(3) as pool:
        calls: list[Future] = [pool.submit(fixture.client.predict, "people", request) for request in requests]
        with pytest.raises(ServingError) as caught:
            calls[1].result(TIMEOUT)
        answers = [calls[index].result(TIMEOUT).outputs for index in (0, 2)]
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert str(caught.value) == "model people: item 1: age: Input should be greater than or equal to 0"
    assert [answer["score"].tolist() for answer in answers] == [[4], [5, 7]]
    assert [answer["rows"].tolist() for answer in answers] == [[3], [3, 3]]


def test_only_the_outputs_asked_for_come_back(fixture):
    three = people((1, "Ada"), (2, "Bo"), (3, "Cy"))
    answer = fixture.client.predict("people", three, outputs=["score"]).outputs
    assert {name: value.tolist() for name, value in answer.items()} == {"score": [4, 4, 5]}


def test_refusal_is_422_over_http_with_the_words_of_the_validator(fixture):
    reply = ask_rest(fixture, {"age": 1, "name": "Ada"}, {"age": -1, "name": "Bo"})
    assert reply.status_code == 422
    assert reply.json() == {"error": "model people: item 1: age: Input should be greater than or equal to 0"}


def test_request_that_does_not_fit_the_signature_is_400_as_ever(fixture):
    assert ask_rest(fixture, {"age": "old", "name": "Ada"}).status_code == 400


def test_time_that_runs_out_in_a_step_is_408_over_http(hasty):
    reply = ask_rest(hasty, {"age": 1, "name": "slow"})
    assert reply.status_code == 408
    assert "deadline" in reply.json()["error"]


def test_time_that_runs_out_in_the_queue_is_408_over_http(hasty):
    assert ask_rest(hasty, {"age": 1, "name": "alone"}).status_code == 408


@pytest.mark.wire
def test_time_that_runs_out_in_a_step_is_deadline_exceeded_over_grpc(fixture, tmp_path):
    with pytest.raises(ServingError) as caught:
        fixture.client.predict("people", people((1, "slow")), timeout=1.0)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: (tmp_path / "entered").exists(), "the step has begun", TIMEOUT)


# The guide


def blocks() -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def guided(tmp_path_factory):
    """A server of every model in the guide, made as the guide says."""
    root = tmp_path_factory.mktemp("guide")
    files = [match for block in blocks() if (match := re.match(r"# (\S+)\n", block))]
    for match in files:
        path = root / match[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(match.string)
    with chdir(root):
        for script in root.glob("*.py"):
            runpy.run_path(str(script))
    with serving(root, model_repository=str(root), trusted_model_base_paths=str(root)) as found:
        yield found


CALLS = re.findall(r"^\$ curl -d '(.*)' localhost:8501(\S+)\n(.*)$", "\n".join(blocks()), re.MULTILINE)


@pytest.mark.parametrize(("body", "path", "answer"), CALLS, ids=range(len(CALLS)))
def test_every_example_of_the_guide_is_answered_as_it_says(guided, body, path, answer):
    reply = httpx.post(guided.url + path, content=body, timeout=TIMEOUT)
    assert reply.json() == json.loads(answer)
    assert (reply.status_code == 200) == ("error" not in json.loads(answer))


def test_guide_has_examples_of_both_kinds_of_several_answers_and_of_items():
    assert {path.split("/")[3] for _, path, _ in CALLS} == {
        "linear:predict",
        "shout:predict",
        "countdown",
        "price:predict",
    }
