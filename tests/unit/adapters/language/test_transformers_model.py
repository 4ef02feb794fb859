"""A version of a language model, opened as a server does: it generates what its library generates, or says why not."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tests.support.errors import refusal
from tfs_lite.adapters.detect import choose_platform, read_version
from tfs_lite.adapters.encoders.platform import PLATFORM
from tfs_lite.adapters.language import transformers_model
from tfs_lite.adapters.language.attention import KEYWORD
from tfs_lite.adapters.language.budget import reserve
from tfs_lite.adapters.language.family import load_library
from tfs_lite.adapters.language.transformers_model import TransformersModel, open_transformers
from tfs_lite.adapters.opening import OpenRequest, VersionFiles
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.generation import LanguageModel, Rows, Sampling, SamplingRequest, Step
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, StatusCode

GREEDY = Sampling(temperature=0.0)
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 300}
LLAMA = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96, "eos_token_id": 9}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 300}
BYTES = {"tokenizer_class": "ByteTokenizer", "bos_token": "<s>", "eos_token": "</s>"}


def save(directory, kind="llama", fields=LLAMA, tokenizer=BYTES, **generation):
    library = load_library()
    torch.manual_seed(1)
    config = library.CONFIG_MAPPING[kind](**fields)
    model = library.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()
    model.save_pretrained(directory)
    if tokenizer:
        (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if generation:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return model


def request_for(directory, **parameters):
    settings = ModelSettings(parameters={"max_num_seqs": "3", **parameters})
    return OpenRequest(ServableId("m", 1), read_version(str(directory)), "cpu", False, settings)


@pytest.fixture
def opened():
    """Opens a version; closes all of them in the end."""
    models: list[TransformersModel] = []

    def make(directory, **parameters):
        models.append(open_transformers(request_for(directory, **parameters)))
        return models[-1]

    yield make
    for model in models:
        model.close()


def rows(slot, start, tokens, history):
    return Rows(slot, start, tokens, SamplingRequest(GREEDY, 0, 0, history, len(history)))


def generate(model, prompts, count):
    """Greedy, all together, a row of each in every step; the slots in reverse."""
    texts = [list(prompt) for prompt in prompts]
    done = [0] * len(texts)
    for _ in range(count):
        step = Step([rows(len(texts) - 1 - n, done[n], text[done[n] :], text) for n, text in enumerate(texts)])
        for n, drawn in enumerate(model.step(step)):
            done[n] = len(texts[n])
            texts[n].append(drawn.token)
    return texts


def reference(model, prompt, count):
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            text.append(int(model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text


PROMPTS = [[5, 6, 7, 8, 200, 41], [77], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]]


@pytest.mark.parametrize(
    ("kind", "fields", "batches"), [("llama", LLAMA, True), ("bloom", BLOOM, False)], ids=["llama", "bloom"]
)
def test_texts_in_batches_are_those_of_the_library(tmp_path, opened, kind, fields, batches, caplog):
    caplog.set_level("INFO")
    plain = save(tmp_path, kind, fields)
    model = opened(tmp_path, max_model_len="64")
    assert model.batches is batches
    assert generate(model, PROMPTS, 12) == [reference(plain, prompt, 12) for prompt in PROMPTS]
    said = [record.getMessage() for record in caplog.records if "slots of" in record.getMessage()]
    assert len(said) == 1
    assert ("share every step" in said[0]) is batches
    assert ("one text at a time" in said[0]) is not batches


def test_model_is_what_the_engine_expects(tmp_path, opened):
    save(tmp_path)
    model = opened(tmp_path, max_model_len="64")
    assert isinstance(model, LanguageModel)
    assert (model.platform, model.shares_compute, model.concurrency) == ("transformers", True, 1)
    assert (model.limits.slots, model.limits.length, model.limits.vocabulary) == (3, 64, 300)
    assert "text_input" in model.signatures["serving_default"].input_names
    refusal(model.run, "serving_default", {}, (), code=StatusCode.UNIMPLEMENTED)


def test_version_without_a_tokenizer_takes_tokens_only(tmp_path, opened):
    plain = save(tmp_path, tokenizer=None)
    model = opened(tmp_path)
    assert model.codec is None
    assert "text_input" not in model.signatures["serving_default"].input_names
    assert generate(model, PROMPTS[:1], 4) == [reference(plain, PROMPTS[0], 4)]


def test_length_is_at_most_that_of_the_model(tmp_path, opened):
    save(tmp_path)
    assert opened(tmp_path).limits.length == 96
    assert opened(tmp_path, max_model_len="1000").limits.length == 96


def test_answers_are_the_same_up_to_the_last_position(tmp_path, opened):
    plain = save(tmp_path)
    model = opened(tmp_path, max_model_len="20")
    assert generate(model, PROMPTS[:1], 14) == [reference(plain, PROMPTS[0], 14)]


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "eos"),
    [
        ({"eos_token_id": [3, 4]}, 9, BYTES, {3, 4}),
        ({"eos_token_id": 7}, 9, BYTES, {7}),
        ({"do_sample": True}, 9, BYTES, {9}),
        ({"do_sample": True}, None, BYTES, {257}),
        ({"do_sample": True}, None, None, set()),
        ({"eos_token_id": [3, 5000]}, 9, BYTES, {3}),
        ({"eos_token_id": 5000}, 9, BYTES, {9}),
    ],
    ids=["list", "number", "config", "tokenizer", "no source", "one outside", "all outside"],
)
def test_end_of_text_is_that_of_the_first_source_that_has_one(tmp_path, opened, generation, config, tokenizer, eos):
    save(tmp_path, fields={**LLAMA, "eos_token_id": config}, tokenizer=tokenizer, **generation)
    assert opened(tmp_path).limits.eos == eos


def test_broken_generation_config_fails_the_load(tmp_path, opened):
    save(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    assert "generation_config.json" in refusal(opened, tmp_path, code=StatusCode.DATA_LOSS)


def test_weights_and_cache_fit_what_was_reserved(tmp_path, opened):
    save(tmp_path)
    request = request_for(tmp_path)
    model = opened(tmp_path)
    reserved = reserve(request.files, request.settings, on_gpu=False)
    weights = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    cache = 4 * 2 * 2 * 3 * 2 * 96 * 8
    assert 0.9 * (weights + cache) < model.resident_bytes() <= reserved


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_and_cache_have_the_wanted_type(tmp_path, opened, dtype):
    save(tmp_path)
    full, half = opened(tmp_path), opened(tmp_path, dtype=dtype)
    assert half.batches
    assert 0.45 < half.resident_bytes() / full.resident_bytes() < 0.6
    assert all(0 <= token < 300 for token in generate(half, PROMPTS, 5)[0])


def test_model_that_cannot_be_batched_may_be_refused(tmp_path, opened):
    save(tmp_path, "bloom", BLOOM)
    assert "parameters.fallback is refuse: Bloom" in refusal(
        opened, tmp_path, fallback="refuse", code=StatusCode.FAILED_PRECONDITION
    )


@pytest.mark.parametrize("fallback", ["interleaved", "refuse"])
def test_model_with_other_answers_in_a_batch_does_not_serve_them(tmp_path, opened, fallback, monkeypatch):
    plain = save(tmp_path)
    expected = reference(plain, PROMPTS[0], 6)
    made = type(plain)
    honest = made.forward
    name = "cache" if "cache" in inspect.signature(honest).parameters else "past_key_values"

    def forward(
        self,
        input_ids=None,
        position_ids=None,
        past_key_values=None,
        cache=None,
        use_cache=None,
        logits_to_keep=0,
        **options,
    ):
        held = past_key_values if cache is None else cache
        wanted = {name: held, "use_cache": use_cache, "logits_to_keep": logits_to_keep, **options}
        output = honest(self, input_ids, position_ids=position_ids, **wanted)
        if KEYWORD in options:
            output.logits = output.logits.roll(1, -1)
        return output

    monkeypatch.setattr(made, "forward", forward)
    if fallback == "refuse":
        with pytest.raises(ServingError, match=r"logits differ by .* of their spread, .* is allowed"):
            opened(tmp_path, fallback=fallback)
        return
    model = opened(tmp_path, fallback=fallback)
    assert not model.batches
    assert generate(model, PROMPTS[:1], 6) == [expected]


def test_two_models_of_different_kinds_do_not_disturb_each_other(tmp_path, opened):
    plain = [save(tmp_path / kind, kind, fields) for kind, fields in (("llama", LLAMA), ("bloom", BLOOM))]
    first = opened(tmp_path / "llama", max_model_len="64")
    before = generate(first, PROMPTS, 5)
    second = opened(tmp_path / "bloom", max_model_len="64")
    again = opened(tmp_path / "llama", max_model_len="64", dtype="bfloat16")
    assert generate(second, PROMPTS, 5) == [reference(plain[1], prompt, 5) for prompt in PROMPTS]
    generate(again, PROMPTS, 5)
    assert before == generate(first, PROMPTS, 5) == [reference(plain[0], prompt, 5) for prompt in PROMPTS]
    assert torch.get_default_dtype() is torch.float32


def test_no_thread_is_left_when_a_version_is_open(tmp_path, opened):
    save(tmp_path)
    before = set(threading.enumerate())
    opened(tmp_path)
    left = set(threading.enumerate()) - before
    for thread in left:  # readers of the library, on their way out
        thread.join(10)
    assert not any(thread.is_alive() for thread in left)
    assert not any(thread.name.startswith("tfs-load-network") for thread in left)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"dynamic_batching": {}}, "dynamic_batching"),
        ({"instance_group": [{"count": 3}]}, "instance_group"),
        ({"parameters": {"max_modl_len": "3"}}, "max_modl_len"),
        ({"parameters": {"dtype": "int8"}}, "parameters.dtype"),
    ],
    ids=["batching", "instances", "unknown parameter", "type"],
)
def test_settings_without_sense_are_refused_before_anything_is_read(tmp_path, settings, named):
    built = ModelSettings.model_validate(settings)
    request = OpenRequest(ServableId("m", 1), read_version(str(tmp_path)), "cpu", False, built)
    assert named in refusal(open_transformers, request)


def test_error_of_the_load_keeps_its_kind_across_the_thread(tmp_path, monkeypatch):
    save(tmp_path)

    def full(*args):
        raise torch.OutOfMemoryError("no room for the cache")

    monkeypatch.setattr(transformers_model, "_batched_network", full)
    with pytest.raises(torch.OutOfMemoryError):
        open_transformers(request_for(tmp_path))


def test_pickles_beside_other_files_are_recognised_and_refused(tmp_path):
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({}, tmp_path / "pytorch_model.bin")
    files = read_version(str(tmp_path))
    assert choose_platform(files, "", {PLATFORM.name: PLATFORM}) is PLATFORM
    assert "safe_serialization" in refusal(
        open_transformers, request_for(tmp_path), code=StatusCode.FAILED_PRECONDITION
    )


def test_code_in_the_version_is_never_run(tmp_path, opened):
    save(tmp_path)
    for name in ("modeling_mine.py", "tokenization_mine.py", "conftest.py", "custom_generate/generate.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    opened(tmp_path)
    assert not (tmp_path / "ran").exists()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "modeling_mine.Mine"}}))
    assert "auto_map" in refusal(opened, tmp_path, code=StatusCode.PERMISSION_DENIED)
    assert not (tmp_path / "ran").exists()


def test_importing_the_platform_does_not_import_the_library():
    code = (
        "import sys; import tfs_lite.adapters.language.transformers_model as m; "
        "from tfs_lite.adapters.language.budget import reserve; "
        "sys.exit(any(name.split('.')[0] in ('transformers', 'tokenizers') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_files_that_are_refused_are_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    for work in (lambda files: PLATFORM.reserve(files, ModelSettings(), False), _opened_as_it_is):
        with pytest.raises(ServingError) as caught:
            work(read_version(str(tmp_path)))
        assert caught.value.status.reason is Reason.FILES_REFUSED


def _opened_as_it_is(files: VersionFiles) -> object:
    assert PLATFORM.open is not None
    return PLATFORM.open(OpenRequest(ServableId("m", 1), files, "cpu", False))
