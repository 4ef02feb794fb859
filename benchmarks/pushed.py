"""The versions that ``hot_reload.py`` pushes: seven kinds of artefact, each of about 50 and about 500 MB.

    python benchmarks/pushed.py [kind-megabytes ...]        builds them below .bench/pushed and says how large they are

Their shapes are those that people push: a BERT as an exported program and as the files of ``save_pretrained``, a Llama,
and a stack of residual blocks, of 6 nodes each, where a kind has no such model of its own. What a kind needs to be
built or served may be missing: :func:`lacks` says so.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models import BENCH

BLOCKS = 24
VOCABULARY = 8000
SIZES = (50, 500)
SEED = 7
CONFIG = """
input {{ name: "x" data_type: TYPE_FP32 dims: [ -1, {width} ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ -1, {width} ] }}
"""
SOURCE = """
import pathlib

import torch
from safetensors.torch import load_file


class Model:
    def __init__(self, context):
        self.weights = load_file(pathlib.Path(context.directory, "model.safetensors"))

    def predict(self, inputs):
        x = inputs["x"]
        for weight in self.weights.values():
            x = x + torch.relu(torch.nn.functional.layer_norm(x, x.shape[-1:]) @ weight)
        return {"y": x}
"""


def width_of(megabytes: int) -> int:
    """The width at which the blocks' matrices have that size together."""
    return int(math.sqrt(megabytes * 1e6 / 4 / BLOCKS)) // 8 * 8


def _export(directory: Path, megabytes: int) -> None:
    import networks

    import tfs_lite

    network = (networks.Bert if megabytes < 200 else networks.Wide)()
    tfs_lite.save(network, directory.parent, example_inputs=network.examples(), version=int(directory.name))


def _script(directory: Path, megabytes: int) -> None:
    import torch
    from networks import Blocks

    directory.mkdir(parents=True)
    torch.jit.save(torch.jit.script(Blocks(width_of(megabytes), BLOCKS).eval()), directory / "model.pt")
    (directory / "config.pbtxt").write_text(CONFIG.format(width=width_of(megabytes)))


def _python(directory: Path, megabytes: int) -> None:
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    width = width_of(megabytes)
    save_file(
        {f"block{number:02}": torch.randn(width, width) * 0.01 for number in range(BLOCKS)},
        directory / "model.safetensors",
    )
    (directory / "model.py").write_text(SOURCE)
    (directory / "config.pbtxt").write_text(CONFIG.format(width=width))


def _onnx(directory: Path, megabytes: int) -> None:
    import numpy as np
    from onnx import TensorProto, helper, save

    width, draw = width_of(megabytes), np.random.default_rng(SEED)
    names, nodes, held = ["x"], list[Any](), list[Any]()

    def hold(name: str, array: np.ndarray[Any, Any]) -> str:
        held.append(helper.make_tensor(name, TensorProto.FLOAT, array.shape, array.tobytes(), raw=True))
        return name

    scale, bias = hold("scale", np.ones(width, np.float32)), hold("bias", np.zeros(width, np.float32))
    for number in range(BLOCKS):
        weight = hold(f"w{number}", draw.standard_normal((width, width), np.float32) * np.float32(0.01))
        nodes += [
            helper.make_node("LayerNormalization", [names[-1], scale, bias], [f"n{number}"]),
            helper.make_node("MatMul", [f"n{number}", weight], [f"m{number}"]),
            helper.make_node("Relu", [f"m{number}"], [f"r{number}"]),
            helper.make_node("Add", [names[-1], f"r{number}"], [f"h{number}"]),
        ]
        names.append(f"h{number}")
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["batch", width])], [value(names[-1], TensorProto.FLOAT, ["batch", width])]
    graph = helper.make_graph(nodes, "blocks", *ends, held)
    directory.mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    save(made, directory / "model.onnx")


def _words() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(VOCABULARY - 4))]
    made = Tokenizer(models.WordPiece({name: at for at, name in enumerate(names)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer: Any = PreTrainedTokenizerFast
    return tokenizer(tokenizer_object=made, model_max_length=256, **special)


def _encoder(directory: Path, megabytes: int) -> None:
    from transformers import BertConfig, BertModel

    width, layers = (384, 6) if megabytes < 200 else (1024, 9)
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    settings: dict[str, Any] = {"vocab_size": VOCABULARY, "num_attention_heads": width // 64}
    BertModel(BertConfig(**sizes, **settings)).save_pretrained(directory)
    _words().save_pretrained(directory)


def _language(directory: Path, megabytes: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers = (384, 6) if megabytes < 200 else (1024, 11)
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "num_attention_heads": width // 64,
        "tie_word_embeddings": True,
    }
    rest: dict[str, Any] = {"max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": None}
    LlamaForCausalLM(LlamaConfig(**sizes, **settings, **rest)).save_pretrained(directory)
    _words().save_pretrained(directory)
    (directory / "config.pbtxt").write_text('parameters { key: "max_num_seqs" value { string_value: "4" } }\n')


def _saved_model(directory: Path, megabytes: int) -> None:
    import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

    width = width_of(megabytes)

    class Blocks(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = [tf.Variable(tf.random.normal((width, width), stddev=0.01)) for _ in range(BLOCKS)]

        @tf.function(input_signature=[tf.TensorSpec([None, width], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def predict(self, x: Any) -> dict[str, Any]:
            for weight in self.weights:
                mean, variance = tf.nn.moments(x, [-1], keepdims=True)
                x = x + tf.nn.relu(((x - mean) / tf.sqrt(variance + 1e-5)) @ weight)
            return {"y": x}

    made = Blocks()
    tf.saved_model.save(made, str(directory), signatures={"serving_default": made.predict})


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of artefact. ``modules`` build and serve it; ``flags`` are needed to serve it at all."""

    build: Callable[[Path, int], None]
    modules: tuple[str, ...] = ()
    needs_trust: bool = False


KINDS: Mapping[str, Kind] = {
    "pt2": Kind(_export),
    "onnx": Kind(_onnx, ("onnx", "onnxruntime")),
    "encoder": Kind(_encoder, ("transformers", "tokenizers")),
    "language": Kind(_language, ("transformers", "tokenizers")),
    "script": Kind(_script),
    "python": Kind(_python, needs_trust=True),
    "savedmodel": Kind(_saved_model, ("tensorflow",)),
}


def lacks(kind: str) -> str:
    """The modules that are not installed here; empty if nothing is lacking."""
    return ", ".join(name for name in KINDS[kind].modules if find_spec(name) is None)


def artefact(kind: str, megabytes: int) -> Path:
    """The version directory; built on first use."""
    base = BENCH / "pushed" / f"{kind}-{megabytes}"
    if not (base / "built.json").exists():
        import torch

        torch.manual_seed(SEED)
        shutil.rmtree(base, ignore_errors=True)
        KINDS[kind].build(base / "1", megabytes)
        (base / "built.json").write_text(json.dumps({"bytes": bytes_of(base / "1")}))
    return base / "1"


def bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main() -> None:
    wanted = sys.argv[1:] or [f"{kind}-{size}" for kind in KINDS for size in SIZES]
    for name in wanted:
        kind, _, size = name.partition("-")
        missing = lacks(kind)
        print(
            f"{name:16} ",
            (missing and f"needs {missing}") or f"{bytes_of(artefact(kind, int(size))) / 1e6:.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
