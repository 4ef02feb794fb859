"""Language models on a real GPU: the same texts with CUDA graphs and without, one wait per step. Skipped elsewhere."""

from __future__ import annotations

import functools
import gc
import random
import threading
import warnings

import numpy as np
import pytest
import torch

from tests.support.language.tiny_transformers import FAMILIES, RandomBatches, build, greedy
from tests.support.language.tiny_transformers import VOCABULARY as TINY
from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, empty_caches
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.language import exponential_sampling as noise
from tfs_lite.adapters.language.engine_stream import EngineStream, upload, upload_array
from tfs_lite.adapters.language.family import load_library
from tfs_lite.adapters.language.fixed_decode import capture_decode
from tfs_lite.adapters.language.network import Network
from tfs_lite.adapters.language.sampler import sample
from tfs_lite.adapters.language.self_check import ALLOWED, self_check
from tfs_lite.adapters.language.transformers_model import open_transformers
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.generation import Rows, Sampling, SamplingRequest, Step
from tfs_lite.core.servable import ServableId

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

VOCABULARY = 512
LENGTH = 384
GREEDY = Sampling(temperature=0.0)
CLOSE = 1e-3
"""Logits nearer than this may change order in float32."""
SLACK = 8 << 20
BIG = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4}
COMMON = {
    "vocab_size": VOCABULARY,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = {
    **COMMON,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}
KINDS = {
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 40},
    "gemma2": {**GROUPED, "head_dim": 16, "sliding_window": 40},
    "gpt2": {**COMMON, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": LENGTH},
}


def cuda():
    return torch.device("cuda", 0)


def saved(directory, kind="llama", **more):
    library = load_library()
    torch.manual_seed(1)
    config = library.CONFIG_MAPPING[kind](**{**KINDS[kind], **more})
    library.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval().save_pretrained(directory)
    return directory


def opened(directory, version=1, **parameters):
    settings = ModelSettings(parameters={"max_num_seqs": "8", "dtype": "float32", **parameters})
    return open_transformers(
        OpenRequest(ServableId("m", version), read_version(str(directory)), str(cuda()), False, settings)
    )


@pytest.fixture
def open_model():
    """Opens versions; closes all of them in the end."""
    models = []

    def make(*args, **parameters):
        models.append(opened(*args, **parameters))
        return models[-1]

    yield make
    for model in models:
        model.close()


def decoding_of(model):
    return model._network.decoding


def prompts(count, longest=100, seed=3):
    numbers = random.Random(seed)
    return [
        [numbers.randrange(VOCABULARY) for _ in range(length)]
        for length in [1, longest, *(numbers.randint(2, longest) for _ in range(count - 2))][:count]
    ]


def generate(model, asked, count, sampling=GREEDY):
    """Outputs of so many tokens. A text joins at every second step, so that some steps have prompts and some do not."""
    texts, done = [list(prompt) for prompt in asked], [0] * len(asked)
    steps = 0
    while any(len(text) < len(prompt) + count for text, prompt in zip(texts, asked, strict=True)):
        joined = range(min(len(asked), steps // 2 + 1))
        running = [number for number in joined if len(texts[number]) < len(asked[number]) + count]
        steps += 1
        if not running:
            continue
        rows = [_rows(number, done[number], texts[number], len(asked[number]), sampling) for number in running]
        for number, drawn in zip(running, model.step(Step(rows)), strict=True):
            assert not drawn.broken
            done[number] = len(texts[number])
            texts[number].append(drawn.token)
    return [text[len(prompt) :] for text, prompt in zip(texts, asked, strict=True)]


def _rows(slot, start, text, prompt_length, sampling):
    return Rows(
        slot, start, text[start:], SamplingRequest(sampling, slot, len(text) - prompt_length, list(text), prompt_length)
    )


def written_alone(directory, asked, count, dtype=torch.float32):
    """Of each prompt what transformers writes, and how far the best logit was ahead of the second each time."""
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval().to(cuda())
    found = []
    for prompt in asked:
        ids = torch.tensor([prompt], device=cuda())
        output = module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        best = torch.cat(output.logits).float().topk(2).values
        found.append((output.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()))
    return found


def assert_same_but_for_ties(served, alone):
    for mine, (other, ahead) in zip(served, alone, strict=True):
        first = next((i for i, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1]), None)
        assert first is None or ahead[first] < CLOSE


@pytest.mark.parametrize("graphs", ["true", "false"])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_that_transformers_writes_on_the_gpu(tmp_path, open_model, kind, graphs):
    directory = saved(tmp_path / "1", kind)
    model = open_model(directory, cuda_graphs=graphs)
    asked = prompts(8)
    alone = written_alone(directory, asked, 60)
    assert len({token for text, _ in alone for token in text}) > 30
    assert_same_but_for_ties(generate(model, asked, 60), alone)
    if graphs == "true":
        assert decoding_of(model).replays > len(decoding_of(model).shapes) + 40
    else:
        assert decoding_of(model) is None


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_of_every_family_write_what_it_writes_alone(family, poison):
    """In float64 there are no ties. Places are left dirty, taken over and copied, between steps of all kinds."""
    numbers = random.Random(7)
    wanted = [([numbers.randrange(TINY) for _ in range(numbers.randint(1, 25))], 15) for _ in range(9)]
    stream = EngineStream(cuda())
    with stream.current():
        network = Network(build(family).to(cuda()), cuda(), slots=4, length=64, fixed=True)
        assert self_check(network, network._module).ok
        capture_decode(network, ServableId(family, 1))
        assert network.decoding is not None
        before = network.decoding.replays
        company = RandomBatches(network, poison=poison, seed=3)
        assert company.serve(wanted) == [greedy(build(family), *one).tokens for one in wanted]
        assert network.decoding.replays > before + 10
    stream.synchronize()
    network.close()
    stream.close()


@pytest.mark.parametrize("graphs", ["true", "false"])
def test_half_precision_is_near_the_plain_forward(tmp_path, open_model, graphs):
    directory = saved(tmp_path / "1")
    model = open_model(directory, dtype="bfloat16", cuda_graphs=graphs)
    text = prompts(1, seed=5)[0] + list(range(150))
    with torch.inference_mode(), model._stream.current():
        with model._network.ordinary() as module:
            plain = module(input_ids=torch.tensor([text], device=cuda()), use_cache=False).logits[0].float()
        single = 20
        for slot in range(3):
            model.step(Step([Rows(slot, 0, text[:-single])]))
        for position in range(len(text) - single, len(text)):
            step = Step([_rows(slot, position, text[: position + 1], 0, GREEDY) for slot in (2, 0, 1)])
            found = model._network.logits(step).float()
            spread = plain[position].max() - plain[position].min()
            assert ((found - plain[position]).abs().max() / spread).item() < ALLOWED[torch.bfloat16]
    if graphs == "true":
        assert decoding_of(model).replays == len(decoding_of(model).shapes) + single


def test_graphs_draw_the_tokens_that_ordinary_steps_draw(tmp_path, open_model):
    directory = saved(tmp_path / "1")
    asked, sampling = prompts(8, seed=9), Sampling(temperature=0.7, top_k=40)
    first = generate(open_model(directory, cuda_graphs="true"), asked, 80, sampling)
    second = generate(open_model(directory, cuda_graphs="false"), asked, 80, sampling)
    assert sum(a == b for a, b in zip(first, second, strict=True)) >= 7
    assert len({tuple(text) for text in first}) == 8


def test_noise_of_the_gpu_is_that_of_the_cpu():
    keys = torch.tensor([noise.noise_key(seed, index) for seed in (0, -5, 2**40) for index in (0, 1, 77)]).int()
    ids = torch.arange(100_000, dtype=torch.int32)
    here = noise._hash(keys[:, :1], keys[:, 1:], ids)
    there = noise._hash(keys[:, :1].to(cuda()), keys[:, 1:].to(cuda()), ids.to(cuda()))
    assert torch.equal(here, there.cpu())
    torch.testing.assert_close(
        noise.exponential(keys, ids), noise.exponential(keys.to(cuda()), ids.to(cuda())).cpu(), rtol=1e-5, atol=1e-9
    )


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.5, top_k=7),
    Sampling(top_p=0.9, min_p=0.01),
    Sampling(temperature=1.3, top_k=200, top_p=0.8),
    Sampling(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2, logit_bias={3: 4.0}),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_seeded_draws_of_the_gpu_are_those_of_the_cpu(sampling):
    logits = torch.randn(32, 30_000, generator=torch.Generator().manual_seed(0)) * 3
    step = Step(
        [Rows(row, 0, [1], SamplingRequest(sampling, 7, row, [1, 2, 2, 3], 1, frozenset({9}))) for row in range(32)]
    )
    here = [drawn.token for drawn in sample(logits, step)]
    there = [drawn.token for drawn in sample(logits.to(cuda()), step)]
    assert here == there
    assert len(set(here)) > 10


# What a step costs


def waits(work):
    """How often the host waited for the GPU meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


def test_numbers_reach_a_busy_gpu_as_they_were_when_they_were_sent():
    """Their memory on the host is dropped at once, and must not be used again before the copy."""
    stream = EngineStream(cuda())
    upload([0] * 300, torch.int64, cuda())
    with stream.current():
        torch.cuda._sleep(500_000_000)  # cycles of the device: some tenths of a second
        sent = [upload([number] * 300, torch.int64, cuda()) for number in range(200)]
        sent += [upload_array(np.full(300, number), cuda()) for number in range(200)]
        assert [tensor.unique().tolist() for tensor in sent] == [[number] for number in range(200)] * 2
    stream.close()


def test_waits_are_counted():
    ones = torch.ones(3, device=cuda())
    assert waits(lambda: ones + 1) == 0
    assert waits(lambda: [ones.sum().item(), ones.tolist()]) == 2


@pytest.mark.parametrize("graphs", ["true", "false"])
@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (GREEDY, 1),
        (Sampling(), 1),
        (Sampling(temperature=0.7, top_k=5, min_p=0.01), 1),
        (Sampling(repetition_penalty=1.2, frequency_penalty=0.1, logit_bias={3: 1.0}), 1),
        (Sampling(temperature=0.0, logprobs=3), 2),
    ],
    ids=range(5),
)
def test_a_step_waits_once_for_the_gpu(tmp_path, open_model, graphs, sampling, wanted):
    model = open_model(saved(tmp_path / "1"), cuda_graphs=graphs)
    asked = prompts(4)
    start = Step([_rows(slot, 0, text, len(text), sampling) for slot, text in enumerate(asked)])
    mixed = Step([_rows(0, 1, [*asked[0], 5], 1, sampling), _rows(4, 0, asked[1], len(asked[1]), sampling)])
    decode = Step([_rows(slot, len(text), [*text, 5], len(text), sampling) for slot, text in enumerate(asked)])
    for step in (start, mixed, decode):
        model.step(step)  # What is done once is done.
        assert waits(functools.partial(model.step, step)) == wanted
    unseen = Step([Rows(5, 0, asked[1][:20])])
    assert waits(functools.partial(model.step, unseen)) == 0


def test_nothing_is_captured_after_the_load(tmp_path, open_model, monkeypatch):
    model = open_model(saved(tmp_path / "1"), cuda_graphs="true")
    shapes = decoding_of(model).shapes
    assert len(shapes) == 4 * 3

    def fail(*args, **kwargs):
        raise AssertionError("a capture while texts run")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", fail)
    generate(model, prompts(8, seed=2), 270)
    assert decoding_of(model).shapes is shapes
    assert decoding_of(model).replays > 200


def test_a_model_that_cannot_be_captured_is_served_without_graphs(tmp_path, open_model, monkeypatch, caplog):
    directory, forward = saved(tmp_path / "1"), Network.forward

    def reads(self, *args):
        logits = forward(self, *args)
        logits.sum().item()
        return logits

    monkeypatch.setattr(Network, "forward", reads)
    model = open_model(directory, cuda_graphs="true")
    assert decoding_of(model) is None
    assert "decodes without CUDA graphs" in caplog.text
    asked = prompts(4)
    assert_same_but_for_ties(generate(model, asked, 30), written_alone(directory, asked, 30))
    assert not DEVICE_LOCKS.of(cuda()).locked()
    monkeypatch.setattr(Network, "forward", forward)
    other = open_model(directory, 2, cuda_graphs="true")
    assert len(decoding_of(other).shapes) == 12


# Versions beside each other, and after each other


def reserved():
    gc.collect()
    empty_caches()
    return torch.cuda.memory_reserved(0)


@pytest.mark.parametrize("graphs", ["true", "false"])
def test_memory_comes_back_with_every_version(tmp_path, graphs):
    directory = saved(tmp_path / "1", **BIG)
    levels = [reserved()]
    for _ in range(6):
        model = opened(directory, cuda_graphs=graphs)
        generate(model, prompts(4), 20)
        assert torch.cuda.memory_allocated(0) >= model.resident_bytes()
        model.close()
        del model
        levels.append(reserved())
    assert max(levels[2:]) - levels[1] <= SLACK


def others(served, wanted):
    """How many texts differ. Sums in another order may turn a tie; a mistake spoils nearly all of them."""
    return sum(one != other for one, other in zip(served, wanted, strict=True))


def test_what_a_version_took_goes_back_while_another_one_serves(tmp_path):
    directory = saved(tmp_path / "1", **BIG)
    first, second = opened(directory), opened(directory, 2)
    asked = prompts(4)
    wanted = generate(first, asked, 30)
    assert others(generate(second, asked, 30), wanted) <= 1
    second.close()
    del second
    start = reserved()  # With what cuBLAS keeps for two streams.
    for version in range(3, 6):
        second = opened(directory, version)
        size = second.resident_bytes()
        assert reserved() - start >= size * 0.9
        assert others(generate(second, asked, 30), wanted) <= 1
        second.close()
        del second
        assert reserved() - start <= SLACK
        assert others(generate(first, asked, 30), wanted) <= 1
    first.close()


def test_versions_serve_while_others_load_and_capture_and_go(tmp_path):
    directories = [saved(tmp_path / str(number), kind) for number, kind in enumerate(("llama", "gpt2"))]
    models = [opened(directory, number + 1, cuda_graphs="true") for number, directory in enumerate(directories)]
    asked = prompts(6)
    wanted = [generate(model, asked, 40) for model in models]
    stop, wrong, rounds = threading.Event(), [0, 0], [0, 0]

    def serve(number):
        while not stop.is_set():
            wrong[number] += others(generate(models[number], asked, 40), wanted[number])
            rounds[number] += 1

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for version in range(3, 7):
            other = opened(directories[version % 2], version, cuda_graphs="true")
            assert decoding_of(other) is not None
            assert others(generate(other, asked, 40), wanted[version % 2]) <= 1
            other.close()
            reserved()
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    for model in models:
        model.close()
    assert min(rounds) > 0
    assert sum(wrong) <= 0.02 * len(asked) * sum(rounds)
