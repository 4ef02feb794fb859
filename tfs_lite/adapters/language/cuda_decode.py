"""CUDA graphs of a language model: its decode steps are replays of them.

    weights, cache, self-check -> graphs are captured -> graphs are compared with ordinary steps -> serving

All graphs are captured while the version loads, and none later: a capture would hold up every text that runs. They
share one pool of memory, which is enough for the largest, because only one of them runs at a time and nothing of one
is needed by another.
"""

from __future__ import annotations

import gc
import logging
import math
import random
import time
from collections.abc import Sequence

import torch

from tfs_lite.adapters.cuda.graphs import Capture, Captured, Forward, capture_on
from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, Pool
from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.language.engine_stream import settle
from tfs_lite.adapters.language.fixed_decode import FixedDecode, Shape, decode_shapes
from tfs_lite.adapters.language.network import Network
from tfs_lite.adapters.language.self_check import ALLOWED
from tfs_lite.core.generation import Rows, Sampling, SamplingRequest, Step
from tfs_lite.core.servable import ServableId

logger = logging.getLogger(__name__)


def capture_decode(network: Network, servable_id: ServableId) -> None:
    """Gives ``network``, made with ``fixed`` on a GPU, its ``decoding``. With the engine's stream current, after the
    self-check, before the first text. If that does not work the log says why, and all steps are ordinary ones."""
    pool, began = Pool(network.device), time.monotonic()
    gc.collect()  # A capture does not bear that graphs of other versions go meanwhile.
    decoding = FixedDecode(network, pool.drop)
    shapes = decode_shapes(network.slots, network.length)
    why = record_and_check(network, decoding, _in_turn(network.device, capture_on(network.device, pool)), shapes)
    if why:
        logger.warning("%s decodes without CUDA graphs: %s", servable_id, why)
        return
    seconds = time.monotonic() - began
    logger.info("%s decodes with %d CUDA graphs, captured and checked in %.1f s", servable_id, len(shapes), seconds)


@torch.inference_mode()
def record_and_check(network: Network, decoding: FixedDecode, capture: Capture, shapes: Sequence[Shape]) -> str:
    """Sets ``network.decoding``, and returns nothing; or closes ``decoding``, and returns why. The cache is clean
    afterwards."""
    why = ""
    try:
        decoding.record(capture, shapes)
        worst = worst_difference(network, decoding)
        allowed = ALLOWED.get(network.dtype, ALLOWED[torch.bfloat16])
        if not worst <= allowed:
            why = f"logits differ by {worst:.2g} of their spread from those of ordinary steps, {allowed:.2g} is allowed"
    except Exception as error:
        why = sentence(error)
    finally:
        network.cache.clear(everything=True)
    if why:
        settle(network.device)
        decoding.close()
    else:
        network.decoding = decoding
    return why


def worst_difference(network: Network, decoding: FixedDecode) -> float:
    """Between the logits of every recorded shape and those of the same step done the ordinary way, in parts of their
    spread; infinite for what is no number. The cache is full of random numbers, before and after."""
    device, numbers = network.device, random.Random(0)
    noise = torch.Generator(device).manual_seed(0)
    for tensor in (*network.cache.keys.values(), *network.cache.values.values()):
        tensor.normal_(generator=noise)
    wide = torch.promote_types(network.dtype, torch.float32)
    worst = 0.0
    for shape in decoding.shapes:
        step = Step(_rows(shape, network.vocabulary, numbers))
        plain, fixed = network.logits(step).to(wide), decoding.run(step.rows, shape).to(wide)
        spread = (plain.max() - plain.min()).item() or 1.0
        difference = (plain - fixed).abs().max().item() / spread
        worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def _rows(shape: Shape, vocabulary: int, numbers: random.Random) -> list[Rows]:
    """In any order, some of the shape's slots; the last slot and the last position are among them."""
    slots = [slot for slot in range(shape.rows - 1) if numbers.random() < 0.7]
    ends = {slot: numbers.randrange(shape.width) for slot in slots} | {shape.rows - 1: shape.width - 1}
    rows = [
        Rows(slot, start, [numbers.randrange(vocabulary)], SamplingRequest(Sampling(), 0, 0, (), 0))
        for slot, start in ends.items()
    ]
    numbers.shuffle(rows)
    return rows


def _in_turn(device: torch.device, capture: Capture) -> Capture:
    """Loads, unloads and other captures of the device wait, and this one for them."""

    def with_the_lock(host: Sequence[torch.Tensor], forward: Forward) -> Captured:
        with DEVICE_LOCKS.of(device):
            return capture(host, forward)

    return with_the_lock
