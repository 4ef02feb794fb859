"""Small random encoders as ``save_pretrained`` writes them, with tokenizers that are built here.

Weights are widely distributed, so that a mixed-up row or a wrong mask shows at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (
    *("the", "a", "cat", "dog", "sat", "on", "mat", "ran", "home", "fast", "slow", "red", "blue", "sun", "moon"),
    *("and", "or", "not", "yes", "no", "good", "bad", "very", "so"),
)
LENGTH = 40
_SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}
LABELS = ("negative", "neutral", "positive")
ENTITIES = ("O", "PERSON", "PLACE")


def tokenizer() -> PreTrainedTokenizerFast:
    """Words, in lower case, between ``[CLS]`` and ``[SEP]``."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    make: Any = PreTrainedTokenizerFast
    found: PreTrainedTokenizerFast = make(tokenizer_object=made, model_max_length=LENGTH, **names)
    return found


def save_embedder(directory: Path, seed: int = 0, kind: str = "bert") -> PreTrainedModel:
    """A network whose embeddings are the mean of its vectors."""
    if kind == "roberta":
        return _save(RobertaModel, RobertaConfig(**_SIZES | {"max_position_embeddings": LENGTH + 1}), directory, seed)
    return _save(BertModel, BertConfig(**_SIZES), directory, seed)


def save_classifier(directory: Path, seed: int = 0, **fields: Any) -> PreTrainedModel:
    config = BertConfig(**_SIZES, **{"id2label": dict(enumerate(LABELS)), **fields})
    return _save(BertForSequenceClassification, config, directory, seed)


def save_tagger(directory: Path, seed: int = 0) -> PreTrainedModel:
    return _save(BertForTokenClassification, BertConfig(**_SIZES, id2label=dict(enumerate(ENTITIES))), directory, seed)


def save_image_classifier(directory: Path, seed: int = 0) -> PreTrainedModel:
    sizes = {name: value for name, value in _SIZES.items() if name not in ("vocab_size", "max_position_embeddings")}
    config = ViTConfig(**sizes, image_size=16, patch_size=8, id2label=dict(enumerate(LABELS)))
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(directory)
    return _save(ViTForImageClassification, config, directory, seed, text=False)


def add_sentence_files(directory: Path, pooling: str = "cls_token", normalize: bool = True, **lengths: Any) -> None:
    """Those of sentence-transformers."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalize else [])]
    steps = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(steps))
    (directory / "1_Pooling").mkdir()
    modes = {
        f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    if lengths:
        (directory / "sentence_bert_config.json").write_text(json.dumps(lengths))


def _save(made: Any, config: Any, directory: Path, seed: int, text: bool = True) -> PreTrainedModel:
    torch.manual_seed(seed)
    model: PreTrainedModel = made(config).eval()
    model.save_pretrained(directory)
    if text:
        tokenizer().save_pretrained(directory)
    return model
