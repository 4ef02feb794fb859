"""Every wrapper in the product passes on what it wraps: models around models, and loaders around loaders."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

import tfs_lite
from tfs_lite.adapters.loader import unowned
from tfs_lite.adapters.measured import Measured
from tfs_lite.adapters.opening import OpenedModel, OpenedModelAround
from tfs_lite.adapters.reshape import ReshapedModel
from tfs_lite.adapters.signatures import SignatureMapping, SignedModel
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Document, build
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.loader import Loader, LoaderAround
from tfs_lite.core.model import Model, ModelAround, Shapes, WorkerStatus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.schedulers.sequence.oldest import WatchedModel

SIGNATURE = Signature(*[(TensorSpec(name, DataType.FLOAT, (SymbolicDim("rows"), 4)),) for name in "xy"])
X = np.zeros((2, 4), np.float32)
ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "run": (DEFAULT_SIGNATURE, {"x": X}, ()),
    "parts": (DEFAULT_SIGNATURE, {"x": X}, ()),
    "stage": (DEFAULT_SIGNATURE, {"x": (X.shape, X.dtype)}),
    "preprocess": (DEFAULT_SIGNATURE, {"x": X}, None),
    "postprocess": (DEFAULT_SIGNATURE, {"y": X}, None),
    "recover": (threading.Event(),),
    "another": ("cpu",),
}


class Unusual(OpenedModel):
    """A model that answers differently from the defaults in every member, and notes which were asked for."""

    platform = "unusual"
    signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: SIGNATURE}
    worker = WorkerStatus("process", pid=5)
    merges_calls = True
    captured_rows = (3, 7)
    labels: Mapping[str, Sequence[str]] = {"y": ("cat", "dog")}
    concurrency = 5
    useful_threads = 4
    has_item_steps = True

    def __init__(self) -> None:
        self.called: list[str] = []

    def _note(self, name: str) -> dict[str, Tensor]:
        self.called.append(name)
        return {"y": np.full((2, 4), len(name), np.float32)}

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        return self._note("run")

    def close(self) -> None:
        self._note("close")

    def parts(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        return iter([self._note("parts"), self._note("parts")])

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor]:
        self._note("stage")
        return {name: np.ones(*shape) for name, shape in shapes.items()}

    def recover(self, give_up: threading.Event) -> bool:
        self._note("recover")
        return False

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return self._note("preprocess")

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return self._note("postprocess")

    def resident_bytes(self) -> int:
        self._note("resident_bytes")
        return 12

    def measured_bytes(self) -> Measured:
        self._note("measured_bytes")
        return {"main": {"weights": 12}}

    def another(self, device: str) -> OpenedModel:
        self._note("another")
        return self


def reshaped(model: OpenedModel) -> Model:
    tensor = {"data_type": "TYPE_FP32", "dims": [2, 2], "reshape": {"shape": [4]}}
    config = {"max_batch_size": 8, "input": [{"name": "x", **tensor}], "output": [{"name": "y", **tensor}]}
    return ReshapedModel(model, build(ModelSettings, Document(config)))


WRAPPERS: Mapping[type[ModelAround], Callable[[OpenedModel], Model]] = {
    ReshapedModel: reshaped,
    SignedModel: lambda model: SignedModel(model, ServableId("m", 1), {DEFAULT_SIGNATURE: SignatureMapping(SIGNATURE)}),
    WatchedModel: lambda model: WatchedModel(
        model, lambda: None, ignore, True, batched=True, name="m", repeatable=True
    ),
    type(unowned(Unusual())): unowned,
}
OWN = {
    ReshapedModel: {"signatures"},
    WatchedModel: {"concurrency", "useful_threads"},
    type(unowned(Unusual())): {"close"},
}
"""What a wrapper is there to answer differently."""


def members(contract: type) -> list[str]:
    return [name for name in dir(contract) if not name.startswith("_")]


def wrappers_in(base: type) -> set[type]:
    """All classes below ``base`` in the product."""
    for module in pkgutil.walk_packages(tfs_lite.__path__, "tfs_lite."):
        if module.name.startswith(("tfs_lite.adapters.", "tfs_lite.schedulers.", "tfs_lite.serving.")):
            importlib.import_module(module.name)
    found, waiting = set[type](), [base]
    while waiting:
        new = set(waiting.pop().__subclasses__()) - found
        found |= new
        waiting += new
    return {each for each in found if not each.__module__.startswith(("tests", "tfs_lite.testing", __name__))}


@pytest.fixture(params=WRAPPERS, ids=lambda wrapper: wrapper.__name__)
def wrapper(request: pytest.FixtureRequest) -> type[ModelAround]:
    return cast(type[ModelAround], request.param)


def test_every_wrapper_of_the_product_is_tried_here() -> None:
    assert wrappers_in(ModelAround) == {OpenedModelAround, *WRAPPERS}


def test_what_all_wrappers_share_names_every_member_of_the_contract() -> None:
    assert set(members(Model)) <= set(vars(ModelAround))
    assert set(members(OpenedModel)) <= set(vars(ModelAround)) | set(vars(OpenedModelAround))
    assert set(members(Loader)) <= set(vars(LoaderAround))


def test_this_suite_tries_a_model_that_is_unusual_in_every_member() -> None:
    assert set(members(OpenedModel)) <= set(vars(Unusual))


def test_every_value_is_the_inner_models(wrapper: type[ModelAround]) -> None:
    inner = Unusual()
    outside = WRAPPERS[wrapper](inner)
    contract = OpenedModel if isinstance(outside, OpenedModelAround) else Model
    for name in set(members(contract)) - OWN.get(wrapper, set()):
        if not callable(getattr(inner, name)):
            assert getattr(outside, name) == getattr(inner, name), name


def test_every_call_reaches_the_inner_model_and_its_answer_comes_back(wrapper: type[ModelAround]) -> None:
    inner = Unusual()
    outside = WRAPPERS[wrapper](inner)
    contract = OpenedModel if isinstance(outside, OpenedModelAround) else Model
    for name in set(members(contract)) - OWN.get(wrapper, set()):
        if not callable(getattr(inner, name)):
            continue
        expected = list_of(getattr(inner, name)(*ARGUMENTS.get(name, ())))
        inner.called.clear()
        found = list_of(getattr(outside, name)(*ARGUMENTS.get(name, ())))
        assert set(inner.called) == {name}
        assert str(found) == str(expected), name


def list_of(answer: object) -> object:
    """The elements of an iterator, and of arrays their numbers: a wrapper may give them another shape."""
    if isinstance(answer, Iterator):
        return [list_of(each) for each in answer]
    if isinstance(answer, dict) and all(isinstance(value, np.ndarray) for value in answer.values()):
        return {name: value.ravel().tolist() for name, value in answer.items()}
    return answer
