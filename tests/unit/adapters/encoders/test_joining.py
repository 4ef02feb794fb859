"""Rows that share a forward without padding are answered as they are alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
)

from tests.support.language.tiny_encoders import LENGTH, SPECIAL, WORDS, save_embedder, save_tagger, tokenizer
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.encoders.joining import ATTENTION, JoinedRows
from tfs_lite.adapters.encoders.model import TextEncoder
from tfs_lite.adapters.encoders.platform import open_version
from tfs_lite.adapters.encoders.tokens import TokenRow
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.core.servable import ServableId

SMALL = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}
DISTIL = {
    "vocab_size": SMALL["vocab_size"],
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": LENGTH,
}
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "distilbert": lambda: DistilBertModel(DistilBertConfig(**DISTIL)),
    "mpnet": lambda: MPNetModel(MPNetConfig(**SMALL)),
    "modernbert": lambda: ModernBertModel(ModernBertConfig(**SMALL, local_attention=4, global_attn_every_n_layers=2)),
    "causal": lambda: Qwen3Model(Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8)),
}
TEXTS = ["the cat", "a dog ran home fast and the sun sat on the red mat", "no", "so very good", "not so", ""]


def opened(directory: Path) -> TextEncoder:
    found = open_version(OpenRequest(ServableId("m", 1), read_version(str(directory)), "cpu", False))
    assert isinstance(found, TextEncoder)
    return found


def saved(directory: Path, kind: str) -> Path:
    torch.manual_seed(0)
    if kind == "tagger":
        save_tagger(directory)
    elif kind in FAMILIES:
        FAMILIES[kind]().save_pretrained(directory)
    else:
        save_embedder(directory, kind=kind)
    tokenizer().save_pretrained(directory)
    return directory


def texts(*values: str) -> dict[str, np.ndarray]:
    array = np.empty(len(values), object)
    array[:] = [value.encode() for value in values]
    return {"text": array}


@pytest.mark.parametrize("kind", ["bert", "roberta", "tagger", *FAMILIES])
def test_texts_in_company_are_answered_as_alone(tmp_path: Path, kind: str) -> None:
    model = opened(saved(tmp_path, kind))
    output = "logits" if kind == "tagger" else "embeddings"
    together = model.run("text", texts(*TEXTS), ())[output]
    for index, text in enumerate(TEXTS):
        alone = model.run("text", texts(text), ())[output][0]
        np.testing.assert_allclose(together[index][: len(alone)], alone, rtol=1e-4, atol=1e-4)
    model.close()


@pytest.mark.parametrize("kind", ["bert", "roberta", "tagger", "causal"])
def test_they_are_joined(tmp_path: Path, kind: str) -> None:
    model = opened(saved(tmp_path, kind))
    assert model._module.config._attn_implementation == ATTENTION
    model.close()


@pytest.mark.parametrize("kind", ["bert", "causal"])
def test_the_answers_are_those_of_the_library(tmp_path: Path, kind: str) -> None:
    plain = save_embedder(tmp_path) if kind == "bert" else FAMILIES[kind]()
    plain.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    model, sent = opened(tmp_path), tokenizer()(TEXTS)
    found = model.run("text", texts(*TEXTS), ())["embeddings"]
    for row, ids in zip(found, sent["input_ids"], strict=True):
        with torch.inference_mode():
            vectors = plain.eval()(input_ids=torch.tensor([ids])).last_hidden_state
        np.testing.assert_allclose(row, vectors.mean(1)[0].numpy(), rtol=1e-3, atol=1e-4)
    model.close()


@pytest.mark.parametrize("kind", ["bert", "causal"])
def test_tokens_that_a_client_leaves_out_are_not_seen(tmp_path: Path, kind: str) -> None:
    model = opened(saved(tmp_path, kind))
    ids = np.array([[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 11], [12, 13, 14, 15, 16, 17]])
    mask = np.array([[1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    other = ids.copy()
    other[0, 2:4] = 20
    found, same = (
        model.run("tokens", {"input_ids": each, "attention_mask": mask}, ("embeddings",))["embeddings"]
        for each in (ids, other)
    )
    np.testing.assert_allclose(found, same, rtol=1e-5, atol=1e-6)
    alone = model.run("tokens", {"input_ids": ids[2:, :4], "attention_mask": mask[2:, :4]}, ("embeddings",))
    np.testing.assert_allclose(found[2], alone["embeddings"][0], rtol=1e-4, atol=1e-5)
    model.close()


def test_a_network_that_attends_in_another_way_is_padded_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        model = opened(saved(tmp_path, "modernbert"))
    assert model._module.config._attn_implementation != ATTENTION
    assert "joining them fails: ModernBertAttention attends with sliding_window" in caplog.text
    model.close()


def test_rows_of_one_length_attend_in_one_call() -> None:
    joined = JoinedRows([TokenRow(range(n), [1] * n, [0] * n) for n in (3, 2, 2, 1)], padding=1)
    assert [(each.start, each.rows, each.length) for each in joined.stretches] == [(0, 1, 3), (3, 2, 2), (7, 1, 1)]
    assert joined.ids.tolist() == [[0, 1, 2, 0, 1, 0, 1, 0]]
    assert joined.positions.tolist() == [[2, 1, 3, 2, 1, 2, 1, 2]]
