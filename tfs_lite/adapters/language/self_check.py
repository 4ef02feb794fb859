"""Checks whether a model may serve many texts in one forward: by the properties of its class, and by numbers.

A family that ignores the replaced attention, or that cannot go on from a cache, does not fail; it gives wrong answers.
So every model is compared with itself before it serves: logits of texts that went through the network in chunks,
together, in used slots, against those of a plain forward over each whole text. One text is longer than the windows and
other lengths of the config, as far as they are short.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import PreTrainedModel

from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.language.lengths import steady_length, thresholds
from tfs_lite.core.generation import Rows, Sampling, SamplingRequest, Step

TEXT_LENGTHS = (24, 17, 9)
CHUNK = 7
SINGLE_ROWS = 8
BRIEF_LENGTHS, BRIEF_SINGLE_ROWS = (6,), 1
"""The text of a network whose architecture is known: three forwards instead of twenty, one of each kind that weights
take part in (of a whole text, of several rows, of one). What slots keep does not depend on weights."""
MAX_LENGTH = 512
"""Lengths of the config beyond this one are not tried: that would take longer than to load the weights."""
PIECES = 8
"""The number of pieces of a longer text."""
ALLOWED = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Parts of the spread of the logits."""
LAYERS = frozenset({"full_attention", "sliding_attention"})


def needs_fallback(module: PreTrainedModel, length: int | None = None) -> str | None:
    """Why the model cannot serve several texts of up to ``length`` positions in one forward; None if its class and
    config say that it can. Nothing is run."""
    name, config = type(module).__name__, module.config.get_text_config()
    if not getattr(module, "_supports_attention_backend", False):
        return f"{name} has an attention that cannot be exchanged"
    parameters = inspect.signature(module.forward).parameters
    missing = {"input_ids", "position_ids", "logits_to_keep"} - set(parameters)
    if missing or not any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values()):
        return f"the forward of {name} does not take {', '.join(sorted(missing) or ['further keywords'])}"
    strange = set(getattr(config, "layer_types", None) or ()) - LAYERS
    if strange:
        return f"{name} has layers of other kinds than attention: {', '.join(sorted(map(str, strange)))}"
    first = steady_length(config.to_dict())
    if first is not None and (length is None or length > first):
        return f"{name} turns positions by the length of the longest text, from {first} on"
    return None


@dataclass(frozen=True, slots=True)
class SelfCheckResult:
    """``difference``: the largest difference of two logits, in parts of the spread of the plain forward's.
    ``other_tokens``: at how many of the ``positions`` the best token differs although it was ahead by more than
    ``allowed``. ``layers``: how many layers use the replaced attention; a model with none could pass by numbers alone.
    ``cause``: why there are no numbers."""

    difference: float
    allowed: float
    other_tokens: int
    positions: int
    layers: int
    cause: str = ""
    is_finite: bool = True
    """Whether all logits of the plain forward are finite."""

    @property
    def ok(self) -> bool:
        return not self.cause and self.layers > 0 and self.difference <= self.allowed and self.other_tokens == 0

    @property
    def is_wrong(self) -> bool:
        """Whether answers are others, and not only rounded otherwise, which may send a token to another expert."""
        return bool(self.cause) or (self.difference > self.allowed and 10 * self.other_tokens > self.positions)

    def __str__(self) -> str:
        return self.cause or (
            f"logits differ by {self.difference:.2g} of their spread, {self.allowed:.2g} is allowed, and "
            f"{self.other_tokens} of {self.positions} best tokens are others; "
            f"{self.layers} layers attend through the cache"
        )


class CheckedNetwork(Protocol):
    """The network that is compared with its own module."""

    slots: int
    length: int
    device: torch.device

    def logits(self, step: Step) -> torch.Tensor:
        """The logits, [wanted, vocabulary]."""

    def ordinary(self) -> AbstractContextManager[PreTrainedModel]:
        """The module as it came."""

    @property
    def cached_layers(self) -> int:
        """How many layers attend through a cache."""

    def clear(self) -> None:
        """Forgets all texts."""


