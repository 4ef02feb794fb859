"""Ways to run many texts through one language model: ours, and those that people have without it.

A side is made of a version directory and answers a workload: the tokens of every text, and how many forwards of the
network it took. Each is alone in its process (``continuous_batching.py`` sees to that).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from generation_workloads import PLACES, Asked, load_network

Tokens = list[list[int]]


class Side(ABC):
    """Greedy, fp32, at most ``PLACES`` texts at once. ``forwards`` counts since the last call of ``run`` began."""

    forwards = 0

    @abstractmethod
    def run(self, workload: Sequence[Asked]) -> Tokens: ...

    def close(self) -> None:
        return


class _Plain(Side):
    def __init__(self, directory: Path) -> None:
        self.model = load_network(directory)

    def _forward(self, **inputs: Any) -> Any:
        self.forwards += 1
        return self.model(**inputs, use_cache=True, logits_to_keep=1)


class Static(_Plain):
    """Batches in order of arrival, padded on the left, each until its longest text is done."""

    def run(self, workload: Sequence[Asked]) -> Tokens:
        import torch

        self.forwards, found = 0, []
        with torch.inference_mode():
            for start in range(0, len(workload), PLACES):
                found += self._batch(workload[start : start + PLACES])
        return found

    def _batch(self, batch: Sequence[Asked]) -> Tokens:
        import torch
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        ids, mask = _padded(batch)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        drawn: list[torch.Tensor] = []
        for _ in range(max(asked.tokens for asked in batch)):
            logits = self._forward(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache
            ).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            drawn.append(ids)
            mask = torch.cat([mask, torch.ones(len(batch), 1, dtype=torch.long)], 1)
            positions = positions[:, -1:] + 1
        rows = torch.cat(drawn, 1).tolist()
        return [row[: asked.tokens] for row, asked in zip(rows, batch, strict=True)]


class Bare(Static):
    """What a decode step costs without anything around it: the same weights as ours, laid out alike, prompts of one
    length, and a cache that is written in place and has just the length that it needs."""

    def __init__(self, directory: Path) -> None:
        from tfs_lite.adapters.language.packed import pack

        super().__init__(directory)
        pack(self.model)

    def _batch(self, batch: Sequence[Asked]) -> Tokens:
        import torch
        from transformers import StaticCache

        width, count = len(batch[0].prompt), batch[0].tokens
        cache = StaticCache(config=self.model.config, max_cache_len=width + count)
        ids, drawn = torch.tensor([asked.prompt for asked in batch]), []
        positions = torch.arange(width)[None]
        for _ in range(count):
            logits = self._forward(input_ids=ids, position_ids=positions, past_key_values=cache).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            drawn.append(ids)
            positions = positions[:, -1:] + 1
        rows: Tokens = torch.cat(drawn, 1).tolist()
        return rows


class MergeAndCopy(_Plain):
    """Continuous batching as one writes it around ``model(past_key_values=...)``: texts that join are read in a forward
    of their own, their cache is padded and put beside the others'; those that are done are cut out. Both copy
    everybody's cache."""

    def run(self, workload: Sequence[Asked]) -> Tokens:
        import torch

        self.forwards = 0
        waiting = deque(enumerate(workload))
        found: Tokens = [[] for _ in workload]
        running: list[int] = []
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        mask = torch.zeros(0, 0, dtype=torch.long)
        with torch.inference_mode():
            while waiting or running:
                joining = [waiting.popleft() for _ in range(min(len(waiting), PLACES - len(running)))]
                if joining:
                    drawn, *new = self._read([asked for _, asked in joining])
                    for (index, _), token in zip(joining, drawn, strict=True):
                        found[index].append(token)
                    mask, keys, values = _merged(mask, keys, values, *new)
                    running += [index for index, _ in joining]
                else:
                    mask, keys, values = self._step(running, found, mask, keys, values)
                kept = [row for row, index in enumerate(running) if len(found[index]) < workload[index].tokens]
                if len(kept) < len(running):
                    mask, keys, values = _cut(mask, keys, values, kept)
                    running = [running[row] for row in kept]
        return found

    def _read(self, batch: Sequence[Asked]) -> tuple[list[int], Any, list[Any], list[Any]]:
        """The first token of each, and mask, keys and values of all."""
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        ids, mask = _padded(batch)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = self._forward(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
        layers = cache.layers
        return logits[:, -1].argmax(-1).tolist(), mask, [each.keys for each in layers], [v.values for v in layers]

    def _step(self, running: list[int], found: Tokens, mask: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        import torch
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            cache.update(key, value, layer)
        ids = torch.tensor([[found[index][-1]] for index in running])
        positions = mask.sum(1, keepdim=True)
        mask = torch.cat([mask, torch.ones(len(running), 1, dtype=torch.long)], 1)
        logits = self._forward(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
        for index, token in zip(running, logits[:, -1].argmax(-1).tolist(), strict=True):
            found[index].append(token)
        return mask, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


def _padded(batch: Sequence[Asked]) -> tuple[Any, Any]:
    """Prompts and their mask, padded on the left."""
    import torch

    width = max(len(asked.prompt) for asked in batch)
    ids, mask = torch.zeros(2, len(batch), width, dtype=torch.long)
    for row, asked in enumerate(batch):
        ids[row, width - len(asked.prompt) :] = torch.tensor(asked.prompt)
        mask[row, width - len(asked.prompt) :] = 1
    return ids, mask


def _merged(mask: Any, keys: Any, values: Any, new_mask: Any, new_keys: Any, new_values: Any) -> tuple[Any, Any, Any]:
    """All caches padded on the left to the longest."""
    import torch
    from torch.nn.functional import pad

    if not keys:
        return new_mask, new_keys, new_values
    old, new = mask.shape[1], new_mask.shape[1]
    width = max(old, new)

    def joined(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.cat([pad(left, (0, 0, width - old, 0)), pad(right, (0, 0, width - new, 0))])

    return (
        torch.cat([pad(mask, (width - old, 0)), pad(new_mask, (width - new, 0))]),
        [joined(left, right) for left, right in zip(keys, new_keys, strict=True)],
        [joined(left, right) for left, right in zip(values, new_values, strict=True)],
    )


def _cut(mask: Any, keys: Any, values: Any, kept: list[int]) -> tuple[Any, Any, Any]:
    """Without the others' rows, and without columns that only they had."""
    if not kept:
        return mask[:0, :0], [], []
    mask = mask[kept]
    first = int((mask.sum(0) > 0).int().argmax())
    return mask[:, first:], [key[kept][:, :, first:] for key in keys], [value[kept][:, :, first:] for value in values]


class Transformers(Side):
    """The library's own manager, with a cache that fits the workload: left to itself it takes most of the memory."""

    def __init__(self, directory: Path) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self.model = load_network(directory)
        config = ContinuousBatchingConfig(
            page_size=16,
            num_blocks=PLACES * 1024 // 16,
            max_batch_tokens=512,
            max_requests_per_batch=PLACES,
            allow_block_sharing=False,
        )
        settings: Any = GenerationConfig
        generation = settings(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=100)
        self._manager = self.model.init_continuous_batching(generation, config)
        self._manager.warmup()
        self._manager.start()
        forward = self.model.forward

        def counted(*arguments: Any, **named: Any) -> Any:
            self.forwards += 1
            return forward(*arguments, **named)

        self.model.forward = counted
        self._round = 0

    def run(self, workload: Sequence[Asked]) -> Tokens:
        self.forwards = 0
        self._round += 1
        names = [f"{self._round}-{number}" for number in range(len(workload))]
        for name, asked in zip(names, workload, strict=True):
            self._manager.add_request(list(asked.prompt), request_id=name, max_new_tokens=asked.tokens)
        found: dict[str, list[int]] = {}
        while len(found) < len(names):
            result = self._manager.get_result(timeout=120)
            if result is None:
                raise RuntimeError("the manager has stopped")
            if result.is_finished():
                found[result.request_id] = list(result.generated_tokens)
        return [found[name] for name in names]

    def close(self) -> None:
        self._manager.stop(block=True)


class Ours(Side):
    """The product's model and engine, without a server around them. ``parameters`` are those of the config."""

    def __init__(self, directory: Path, **parameters: str) -> None:
        from tfs_lite.adapters.detect import read_version
        from tfs_lite.adapters.encoders.platform import PLATFORM
        from tfs_lite.adapters.opening import OpenRequest
        from tfs_lite.config.generation import generation_settings
        from tfs_lite.config.model import ModelSettings
        from tfs_lite.core.clock import SystemClock
        from tfs_lite.core.servable import ServableId
        from tfs_lite.schedulers.generation.servable import GenerativeServable
        from tfs_lite.serving.opening.servable_factory import engine_settings

        wanted = {"max_num_seqs": str(PLACES), "max_model_len": "1024", "max_queue": "1000", "prefix_reuse": "false"}
        settings = ModelSettings(parameters={**wanted, "max_queued_tokens": "1000000", **parameters})
        servable_id = ServableId("bench", 1)
        assert PLATFORM.open is not None
        model: Any = PLATFORM.open(OpenRequest(servable_id, read_version(str(directory)), "cpu", False, settings))
        engine = engine_settings(generation_settings(settings), model)
        self._servable = GenerativeServable(
            model, servable_id, engine, clock=SystemClock(), on_step=self._count, on_text=lambda report: None
        )

    def run(self, workload: Sequence[Asked]) -> Tokens:
        self.forwards = 0
        done = threading.Event()
        found: Tokens = [[] for _ in workload]
        self.begin(workload, lambda piece: found[piece.index].extend(piece.tokens), done.set)
        done.wait()
        return found

    def begin(self, workload: Sequence[Asked], on_piece: Any, on_done: Any) -> Any:
        """All of it in one call, which comes back at once."""
        from tfs_lite.core.generation import Generation, GenerationCall, Sampling

        greedy = Sampling(temperature=0.0)
        texts = [Generation(asked.prompt, asked.tokens, sampling=greedy, ignore_eos=True) for asked in workload]
        call = GenerationCall("serving_default", {}, (), None, lambda result: on_done(), texts=texts, on_piece=on_piece)
        self._servable.submit(call)
        return call

    def cancel(self, call: Any) -> None:
        self._servable.cancel(call)

    def close(self) -> None:
        self._servable.close()

    def _count(self, report: Any) -> None:
        self.forwards += 1


SIDES: Mapping[str, Callable[[Path], Side]] = {
    "static": Static,
    "bare": Bare,
    "merge and copy": MergeAndCopy,
    "transformers": Transformers,
    "ours (plain weights)": lambda directory: Ours(directory, packed_weights="false"),
    "ours": Ours,
    "ours (prompts first)": lambda directory: Ours(directory, prefill_slowdown="1000"),
    "ours (longest first)": lambda directory: Ours(directory, policy="longest_first"),
}
