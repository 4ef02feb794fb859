"""What a version directory of a language model must hold and must not, and which settings it cannot have."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.errors import refusal
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.language.budget import budget, cache_numbers, length_of, reserve
from tfs_lite.adapters.language.hf_files import (
    CONFIG,
    INDEX,
    MAX_JSON_BYTES,
    WEIGHTS,
    check_settings,
    eos_ids,
    read_config,
    read_json,
    recognises,
    weight_files,
)
from tfs_lite.adapters.language.lengths import steady_length, thresholds
from tfs_lite.config.generation import GenerationSettings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import StatusCode

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 100,
    "vocab_size": 50,
}


def write(directory, name, content=b""):
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return read_version(str(directory))


def index_of(directory, *names):
    return write(directory, INDEX, {"weight_map": {f"w{number}": name for number, name in enumerate(names)}})


@pytest.mark.parametrize("weights", [WEIGHTS, "other.safetensors", INDEX, "pytorch_model.bin", "weights.pkl"])
def test_config_with_weights_of_any_kind_is_recognised(tmp_path, weights):
    write(tmp_path, CONFIG, {})
    assert recognises(write(tmp_path, weights))


NOT_RECOGNISED = {
    "weights without config": [WEIGHTS],
    "config without weights": [CONFIG],
    **{f"beside {other}": [CONFIG, WEIGHTS, other] for other in ("model.py", "model.pt", "model.pt2", "model.onnx")},
}


@pytest.mark.parametrize("names", NOT_RECOGNISED.values(), ids=NOT_RECOGNISED)
def test_files_of_another_platform_or_only_half_of_them_are_not_recognised(tmp_path, names):
    assert not recognises([write(tmp_path, name, {} if name == CONFIG else b"") for name in names][-1])


def test_one_file_of_weights_is_preferred_to_pickles(tmp_path):
    write(tmp_path, "pytorch_model.bin")
    assert weight_files(write(tmp_path, WEIGHTS)) == (WEIGHTS,)


def test_shards_are_each_named_once_also_below_the_directory(tmp_path):
    write(tmp_path, "b.safetensors")
    write(tmp_path, "sub/a.safetensors")
    files = index_of(tmp_path, "b.safetensors", "sub/a.safetensors", "b.safetensors")
    assert weight_files(files) == ("b.safetensors", "sub/a.safetensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "x.pkl", "consolidated.00.ckpt"])
def test_pickles_alone_are_refused_with_the_way_out(tmp_path, name):
    message = refusal(weight_files, write(tmp_path, name), code=StatusCode.FAILED_PRECONDITION)
    assert name in message
    assert "save_pretrained" in message
    assert "safe_serialization" in message


def test_no_weights_are_named_as_missing(tmp_path):
    message = refusal(weight_files, write(tmp_path, CONFIG, {}), code=StatusCode.FAILED_PRECONDITION)
    assert WEIGHTS in message
    assert INDEX in message


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "a/../../x.safetensors", "/etc/x.safetensors", "a\\x.safetensors", "a\0.safetensors"]
)
def test_index_that_leads_out_of_the_directory_is_refused(tmp_path, name):
    write(tmp_path, "x.safetensors")
    files = index_of(tmp_path / "1", name)
    assert "outside" in refusal(weight_files, files, code=StatusCode.PERMISSION_DENIED)


def test_link_out_of_the_directory_is_refused_and_one_inside_is_not(tmp_path):
    write(tmp_path, "x.safetensors")
    write(tmp_path / "1", "real.safetensors")
    (tmp_path / "1" / "inside.safetensors").symlink_to("real.safetensors")
    assert weight_files(index_of(tmp_path / "1", "inside.safetensors")) == ("inside.safetensors",)
    (tmp_path / "1" / "outside.safetensors").symlink_to(tmp_path / "x.safetensors")
    assert "outside" in refusal(
        weight_files, index_of(tmp_path / "1", "outside.safetensors"), code=StatusCode.PERMISSION_DENIED
    )


def test_shard_that_is_missing_or_no_safetensors_is_named(tmp_path):
    assert "gone.safetensors" in refusal(
        weight_files, index_of(tmp_path, "gone.safetensors"), code=StatusCode.FAILED_PRECONDITION
    )
    write(tmp_path, "x.bin")
    assert "x.bin" in refusal(weight_files, index_of(tmp_path, "x.bin"), code=StatusCode.FAILED_PRECONDITION)


@pytest.mark.parametrize("content", [{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"a": 1}}, b"{", b"[]"])
def test_index_that_is_none_is_damage(tmp_path, content):
    assert INDEX in refusal(weight_files, write(tmp_path, INDEX, content), code=StatusCode.DATA_LOSS)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_config_that_is_no_json_object_is_damage(tmp_path, content):
    write(tmp_path, CONFIG, content)
    assert CONFIG in refusal(read_config, str(tmp_path), code=StatusCode.DATA_LOSS)


def test_config_without_bound_is_not_read(tmp_path):
    (tmp_path / CONFIG).touch()
    with open(tmp_path / CONFIG, "r+b") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    assert "larger" in refusal(read_config, str(tmp_path), code=StatusCode.DATA_LOSS)


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        ({}, StatusCode.FAILED_PRECONDITION, "model_type"),
        ({"model_type": 7}, StatusCode.FAILED_PRECONDITION, "model_type"),
        ({"model_type": "x", "auto_map": {"AutoModel": "a.B"}}, StatusCode.PERMISSION_DENIED, "auto_map"),
        ({"model_type": "x", "text_config": {"auto_map": {"A": "b"}}}, StatusCode.PERMISSION_DENIED, "auto_map"),
        (
            {"model_type": "x", "quantization_config": {"bits": 4}},
            StatusCode.FAILED_PRECONDITION,
            "quantization_config",
        ),
        ({"model_type": "t5", "is_encoder_decoder": True}, StatusCode.FAILED_PRECONDITION, "encoder"),
    ],
    ids=["no type", "type is a number", "code", "code inside", "quantised", "encoder and decoder"],
)
def test_config_that_is_not_served_says_which_field(tmp_path, fields, code, word):
    write(tmp_path, CONFIG, fields)
    message = refusal(read_config, str(tmp_path), code=code)
    assert CONFIG in message
    assert word in message


def test_missing_config_is_named(tmp_path):
    assert CONFIG in refusal(read_config, str(tmp_path), code=StatusCode.FAILED_PRECONDITION)


def test_eos_are_those_of_the_first_source_that_says_any():
    assert eos_ids([{}, {"eos_token_id": None}, {"eos_token_id": [3, 4]}, {"eos_token_id": 5}]) == (3, 4)
    assert eos_ids([{"eos_token_id": 0}, {"eos_token_id": 5}]) == (0,)
    assert eos_ids([{}]) == ()


@pytest.mark.parametrize("value", ["</s>", True, [1.5], [[1]]])
def test_eos_that_is_no_token_is_refused(value):
    assert "eos_token_id" in refusal(eos_ids, [{"eos_token_id": value}], code=StatusCode.FAILED_PRECONDITION)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"dynamic_batching": {}}, "dynamic_batching"),
        ({"sequence_batching": {}}, "sequence_batching"),
        ({"model_transaction_policy": {"decoupled": True}}, "model_transaction_policy.decoupled"),
        ({"response_cache": {"enable": True}}, "response_cache.enable"),
        ({"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]}, "input"),
        ({"output": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]}, "output"),
        ({"signatures": {"other": {}}}, "signatures"),
        (
            {
                "model_warmup": [
                    {"name": "w", "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}}}
                ]
            },
            "model_warmup",
        ),
        ({"instance_group": [{"count": 2}]}, "instance_group"),
        ({"instance_group": [{"count": 1}, {"count": 1}]}, "instance_group"),
        ({"instance_group": [{"worker": "process"}]}, "instance_group[0].worker"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_setting_that_makes_no_sense_is_refused_by_name(fields, named):
    settings = ModelSettings.model_validate(fields)
    assert refusal(check_settings, settings).startswith(f"{named}:")


def test_replicas_of_a_language_model_are_not_there_yet():
    settings = ModelSettings.model_validate({"instance_group": [{"worker": "ray"}]})
    assert refusal(check_settings, settings, code=StatusCode.UNIMPLEMENTED).startswith("instance_group[0].worker:")


def test_settings_of_a_language_model_pass():
    fields = {
        "name": "m",
        "max_batch_size": 4,
        "parameters": {"max_model_len": "64"},
        "instance_group": [{"count": 1}],
        "response_cache": {"enable": False},
    }
    check_settings(ModelSettings.model_validate(fields))


def weights(directory, **shapes):
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, directory / WEIGHTS)


def test_budget_is_weights_in_the_wanted_type_and_the_whole_cache(tmp_path):
    weights(tmp_path, a=(1000, 10), b=(24,))
    files = write(tmp_path, CONFIG, LLAMA)
    settings = ModelSettings(parameters={"max_num_seqs": "5", "max_model_len": "60"})
    found = budget(files, settings, on_gpu=False)
    assert found.weights == 4 * (10_024 + LLAMA["vocab_size"] * LLAMA["hidden_size"]), "and the packed output layer"
    assert found.cache == 4 * 2 * 3 * 5 * 2 * 60 * 16
    assert reserve(files, settings, on_gpu=False) == found.total > found.weights + found.cache
    captured = budget(files, settings, on_gpu=True)
    assert (captured.weights, captured.cache) == (2 * 10_024, 2 * 2 * 3 * 5 * 2 * 61 * 16), "a position for idle rows"
    plain = settings.model_copy(update={"parameters": {**settings.parameters, "cuda_graphs": "false"}})
    assert budget(files, plain, on_gpu=True).cache == found.cache // 2


def test_budget_counts_no_more_positions_than_the_model_has(tmp_path):
    weights(tmp_path, a=(1000,))
    files = write(tmp_path, CONFIG, LLAMA)
    long = budget(files, ModelSettings(parameters={"max_model_len": "100000"}), on_gpu=False)
    assert long.cache == 4 * 2 * 3 * 16 * 2 * 100 * 16


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({"n_layer": 2, "n_head": 4, "n_embd": 32}, 2 * 2 * 32),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64, "hidden_size": 32}, 2 * 2 * 4 * 64),
        ({"n_layers": 2, "d_model": 32}, 2 * 2 * 32),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": [1, 2], "hidden_size": 32}, 64),
        (
            {
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "hidden_size": 8,
                "qk_nope_head_dim": 6,
                "qk_rope_head_dim": 5,
                "v_head_dim": 7,
            },
            2 * 2 * 11,
        ),
        ({"hidden_size": 32}, 0),
    ],
    ids=["gpt2", "wide heads", "mpt", "heads per layer", "compressed", "unknown"],
)
def test_cache_of_every_naming_is_counted(fields, numbers):
    assert cache_numbers(fields) == numbers


def test_length_stays_where_positions_are_steady_unless_more_is_asked_for():
    config = {
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 128},
    }
    assert length_of(GenerationSettings(), False, config) == 128
    assert length_of(GenerationSettings(max_model_len=300), False, config) == 300
    assert length_of(GenerationSettings(), False, {"max_position_embeddings": 512}) == 512


@pytest.mark.parametrize("value", ["many", -1, 1.5, True, 2**40])
def test_budget_of_a_config_without_sense_is_refused_by_field(tmp_path, value):
    weights(tmp_path, a=(1,))
    files = write(tmp_path, CONFIG, {**LLAMA, "num_hidden_layers": value})
    message = refusal(reserve, files, ModelSettings(), False, code=StatusCode.FAILED_PRECONDITION)
    assert "num_hidden_layers" in message


def test_budget_without_a_readable_config_is_an_error(tmp_path):
    weights(tmp_path, a=(1,))
    assert CONFIG in refusal(reserve, write(tmp_path, CONFIG, b"{"), ModelSettings(), False, code=StatusCode.DATA_LOSS)


def test_numbers_that_json_has_not_are_read_as_transformers_writes_them(tmp_path):
    write(tmp_path, CONFIG, {"limits": [0.0, {"__float__": "Infinity"}], "least": {"__float__": "-Infinity"}})
    assert read_json(str(tmp_path), CONFIG) == {"limits": [0.0, math.inf], "least": -math.inf}
    write(tmp_path, CONFIG, {"limits": {"__float__": "many"}})
    assert CONFIG in refusal(read_json, str(tmp_path), CONFIG, code=StatusCode.DATA_LOSS)
    write(tmp_path, CONFIG, {"limits": {"__float__": []}})
    assert CONFIG in refusal(read_json, str(tmp_path), CONFIG, code=StatusCode.DATA_LOSS)


def test_lengths_at_which_a_network_may_change_its_ways_are_found_by_name():
    config = {
        "max_position_embeddings": 512,
        "sliding_window": 128,
        "attention_window": [16, 32],
        "max_window_layers": 28,
        "position_buckets": -1,
        "position_embedding_type": "absolute",
        "hidden_size": 64,
        "rope_parameters": {"full": {"original_max_position_embeddings": 256}},
    }
    assert thresholds(config, 512) == [16, 32, 128, 256]
    assert thresholds(config, 32) == [16]
    assert len(thresholds({"window": list(range(2, 100))}, 512)) == 16


@pytest.mark.parametrize(
    ("rope", "steady"),
    [
        (None, None),
        ({"rope_type": "yarn", "original_max_position_embeddings": 128}, None),
        ({"type": "longrope", "original_max_position_embeddings": 128}, 128),
        ({"rope_type": "longrope"}, 512),
        ({"rope_type": "dynamic", "factor": 2.0}, 512),
        ({"full": {"rope_type": "longrope", "original_max_position_embeddings": 64}, "sliding": None}, 64),
    ],
)
def test_positions_are_steady_up_to_the_length_that_the_config_names(rope, steady):
    assert steady_length({"max_position_embeddings": 512, "rope_parameters": rope}) == steady
