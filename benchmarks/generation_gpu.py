"""Tokens per second of a language model on a GPU: with CUDA graphs, without, and as transformers generates in batches.

    python benchmarks/generation_gpu.py [--shape 1b] [--texts 1,8,64] [--prompt 128] [--tokens 128] [--rounds 5]
                                        [--json]

Llamas with random weights in bfloat16. All texts of a turn come at once and are equally long, so that nothing is padded
in a batch of transformers. Sides take turns within each round; figures are tokens per second, medians over rounds, and
ratios are the medians of the rounds' own ratios to transformers. Ours is the engine, without a server around it. Where
no GPU is, it says so, and that is all.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 32_000
SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "100m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    "1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32},
    "7b": {"hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32},
}
Prompts = Sequence[Sequence[int]]
Side = Callable[[Prompts, int], list[list[int]]]
"""Prompts and how many tokens to add -> the tokens of each."""


def save_network(shape: str, directory: Path, length: int, device: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(SHAPES[shape])
    config = LlamaConfig(
        **sizes,
        num_key_value_heads=sizes["num_attention_heads"] // 4,
        vocab_size=VOCABULARY,
        max_position_embeddings=length,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
        dtype="bfloat16",
    )
    with torch.device(device):
        network: Any = LlamaForCausalLM(config)
        network.to(torch.bfloat16).save_pretrained(directory)


class Ours:
    """The product's model and engine."""

    def __init__(self, directory: Path, slots: int, graphs: bool, device: str) -> None:
        from tfs_lite.adapters.detect import read_version
        from tfs_lite.adapters.language.transformers_model import open_transformers
        from tfs_lite.adapters.opening import OpenRequest
        from tfs_lite.config.generation import generation_settings
        from tfs_lite.config.model import ModelSettings
        from tfs_lite.core.clock import SystemClock
        from tfs_lite.core.servable import ServableId
        from tfs_lite.schedulers.generation.servable import GenerativeServable
        from tfs_lite.serving.opening.servable_factory import engine_settings

        settings = ModelSettings(
            parameters={"max_num_seqs": str(slots), "cuda_graphs": str(graphs).lower(), "prefix_reuse": "false"}
        )
        servable_id = ServableId("bench", 1)
        request = OpenRequest(servable_id, read_version(str(directory)), device, False, settings)
        model = open_transformers(request)
        engine = engine_settings(generation_settings(settings), model)
        self._servable = GenerativeServable(
            model, servable_id, engine, clock=SystemClock(), on_step=lambda report: None, on_text=lambda report: None
        )

    def __call__(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        from tfs_lite.core.generation import Generation, GenerationCall, Sampling

        greedy = Sampling(temperature=0.0)
        texts = [Generation(tuple(prompt), tokens, sampling=greedy, ignore_eos=True) for prompt in prompts]
        found: list[list[int]] = [[] for _ in prompts]
        results: list[Any] = []
        done = threading.Event()

        def on_done(result: Any) -> None:
            results.append(result)
            done.set()

        call = GenerationCall(
            "serving_default",
            {},
            (),
            None,
            on_done,
            texts=texts,
            on_piece=lambda piece: found[piece.index].extend(piece.tokens),
        )
        self._servable.submit(call)
        done.wait()
        if any(len(text) != tokens for text in found):
            raise RuntimeError(f"the engine answered {results[0]}")
        return found

    def close(self) -> None:
        self._servable.close()


class Transformers:
    """One call of ``generate`` for all texts."""

    def __init__(self, directory: Path, device: str) -> None:
        from transformers import AutoModelForCausalLM

        self._device = device
        network: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
        self._model = network.eval().to(device)

    def __call__(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts, device=self._device)
        with torch.inference_mode():
            found: torch.Tensor = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        texts: list[list[int]] = found[:, ids.shape[1] :].tolist()
        return texts


def measure(sides: dict[str, Side], prompts: Prompts, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """The first turn of every side is not counted. ``same``: the share of tokens, from the beginning of each text up to
    the first other one, that are those of transformers; in half precision texts part sooner or later."""
    first = {name: side(prompts, tokens) for name, side in sides.items()}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides) if number % 2 else list(reversed(sides))
        for name in names:
            began = time.perf_counter()
            sides[name](prompts, tokens)
            rates[name].append(len(prompts) * tokens / (time.perf_counter() - began))
    base = rates["transformers"]
    return [
        {
            "side": name,
            "texts": len(prompts),
            "tokens_per_second": statistics.median(rates[name]),
            "to_transformers": statistics.median(a / b for a, b in zip(rates[name], base, strict=True)),
            "same": statistics.mean(map(same, first[name], first["transformers"])),
        }
        for name in sides
    ]


def same(one: Sequence[int], other: Sequence[int]) -> float:
    until = next((i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))
    return until / len(one)


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures of each side, as soon as all sides have had their rounds with so many texts."""
    counts = [int(count) for count in options.texts.split(",")]
    numbers = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        folder, device = Path(directory), options.device
        save_network(options.shape, folder, max(1024, options.prompt + options.tokens), device)
        ours = {
            "ours, graphs": Ours(folder, max(counts), True, device),
            "ours, no graphs": Ours(folder, max(counts), False, device),
        }
        sides: dict[str, Side] = {**ours, "transformers": Transformers(folder, device)}
        for count in counts:
            prompts = [[numbers.randrange(VOCABULARY) for _ in range(options.prompt)] for _ in range(count)]
            yield from measure(sides, prompts, options.tokens, options.rounds)
        for side in ours.values():
            side.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--texts", default="1,8,64")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device")
        return
    found = list(run(options))
    card = torch.cuda.get_device_name(0)
    if options.json:
        print(
            json.dumps({"torch": torch.__version__, "card": card, "shape": options.shape, "results": found}, indent=2)
        )
        return
    print(f"torch {torch.__version__}, {card}; {options.shape}, {options.prompt} + {options.tokens} tokens a text")
    for row in found:
        print(
            f"{row['texts']:4} texts  {row['side']:16} {row['tokens_per_second']:10.0f} tokens/s"
            f"  x{row['to_transformers']:.2f}  same {row['same']:.0%}"
        )


if __name__ == "__main__":
    main()
