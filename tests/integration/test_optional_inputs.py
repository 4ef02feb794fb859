"""Inputs that a config calls optional: requests leave them out, with and without batching, where the model can."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import tfs_lite
from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.platforms import write_script
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError, StatusCode

PLAIN = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        assert set(inputs) <= {"x", "w"}
        return {"y": inputs["x"] + inputs.get("w", 100.0)}
"""
MODULE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, w=None):
        return {"y": x + (100.0 if w is None else w)}
"""
NEEDS_BOTH = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, w):
        return {"y": x + w}
"""
TENSORS = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "w" data_type: TYPE_FP32 dims: [ 2 ] optional: true }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
DEFAULT = 'signatures { key: "serving_default" value { defaults { key: "w" value: "[100, 100]" } } }'
BATCHED = "dynamic_batching { max_queue_delay_microseconds: 20000 }"
RESHAPED = TENSORS.replace("dims: [ 2 ] optional", "dims: [ 2, 1 ] reshape { shape: [ 2 ] } optional")
PYTHON = {
    "plain": (TENSORS, PLAIN),
    "batched": (TENSORS + BATCHED, PLAIN),
    "reshaped": (RESHAPED, PLAIN),
    "process": (TENSORS + 'instance_group { worker: "process" }', PLAIN),
    "module": (TENSORS, MODULE),
    "needs_both": (TENSORS, NEEDS_BOTH),
}
ENSEMBLE = (
    'platform: "ensemble"'
    + TENSORS
    + 'ensemble_scheduling { step { model_name: "plain" model_version: -1 input_map { key: "x" value: "x" } '
    'input_map { key: "w" value: "w" } output_map { key: "y" value: "y" } } }'
)
SERVED = ["plain", "batched", "reshaped", "process", "module", "exported", "script", "ensemble"]
REFUSED = ["needs_both", "needs_default"]


class Sum(torch.nn.Module):
    def forward(self, x, w):
        return {"y": x + w}


class MaybeSum(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"y": x + 100.0 if w is None else x + w}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root: Path = tmp_path_factory.mktemp("optional")
    for name, (config, source) in PYTHON.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(source)
        (root / name / "config.pbtxt").write_text(config)
    for name, more in (("exported", DEFAULT), ("needs_default", "")):
        tfs_lite.save(Sum(), root / name, example_inputs=(torch.zeros(3, 2), torch.ones(3, 2)), version=1)
        (root / name / "config.pbtxt").write_text(TENSORS + more)
    write_script(root / "script" / "1", MaybeSum())
    (root / "script" / "config.pbtxt").write_text(TENSORS)
    (root / "ensemble" / "1").mkdir(parents=True)
    (root / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    fields = {"port": 0, "rest_api_port": 0, "device": "cpu", "max_num_load_retries": 0}
    trusted = {"trusted_model_base_paths": (f"{root}/**",)}
    with serving(root, model_repository=str(root), **fields, **trusted) as found:
        yield found


def ask(served: ServerFixture, model: str, with_w: bool, rows: int = 1) -> list[list[float]]:
    inputs: Mapping[str, np.ndarray] = {"x": np.full((rows, 2), 1.0, np.float32)}
    if with_w:
        shape = (rows, 2, 1) if model == "reshaped" else (rows, 2)
        inputs = {**inputs, "w": np.full(shape, 5.0, np.float32)}
    found: list[list[float]] = served.client.predict(model, inputs).outputs["y"].tolist()
    return found


@pytest.mark.parametrize("model", SERVED)
def test_a_request_may_leave_an_optional_input_out(served: ServerFixture, model: str) -> None:
    served.wait_states({1: VersionState.AVAILABLE}, model)
    assert ask(served, model, with_w=True) == [[6.0, 6.0]]
    assert ask(served, model, with_w=False, rows=3) == [[101.0, 101.0]] * 3
    with pytest.raises(ServingError) as caught:
        served.client.predict(model, {"w": np.ones((1, 2), np.float32)})
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_requests_share_a_run_only_with_those_that_send_the_same_inputs(served: ServerFixture) -> None:
    served.wait_states({1: VersionState.AVAILABLE}, "batched")
    answers: list[tuple[bool, list[list[float]]]] = []

    def client(with_w: bool) -> None:
        for _ in range(20):
            answers.append((with_w, ask(served, "batched", with_w, rows=2)))  # noqa: PERF401 - answers of all threads

    threads = [threading.Thread(target=client, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 120
    for with_w, answer in answers:
        assert answer == [[6.0, 6.0] if with_w else [101.0, 101.0]] * 2


@pytest.mark.parametrize("model", REFUSED)
def test_model_that_cannot_do_without_the_input_is_refused_at_load(served: ServerFixture, model: str) -> None:
    served.wait_states({1: VersionState.END}, model)
    (status,) = served.status(model).values()
    assert status.status.code is StatusCode.INVALID_ARGUMENT
    assert status.status.message == (
        f'model {model} version 1: input[1].optional: the model cannot do without the input "w"; '
        "give it a default: signatures.serving_default.defaults.w"
    )
