"""Weights: what headers tell, that files and network fit, and that loading one model changes nothing for others."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.errors import refusal
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.language import weights
from tfs_lite.adapters.language.architectures import Architectures
from tfs_lite.adapters.language.family import load_library, network_config
from tfs_lite.adapters.language.hf_files import CONFIG, INDEX, WEIGHTS
from tfs_lite.adapters.language.weights import load_network, read_headers
from tfs_lite.adapters.pytorch.weight_file import WeightFile
from tfs_lite.core.loader import LoadMeter, LoadPhase
from tfs_lite.core.status import StatusCode

CPU = torch.device("cpu")
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
FAMILIES = {
    "llama": {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 64},
    "qwen2_moe": {
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts": 4,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}
CAPPED = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "attn_logit_softcapping": 1e-6}
NORM = "model.layers.1.input_layernorm.weight"
EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


def new_model(kind, **changes):
    library = load_library()
    torch.manual_seed(0)
    config = library.CONFIG_MAPPING[kind](**FAMILIES[kind], **changes)
    return library.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()


def saved(directory, kind="llama", **options):
    model = new_model(kind)
    model.save_pretrained(directory, **options)
    return model


def change(directory, **fields):
    found = json.loads((directory / CONFIG).read_bytes()) | fields
    (directory / CONFIG).write_text(json.dumps({name: value for name, value in found.items() if value != "gone"}))


def rewrite(directory, edit):
    tensors = load_file(directory / WEIGHTS)
    edit(tensors)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def load(directory, dtype=torch.float32):
    files = read_version(str(directory))
    return load_network(files, network_config(files), dtype, CPU)


def refused(code, directory):
    message = refusal(load, directory, code=code)
    assert str(directory) not in message
    return message


def logits(model):
    with torch.inference_mode():
        return model(input_ids=torch.arange(12)[None], use_cache=False).logits


def test_weights_are_counted_while_they_are_read(tmp_path):
    model = saved(tmp_path)
    told = []

    class NotedMeter(LoadMeter):
        def begin(self, phase, expected_bytes=None):
            told.append((self.progress.phase, self.progress.read_bytes))
            super().begin(phase, expected_bytes)

    files, meter = read_version(str(tmp_path)), NotedMeter()
    load_network(files, network_config(files), torch.float32, CPU, meter)
    size = sum(parameter.nbytes for parameter in model.parameters())
    assert told[-1] == (LoadPhase.READING, size)
    assert meter.progress.phase is LoadPhase.OPENING


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("shard", ["20KB", "1GB"], ids=["shards", "one file"])
def test_network_has_the_weights_of_its_files(tmp_path, kind, shard):
    model = saved(tmp_path, kind, max_shard_size=shard)
    assert (tmp_path / INDEX).exists() == (shard == "20KB")
    found = load(tmp_path)
    assert torch.equal(logits(found), logits(model))
    assert type(found) is type(model)
    assert not found.training
    assert not any(parameter.requires_grad for parameter in found.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_come_in_the_wanted_type_as_a_cast_gives_them(tmp_path, kind, dtype):
    model = saved(tmp_path, kind)
    found = load(tmp_path, dtype)
    assert {parameter.dtype for parameter in found.parameters()} == {dtype}
    assert found.config.dtype is dtype
    expected = dict(model.named_parameters())
    for name, parameter in found.named_parameters():
        assert torch.equal(parameter, expected[name].to(dtype)), name
    for name, buffer in model.named_buffers():
        assert torch.equal(dict(found.named_buffers())[name], buffer), name


def test_tied_weights_stay_one(tmp_path):
    saved(tmp_path, "gpt2")
    found = load(tmp_path, torch.bfloat16)
    assert found.lm_head.weight is found.transformer.wte.weight


def test_default_dtype_of_the_process_is_never_another_one(tmp_path, monkeypatch):
    saved(tmp_path)
    seen = []
    honest = torch.set_default_dtype
    monkeypatch.setattr(torch, "set_default_dtype", lambda dtype: (seen.append(dtype), honest(dtype)))
    load(tmp_path, torch.bfloat16)
    assert set(seen) <= {torch.float32}


def test_two_loads_at_once_end_with_two_whole_models(tmp_path):
    models = [saved(tmp_path / kind, kind) for kind in FAMILIES]
    found = {}

    def work(kind):
        found[kind] = load(tmp_path / kind)

    threads = [threading.Thread(target=work, args=(kind,)) for kind in FAMILIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kind, model in zip(FAMILIES, models, strict=True):
        assert torch.equal(logits(found[kind]), logits(model))


def test_two_models_of_the_same_files_share_no_config(tmp_path):
    saved(tmp_path)
    first, second = load(tmp_path), load(tmp_path)
    first.set_attn_implementation("eager")
    assert second.config._attn_implementation != "eager"


def test_scores_are_capped_as_the_config_says(tmp_path):
    library = load_library()
    torch.manual_seed(0)
    model = library.AutoModelForCausalLM.from_config(library.Gemma2Config(**CAPPED), attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path)), logits(model))


def test_weights_do_not_change_when_the_file_is_overwritten(tmp_path):
    model = saved(tmp_path)
    found = load(tmp_path)
    size = (tmp_path / WEIGHTS).stat().st_size
    with open(tmp_path / WEIGHTS, "r+b") as file:
        file.write(b"\0" * size)
    assert torch.equal(logits(found), logits(model))


def test_nothing_is_looked_for_outside(tmp_path, connections):
    saved(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/model"}))
    load(tmp_path)
    assert connections == []


def test_load_says_nothing_on_the_terminal(tmp_path, capfd):
    saved(tmp_path)
    capfd.readouterr()
    load(tmp_path)
    assert capfd.readouterr() == ("", "")


def cut(directory, keep):
    (directory / WEIGHTS).write_bytes((directory / WEIGHTS).read_bytes()[:keep])


def spoil(directory, value):
    rewrite(directory, lambda tensors: tensors[min(tensors)].view(-1)[-1].fill_(value))


MISFIT, DAMAGE = StatusCode.FAILED_PRECONDITION, StatusCode.DATA_LOSS
WRONG = {
    "tensor is missing": (lambda at: rewrite(at, lambda found: found.pop(NORM)), MISFIT, [NORM, WEIGHTS]),
    "tensor has another shape": (
        lambda at: rewrite(at, lambda found: found.update({NORM: torch.zeros(7)})),
        MISFIT,
        [NORM, WEIGHTS, "[7]", "[32]"],
    ),
    "config has another size": (lambda at: change(at, hidden_size=64), MISFIT, ["[64"]),
    "file without a header": (lambda at: cut(at, 4), DAMAGE, [WEIGHTS]),
    "file with half a header": (lambda at: cut(at, 300), DAMAGE, [WEIGHTS]),
    "file that lacks a byte": (lambda at: cut(at, -1), DAMAGE, [WEIGHTS]),
    "weight is not a number": (lambda at: spoil(at, float("nan")), DAMAGE, ["not finite"]),
    "weight is infinite": (lambda at: spoil(at, float("inf")), DAMAGE, ["not finite"]),
}


@pytest.mark.parametrize(("damage", "code", "parts"), WRONG.values(), ids=WRONG)
def test_weights_that_do_not_fit_or_are_damaged_are_refused_with_what_is_wrong(tmp_path, damage, code, parts):
    saved(tmp_path)
    damage(tmp_path)
    message = refused(code, tmp_path)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("shard", ["20KB", "1GB"], ids=["shards", "one file"])
def test_weights_that_are_truncated_while_they_are_read_say_so(tmp_path, shard):
    """A mapped file would end the process."""
    saved(tmp_path, max_shard_size=shard)

    class TruncatingMeter(LoadMeter):
        def add(self, nbytes):
            for path in tmp_path.glob("*.safetensors"):
                assert str(path) not in Path("/proc/self/maps").read_text()
                os.truncate(path, 100)

    files = read_version(str(tmp_path))
    arguments = (files, network_config(files), torch.float32, CPU, TruncatingMeter())
    message = refusal(load_network, *arguments, code=StatusCode.UNAVAILABLE)
    assert message.startswith("its files changed while they were read (")


def test_more_tensors_than_the_network_has_are_only_logged(tmp_path, caplog):
    model = saved(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"strange.weight": torch.zeros(7)}))
    assert torch.equal(logits(load(tmp_path)), logits(model))
    assert "strange.weight" in caplog.text


def test_tensor_in_two_files_is_damage(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"same": torch.zeros(2)}, tmp_path / name)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    assert "same" in refusal(read_headers, read_version(str(tmp_path)), code=StatusCode.DATA_LOSS)


def test_headers_tell_file_type_and_shape(tmp_path):
    save_file({"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(())}, tmp_path / WEIGHTS)
    found = read_headers(read_version(str(tmp_path)))
    told = {name: (header.file, header.dtype, header.shape) for name, header in found.items()}
    assert told == {"a": (WEIGHTS, "BF16", (2, 3)), "b": (WEIGHTS, "F32", ())}
    assert {name: header.elements for name, header in found.items()} == {"a": 6, "b": 1}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"model_type": "no_such_family"}, "no_such_family"),
        ({"model_type": "vit", "architectures": None}, "vit"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"], "is_decoder": False}, "encoder"),
        ({"model_type": "bert", "architectures": None}, "encoder"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_size": "wide"}, "lama"),
    ],
    ids=["unknown", "vision", "masked", "encoder", "encoder without a word", "classifier", "no number"],
)
def test_config_of_something_else_than_a_decoder_is_refused(tmp_path, fields, word):
    saved(tmp_path)
    change(tmp_path, **fields)
    message = refused(StatusCode.FAILED_PRECONDITION, tmp_path)
    assert CONFIG in message
    assert word in message


def test_config_without_architectures_is_the_one_that_generates(tmp_path):
    model = saved(tmp_path)
    change(tmp_path, architectures="gone")
    assert type(load(tmp_path)) is type(model)


def test_config_cannot_choose_the_code_that_runs(tmp_path):
    saved(tmp_path)
    usual = load(tmp_path).config._attn_implementation
    change(
        tmp_path,
        attn_implementation="someone/kernels",
        _attn_implementation="someone/kernels",
        transformers_weights="../other.safetensors",
        fusion_config={"patch_embeddings": True},
    )
    assert load(tmp_path).config._attn_implementation == usual


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    saved(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    assert "pip install 'tfs-lite[generate]'" in refused(StatusCode.UNIMPLEMENTED, tmp_path)


@pytest.fixture
def made(monkeypatch):
    """The names of networks that transformers has made; none is known yet."""
    found = list[str]()
    whole = load_library().PreTrainedModel.from_pretrained.__func__

    def note(cls, *args, **kwargs):
        found.append(cls.__name__)
        return whole(cls, *args, **kwargs)

    monkeypatch.setattr(load_library().PreTrainedModel, "from_pretrained", classmethod(note))
    monkeypatch.setattr(weights, "_PLANS", Architectures())
    return found


def next_version(directory, model):
    """The model with other weights, as another version."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize(("kind", "makes"), [("llama", 1), ("gpt2", 1), ("qwen2_moe", 2)])
