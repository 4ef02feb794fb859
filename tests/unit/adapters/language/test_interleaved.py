"""The network of families that cannot be batched: exactly plain generation, whatever happens between the steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from tests.support.errors import refusal
from tests.support.language.architectures import small_config
from tfs_lite.adapters.language.interleaved import InterleavedNetwork
from tfs_lite.adapters.language.self_check import self_check
from tfs_lite.adapters.language.transformers_model import choose_network
from tfs_lite.core.generation import Copy, Rows, Sampling, SamplingRequest, Step
from tfs_lite.core.status import ServingError, StatusCode

VOCABULARY = 97
CPU = torch.device("cpu")


def _built(config: transformers.PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).double().eval()


WIDE = {"vocab_size": VOCABULARY, "initializer_range": 0.3}
DEEP = {**WIDE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def bloom() -> PreTrainedModel:
    return _built(transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **WIDE))


def falcon() -> PreTrainedModel:
    return _built(transformers.FalconConfig(**DEEP))


def gptj() -> PreTrainedModel:
    return _built(transformers.GPTJConfig(n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, **WIDE))


def mpt() -> PreTrainedModel:
    return _built(transformers.MptConfig(d_model=32, n_layers=2, n_heads=4, max_seq_len=64, **WIDE))


def sliding() -> PreTrainedModel:
    return _built(transformers.MistralConfig(intermediate_size=48, num_key_value_heads=2, sliding_window=8, **DEEP))


Build = Callable[[], PreTrainedModel]
families = pytest.mark.parametrize("build", [bloom, falcon, gptj, mpt, sliding], ids=lambda build: build.__name__)


def _prompts(count: int, longest: int = 20) -> list[list[int]]:
    chosen = random.Random(5)
    return [[chosen.randrange(2, VOCABULARY) for _ in range(chosen.randint(1, longest))] for _ in range(count)]


def _plain(module: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return out[0, len(prompt) :].tolist()


def _rows(slot: int, tokens: list[int], start: int = 0, draws: bool = True) -> Rows:
    draw = SamplingRequest(Sampling(temperature=0), 0, 0, tokens, len(tokens)) if draws else None
    return Rows(slot, start, tokens[start:], draw)


def _best(network: InterleavedNetwork, *rows: Rows, copies: tuple[Copy, ...] = ()) -> list[int]:
    return network.logits(Step(rows, copies)).argmax(-1).tolist()


def _continued(network: InterleavedNetwork, slot: int, tokens: list[int], count: int) -> list[int]:
    """``tokens``, of which the slot holds all but the last, and ``count`` more."""
    tokens = list(tokens)
    for _ in range(count):
        tokens += _best(network, _rows(slot, tokens, len(tokens) - 1))
    return tokens


@families
def test_texts_in_company_are_those_of_plain_generation(build: Build) -> None:
    module = build()
    prompts, count = _prompts(4), 12
    network = InterleavedNetwork(module, CPU, 4, 40)
    texts = [list(prompt) for prompt in prompts]
    done = [0] * 4
    while any(len(text) < len(prompt) + count for text, prompt in zip(texts, prompts, strict=True)):
        step, drawing = [], []
        for slot, text in enumerate(texts):
            if len(text) == len(prompts[slot]) + count:
                continue
            end = min(done[slot] + 7, len(text))  # Prompts go in chunks of 7.
            step.append(_rows(slot, text[:end], done[slot], end == len(text)))
            drawing += [slot] if end == len(text) else []
            done[slot] = end
        for slot, token in zip(drawing, _best(network, *step), strict=True):
            texts[slot].append(token)
    for text, prompt in zip(texts, prompts, strict=True):
        assert text[len(prompt) :] == _plain(module, prompt, count)
    assert len({token for text in texts for token in text}) > 20


@families
def test_slot_is_taken_over_from_a_prefix_of_what_it_held(build: Build) -> None:
    module = build()
    network = InterleavedNetwork(module, CPU, 1, 40)
    first, second = list(range(3, 23)), [*range(3, 13), 40, 41, 42]
    _continued(network, 0, [*first, *_best(network, _rows(0, first))], 4)
    tokens = [*second, *_best(network, _rows(0, second, 10))]
    assert _continued(network, 0, tokens, 5)[len(second) :] == _plain(module, second, 6)


@families
def test_copied_prefix_goes_on_like_its_own_and_the_source_too(build: Build) -> None:
    module = build()
    network = InterleavedNetwork(module, CPU, 3, 40)
    source, other = list(range(3, 23)), [*range(3, 15), 50]
    text = [*source, *_best(network, _rows(2, source))]
    drawn = _best(network, _rows(2, text, 20), _rows(0, other, 12), copies=(Copy(2, 0, 12),))
    assert _continued(network, 2, [*text, drawn[0]], 4)[20:] == _plain(module, source, 6)
    assert _continued(network, 0, [*other, drawn[1]], 4)[13:] == _plain(module, other, 5)


def test_copy_of_a_slot_to_itself_keeps_its_prefix() -> None:
    module = bloom()
    network = InterleavedNetwork(module, CPU, 1, 40)
    tokens = list(range(3, 23))
    network.logits(Step([_rows(0, tokens)]))
    drawn = _best(network, _rows(0, tokens[:11], 10), copies=(Copy(0, 0, 10),))
    assert drawn == _plain(module, tokens[:11], 1)


@families
def test_logits_are_of_the_rows_with_targets_and_of_the_last_one_once(build: Build) -> None:
    module = build()
    network = InterleavedNetwork(module, CPU, 4, 40)
    tokens = list(range(5, 15))
    with torch.inference_mode():
        expected = module(input_ids=torch.tensor([tokens])).logits[0]
    draw = SamplingRequest(Sampling(), 0, 0, tokens, 10)
    step = Step(
        [
            Rows(0, 0, tokens, draw, targets=tokens[1:4], top=2),
            Rows(1, 0, tokens, draw, targets=[*tokens[1:], 9]),
            Rows(2, 0, tokens, None, targets=tokens[1:2]),
            Rows(3, 0, tokens),
        ]
    )
    got = network.logits(step)
    assert got.shape == (4 + 10 + 1, VOCABULARY)
    torch.testing.assert_close(got, expected[[0, 1, 2, 9, *range(10), 0]], rtol=0, atol=1e-10)
    assert network.logits(Step([_rows(3, [*tokens, 1], 10, draws=False)])).shape == (0, VOCABULARY)
    assert network.logits(Step([])).shape == (0, VOCABULARY)


def test_step_that_cannot_be_is_refused_before_anything_changes() -> None:
    module = falcon()
    network = InterleavedNetwork(module, CPU, 2, 12)
    tokens = list(range(3, 13))
    network.logits(Step([_rows(0, tokens)]))
    with pytest.raises(ValueError, match="slot 1 holds 0 tokens"):
        network.logits(Step([_rows(0, tokens[:3]), _rows(1, tokens, 4)]))
    with pytest.raises(ValueError, match="cannot take those from 10 to 13"):
        network.logits(Step([_rows(0, [*tokens, 1, 2, 3], 10)]))
    with pytest.raises(ValueError, match="holds 10 tokens, fewer than 11"):
        network.logits(Step([_rows(1, tokens, 4)], [Copy(0, 1, 11)]))
    assert _best(network, _rows(0, [*tokens, 3], 10)) == _plain(module, [*tokens, 3], 1)


@pytest.mark.parametrize("start", [0, 6])
def test_slot_goes_on_after_a_forward_that_failed_half_way(start: int) -> None:
    module = bloom()
    network = InterleavedNetwork(module, CPU, 1, 40)
    tokens = list(range(3, 13))
    if start:
        network.logits(Step([_rows(0, tokens[:start])]))

    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    hook = module.transformer.h[1].register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="no memory"):
        network.logits(Step([_rows(0, tokens, start)]))
    hook.remove()
    drawn = _best(network, _rows(0, tokens, start))
    assert _continued(network, 0, [*tokens, *drawn], 3)[10:] == _plain(module, tokens, 4)


@families
def test_resident_bytes_are_weights_and_full_caches(build: Build) -> None:
    module = build()
    network = InterleavedNetwork(module, CPU, 3, 10)
    config = module.config
    heads = {"falcon": 1, "mistral": 2}.get(config.model_type, 4)
    weights = {id(tensor): tensor.nbytes for tensor in (*module.parameters(), *module.buffers())}
    caches = 3 * 10 * 2 * 2 * heads * 8 * 8  # slots, tokens, layers, keys and values, heads, dimension, bytes
    assert network.resident_bytes() == sum(weights.values()) + caches


SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
MAMBA = transformers.MambaConfig(**SMALL, num_hidden_layers=1, state_size=4, use_mambapy=False)
LFM2 = transformers.Lfm2Config(
    **SMALL, **HEADS, intermediate_size=16, num_hidden_layers=2, layer_types=["conv", "full_attention"]
)


@pytest.mark.parametrize("config", [MAMBA, LFM2], ids=lambda config: config.model_type)
def test_family_with_a_running_state_is_refused_with_its_name(config: transformers.PretrainedConfig) -> None:
    with pytest.raises(ServingError, match=f"the family {config.model_type} cannot be served.*running state") as caught:
        InterleavedNetwork(_built(config), CPU, 2, 10)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION


def test_family_with_an_encoder_is_refused() -> None:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )
    module = transformers.BartForConditionalGeneration(config).eval()
    assert "has an encoder" in refusal(InterleavedNetwork, module, CPU, 2, 10, code=StatusCode.FAILED_PRECONDITION)


def longrope() -> PreTrainedModel:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 2.0}
    rope["original_max_position_embeddings"] = 16
    sizes = {"intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0}
    return _built(transformers.Phi3Config(rope_parameters=rope, original_max_position_embeddings=16, **sizes, **DEEP))


def test_a_text_that_crosses_the_length_at_which_positions_change_is_read_anew() -> None:
    module = longrope()
    network = InterleavedNetwork(module, CPU, 2, 60)
    prompt = _prompts(1)[0][:5]
    tokens = _continued(network, 0, [*prompt, *_best(network, _rows(0, prompt))], 24)
    wanted = list(prompt)
    for _ in range(25):
        with torch.inference_mode():
            wanted.append(int(module(input_ids=torch.tensor([wanted]), use_cache=False).logits[0, -1].argmax()))
    assert tokens == wanted
    copied, back = [*tokens[:9], 7], [*tokens[:9], 5, 6]  # both go on from a longer text, whose positions were others
    found = network.logits(Step([_rows(1, copied, 9)], [Copy(0, 1, 9)])), network.logits(Step([_rows(0, back, 9)]))
    for text, logits in zip((copied, back), found, strict=True):
        with torch.inference_mode():
            torch.testing.assert_close(logits[0], module(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1])


def _small(kind: str, **fields: object) -> PreTrainedModel:
    return _built(small_config(kind, vocab_size=VOCABULARY, **fields))


REFUSED = {
    "no cache": (lambda: _small("openai-gpt"), "takes no cache of keys and values.*tfs_lite.save"),
    "blocks": (lambda: _small("big_bird", is_decoder=True), "Set max_model_len of parameters to 28, or attention_type"),
    "one token": (lambda: _small("prophetnet", is_decoder=True), "as a whole .*supported for `decoder_input_ids` of"),
    "both ways": (lambda: _small("bert-generation"), "logits differ by .* may need is_decoder in config.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_on_from_a_cache_is_refused_at_the_load(case: str) -> None:
    build, words = REFUSED[case]
    with pytest.raises(ServingError, match=words) as caught:
        choose_network(build(), CPU, 3, 40, True)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION


def test_a_network_of_blocks_is_served_as_far_as_it_attends_to_everything() -> None:
    network, why = choose_network(_small("big_bird", is_decoder=True), CPU, 3, 28, True)
    assert isinstance(network, InterleavedNetwork)
    assert why


@families
def test_the_fallback_passes_its_self_check_and_forgets_the_texts(build: Build) -> None:
    module = build()
    network = InterleavedNetwork(module, CPU, 3, 40)
    result = self_check(network, module)
    assert result.ok, str(result)
    with pytest.raises(ValueError, match="slot 0 holds 0 tokens"):
        network.logits(Step([_rows(0, [1, 2, 3], 2)]))
