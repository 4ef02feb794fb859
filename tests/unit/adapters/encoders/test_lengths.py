"""Checks at the load run rows of many lengths: what passes them is answered as alone, what does not is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    FunnelConfig,
    FunnelModel,
    LlamaConfig,
    LlamaModel,
    Phi3Config,
    Phi3Model,
    PreTrainedModel,
    ReformerConfig,
    ReformerModel,
)

from tests.support.errors import refusal
from tests.support.language.architectures import save_family, small_config
from tests.support.language.tiny_encoders import LENGTH, WORDS, save_classifier, tokenizer
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.encoders.groups import group_apart
from tfs_lite.adapters.encoders.model import CHECKED_LENGTH, TextEncoder
from tfs_lite.adapters.encoders.platform import PLATFORM
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode

ORIGINAL = 30
"""Longer than the rows of 24 tokens that every network is tried with, shorter than a row may be."""


def saved(directory: Path, module: PreTrainedModel) -> PreTrainedModel:
    module.eval().save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return module


def opened(directory: Path, **parameters: str) -> TextEncoder:
    settings = ModelSettings(parameters=parameters)
    assert PLATFORM.open is not None
    found = PLATFORM.open(OpenRequest(ServableId("m", 1), read_version(str(directory)), "cpu", False, settings))
    assert isinstance(found, TextEncoder)
    return found


def texts(*counts: int) -> list[str]:
    """Of so many words each."""
    return [" ".join((WORDS * 2)[count : 2 * count]) for count in counts]


def embeddings(model: TextEncoder, *given: str) -> Any:
    return model.run("text", {"text": np.array([text.encode() for text in given], object)}, ())["embeddings"]


def alone(module: PreTrainedModel, text: str) -> Any:
    """What the library answers."""
    sent = tokenizer()(text, truncation=True, max_length=LENGTH, return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        return module(**sent).last_hidden_state[0].mean(0).numpy()


def longrope() -> PreTrainedModel:
    torch.manual_seed(0)
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 2.0}
    rope["original_max_position_embeddings"] = ORIGINAL
    config = small_config("phi3", rope_parameters=rope, original_max_position_embeddings=ORIGINAL)
    assert isinstance(config, Phi3Config)
    return Phi3Model(config)


def test_positions_that_turn_with_the_longest_row_do_not_depend_on_company(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = saved(tmp_path, longrope())
    with caplog.at_level(logging.INFO):
        model = opened(tmp_path)
    assert f"rows of more than {ORIGINAL} tokens share a forward with those of their length" in caplog.text
    for counts in ((3, 24), (24, 23, 12), (24, 24, 1, 22, 9)):
        given = [*texts(*counts), " ".join(WORDS) + " and" * counts[0]]
        for text, found in zip(given, embeddings(model, *given), strict=True):
            np.testing.assert_allclose(found, alone(plain, text), rtol=1e-3, atol=1e-4)
    model.close()


def test_a_network_that_grows_its_positions_is_given_no_longer_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    config = small_config("llama", rope_parameters=rope, max_position_embeddings=16)
    assert isinstance(config, LlamaConfig)
    plain = saved(tmp_path, LlamaModel(config))
    model = opened(tmp_path)
    short, long = texts(3, 20)
    first = embeddings(model, short)
    embeddings(model, long)
    np.testing.assert_allclose(embeddings(model, short, long)[0], first[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first[0], alone(plain, short), rtol=1e-3, atol=1e-4)
    model.close()


def test_lengths_that_are_too_long_to_be_tried_end_those_that_rows_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfs_lite.adapters.encoders.model.CHECKED_LENGTH", 20)
    saved(tmp_path, save_family(tmp_path / "plain", "embeds", "modernbert", local_attention=24))
    model = opened(tmp_path)
    assert model._limits.shared == 24
    model.close()
    assert CHECKED_LENGTH > 20


def test_the_width_of_embeddings_is_that_of_the_networks_vectors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = small_config("reformer", num_attention_heads=4)
    assert isinstance(config, ReformerConfig)
    plain = saved(tmp_path, ReformerModel(config))
    model = opened(tmp_path)
    assert model.signatures["text"].outputs[0].shape[-1] == 2 * config.hidden_size
    (text,) = texts(5)
    np.testing.assert_allclose(embeddings(model, text)[0], alone(plain, text), rtol=1e-3, atol=1e-4)
    model.close()


def test_a_network_that_does_not_run_on_the_shortest_rows_gets_them_padded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = FunnelConfig(vocab_size=32, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48)
    plain = saved(tmp_path, FunnelModel(config))
    model = opened(tmp_path)
    assert model._limits.least > 1
    given = ["", "the", *texts(9)]
    for text, found in zip(given, embeddings(model, *given), strict=True):
        np.testing.assert_allclose(found, embeddings(model, text)[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(embeddings(model, *given)[2], alone(plain, given[2]), rtol=1e-3, atol=1e-4)
    model.close()


def test_classes_that_the_config_does_not_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_classifier(tmp_path)
    honest = BertForSequenceClassification.forward

    def forward(self: Any, **given: Any) -> Any:
        found = honest(self, **given)
        found.logits = found.logits[:, :2]
        return found

    monkeypatch.setattr(BertForSequenceClassification, "forward", forward)
    assert "has 2 classes, and config.json names 3" in refusal(
        lambda: opened(tmp_path), code=StatusCode.FAILED_PRECONDITION
    )


def test_rows_that_are_far_apart_are_only_with_their_own_length() -> None:
    lengths = [5, 40, 9, 31, 40, 30]
    groups = group_apart(lengths, 30, 1000, lambda near: [list(range(len(near)))])
    assert groups == [[0, 2, 5], [1, 4], [3]]
    assert group_apart([], 30, 1000, lambda near: []) == []
    assert group_apart([40, 40], 30, 50, lambda near: []) == [[0], [1]]