def test_later_version_of_a_network_has_its_own_weights_and_nothing_of_the_first(tmp_path, made, kind, makes):
    model = saved(tmp_path / "1", kind)
    first, before = load(tmp_path / "1"), logits(model)
    next_version(tmp_path / "2", model)
    second, expected = load(tmp_path / "2"), logits(model)
    assert len(made) == makes  # of experts, the library joins tensors
    assert torch.equal(logits(second), expected)
    assert torch.equal(logits(first), before)
    assert {name: value.tolist() for name, value in second.state_dict().items()} == {
        name: value.tolist() for name, value in model.state_dict().items()
    }
    assert not {id(part) for part in first.modules()} & {id(part) for part in second.modules()}
    assert first.config is not second.config
    held = [{value.data_ptr() for value in [*each.parameters(), *each.buffers()]} for each in (first, second)]
    assert not held[0] & held[1]
    assert not second.training
    assert not any(parameter.requires_grad for parameter in second.parameters())
    assert type(second) is type(first)


def test_tied_weights_of_a_later_version_stay_one_tensor(tmp_path, made):
    model = saved(tmp_path / "1", "gpt2")
    load(tmp_path / "1")
    next_version(tmp_path / "2", model)
    found = load(tmp_path / "2")
    assert made == ["GPT2LMHeadModel"]
    assert found.lm_head.weight is found.transformer.wte.weight


