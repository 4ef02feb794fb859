"""Ensembles over the wire: the image pipeline of the documentation with tiny models, and models that come and go."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.servers.in_process import serving as serving_here
from tests.support.servers.process import ServerProcess, wait_until
from tests.support.servers.v2_client import V2Client
from tfs_lite.core.publish import publish
from tfs_lite.core.status import ServingError, StatusCode

pytestmark = pytest.mark.slow

SIZE = "3, 4, 4"
SHAPE = (1, 3, 4, 4)
CLASSES = 5
MODEL = """
import pathlib
import time

import torch

GATE = pathlib.Path(GATE_PATH)


def passed(name):
    \"\"\"Stands still as long as there is a file of that name.\"\"\"
    latest = time.monotonic() + 60
    while (GATE / f"hold-{name}").exists():
        (GATE / f"held-{name}").touch()
        if time.monotonic() > latest:
            raise TimeoutError("nobody let go")
        time.sleep(0.002)


class Model:
    def __init__(self, context):
        self.version = context.version

    def predict(self, inputs):
"""
PREPROCESS = """
        image = bytes(inputs["RAW_IMAGE"].reshape(-1)[0])
        if image == b"broken":
            raise ValueError("this is no image")
        return {"PREPROCESSED_OUTPUT": torch.full((1, 3, 4, 4), float(sum(image)))}
"""
CLASSIFY = """
        passed("classification_model")
        level = inputs["FORMATTED_IMAGE"].mean()
        return {"CLASSIFICATION_OUTPUT": level + torch.arange(5).reshape(1, 5)}
"""
SEGMENT = """
        passed("segmentation_model")
        return {"SEGMENTATION_OUTPUT": -inputs["FORMATTED_IMAGE"]}
"""
ADD = """
        passed(f"add-{self.version}")
        version = torch.full_like(inputs["x"], self.version)
        return {"y": inputs["x"] + version, "version": version}
"""


SOMETIMES = """
        found = {"y": inputs["x"]}
        return found if float(inputs["x"].min()) < 0 else {**found, "z": inputs["x"] * 2}
