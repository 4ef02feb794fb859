"""Models of ``transformers`` with random weights, saved as they come and asked through a server: answers as eager's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tfs_lite
from tests.support.language.tiny_version import write_version
from tests.support.servers.in_process import serving
from tests.support.servers.process import ServerProcess, default_command
from tfs_lite.client import Client

transformers: Any = pytest.importorskip("transformers", reason="the extra `generate` is not installed")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {**SMALL, "vocab_size": 100}
IMAGE = {**SMALL, "image_size": 32, "patch_size": 8}
CLIP_TEXT = {**TEXT, "bos_token_id": 0, "eos_token_id": 2}
CLIP = {"text_config": CLIP_TEXT, "vision_config": IMAGE, "projection_dim": 16}
SOUND = {**SMALL, "conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2}
DECODER = {"vocab_size": 100, "use_cache": False, "bos_token_id": 0, "eos_token_id": 2}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
IMAGE_TEXT = {"text_config": {**TEXT, "bos_token_id": 0, "eos_token_id": 2}, "vision_config": IMAGE}
BOTH_WAYS = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 0,
}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 100, "use_cache": False}
HEARD = {**SOUND, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "vocab_size": 40}
SERIES = {"num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 16}
PYRAMID = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]}
MODELS: Mapping[str, tuple[str, str, Mapping[str, Any], str]] = {
    "resnet": ("ResNetForImageClassification", "ResNetConfig", STAGES, "image"),
    "bert": ("BertForSequenceClassification", "BertConfig", TEXT, "text"),
    "states": ("BertModel", "BertConfig", {**TEXT, "output_hidden_states": True}, "text"),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGE, "image"),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", {**STAGES, "num_stages": 2}, "image"),
    "mobilenet": ("MobileNetV2ForImageClassification", "MobileNetV2Config", {"depth_multiplier": 0.25}, "image"),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {**PYRAMID, "decoder_hidden_size": 16},
        "image",
    ),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        "image",
    ),
    "roberta": ("RobertaForTokenClassification", "RobertaConfig", TEXT, "text"),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 100},
        "text",
    ),
    "albert": ("AlbertModel", "AlbertConfig", {**TEXT, "embedding_size": 16}, "text"),
    "electra": ("ElectraForPreTraining", "ElectraConfig", {**TEXT, "embedding_size": 16}, "text"),
    "deberta": (
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
        "text",
    ),
    "mpnet": ("MPNetModel", "MPNetConfig", TEXT, "text"),
    "t5": ("T5EncoderModel", "T5Config", T5, "text"),
    "clip_text": ("CLIPTextModel", "CLIPTextConfig", CLIP_TEXT, "ids"),
    "clip_vision": ("CLIPVisionModel", "CLIPVisionConfig", IMAGE, "image"),
    "clip": ("CLIPModel", "CLIPConfig", CLIP, "both"),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", HEARD, "sound"),
    "whisper": (
        "WhisperForAudioClassification",
        "WhisperConfig",
        {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
        | {"max_source_positions": 50, "num_mel_bins": 16},
        "spectrum",
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**DECODER, "n_embd": 32, "n_layer": 2, "n_head": 2}, "text"),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**DECODER, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64}
        | {"word_embed_proj_dim": 32},
        "ids",
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**TEXT, **DECODER}, "text"),
    "beit": ("BeitForImageClassification", "BeitConfig", IMAGE, "image"),
    "deit": ("DeiTForImageClassification", "DeiTConfig", IMAGE, "image"),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", IMAGE, "image"),
    "regnet": (
        "RegNetForImageClassification",
        "RegNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "groups_width": 8},
        "image",
    ),
    "yolos": ("YolosForObjectDetection", "YolosConfig", {**IMAGE, "image_size": [32, 32]}, "image"),
    "siglip": ("SiglipModel", "SiglipConfig", IMAGE_TEXT, "both"),
    "owlvit": ("OwlViTModel", "OwlViTConfig", {**IMAGE_TEXT, "projection_dim": 16}, "both"),
    "layoutlm": (
        "LayoutLMForTokenClassification",
        "LayoutLMConfig",
        {**TEXT, "max_2d_position_embeddings": 64},
        "page",
    ),
    "hubert": ("HubertForCTC", "HubertConfig", HEARD, "sound"),
    "sew": ("SEWForCTC", "SEWConfig", {**HEARD, "squeeze_factor": 2}, "sound"),
    "unispeech": ("UniSpeechForCTC", "UniSpeechConfig", HEARD, "sound"),
    "speech": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**DECODER, **BOTH_WAYS, "max_source_positions": 50, "num_mel_bins": 16, "pad_token_id": 1},
        "spectrum and text",
    ),
    "bart": ("BartModel", "BartConfig", {**DECODER, **BOTH_WAYS, "max_position_embeddings": 64}, "two texts"),
    "marian": (
        "MarianMTModel",
        "MarianConfig",
        {**DECODER, **BOTH_WAYS, "max_position_embeddings": 64, "pad_token_id": 1, "decoder_start_token_id": 1},
        "two texts",
    ),
    "t5_whole": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}, "two texts"),
    "xlm_roberta": ("XLMRobertaForSequenceClassification", "XLMRobertaConfig", TEXT, "text"),
    "fnet": ("FNetModel", "FNetConfig", TEXT, "ids"),
    "squeezebert": ("SqueezeBertModel", "SqueezeBertConfig", {**TEXT, "embedding_size": 32}, "text"),
    "funnel": (
        "FunnelModel",
        "FunnelConfig",
        {"vocab_size": 100, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32, "n_head": 2}
        | {"d_head": 16, "d_inner": 64},
        "text",
    ),
    "dpr": ("DPRQuestionEncoder", "DPRConfig", TEXT, "text"),
    "esm": ("EsmModel", "EsmConfig", {**TEXT, "pad_token_id": 1, "mask_token_id": 5}, "text"),
    "neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {**DECODER, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "window_size": 4}
        | {"attention_types": [[["global", "local"], 1]]},
        "text",
    ),
    "bloom": ("BloomForCausalLM", "BloomConfig", {**DECODER, "hidden_size": 32, "n_layer": 2, "n_head": 2}, "text"),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**TEXT, **DECODER, "num_key_value_heads": 2, "sliding_window": 4},
        "text",
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {**DECODER, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "ids",
    ),
    "patches": (
        "PatchTSTForRegression",
        "PatchTSTConfig",
        {**SERIES, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32, "num_targets": 1},
        "series",
    ),
}
"""Name -> class, class of its config, settings of that, and what it takes."""
EVERY_DAY = ("resnet", "bert", "states")


def _model(name: str) -> torch.nn.Module:
    kind, config, settings, _ = MODELS[name]
    torch.manual_seed(0)
    module: torch.nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**settings))
    return module.eval()


def _inputs(takes: str, rows: int) -> dict[str, torch.Tensor | None]:
    """The last of several texts is padded: a program must not take the example's mask, all ones, for a constant."""
    ids = torch.randint(3, 90, (rows, 8))
    mask = torch.ones_like(ids)
    mask[1:, 5:] = 0
    image, later = torch.randn(rows, 3, 32, 32), {"decoder_input_ids": ids[:, :5]}
    spectrum = torch.randn(rows, 16, 100)
    boxes = torch.tensor([[1, 2, 9, 12]]).repeat(rows, 8, 1)
    return {
        "ids": {"input_ids": ids},
        "text": {"input_ids": ids, "attention_mask": mask, "token_type_ids": None},
        "image": {"pixel_values": image},
        "both": {"input_ids": ids, "pixel_values": image},
        "sound": {"input_values": torch.randn(rows, 400)},
        "spectrum": {"input_features": spectrum},
        "spectrum and text": {"input_features": spectrum, **later},
        "two texts": {"input_ids": ids, "attention_mask": mask, **later},
        "page": {"input_ids": ids, "attention_mask": mask, "bbox": boxes},
        "series": {"past_values": torch.randn(rows, 16, 2)},
    }[takes]