def self_check(network: CheckedNetwork, module: PreTrainedModel, brief: bool = False) -> SelfCheckResult:
    """Compares ``network`` with its own ``module``, before it serves. No other thread may step it; its cache is clear
    afterwards. An error of a forward becomes the ``cause``, except for lack of memory. ``brief``: another network of
    its architecture has passed."""
    allowed, layers = ALLOWED.get(module.dtype, ALLOWED[torch.bfloat16]), network.cached_layers
    try:
        texts = _texts(network, module, brief)
        plain = _plain(network, texts)
        if brief:
            served = _in_steps(network, texts, BRIEF_SINGLE_ROWS)
        else:
            plain.append(plain[0][len(texts[0]) // 2 :])
            served = _in_used_slots(network, texts)
        compared = [_compare(*pair, allowed) for pair in zip(plain, served, strict=True)]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        cause = f"{type(module).__name__} fails where a text goes on from a cache: {sentence(error)}"
        return SelfCheckResult(math.inf, allowed, 0, 0, layers, cause)
    finally:
        network.clear()
    differences = [difference for difference, _ in compared]
    worst = math.inf if any(map(math.isnan, differences)) else max(differences)
    is_finite = all(bool(torch.isfinite(logits).all()) for logits in plain)
    others, positions = sum(others for _, others in compared), sum(map(len, texts))
    return SelfCheckResult(worst, allowed, others, positions, layers, is_finite=is_finite)


def _texts(network: CheckedNetwork, module: PreTrainedModel, brief: bool) -> list[list[int]]:
    """The last text is the longest one, if the config has such lengths."""
    numbers, config = random.Random(0), module.config.get_text_config()
    wanted: tuple[int, ...] = BRIEF_LENGTHS if brief else TEXT_LENGTHS[: network.slots]
    beyond = [length + 2 for length in thresholds(config.to_dict(), min(network.length, MAX_LENGTH))]
    if beyond and beyond[-1] > wanted[0] and not brief:
        wanted = (*wanted[: max(1, network.slots - 1)], beyond[-1]) if network.slots > 1 else (beyond[-1],)
    lengths = [min(length, network.length) for length in wanted]
    return [[numbers.randrange(config.vocab_size) for _ in range(length)] for length in lengths]


@torch.inference_mode()
def _plain(network: CheckedNetwork, texts: list[list[int]]) -> list[torch.Tensor]:
    """Positions are those that the library gives a text when it generates."""
    with network.ordinary() as module:
        numbers = "position_ids" in inspect.signature(module.forward).parameters
        found = []
        for text in texts:
            ids = torch.tensor([text], device=network.device)
            positions = {"position_ids": torch.arange(len(text), device=network.device)[None]} if numbers else {}
            found.append(module(input_ids=ids, use_cache=False, **positions).logits[0])
        return found


@torch.inference_mode()
def _in_used_slots(network: CheckedNetwork, texts: list[list[int]]) -> list[torch.Tensor]:
    """Logits of all positions of each text, and of the second half of the first, which goes on from its first half."""
    for slot in range(len(texts)):  # what an earlier text leaves
        network.logits(Step([_all_wanted(slot, 0, texts[0][::-1])]))
    found, half = _in_steps(network, texts, SINGLE_ROWS), len(texts[0]) // 2
    return [*found, network.logits(Step([_all_wanted(0, half, texts[0][half:])]))]


@torch.inference_mode()
def _in_steps(network: CheckedNetwork, texts: list[list[int]], singles: int) -> list[torch.Tensor]:
    """Logits of all positions of each text."""
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    for rows in _steps(texts, singles):
        logits = network.logits(Step(rows))
        for entry, part in zip(
            rows, torch.split_with_sizes(logits, [len(entry.tokens) for entry in rows]), strict=True
        ):
            found[entry.slot].append(part)
    return [*map(torch.cat, found)]


def _steps(texts: list[list[int]], singles: int) -> Iterator[list[Rows]]:
    """Every text in chunks and its last ``singles`` tokens one by one; each text begins one step after the one
    before."""
    done = [0] * len(texts)
    begun = 0
    while done != [len(text) for text in texts]:
        begun += 1
        rows = []
        for slot, text in enumerate(texts[:begun]):
            start = done[slot]
            count = max(1, min(max(CHUNK, len(text) // PIECES), len(text) - singles - start))
            if start < len(text):
                rows.append(_all_wanted(slot, start, text[start : start + count]))
                done[slot] += count
        yield rows


def _all_wanted(slot: int, start: int, tokens: list[int]) -> Rows:
    return Rows(slot, start, tokens, SamplingRequest(Sampling(), 0, 0, tokens, len(tokens)), tokens[1:])


def _compare(plain: torch.Tensor, served: torch.Tensor, allowed: float) -> tuple[float, int]:
    plain, served = plain.double(), served.double()
    spread = (plain.max() - plain.min()).item() or 1.0
    best = plain.topk(2, dim=-1)
    ahead = best.values[:, 0] - best.values[:, 1] > allowed * spread
    others = (served.argmax(-1) != best.indices[:, 0]) & ahead
    return (plain - served).abs().max().item() / spread, int(others.sum().item())
