"""A core in the explicit control mode over a repository of small python models, for tests of load and unload calls."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.servers.in_process import QUICK
from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import ServingError, Status
from tfs_lite.protocols.messages import Message
from tfs_lite.server.v2.index import index_entries
from tfs_lite.serving.config_sources import ModelLocator
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.repository.control import RepositoryControl
from tfs_lite.serving.repository.requests import RepositoryValue
from tfs_lite.serving.server_core import MakeFeature, ServerCore
from tfs_lite.serving.source_chain import NO_MODELS

CONFIG = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
SOURCE = """
class Model:
    def __init__(self, context):
        self.plus = float(context.config.parameters.get("plus", "0")) + {plus}

    def predict(self, inputs):
        return {{"y": inputs["x"] + self.plus}}
"""
BROKEN = "raise ValueError('no model here')"


class RepositoryFixture:
    """``root`` is the repository. One thread."""

    def __init__(self, root: Path, features: Iterable[MakeFeature] = (), **fields: Any) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        options = {"model_repository": str(root), "model_control_mode": "explicit", "max_num_load_retries": 0}
        trusted = {"trusted_model_base_paths": (str(root / "**"),)}
        self.options = ServerOptions(**{**QUICK, **options, **trusted, **fields})
        self.core = ServerCore(self.options, features)
        self.control = RepositoryControl(self.core, ModelLocator(self.options))
        self.core.start()
        self.core.load_first(NO_MODELS)
        self.core.end_first_load()

    def write(self, model: str, version: int, plus: float, source: str = SOURCE) -> Path:
        """A version whose answers are ``x + plus``; written over what was there."""
        directory = self.root / model / str(version)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.py").write_text(source.replace("{plus}", str(plus)).replace("{{", "{").replace("}}", "}"))
        return directory

    def configure(self, model: str, more: str = "", text: str = CONFIG) -> None:
        (self.root / model).mkdir(exist_ok=True)
        (self.root / model / "config.pbtxt").write_text(text + more)

    def remove(self, model: str) -> None:
        shutil.rmtree(self.root / model)

    def load(self, model: str, **parameters: RepositoryValue) -> None:
        self.control.load(model, parameters)

    def load_with(self, model: str, parameters: Mapping[str, RepositoryValue]) -> None:
        self.control.load(model, parameters)

    def plus(self, model: str, version: int | None = None) -> float:
        """What the model adds, asked of it."""
        with self.core.handle(ModelRef(model, version)) as handle:
            done, answers = threading.Event(), []

            def on_done(answer: Any) -> None:
                answers.append(answer)
                done.set()

            inputs = {"x": np.array([1.0], np.float32)}
            handle.servable.submit(PredictCall("serving_default", inputs, (), None, on_done))
            assert done.wait(30)
        answer = answers[0]
        assert not isinstance(answer, Status), answer
        return float(answer["y"][0]) - 1.0

    def versions(self, model: str) -> set[int]:
        return self.core.manager.available_versions(model)

    def identity(self, model: str, version: int | None = None) -> int:
        """Of the object that answers: another one after a reload."""
        with self.core.handle(ModelRef(model, version)) as handle:
            return id(handle.servable)

    def index(self, ready: bool = False) -> list[Message]:
        """An ``inference.ModelIndex`` for every version, and for every model without one."""
        others = ModelLocator(self.options).names()
        return index_entries(self.core.view.known_models(), others, ready, self.control.refused)

    def failure(self, model: str, **parameters: RepositoryValue) -> ServingError:
        """The error of a load that must fail."""
        try:
            self.load(model, **parameters)
        except ServingError as error:
            return error
        raise AssertionError(f"{model} was loaded")


@contextlib.contextmanager
def serving_repository(root: Path, **fields: Any) -> Iterator[RepositoryFixture]:
    fixture = RepositoryFixture(root, **fields)
    try:
        yield fixture
    finally:
        fixture.core.close(20.0)
        fixture.control.close()
