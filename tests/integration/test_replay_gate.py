"""A version that clients could not go on with, or that answers otherwise than recorded, is held back at its load: the
old one goes on, and no request fails. With the default flags of the product."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tfs_lite
from tests.support.platforms.tagged import TAGGED, Write
from tests.support.servers.in_process import TIMEOUT, ServerFixture
from tests.support.servers.probe import Traffic
from tests.support.servers.process import wait_until
from tfs_lite.cli.main import main
from tfs_lite.cli.record_live import LiveRecorder, RequestSource
from tfs_lite.cli.warmup_file import append
from tfs_lite.client import Prediction
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState, VersionStatus
from tfs_lite.core.status import Reason, StatusCode
from tfs_lite.server.server import Server

AVAILABLE, END = VersionState.AVAILABLE, VersionState.END
ROWS = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
WEIGHTS = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))


class Scores(nn.Module):
    """Scores of ten classes, and the best one."""

    def __init__(self, weights: Tensor = WEIGHTS) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        scores = (x.float() @ self.weights).softmax(1)
        return {"scores": scores, "best": scores.argmax(1)}


class RenamedInput(Scores):
    def forward(self, features: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return super().forward(features)


class GoneOutput(Scores):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": super().forward(x)["scores"]}


@dataclass
class World:
    """A server of model ``m`` whose version 7 answers, is asked without pause, and was recorded beside the versions."""

    served: ServerFixture
    base: Path
    traffic: Traffic
    version: int = 7

    def push(self, module: nn.Module, columns: int = 4, dtype: torch.dtype = torch.float32) -> int:
        """Saves the module as the next version, and returns its number."""
        self.version += 1
        names = ("features",) if isinstance(module, RenamedInput) else ("x",)
        example = {names[0]: torch.ones(2, columns, dtype=dtype)}
        tfs_lite.save(module, self.base, example_inputs=example, version=self.version)
        return self.version

    def held_back(self, version: int) -> str:
        """Waits until the version has failed, removes it, and returns what its status says."""
        found = wait_until(lambda: self._failed(version), f"version {version} has failed", TIMEOUT)
        shutil.rmtree(self.base / str(version))
        assert found.status.code is StatusCode.FAILED_PRECONDITION
        states = self.served.server.core.states.version_states("m")
        assert states[version].state.health.reason is Reason.HELD_BACK
        assert self.served.states()[7] is AVAILABLE
        prefix, _, message = found.status.message.partition(": held back: ")
        assert prefix == f"model m version {version}"
        return message

    def _failed(self, version: int) -> VersionStatus | None:
        found = self.served.status().get(version)
        return found if found is not None and found.state is END and not found.status.ok else None

    def wait_available(self, version: int) -> None:
        wait_until(lambda: self.served.states().get(version) is AVAILABLE, f"{version} is available", TIMEOUT)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("gate")
    base = root / "m"
    tfs_lite.save(Scores(), base, example_inputs={"x": torch.ones(2, 4)}, version=7)
    (base / "config.yaml").write_text("parameters:\n  guard.max_changed: 0.02\n")
    with Server(model_name="m", model_base_path=str(base)) as server:
        served = ServerFixture(server, root)
        server.wait_ready(TIMEOUT)
        _record(served, base / "replay.tfrecord", root)
        with Traffic(
            served.target, "m", threads=2, inputs=lambda index: {"x": ROWS[:1]}, is_true=_is_finite
        ) as traffic:
            yield World(served, base, traffic)
        assert traffic.failures == []
        assert traffic.wrong == []
        served.client.close()


def _is_finite(inputs: object, answer: Prediction) -> bool:
    return bool(np.isfinite(answer.outputs["scores"]).all())


def _record(served: ServerFixture, out: Path, scratch: Path) -> None:
    for number, row in enumerate(ROWS):
        (scratch / f"{number}.json").write_text(json.dumps({"instances": [row.tolist()]}))
    bodies = [str(scratch / f"{number}.json") for number in range(len(ROWS))]
    assert main(["record", f"--server={served.target}", "--model_name=m", f"--out={out}", *bodies]) == 0


def test_a_recording_beside_the_versions_leaves_the_one_that_answers_alone(world: World) -> None:
    wait_until(lambda: world.traffic.total > 20, "it goes on answering", TIMEOUT)
    assert world.served.status()[7].status.message == ""


def test_a_renamed_input_is_held_back(world: World) -> None:
    message = world.held_back(world.push(RenamedInput()))
    assert message == (
        "signature serving_default: input x is gone; version 7 takes it; "
        "signature serving_default: input features is new and has no default; version 7 does not take it"
    )


def test_an_output_that_is_gone_is_held_back(world: World) -> None:
    message = world.held_back(world.push(GoneOutput()))
    assert message == "signature serving_default: output best is gone; version 7 gives it"


def test_another_dtype_is_held_back(world: World) -> None:
    message = world.held_back(world.push(Scores(), dtype=torch.float64))
    assert message == "signature serving_default: input x is double; in version 7 it is float"


def test_another_size_is_held_back(world: World) -> None:
    message = world.held_back(world.push(Scores(torch.randn(5, 10)), columns=5))
    assert message == "signature serving_default: input x takes 5 in dimension 1; in version 7 it takes 4"


def test_more_classes_are_held_back_by_the_recorded_answers(world: World) -> None:
    message = world.held_back(world.push(Scores(torch.randn(4, 12))))
    assert message == (
        "replay.tfrecord: record 1 (serving_default, answered by version 7): output scores: "
        "recorded float[1,10], got float[1,12]; 12 of 12 records failed"
    )


def test_classes_in_another_order_are_held_back_by_max_changed(world: World) -> None:
    message = world.held_back(world.push(Scores(WEIGHTS.flip(1))))
    assert message.startswith(
        "12 of 12 recorded answers changed, at most 0.02 of them may (guard.max_changed); replay.tfrecord: record "
    )


def test_numbers_that_are_none_are_held_back(world: World) -> None:
    message = world.held_back(world.push(Scores(WEIGHTS * torch.nan)))
    assert message == (
        "replay.tfrecord: record 1 (serving_default, answered by version 7): output scores: "
        "10 of 10 values are NaN or infinite, and were not recorded so; 12 of 12 records failed"
    )


def test_a_new_recording_gives_a_held_back_version_another_try(world: World) -> None:
    kept = (world.base / "replay.tfrecord").read_bytes()
    (world.base / "replay.tfrecord").write_bytes(b"these are not the records you are looking for")
    version = world.push(Scores(WEIGHTS * 1.00001))
    found = wait_until(lambda: world._failed(version), "it is held back", TIMEOUT)
    assert "held back: replay.tfrecord: " in found.status.message
    (world.base / "replay.tfrecord").write_bytes(kept)
    world.wait_available(version)


KINDS = tuple(name for name, kind in TAGGED.items() if name != "pytorch_aoti" and not kind.lacks())
"""What can be made here. A compiled program, which takes long to make, is held against answers as any exported one."""
ENSEMBLE = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
ensemble_scheduling { step { model_name: "%s" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }
"""