def _check(root: Path, names: tuple[str, ...]) -> None:
    """Saves each with one row, asks for three rows, and compares."""
    saved = {name: _model(name) for name in names}
    for name, module in saved.items():
        tfs_lite.save(module, root / name, example_inputs=_inputs(MODELS[name][3], 1))
    with serving(root, model_repository=str(root)) as served:
        for name, module in saved.items():
            inputs = {key: value for key, value in _inputs(MODELS[name][3], 3).items() if value is not None}
            answer = served.client.predict(name, {key: value.numpy() for key, value in inputs.items()}).outputs
            with torch.no_grad():
                expected = _flat(module(**inputs))
            assert set(answer) == set(expected), name
            for key, value in expected.items():
                np.testing.assert_allclose(answer[key], value.numpy(), rtol=1e-3, atol=1e-5, err_msg=f"{name} {key}")


def _flat(result: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    flat: dict[str, torch.Tensor] = {}
    for key, value in result.items():
        if isinstance(value, torch.Tensor):
            flat[key] = value
        else:
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            flat |= {f"{key}.{inner}": part for inner, part in parts if part is not None}
    return flat


def test_three_models_answer_as_they_do_in_python(tmp_path: Path) -> None:
    _check(tmp_path, EVERY_DAY)


@pytest.mark.load
def test_some_fifty_models_answer_as_they_do_in_python(tmp_path: Path) -> None:
    _check(tmp_path, tuple(name for name in MODELS if name not in EVERY_DAY))


RESNET = """
import torch
from transformers import ResNetConfig


class Model(torch.nn.Module):
    def forward(self, x):
        return {"y": x * ResNetConfig().num_channels}
"""


@pytest.mark.slow
def test_code_of_a_model_may_import_the_library_while_others_that_need_it_are_loaded(tmp_path: Path) -> None:
    """A server of its own, which has imported nothing of it yet; all three are loaded at the start, at once."""
    from tests.support.language.tiny_encoders import save_classifier

    save_classifier(tmp_path / "encoder" / "1")
    write_version(tmp_path / "generator" / "1")
    (tmp_path / "resnet" / "1").mkdir(parents=True)
    (tmp_path / "resnet" / "1" / "model.py").write_text(RESNET)
    flags = (f"--model_repository={tmp_path}", f"--trusted_model_base_paths={tmp_path}/*")
    with ServerProcess(*flags, command=default_command()) as server, Client(server.target) as client:
        answer = client.predict("resnet", {"x": np.ones((1, 2), np.float32)})
        states = json.loads(server.get("/v1/models")[1])["models"]
    assert answer.outputs["y"].tolist() == [[3, 3]]
    assert {each["name"]: each["model_version_status"][0]["state"] for each in states} == dict.fromkeys(
        ("encoder", "generator", "resnet"), "AVAILABLE"
    )
