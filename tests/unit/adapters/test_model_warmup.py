"""Samples of the config that every instance runs before a version becomes available."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.platforms import SETTINGS, write_exported, write_plain, write_python
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.model_warmup import warm_models
from tfs_lite.adapters.opening import OpenRequest, VersionFiles
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_warmup import ModelWarmup, ModelWarmupInput
from tfs_lite.core.model import Model, WorkerLost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument

ID = ServableId("m", 1)
BATCH = SymbolicDim("batch", 8)
ZERO = {"zero_data": True}


class Witness(Model):
    """Remembers what it was given."""

    platform = "test"

    def __init__(self, *inputs: TensorSpec, failure: ServingError | None = None) -> None:
        self._signatures = {DEFAULT_SIGNATURE: Signature(inputs, (TensorSpec("y"),))}
        self.seen: list[dict[str, np.ndarray]] = []
        self.failure = failure

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def run(self, signature: str, inputs: Mapping[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
        self.seen.append(dict(inputs))
        if self.failure is not None:
            raise self.failure
        return {"y": np.zeros(1)}

    def close(self) -> None:
        pass


class Stepper(Witness):
    """Has steps of its own before and after the run."""

    has_item_steps = True

    def preprocess(self, signature, inputs, deadline):
        return {"prepared": inputs["x"] + 1}

    def postprocess(self, signature, outputs, deadline):
        self.seen.append({"after": outputs["y"]})
        return dict(outputs)


def tensor(data_type: str = "TYPE_FP32", dims: tuple[int, ...] = (2,), **source: Any) -> ModelWarmupInput:
    return ModelWarmupInput(data_type=data_type, dims=dims, **(source or ZERO))


def sample(name: str = "s", batch_size: int = 1, count: int = 1, **inputs: ModelWarmupInput) -> ModelWarmup:
    return ModelWarmup(name=name, batch_size=batch_size, count=count, inputs=inputs or {"x": tensor()})


def asking(directory: Path, *samples: ModelWarmup, largest: int = 0) -> OpenRequest:
    settings = ModelSettings(max_batch_size=largest, model_warmup=samples)
    return OpenRequest(ID, VersionFiles(str(directory / "1"), frozenset()), "cpu", False, settings)


@pytest.fixture
def warmed(tmp_path):
    """What a model with these inputs is given."""

    def run(*samples: ModelWarmup, specs: tuple[TensorSpec, ...] = (), largest: int = 0) -> list[dict[str, np.ndarray]]:
        model = Witness(*(specs or (TensorSpec("x", DataType.FLOAT, (BATCH, 2)),)))
        warm_models([model], asking(tmp_path, *samples, largest=largest))
        return model.seen

    return run


@pytest.fixture
def refused(tmp_path):
    """The message with which a warm-up of these samples is refused."""

    def run(*samples: ModelWarmup, model: Model | None = None, code: StatusCode = StatusCode.INVALID_ARGUMENT) -> str:
        model = model or Witness(TensorSpec("x", DataType.FLOAT, (BATCH, 2)))
        return refusal(warm_models, [model], asking(tmp_path, *samples), code=code)

    return run


def write(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / "warmup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def texts(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def test_a_batch_is_so_many_copies_in_one_run(warmed):
    (inputs,) = warmed(sample(batch_size=3))
    assert inputs["x"].dtype == np.float32
    assert inputs["x"].tolist() == [[0, 0]] * 3


def test_every_instance_runs_every_sample_as_often_as_it_says(tmp_path):
    models = [Witness(TensorSpec("x", DataType.FLOAT, (BATCH, 2))) for _ in range(3)]
    samples = (sample(batch_size=1, count=2), sample(batch_size=4))
    warm_models(models, asking(tmp_path, *samples))
    assert [[len(inputs["x"]) for inputs in model.seen] for model in models] == [[1, 1, 4]] * 3


def test_without_samples_or_with_one_without_rows_nothing_runs(warmed):
    assert warmed() == []
    assert warmed(sample(batch_size=0, x=tensor(input_data_file="missing"))) == []


def test_random_numbers_are_the_same_in_every_copy_and_every_load(warmed):
    wish = sample(batch_size=2, x=tensor(random_data=True))
    (first,), (second,) = warmed(wish), warmed(wish)
    assert first["x"].shape == (2, 2)
    assert (first["x"][0] == first["x"][1]).all()
    assert (first["x"] == second["x"]).all()
    assert ((first["x"] >= 0) & (first["x"] < 1)).all()
    assert len(set(first["x"][0].tolist())) == 2


@pytest.mark.parametrize("data_type", ["TYPE_INT64", "TYPE_UINT8", "TYPE_BOOL"])
def test_random_whole_numbers_are_fit_to_be_indices(warmed, data_type):
    spec = TensorSpec("x", tensor(data_type).data_type, (BATCH, 50))
    (inputs,) = warmed(sample(x=tensor(data_type, (50,), random_data=True)), specs=(spec,))
    assert set(inputs["x"].ravel().astype(int).tolist()) == {0, 1}


@pytest.mark.parametrize("data_type", ["TYPE_FP16", "TYPE_BF16", "TYPE_FP64"])
def test_random_numbers_have_the_element_type_that_is_asked_for(warmed, data_type):
    spec = TensorSpec("x", tensor(data_type).data_type, (BATCH, 5))
    (inputs,) = warmed(sample(x=tensor(data_type, (5,), random_data=True)), specs=(spec,))
    assert 0 < inputs["x"].astype(np.float64).sum() < 5


@pytest.mark.parametrize("source", [ZERO, {"random_data": True}], ids=["zero", "random"])
def test_texts_without_a_file_are_empty(warmed, source):
    spec = TensorSpec("x", DataType.STRING, (BATCH, 2))
    (inputs,) = warmed(sample(batch_size=2, x=tensor("TYPE_STRING", (2,), **source)), specs=(spec,))
    assert inputs["x"].tolist() == [[b"", b""]] * 2


CONTENTS = {
    "numbers": ("TYPE_FP32", np.array([1, 2, 3], np.float32).tobytes(), [1, 2]),
    "texts with their lengths": ("TYPE_STRING", texts(b"one", b"", b"more than is needed"), [b"one", b""]),
    "truth values as bytes": ("TYPE_BOOL", bytes([0, 2]), [False, True]),
}


@pytest.mark.parametrize(("data_type", "data", "row"), CONTENTS.values(), ids=CONTENTS)
def test_values_come_from_a_file_beside_the_versions(warmed, tmp_path, data_type, data, row):
    write(tmp_path, "rows/one", data)
    wish = tensor(data_type, input_data_file="rows/one")
    (inputs,) = warmed(sample(batch_size=2, x=wish), specs=(TensorSpec("x", wish.data_type, (BATCH, 2)),))
    assert inputs["x"].tolist() == [row] * 2


def test_a_file_that_is_too_short_is_refused(refused, tmp_path):
    write(tmp_path, "short", b"1234567")
    assert refused(sample("early", x=tensor(input_data_file="short"))) == (
        "failed to run warmup sample 'early': warmup/short: input byte size mismatch for input 'x'. Expected 8, got 7;"
    )


@pytest.mark.parametrize("data", [texts(b"one"), texts(b"one", b"two")[:-1], b"\x01\x00"], ids=["few", "cut", "length"])
def test_a_file_with_too_few_texts_is_refused(refused, tmp_path, data):
    write(tmp_path, "texts", data)
    model = Witness(TensorSpec("x", DataType.STRING, (BATCH, 2)))
    message = refused(sample(x=tensor("TYPE_STRING", (2,), input_data_file="texts")), model=model)
    assert message.startswith("failed to run warmup sample 's': warmup/texts: ")
    assert model.seen == []


def test_a_file_that_is_not_there_is_refused(refused, tmp_path):
    message = refused(sample(x=tensor(input_data_file="none")))
    assert message == "failed to run warmup sample 's': there is no file warmup/none beside the versions;"


def test_a_link_that_leads_out_of_the_folder_is_refused(refused, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(8))
    write(tmp_path, "here", b"")
    os.symlink(tmp_path / "secret", tmp_path / "warmup" / "link")
    assert "leads out of the folder" in refused(sample(x=tensor(input_data_file="link")))


def test_controls_and_states_that_the_sample_lists_reach_the_model(warmed):
    specs = (
        TensorSpec("x", DataType.FLOAT, (BATCH, 2)),
        TensorSpec("START", DataType.INT32, (BATCH, 1)),
        TensorSpec("flat", DataType.BOOL, (BATCH,)),
    )
    inputs = {"x": tensor(), "START": tensor("TYPE_INT32", (1,)), "flat": tensor("TYPE_BOOL", (1,))}
    (seen,) = warmed(sample(batch_size=2, **inputs), specs=specs, largest=8)
    assert {name: array.shape for name, array in seen.items()} == {"x": (2, 2), "START": (2, 1), "flat": (2,)}


def test_an_input_without_a_batch_takes_the_row_as_it_is(warmed):
    (inputs,) = warmed(sample(), specs=(TensorSpec("x", DataType.FLOAT, (2,)),))
    assert inputs["x"].shape == (2,)


def test_several_copies_need_a_batch(refused):
    message = refused(sample(batch_size=2), model=Witness(TensorSpec("x", DataType.FLOAT, (2,))))
    assert message == "failed to run warmup sample 's': input x of shape [2] takes no batch of 2;"


@pytest.mark.parametrize(("largest", "shape"), [(0, (2,)), (8, (1, 2))])
def test_a_model_that_declares_no_shapes_has_a_batch_if_the_config_says_so(warmed, largest, shape):
    (inputs,) = warmed(sample(), specs=(TensorSpec("x"),), largest=largest)
    assert inputs["x"].shape == shape


UNFIT = {
    "dtype": sample(x=tensor("TYPE_INT32")),
    "size": sample(x=tensor(dims=(3,))),
    "rank": sample(x=tensor(dims=(1, 1, 2))),
    "name": sample(y=tensor()),
    "rows": sample(batch_size=9),
}


@pytest.mark.parametrize("wish", UNFIT.values(), ids=UNFIT)
def test_a_sample_that_does_not_fit_the_model_is_refused_before_it_runs(refused, wish):
    model = Witness(TensorSpec("x", DataType.FLOAT, (BATCH, 2)))
    assert refused(wish, model=model).startswith("failed to run warmup sample 's': ")
    assert model.seen == []


def test_a_sample_without_a_name_is_told_by_its_place(refused):
    assert "sample 'model_warmup[1]'" in refused(sample("", 0), sample("", x=tensor(dims=(3,))))


@pytest.mark.parametrize("failure", [invalid_argument("bad"), WorkerLost("the worker died")], ids=["refused", "lost"])
def test_the_first_failure_ends_the_warm_up_with_its_code(refused, failure):
    model = Witness(TensorSpec("x", DataType.FLOAT, (BATCH, 2)), failure=failure)
    message = refused(sample("first", count=3), sample("second"), model=model, code=failure.code)
    assert message == f"failed to run warmup sample 'first': {failure};"
    assert len(model.seen) == 1


def test_a_model_with_item_steps_goes_through_all_of_them(tmp_path):
    model = Stepper(TensorSpec("x", DataType.FLOAT, (BATCH, 2)))
    warm_models([model], asking(tmp_path, sample()))
    run, after = model.seen
    assert run["prepared"].tolist() == [[1, 1]]
    assert after["after"].tolist() == [0]


def open_model(directory: Path, *samples: ModelWarmup, trusted: bool = False):
    files = read_version(str(directory))
    settings = SETTINGS.model_copy(update={"model_warmup": samples})
    request = OpenRequest(ID, files, "cpu", trusted, settings)
    platform = next(platform for platform in PLATFORMS.values() if platform.recognises(files))
    assert platform.open is not None
    return platform.open(request), request


@pytest.mark.parametrize("writer", [write_exported, write_plain], ids=["exported", "python"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_real_models_run_their_samples(tmp_path, writer, batch_size):
    wish = sample(batch_size=batch_size, count=2, x=tensor(dims=(4,), random_data=True))
    model, request = open_model(writer(tmp_path / "1"), wish, trusted=True)
    try:
        warm_models([model], request)
    finally:
        model.close()


def test_the_failure_of_a_real_model_names_the_sample(tmp_path):
    source = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        raise ValueError("no weights for " + str(tuple(inputs["x"].shape)))
"""
    model, request = open_model(
        write_python(tmp_path / "1", source), sample("cold", 2, x=tensor(dims=(4,))), trusted=True
    )
    try:
        with pytest.raises(ServingError) as caught:
            warm_models([model], request)
    finally:
        model.close()
    assert str(caught.value).startswith("failed to run warmup sample 'cold': ")
    assert "no weights for (2, 4)" in str(caught.value)
