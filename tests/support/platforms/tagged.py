"""The tagged model on every platform, for suites of swaps and of memory: ``y = x + version``.

What takes long (exporting, compiling) is done once; each version differs in its weights only. Models that take texts
tell their version in what they answer: an encoder in its vectors, a language model in the letter that it writes.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import numpy as arrays
from safetensors.torch import save_file

import tfs_lite
from tests.support.language import tiny_version
from tests.support.servers.models import WIDTH, TaggedArchives
from tests.support.servers.platforms import rewrite_archive, write_script
from tests.support.servers.probe import ROW, is_tagged
from tfs_lite.client import Prediction

Write = Callable[[int, Path], Path]
"""Writes ``base/<version>`` and returns it."""
Inputs = Mapping[str, Any]

CONFIG = f"""
input {{ name: "x" data_type: TYPE_FP32 dims: [ -1, {WIDTH} ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ -1, {WIDTH} ] }}
output {{ name: "version" data_type: TYPE_FP32 dims: [ -1 ] }}
"""
SOURCE = """
import pathlib

from safetensors.torch import load


class Model:
    def __init__(self, context):
        self.weights = load(pathlib.Path(context.directory, "model.safetensors").read_bytes())["weights"]

    def predict(self, inputs):
        version = self.weights[0]
        return {"y": inputs["x"] + version, "version": version.expand(len(inputs["x"])).clone()}
"""
_FIRST_WEIGHTS = "data/weights/weight_0"
_HIDDEN = 64
_LETTERS = 90
"""So many characters of ASCII, from ``!`` on, stand for versions; versions that far apart have the same one."""
_TOKENS = 4


class TaggedScript(torch.nn.Module):
    """The model as TorchScript takes it."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(weights)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        version = self.weights[0]
        return {"y": x + version, "version": version.expand(x.shape[0]).clone()}


def _rows(client: int) -> Inputs:
    return {"x": ROW * (client + 1)}


@dataclass(frozen=True, slots=True)
class TaggedPlatform:
    """``writer`` makes the writer of versions whose weights have some megabytes; it may use an empty directory.
    ``inputs`` are those of a client, and ``is_true`` says whether the version that an answer names has given it.
    ``modules`` and ``programs`` have to be installed; ``needs_trust``: versions are served only from below a trusted
    path."""

    writer: Callable[[Path, float], Write]
    inputs: Callable[[int], Inputs] = _rows
    is_true: Callable[[Inputs, Prediction], bool] = is_tagged
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    needs_trust: bool = False

    def lacks(self) -> str:
        """What is not installed here; empty if nothing is lacking."""
        missing = [name for name in self.modules if find_spec(name) is None]
        return ", ".join(missing + [name for name in self.programs if shutil.which(name) is None])


def _weights(version: int, megabytes: float) -> torch.Tensor:
    weights = torch.zeros(max(1, int(megabytes * 250_000)))
    weights[0] = version
    return weights


def _exported(scratch: Path, megabytes: float) -> Write:
    return TaggedArchives(megabytes).write_version


def _scripts(scratch: Path, megabytes: float) -> Write:
    def write(version: int, base: Path) -> Path:
        directory = write_script(base / str(version), TaggedScript(_weights(version, megabytes)))
        (directory / "config.pbtxt").write_text(CONFIG)
        return directory

    return write


def _python(scratch: Path, megabytes: float) -> Write:
    def write(version: int, base: Path) -> Path:
        directory = base / str(version)
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(SOURCE)
        (directory / "config.pbtxt").write_text(CONFIG)
        save_file({"weights": _weights(version, megabytes)}, directory / "model.safetensors")
        return directory

    return write


