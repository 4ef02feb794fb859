"""What the files of a version say: what it is for, how its embeddings are made, what its config may set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from tests.support.errors import refusal
from tests.support.language.tiny_encoders import LENGTH, add_sentence_files, save_embedder, tokenizer
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.encoders.platform import PLATFORM
from tfs_lite.adapters.encoders.sentence import Recipe, read_recipe
from tfs_lite.adapters.encoders.settings import encoder_settings
from tfs_lite.adapters.encoders.task import EncoderTask, read_encoder, read_labels_of, task_of
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode

TASKS = [
    ("BertForSequenceClassification", (), EncoderTask.TEXT_CLASSES),
    ("DebertaV2ForTokenClassification", (), EncoderTask.TOKEN_CLASSES),
    ("ViTForImageClassification", (), EncoderTask.IMAGE_CLASSES),
    ("BertModel", (), EncoderTask.EMBEDDING),
    ("BertForMaskedLM", (), EncoderTask.EMBEDDING),
    ("T5EncoderModel", (), EncoderTask.EMBEDDING),
    ("BertGenerationEncoder", (), EncoderTask.EMBEDDING),
    ("Qwen3ForCausalLM", ("modules.json",), EncoderTask.EMBEDDING),
    ("Qwen3ForCausalLM", (), None),
    ("GPT2LMHeadModel", (), None),
    ("T5ForConditionalGeneration", (), None),
]


@pytest.mark.parametrize(("name", "files", "task"), TASKS)
def test_the_class_of_the_network_tells_the_task(name: str, files: tuple[str, ...], task: EncoderTask | None) -> None:
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


CLASSES = [
    ("t5", "T5EncoderModel", (), "T5EncoderModel"),
    ("t5", "T5Model", (), "T5Model"),
    ("t5", "T5ForConditionalGeneration", ("modules.json",), "T5EncoderModel"),
    ("mt5", "MT5EncoderModel", (), "MT5EncoderModel"),
    ("umt5", "UMT5Model", ("modules.json",), "UMT5EncoderModel"),
    ("bert", "BertForMaskedLM", (), "BertModel"),
    ("bert", "GPT2Model", (), "BertModel"),
    ("bert", "json", (), "BertModel"),
    ("bert-generation", "BertGenerationEncoder", (), "BertGenerationEncoder"),
]


@pytest.mark.parametrize(("kind", "declared", "files", "opened"), CLASSES)
def test_embeddings_are_those_of_the_class_that_the_directory_names(
    tmp_path: Path, kind: str, declared: str, files: tuple[str, ...], opened: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "architectures": [declared]}))
    for name in files:
        (tmp_path / name).write_text("[]")
    _, made = read_encoder(read_version(str(tmp_path)), EncoderTask.EMBEDDING)
    assert made.__name__ == opened


def test_number_of_classes_counts_where_a_family_has_a_field_of_its_own_for_it(tmp_path: Path) -> None:
    fields = {"model_type": "pvt", "architectures": ["PvtForImageClassification"], "num_labels": 3}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config, _ = read_encoder(read_version(str(tmp_path)), EncoderTask.IMAGE_CLASSES)
    assert (config.num_labels, len(config.id2label)) == (3, 3)


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    fields = {"model_type": "bert", "architectures": ["BertModel"], "quantization_config": {"bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ServingError, match="quantised weights"):
        read_encoder(read_version(str(tmp_path)), EncoderTask.EMBEDDING)


def test_an_adapter_beside_the_weights_is_refused_in_words_that_help(tmp_path: Path) -> None:
    save_embedder(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    said = refusal(lambda: opened(tmp_path), code=StatusCode.FAILED_PRECONDITION)
    assert "adapters are not applied. Merge it with peft" in said
    (tmp_path / "config.json").unlink()
    assert PLATFORM.recognises(read_version(str(tmp_path)))


def recipe(directory: Path) -> Recipe:
    return read_recipe(read_version(str(directory)))


def test_recipe_is_that_of_sentence_transformers(tmp_path: Path) -> None:
    assert recipe(tmp_path) == Recipe()
    add_sentence_files(tmp_path, "lasttoken", normalize=True, max_seq_length=9, do_lower_case=True)
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert recipe(tmp_path) == Recipe("lasttoken", True, 9, True, "query: ")


def test_only_the_first_numbers_are_kept_where_sentence_transformers_truncates(tmp_path: Path) -> None:
    save_embedder(tmp_path)
    add_sentence_files(tmp_path)
    text = {"text": np.array([b"the cat sat"], object)}
    whole = opened(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text('{"truncate_dim": 8}')
    model = opened(tmp_path)
    assert model.signatures["text"].outputs[0].shape[-1] == 8
    expected = whole.run("text", text, ())["embeddings"][:, :8]  # of length 1 before it was cut
    np.testing.assert_array_equal(model.run("text", text, ())["embeddings"], expected)
    model.close()
    whole.close()


@pytest.mark.parametrize("wrong", [0, "8", 2.5, True])
def test_a_number_of_dimensions_that_is_none_is_damaged(tmp_path: Path, wrong: Any) -> None:
    add_sentence_files(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": wrong}))
    with pytest.raises(ServingError, match="truncate_dim") as caught:
        recipe(tmp_path)
    assert caught.value.code is StatusCode.DATA_LOSS


OTHER_VECTORS = [
    {"transformer_task": "fill-mask"},
    {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
]


@pytest.mark.parametrize("fields", OTHER_VECTORS)
def test_other_vectors_than_those_of_the_last_layer_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    add_sentence_files(tmp_path, **fields)
    with pytest.raises(ServingError, match="served is last_hidden_state"):
        recipe(tmp_path)


def test_a_long_text_loses_the_end_that_the_tokenizer_says(tmp_path: Path) -> None:
    save_embedder(tmp_path)
    words = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "ran", "home"]
    text = {"text": np.array([" ".join(words).encode()], object)}
    wanted = {"text": np.array([" ".join(words[-4:]).encode()], object)}
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "truncation_side": "left"}))
    model = opened(tmp_path, max_length="6")
    found, expected = (model.run("text", each, ())["embeddings"] for each in (text, wanted))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    model.close()


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