def test_later_version_keeps_a_head_of_its_own_where_that_of_the_first_was_the_embedding(tmp_path, made):
    """transformers makes two tensors one if the config says so and they are alike."""
    saved(tmp_path, "gpt2")
    rewrite(tmp_path, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    first = load(tmp_path)
    assert first.lm_head.weight is first.transformer.wte.weight
    rewrite(tmp_path, lambda tensors: tensors[HEAD].add_(1))
    second = load(tmp_path)
    assert torch.equal(second.lm_head.weight, second.transformer.wte.weight + 1)


@pytest.mark.parametrize("changed", ["config", "shape", "missing", "dtype"])
def test_version_that_differs_in_more_than_its_weights_is_made_anew(tmp_path, made, changed):
    saved(tmp_path)
    load(tmp_path)
    if changed == "config":
        change(tmp_path, rms_norm_eps=0.5)
        load(tmp_path)
    elif changed == "dtype":
        assert load(tmp_path, torch.bfloat16).dtype is torch.bfloat16
    else:
        rewrite(
            tmp_path,
            lambda tensors: tensors.pop(NORM) if changed == "missing" else tensors.update({NORM: torch.ones(3)}),
        )
        refused(StatusCode.FAILED_PRECONDITION, tmp_path)
    assert len(made) == 2


def test_later_version_with_numbers_that_are_not_finite_is_refused(tmp_path, made):
    saved(tmp_path)
    load(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors[NORM].fill_(float("nan")))
    assert "not finite, in " + NORM in refused(StatusCode.DATA_LOSS, tmp_path)
    assert len(made) == 1


def test_later_version_whose_file_becomes_shorter_is_refused(tmp_path, made, monkeypatch):
    saved(tmp_path)
    load(tmp_path)
    read = WeightFile.read

    def cut(self, name):
        os.truncate(tmp_path / WEIGHTS, 100_000 if name == "model.embed_tokens.weight" else 1000)
        return read(self, name)

    monkeypatch.setattr(WeightFile, "read", cut)
    assert "shorter" in refused(StatusCode.UNAVAILABLE, tmp_path)
    assert len(made) == 1


def test_network_with_functions_that_may_hold_its_parts_is_not_kept(tmp_path, made, monkeypatch):
    model = saved(tmp_path / "1")
    of_library = type(model).__init__

    def with_closure(self, config):
        of_library(self, config)
        self.model.scale = lambda: self.model.norm.weight

    monkeypatch.setattr(type(model), "__init__", with_closure)
    load(tmp_path / "1")
    found = load(tmp_path / "1")
    assert found.model.scale() is found.model.norm.weight
    assert len(made) == 2
