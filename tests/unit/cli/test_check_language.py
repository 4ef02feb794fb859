"""``tfs-lite check`` of language models: what would be refused is said without loading anything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tfs_lite.cli.main import main
from tfs_lite.core.publish import publish

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 8,
    "n_positions": 32,
    "vocab_size": 259,
}


def version(directory: Path, config: dict[str, object] = CONFIG) -> Path:
    """Of a network whose weights nobody looks at."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({"transformer.wte.weight": np.zeros((259, 8), np.float32)}, directory / "model.safetensors")
    return directory


def check(draft: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    publish(str(draft), str(base))
    main(["check", "--json", str(base)])
    found: dict[str, object] = json.loads(capsys.readouterr().out)["models"][0]["versions"][0]
    return found


def test_inputs_and_outputs_of_a_language_model_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = version(tmp_path / "draft")
    (draft / "tokenizer_config.json").write_text('{"tokenizer_class": "ByteTokenizer"}')
    found = check(draft, tmp_path / "base", capsys)
    assert found["verdict"] == "served"
    signature = found["signatures"][0]  # type: ignore[index]
    assert signature["inputs"]["text_input"] == "string[-1]"
    assert "token_ids" in signature["outputs"]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.pbtxt", 'parameters { key: "max_modl_len" value { string_value: "9" } }', "max_model_len"),
        ("config.json", json.dumps({**CONFIG, "model_type": "nothing"}), "nothing"),
        ("config.json", json.dumps({**CONFIG, "auto_map": {"AutoModelForCausalLM": "code.Model"}}), "auto_map"),
        ("model.safetensors", "x" * 100, "model.safetensors"),
        ("tokenizer.json", "{", "the tokenizer cannot be loaded"),
    ],
    ids=["parameter", "kind", "code", "weights", "tokenizer"],
)
def test_what_would_be_refused_is_said(
    file: str, content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = version(tmp_path / "draft")
    (draft / file).write_text(content)
    found = check(draft, tmp_path / "base", capsys)
    assert found["verdict"] == "refused"
    assert words in str(found["reason"])