def _onnx(scratch: Path, megabytes: float) -> Write:
    from onnx import TensorProto, helper, save

    def value(name: str, dims: list[Any]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    nodes = [
        helper.make_node("Constant", [], ["first"], value_ints=[0]),
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        helper.make_node("Gather", ["weights", "first"], ["tag"]),
        helper.make_node("Add", ["x", "tag"], ["y"]),
        helper.make_node("Sub", ["y", "x"], ["tags"]),
        helper.make_node("ReduceMax", ["tags", "axis"], ["version"], keepdims=0),
    ]

    def write(version: int, base: Path) -> Path:
        weights = _weights(version, megabytes).numpy()
        graph = helper.make_graph(
            nodes,
            "tagged",
            [value("x", ["batch", WIDTH])],
            [value("y", ["batch", WIDTH]), value("version", ["batch"])],
            [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)],
        )
        directory = base / str(version)
        directory.mkdir(parents=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        save(model, directory / "model.onnx")
        return directory

    return write


class TaggedToCompile(torch.nn.Module):
    """The compiler writes eight weights and fewer into its code, and those that are all alike: these stay outside."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.arange(size, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x + self.weights[:WIDTH]
        return {"y": y, "version": (y - x)[:, 0]}


def _compiled(scratch: Path, megabytes: float) -> Write:
    """Compiles once, which takes 10 seconds and more: the library holds no weights."""
    module = TaggedToCompile(max(64, len(_weights(0, megabytes))))
    made = tfs_lite.save(module, scratch, example_inputs={"x": torch.zeros(2, WIDTH)}, compile="aoti")

    def write(version: int, base: Path) -> Path:
        first = struct.pack("<f", version) * WIDTH

        def edit(name: str, data: bytes) -> bytes:
            return first + data[len(first) :] if name == _FIRST_WEIGHTS else data

        directory = base / str(version)
        directory.mkdir(parents=True)
        rewrite_archive(made / "model.pt2", directory / "model.pt2", edit)
        return directory

    return write


def _encoders(scratch: Path, megabytes: float) -> Write:
    """The last layer forgets what it got: every vector of a text is the version."""
    from transformers import BertConfig, BertModel

    from tests.support.language.tiny_encoders import tokenizer

    words = max(_HIDDEN, int(megabytes * 250_000 / _HIDDEN))
    sizes: dict[str, Any] = {"hidden_size": _HIDDEN, "intermediate_size": _HIDDEN, "vocab_size": words}
    model: Any = BertModel(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
    model.train(False)

    def write(version: int, base: Path) -> Path:
        last = model.encoder.layer[-1].output.LayerNorm
        with torch.no_grad():
            last.weight.zero_()
            last.bias.fill_(version)
        directory = base / str(version)
        model.save_pretrained(directory)
        tokenizer().save_pretrained(directory)
        return directory

    return write


def _texts(client: int) -> Inputs:
    return {"text": np.array([b"the cat sat on the mat " * (client + 1)], object)}


def _is_version(inputs: Inputs, answer: Prediction) -> bool:
    return bool(np.allclose(np.asarray(answer.outputs["embeddings"]), answer.version))


def _languages(scratch: Path, megabytes: float) -> Write:
    """No layer adds anything to vectors that are all alike: whatever was asked, the version writes its one letter."""
    words = max(tiny_version.VOCABULARY, int(megabytes * 250_000 / 2 / tiny_version.WIDTH))
    held = tiny_version.weights()
    held["model.embed_tokens.weight"] = np.ones((words, tiny_version.WIDTH), np.float32)
    for name in ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        held[name] = np.zeros_like(held[name])

    def write(version: int, base: Path) -> Path:
        head = np.zeros((words, tiny_version.WIDTH), np.float32)
        head[_letter(version)] = 1
        directory = base / str(version)
        directory.mkdir(parents=True)
        arrays.save_file({**held, "lm_head.weight": head}, directory / "model.safetensors", {"format": "pt"})
        (directory / "config.json").write_text(json.dumps({**tiny_version.CONFIG, "vocab_size": words}))
        (directory / "tokenizer_config.json").write_text(json.dumps(dict(tiny_version.BYTES_OF_TEXT)))
        return directory

    return write


def _letter(version: int) -> int:
    return ord("!") + version % _LETTERS


def _prompts(client: int) -> Inputs:
    values = {"max_tokens": np.array([_TOKENS], np.int32), "temperature": np.zeros(1, np.float32)}
    return {"text_input": np.array([b"the cat " * (client + 1)], object), **values}


def _is_letter(inputs: Inputs, answer: Prediction) -> bool:
    return bool(answer.outputs["text_output"].tolist() == [bytes([_letter(answer.version)] * _TOKENS)])


def _saved_models(scratch: Path, megabytes: float) -> Write:
    import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

    class Saved(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(_weights(0, megabytes).numpy())

        @tf.function(input_signature=[tf.TensorSpec([None, WIDTH], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def predict(self, x: Any) -> dict[str, Any]:
            y = x + self.weights[0]
            return {"y": y, "version": (y - x)[:, 0]}

    made = Saved()

    def write(version: int, base: Path) -> Path:
        made.weights.assign(_weights(version, megabytes).numpy())
        directory = base / str(version)
        tf.saved_model.save(made, str(directory), signatures={"serving_default": made.predict})
        return directory

    return write


TAGGED: Mapping[str, TaggedPlatform] = {
    "pytorch_export": TaggedPlatform(_exported),
    "pytorch_libtorch": TaggedPlatform(_scripts),
    "python": TaggedPlatform(_python, needs_trust=True),
    "onnxruntime_onnx": TaggedPlatform(_onnx, modules=("onnx", "onnxruntime")),
    "pytorch_aoti": TaggedPlatform(_compiled, programs=("g++",), needs_trust=True),
    "transformers": TaggedPlatform(_encoders, _texts, _is_version, modules=("transformers",)),
    "language": TaggedPlatform(_languages, _prompts, _is_letter, modules=("transformers",)),
    "tensorflow_savedmodel": TaggedPlatform(_saved_models, modules=("tensorflow",)),
}
"""By platform; there are encoders and language models of ``transformers``."""
