"""What the files of a version say: what it is for, how its embeddings are made, what its config may set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.encoders.platform import PLATFORM
from tfs_lite.adapters.encoders.sentence import Recipe, read_recipe
from tfs_lite.adapters.encoders.settings import encoder_settings
from tfs_lite.adapters.encoders.task import Task, read_labels_of, task_of
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.errors import refusal
from tfs_lite.testing.language.tiny_encoders import LENGTH, add_sentence_files, save_embedder, tokenizer

TASKS = [
    ("BertForSequenceClassification", (), Task.TEXT_CLASSES),
    ("DebertaV2ForTokenClassification", (), Task.TOKEN_CLASSES),
    ("ViTForImageClassification", (), Task.IMAGE_CLASSES),
    ("BertModel", (), Task.EMBEDDING),
    ("BertForMaskedLM", (), Task.EMBEDDING),
    ("Qwen3ForCausalLM", ("modules.json",), Task.EMBEDDING),
    ("Qwen3ForCausalLM", (), None),
    ("GPT2LMHeadModel", (), None),
    ("T5ForConditionalGeneration", (), None),
]


@pytest.mark.parametrize(("name", "files", "task"), TASKS)
def test_the_class_of_the_network_tells_the_task(name: str, files: tuple[str, ...], task: Task | None) -> None:
    assert task_of({"architectures": [name]}, files) is task


@pytest.mark.parametrize("declared", [None, [], "BertModel", [5]])
def test_what_names_no_class_is_left_to_language_models(declared: object) -> None:
    assert task_of({"architectures": declared}, ()) is None


def test_labels_are_those_of_the_table_or_numbered() -> None:
    assert read_labels_of({"id2label": {"1": "b", "0": "a"}}, 2) == ("a", "b")
    assert read_labels_of({"num_labels": 3}, 2) == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read_labels_of({}, 2) == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize("table", [{}, [], {"1": "a"}, {"0": 5}, {"0": "x" * 2000}])
def test_a_table_of_labels_with_gaps_is_damaged(table: Any) -> None:
    with pytest.raises(ServingError, match="id2label") as caught:
        read_labels_of({"id2label": table}, 2)
    assert caught.value.code is StatusCode.DATA_LOSS


def recipe(directory: Path) -> Recipe:
    return read_recipe(read_version(str(directory)))


def test_recipe_is_that_of_sentence_transformers(tmp_path: Path) -> None:
    assert recipe(tmp_path) == Recipe()
    add_sentence_files(tmp_path, "lasttoken", normalize=True, max_seq_length=9, do_lower_case=True)
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert recipe(tmp_path) == Recipe("lasttoken", True, 9, True, "query: ")


STEPS = {
    "dense": ([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], "FAILED_PRECONDITION", "Dense"),
    "outside": ([{"type": "models.Pooling", "path": "../other"}], "PERMISSION_DENIED", "outside"),
    "elsewhere": ([{"type": "models.Transformer", "path": "0_Transformer"}], "FAILED_PRECONDITION", "0_Transformer"),
    "no_list": ({}, "DATA_LOSS", "no list"),
    "no_path": ([{"type": 5}], "DATA_LOSS", "without a type"),
    "no_pooling_file": ([{"type": "Pooling", "path": "1_Pooling"}], "FAILED_PRECONDITION", "is missing"),
}


@pytest.mark.parametrize("case", STEPS)
def test_steps_that_are_not_served_are_refused(tmp_path: Path, case: str) -> None:
    steps, code, words = STEPS[case]
    (tmp_path / "modules.json").write_text(json.dumps(steps))
    with pytest.raises(ServingError, match=words) as caught:
        recipe(tmp_path)
    assert caught.value.code.name == code


def test_other_poolings_are_named(tmp_path: Path) -> None:
    add_sentence_files(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_weightedmean_tokens": true}')
    with pytest.raises(ServingError, match=r"weightedmean.*served are cls, lasttoken, max, mean"):
        recipe(tmp_path)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"parameters": {"max_len": "5"}}, 'no max_len; did you mean "max_length"'),
    ({"parameters": {"max_length": "0"}}, "parameters.max_length"),
    ({"parameters": {"pooling": "sum"}}, "parameters.pooling"),
    ({"instance_group": (InstanceGroup(worker="process"),)}, r"instance_group\[0\].worker"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_settings_that_an_encoder_cannot_have_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ServingError, match=words) as caught:
        encoder_settings(ModelSettings(**fields))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def opened(directory: Path, **parameters: str) -> Any:
    files, settings = read_version(str(directory)), ModelSettings(parameters=parameters)
    assert PLATFORM.open is not None
    return PLATFORM.open(OpenRequest(ServableId("m", 1), files, "cpu", False, settings))


def test_length_is_bounded_by_the_positions_of_the_network(tmp_path: Path) -> None:
    save_embedder(tmp_path, kind="roberta")
    model = opened(tmp_path)
    (_, length) = model.signatures["tokens"].inputs[0].shape
    assert length.maximum == LENGTH
    model.close()
    refused = refusal(lambda: opened(tmp_path, max_length=str(LENGTH + 1)))
    assert f"the network has {LENGTH} positions" in refused


def test_reserved_memory_covers_what_a_version_holds(tmp_path: Path) -> None:
    save_embedder(tmp_path)
    model = opened(tmp_path)
    assert PLATFORM.reserve is not None
    assert 0 < model.resident_bytes() <= PLATFORM.reserve(read_version(str(tmp_path)), ModelSettings(), False)
    model.close()


CYCLES = """
import sys
import numpy as np
import psutil
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.encoders.platform import PLATFORM
from tfs_lite.adapters.memory import release_memory
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.core.servable import ServableId
texts = np.empty(8, object)
texts[:] = [b"the cat sat"] * 8
for _ in range(20):
    model = PLATFORM.open(OpenRequest(ServableId("m", 1), read_version(sys.argv[1]), "cpu", False))
    model.run("", {"text": texts}, ())
    model.close()
    del model
    release_memory()
    print(psutil.Process().memory_info().rss)
"""


@pytest.mark.load
def test_memory_comes_back_when_versions_are_closed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=20_000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4)
    BertModel(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", CYCLES, str(tmp_path)], capture_output=True, text=True, check=True)
    held = [int(line) for line in done.stdout.split()]
    assert len(held) == 20
    # Between cycles the C library keeps what the top of a thread's heap held, now and then as much as the weights.
    assert min(held[-5:]) - min(held[:5]) < 10 << 20, held