"""


def tensor(name: str, dims: str, kind: str = "FP32") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }}'


def config(inputs: str, outputs: str, platform: str = "python", batch: int = 1, more: str = "") -> str:
    return f'platform: "{platform}"\nmax_batch_size: {batch}\ninput [ {inputs} ]\noutput [ {outputs} ]\n{more}'


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [("input_map", *pair) for pair in inputs.items()] + [("output_map", *pair) for pair in outputs.items()]
    entries = " ".join(f'{kind} {{ key: "{key}" value: "{value}" }}' for kind, key, value in maps)
    return f'step {{ model_name: "{model}" model_version: -1 {entries} }}'


def ensemble(inputs: str, outputs: str, *steps: str) -> str:
    return config(inputs, outputs, "ensemble", more=f"ensemble_scheduling {{ {' '.join(steps)} }}")


IMAGE, PIXELS = tensor("IMAGE", "1", "STRING"), tensor("FORMATTED_IMAGE", SIZE)
RESULTS = f"{tensor('CLASSIFICATION', str(CLASSES))}, {tensor('SEGMENTATION', SIZE)}"
MODELS = {
    "image_preprocess_model": (
        config(tensor("RAW_IMAGE", "1", "STRING"), tensor("PREPROCESSED_OUTPUT", SIZE)),
        PREPROCESS,
    ),
    "classification_model": (config(PIXELS, tensor("CLASSIFICATION_OUTPUT", str(CLASSES))), CLASSIFY),
    "segmentation_model": (config(PIXELS, tensor("SEGMENTATION_OUTPUT", SIZE)), SEGMENT),
    "add": (config(tensor("x", "2"), f"{tensor('y', '2')}, {tensor('version', '2')}", batch=8), ADD),
}
PIPELINE = ensemble(
    IMAGE,
    RESULTS,
    step("image_preprocess_model", {"RAW_IMAGE": "IMAGE"}, {"PREPROCESSED_OUTPUT": "preprocessed_image"}),
    step(
        "classification_model", {"FORMATTED_IMAGE": "preprocessed_image"}, {"CLASSIFICATION_OUTPUT": "CLASSIFICATION"}
    ),
    step("segmentation_model", {"FORMATTED_IMAGE": "preprocessed_image"}, {"SEGMENTATION_OUTPUT": "SEGMENTATION"}),
)
NAMES = [f"sort {number}" for number in range(CLASSES)]
NESTED = ensemble(
    IMAGE,
    tensor("AGAIN", str(CLASSES)).replace(" }", ' label_filename: "names.txt" }'),
    step("ensemble_image_model", {"IMAGE": "IMAGE"}, {"SEGMENTATION": "negative"}),
    step("classification_model", {"FORMATTED_IMAGE": "negative"}, {"CLASSIFICATION_OUTPUT": "AGAIN"}),
)
TWICE = ensemble(
    tensor("IN", "2"),
    f"{tensor('OUT', '2')}, {tensor('FIRST', '2')}, {tensor('SECOND', '2')}",
    step("add", {"x": "IN"}, {"y": "between", "version": "FIRST"}),
    step("add", {"x": "between"}, {"y": "OUT", "version": "SECOND"}),
)
ENSEMBLES = {"ensemble_image_model": PIPELINE, "nested": NESTED, "twice": TWICE}


class Repository:
    """Models and ensembles below ``path``; models can be held up by name."""

    def __init__(self, path: Path) -> None:
        self.path = path / "repository"
        self._gate = path / "gate"
        self._scratch = path / "scratch"
        for directory in (self.path, self._gate):
            directory.mkdir()

    def add(self, name: str, version: int = 1) -> None:
        text, source = MODELS[name]
        self._configure(name, text)
        directory = self._scratch / name / str(version)
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(MODEL.replace("GATE_PATH", repr(str(self._gate))) + source)
        publish(str(directory), str(self.path / name), version)

    def add_ensemble(self, name: str) -> None:
        self._configure(name, ENSEMBLES[name])
        (self.path / name / "names.txt").write_text("\n".join(NAMES))
        (self.path / name / "1").mkdir()

    def _configure(self, name: str, text: str) -> None:
        if not (self.path / name).exists():
            (self.path / name).mkdir()
            (self.path / name / "config.pbtxt").write_text(text)

    @contextmanager
    def held(self, *names: str) -> Iterator[None]:
        """The models stand still as soon as they run."""
        for name in names:
            (self._gate / f"held-{name}").unlink(missing_ok=True)
            (self._gate / f"hold-{name}").touch()
        try:
            yield
        finally:
            for name in names:
                (self._gate / f"hold-{name}").unlink()

    def wait_held(self, name: str) -> None:
        wait_until((self._gate / f"held-{name}").exists, f"{name} is held up")


@dataclass
class EnsembleFixture:
    server: ServerProcess
    repository: Repository
    client: V2Client

    def ask(self, image: bytes, *outputs: str, model: str = "ensemble_image_model") -> dict[str, Any]:
        return arrays(self.client.call("ModelInfer", **picture(image, *outputs, model=model)))

    def refusal(self, image: bytes, model: str = "ensemble_image_model") -> tuple[grpc.StatusCode, str]:
        return self.client.refusal("ModelInfer", **picture(image, model=model))

    def ready(self, model: str, version: str = "") -> bool:
        found: bool = self.client.call("ModelReady", name=model, version=version).ready
        return found

    def successes(self, model: str) -> int:
        (found,) = self.client.call("ModelStatistics", name=model).model_stats
        assert found.execution_count == found.inference_stats.success.count, "one row, one run"
        return int(found.inference_stats.success.count)

    def failed(self, model: str) -> int:
        (found,) = self.client.call("ModelStatistics", name=model).model_stats
        return int(found.inference_stats.fail.count)

    def load(self, model: str) -> None:
        self.client.call("RepositoryModelLoad", model_name=model)

    def unload(self, model: str) -> None:
        self.client.call("RepositoryModelUnload", model_name=model)
        wait_until(lambda: not self.ready(model), f"{model} is unloaded")


def picture(image: bytes, *outputs: str, model: str) -> dict[str, Any]:
    return {
        "model_name": model,
        "inputs": [{"name": "IMAGE", "datatype": "BYTES", "shape": [1, 1]}],
        "outputs": [{"name": name} for name in outputs],
        "raw_input_contents": [struct.pack("<I", len(image)) + image],
    }


def arrays(response: Any) -> dict[str, Any]:
    return {
        output.name: np.frombuffer(raw, np.float32).reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


@contextmanager
def serving(repository: Repository, *flags: str) -> Iterator[EnsembleFixture]:
    flags = (f"--model_repository={repository.path}", f"--trusted_model_base_paths={repository.path}/*", *flags)
    with ServerProcess(*flags) as server, grpc.insecure_channel(server.target) as channel:
        yield EnsembleFixture(server, repository, V2Client(channel))
    assert server.exit_code == 0
    assert not server.leftovers()


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnsembleFixture]:
    """A server of everything, whose models are loaded and unloaded by calls."""
    repository = Repository(tmp_path_factory.mktemp("ensembles"))
    for name in MODELS:
        repository.add(name)
    for name in ENSEMBLES:
        repository.add_ensemble(name)
    with serving(repository, "--model_control_mode=explicit", "--load_model=*") as found:
        for name in (*MODELS, *ENSEMBLES):
            wait_until(lambda name=name: found.ready(name), f"{name} is ready")
        yield found


def test_image_goes_through_all_three_models(fixture: EnsembleFixture) -> None:
    found = fixture.ask(b"ab")
    assert list(found) == ["CLASSIFICATION", "SEGMENTATION"]
    level = float(sum(b"ab"))
    np.testing.assert_array_equal(found["CLASSIFICATION"], [level + np.arange(CLASSES)])
    np.testing.assert_array_equal(found["SEGMENTATION"], np.full(SHAPE, -level))


def test_labels_that_the_config_of_an_ensemble_names_are_those_of_its_output(fixture: EnsembleFixture) -> None:
    wanted = [{"name": "AGAIN", "parameters": {"classification": {"int64_param": 2}}}]
    response = fixture.client.call("ModelInfer", **picture(b"ab", model="nested") | {"outputs": wanted})
    (raw,) = response.raw_output_contents
    assert [label.encode() in raw for label in NAMES] == [False] * (CLASSES - 2) + [True] * 2


def test_models_of_an_ensemble_answer_by_themselves(fixture: EnsembleFixture) -> None:
    pixels = np.full(SHAPE, 2, np.float32)
    tensors = [{"name": "FORMATTED_IMAGE", "datatype": "FP32", "shape": SHAPE}]
    raw = [pixels.tobytes()]
    answer = fixture.client.call("ModelInfer", model_name="segmentation_model", inputs=tensors, raw_input_contents=raw)
    np.testing.assert_array_equal(arrays(answer)["SEGMENTATION_OUTPUT"], -pixels)


def test_steps_that_can_run_together_do(fixture: EnsembleFixture) -> None:
    both = ("classification_model", "segmentation_model")
    with ThreadPoolExecutor(1) as pool:
        with fixture.repository.held(*both):
            answer = pool.submit(fixture.ask, b"ab")
            for name in both:
                fixture.repository.wait_held(name)
        assert list(answer.result(60)) == ["CLASSIFICATION", "SEGMENTATION"]


def test_model_that_only_makes_what_nobody_asked_for_does_not_run(fixture: EnsembleFixture) -> None:
    models = ("image_preprocess_model", "classification_model", "segmentation_model")
    fixture.ask(b"a")
    before = {name: fixture.successes(name) for name in models}
    with fixture.repository.held("segmentation_model"):
        for _ in range(3):
            assert list(fixture.ask(b"ab", "CLASSIFICATION")) == ["CLASSIFICATION"]
    wanted = dict(zip(models, (3, 3, 0), strict=True))

    def moved() -> dict[str, int]:
        return {name: fixture.successes(name) - before[name] for name in models}

    wait_until(lambda: moved() == wanted, f"statistics move by {wanted}")
    fixture.ask(b"ab", "SEGMENTATION")
    wanted = dict(zip(models, (4, 3, 1), strict=True))
    wait_until(lambda: moved() == wanted, f"statistics move by {wanted}")


def test_error_of_a_step_is_told_with_the_name_of_the_ensemble(fixture: EnsembleFixture) -> None:
    before = fixture.failed("image_preprocess_model"), fixture.failed("ensemble_image_model")
    code, text = fixture.refusal(b"broken")
    alone = fixture.client.refusal(
        "ModelInfer",
        model_name="image_preprocess_model",
        inputs=[{"name": "RAW_IMAGE", "datatype": "BYTES", "shape": [1, 1]}],
        raw_input_contents=[struct.pack("<I", 6) + b"broken"],
    )
    step = "step 0 (model image_preprocess_model)"
    assert (code, text) == (alone[0], f"in ensemble 'ensemble_image_model', {step}: {alone[1]}")
    assert "this is no image" in text
    assert (
        fixture.refusal(b"broken", "nested")[1] == f"in ensemble 'nested', step 0 (model ensemble_image_model): {text}"
    )
    wait_until(
        lambda: (
            fixture.failed("image_preprocess_model") == before[0] + 3
            and fixture.failed("ensemble_image_model") > before[1]
        ),
        "the failures are counted",
    )


def test_request_that_does_not_fit_the_ensemble_has_no_prefix(fixture: EnsembleFixture) -> None:
    fields = picture(b"ab", model="ensemble_image_model") | {
        "inputs": [{"name": "PICTURE", "datatype": "BYTES", "shape": [1, 1]}]
    }
    code, text = fixture.client.refusal("ModelInfer", **fields)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "unexpected inference input 'PICTURE' for model 'ensemble_image_model'" in text
    assert "in ensemble" not in text


def test_ensemble_can_be_a_step_of_another(fixture: EnsembleFixture) -> None:
    level = float(sum(b"abc"))
    np.testing.assert_array_equal(fixture.ask(b"abc", model="nested")["AGAIN"], [-level + np.arange(CLASSES)])


def test_ensemble_is_not_ready_while_one_of_its_models_is_unloaded(fixture: EnsembleFixture) -> None:
    fixture.unload("segmentation_model")
    try:
        wait_until(lambda: not fixture.ready("ensemble_image_model"), "the ensemble is not ready")
        assert not fixture.ready("nested")
        assert fixture.ready("classification_model")
        for name in ("ensemble_image_model", "nested"):
            code, text = fixture.refusal(b"ab", name)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "segmentation_model" in text
        assert fixture.server.get("/v2/models/ensemble_image_model/ready")[0] != 200
    finally:
        fixture.load("segmentation_model")
    wait_until(lambda: fixture.ready("ensemble_image_model") and fixture.ready("nested"), "both are ready again")
    assert list(fixture.ask(b"ab")) == ["CLASSIFICATION", "SEGMENTATION"]


def test_unload_of_an_ensemble_leaves_its_models(fixture: EnsembleFixture) -> None:
    fixture.unload("nested")
    assert fixture.ready("ensemble_image_model")
    assert fixture.refusal(b"ab", "nested")[0] in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
    fixture.load("nested")
    assert list(fixture.ask(b"abc", model="nested")) == ["AGAIN"]


def test_ensemble_is_loaded_when_the_last_of_its_models_has_come(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.add_ensemble("nested")
    repository.add_ensemble("ensemble_image_model")
    repository.add("segmentation_model")
    with serving(repository) as late:
        wait_until(lambda: late.ready("segmentation_model"), "the model that is there is ready")
        repository.add("classification_model")
        wait_until(lambda: late.ready("classification_model"), "the second has come")
        assert not late.ready("ensemble_image_model")
        assert late.refusal(b"ab")[0] in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
        repository.add("image_preprocess_model")
        wait_until(lambda: late.ready("ensemble_image_model"), "the ensemble is ready")
        assert list(late.ask(b"ab")) == ["CLASSIFICATION", "SEGMENTATION"]
        wait_until(lambda: late.ready("nested"), "the ensemble of the ensemble is ready")
        assert list(late.ask(b"ab", model="nested")) == ["AGAIN"]


LAST = 5
CLIENTS = 4


def ask_twice(client: V2Client, number: float) -> int:
    """The version that both steps ran in, after checking that it was one."""
    sent = np.full((1, 2), number, np.float32)
    tensors = [{"name": "IN", "datatype": "FP32", "shape": [1, 2]}]
    found = arrays(client.call("ModelInfer", model_name="twice", inputs=tensors, raw_input_contents=[sent.tobytes()]))
    version = int(found["FIRST"][0, 0])
    np.testing.assert_array_equal(found["FIRST"], found["SECOND"])
    np.testing.assert_array_equal(found["OUT"], sent + 2 * version)
    return version


def test_requests_under_way_keep_the_versions_that_they_came_with(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.add("add")
    repository.add_ensemble("twice")
    with serving(repository) as busy:
        wait_until(lambda: busy.ready("twice"), "the ensemble is ready")
        over, seen = threading.Event(), [Counter[int]() for _ in range(CLIENTS)]

        def ask(index: int) -> None:
            while not over.is_set():
                seen[index][ask_twice(busy.client, seen[index].total() % 1000)] += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            asking = [pool.submit(ask, index) for index in range(CLIENTS)]
            try:
                for version in range(1, LAST + 1):
                    if version > 1:
                        repository.add("add", version)
                    wait_until(
                        lambda version=version: all(found[version] for found in seen) or any(map(_failed, asking)),
                        f"version {version} answers everybody",
                    )
            finally:
                over.set()
            for each in asking:
                each.result(60)
        assert set().union(*seen) == set(range(1, LAST + 1))
        assert ask_twice(busy.client, 1.0) == LAST


def test_request_between_two_steps_stays_with_the_version_of_the_first(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.add("add")
    repository.add_ensemble("twice")
    with serving(repository) as busy:
        wait_until(lambda: busy.ready("twice"), "the ensemble is ready")
        with ThreadPoolExecutor(1) as pool:
            with repository.held("add-1"):
                answer = pool.submit(ask_twice, busy.client, 1.0)
                repository.wait_held("add-1")
                repository.add("add", 2)
                wait_until(lambda: busy.ready("add", "2"), "version 2 is ready")
                assert ask_twice(busy.client, 1.0) == 2
            assert answer.result(60) == 1


def _failed(future: Any) -> bool:
    return bool(future.done() and future.exception())


# Outputs that a model leaves out.


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_an_output_that_a_step_leaves_out_is_missing_in_the_answer_and_fails_a_request_to_its_model(
    tmp_path: Path, worker: str
) -> None:
    x, outputs = tensor("x", "1"), ", ".join(tensor(name, "1") for name in "yz")
    group = f'instance_group [ {{ count: 1 worker: "{worker}" }} ]'
    source = MODEL.replace("GATE_PATH", repr(str(tmp_path))) + SOMETIMES
    maps = 'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } output_map { key: "z" value: "z" }'
    steps = f'ensemble_scheduling {{ step [ {{ model_name: "m" model_version: -1 {maps} }} ] }}'
    for name, text in (("m", config(x, outputs, more=group)), ("e", config(x, outputs, "ensemble", more=steps))):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(text)
    (tmp_path / "models" / "m" / "1" / "model.py").write_text(source)
    fields = {"model_repository": str(tmp_path / "models"), "trusted_model_base_paths": (f"{tmp_path}/*",)}
    with serving_here(tmp_path, **fields) as served:
        asked = partial(served.client.predict, "e")
        assert set(asked({"x": np.array([[1]], np.float32)}).outputs) == {"y", "z"}
        lacking = {"x": np.array([[-1]], np.float32)}
        assert {name: array.tolist() for name, array in asked(lacking).outputs.items()} == {"y": [[-1]]}
        with pytest.raises(ServingError, match="did not return output z; it returned: y") as caught:
            served.client.predict("m", lacking)
        assert caught.value.code is StatusCode.INTERNAL
        assert list(served.client.predict("m", lacking, outputs=("y",)).outputs) == ["y"]