class Kinds:
    """A model of each platform, and ``ensemble``, whose version 2 is made of another model. ``{max_changed}`` of its
    recorded answers may change in a version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._writers: dict[str, Write] = {}
        for name in KINDS:
            (root / ".scratch" / name).mkdir(parents=True)
            self._writers[name] = TAGGED[name].writer(root / ".scratch" / name, 0)
            self.write(name, 1)
        self._writers["onnxruntime_onnx"](2, root / "successor")
        self.write("ensemble", 1)

    def write(self, name: str, version: int, max_changed: float = 0.0) -> None:
        drafts = self.root / ".drafts" / name
        if name == "ensemble":
            (drafts / str(version)).mkdir(parents=True)
            config = ENSEMBLE % ("onnxruntime_onnx" if version == 1 else "successor")
        else:
            directory = self._writers[name](version, drafts)
            config = (directory / "config.pbtxt").read_text() if (directory / "config.pbtxt").exists() else ""
        config += f'parameters {{ key: "guard.max_changed" value {{ string_value: "{max_changed}" }} }}'
        (drafts / str(version) / "config.pbtxt").write_text(config)
        publish(str(drafts / str(version)), str(self.root / name), version)


@pytest.mark.load
@pytest.mark.timeout(600)
def test_versions_of_every_platform_are_held_against_recorded_answers(tmp_path: Path) -> None:
    kinds = Kinds(tmp_path)
    trusted = ",".join(str(tmp_path / name) for name in KINDS if TAGGED[name].needs_trust)
    with Server(model_repository=str(tmp_path), trusted_model_base_paths=trusted) as server:
        served = ServerFixture(server, tmp_path)
        server.wait_ready(120)
        for name in (*KINDS, "ensemble"):
            wait_until(lambda name=name: served.states(name).get(1) is AVAILABLE, f"{name} is available", 120)
            inputs = {"x": np.ones((1, 3), np.float32)} if name == "ensemble" else TAGGED[name].inputs(0)
            recorder = LiveRecorder(served.client, name, "")
            asked = RequestSource("one", lambda inputs=inputs: ("", lambda signature: inputs))
            assert append(tmp_path / name / "replay.tfrecord", recorder.logs([asked])) == 1
        for name in (*KINDS, "ensemble"):
            kinds.write(name, 2)
            kinds.write(name, 3, max_changed=1.0)
            wait_until(lambda name=name: served.states(name).get(3) is AVAILABLE, f"{name} has a successor", 120)
        for name in (*KINDS, "ensemble"):
            shutil.rmtree(tmp_path / name / "3")
        for name in (*KINDS, "ensemble"):
            found = wait_until(lambda name=name: _held_back(served, name), f"{name} is held back", 120)
            assert "1 of 1 recorded answers changed, at most 0 of them may (guard.max_changed)" in found, name
        served.client.close()


def _held_back(served: ServerFixture, name: str) -> str:
    found = served.status(name).get(2)
    return found.status.message if found is not None and found.state is END else ""
