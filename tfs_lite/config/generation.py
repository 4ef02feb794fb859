"""How a language model runs: the ``parameters`` of its config, in the names that vLLM and transformers have for them.

    max_batch_size: 8
    parameters { key: "max_model_len" value { string_value: "1024" } }

All of it is optional. ``max_batch_size`` of the config is the number of slots, unless ``max_num_seqs`` says so.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Settings, nearest
from tfs_lite.core.status import invalid_argument

CPU_SLOTS, GPU_SLOTS = 16, 64
CPU_LENGTH, GPU_LENGTH = 2048, 8192
CPU_ROWS, GPU_ROWS = 512, 2048
CPU_CHUNK, GPU_CHUNK = 256, 512
MAX_SLOTS = 4096
WAITING_PER_SLOT = 4


def _flag(value: object) -> object:
    return {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower(), value)


Count = Annotated[int, Field(ge=1, lt=2**31)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Flag = Annotated[bool, BeforeValidator(_flag)]


class GenerationSettings(Settings):
    """None: what suits the device and the model."""

    max_num_seqs: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None
    """Places: texts that run at once."""
    max_model_len: Count | None = None
    """Tokens of one text, prompt and output together; at most what the model was made for."""
    max_batched_tokens: Count | None = None
    """Rows of one step; not less than slots."""
    prefill_chunk: Count | None = None
    """Rows of one prompt in one step."""
    prefill_slowdown: Annotated[float, Field(ge=1.05, le=1000)] = 1.8
    """How many times as long as without prompts a step may take that reads prompts beside texts that decode. At least
    16 rows of a long prompt are read in a step all the same, and prompts of 64 rows together."""
    prefix_reuse: Flag = True
    """Whether a prompt that begins as another one did gets that one's cache."""
    max_queue: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Texts that wait; past it they are refused. None: four for each slot."""
    max_queued_tokens: Count | None = None
    """Prompt tokens of those. None: as many as all slots hold."""
    queue_timeout: Seconds = 30.0
    """Seconds until a text that still waits is refused."""
    policy: Literal["fifo", "longest_first", "shortest_first"] = "fifo"
    """Who of those that wait comes next, within one priority. The last two go by ``max_tokens``, for offline work."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and cache. auto: float32 on the CPU, bfloat16 on a GPU."""
    fallback: Literal["interleaved", "refuse"] = "interleaved"
    """What becomes of a model that gives other answers in a batch than alone: one text at a time in each step, or an
    error."""
    packed_weights: Flag = True
    """On the CPU large linear layers are laid out anew at load: steps take a half to a third of the time. A model whose
    output layer shares the weights of its input layer then holds them twice."""
    cuda_graphs: Flag = False
    """On a GPU, steps that only decode are captured at load. Not run on a GPU yet, and therefore off."""
    stream_idle_timeout: Seconds = 60.0
    """Seconds after which a client of a stream of OpenAI's API that reads nothing is given up."""

    def slots(self, on_gpu: bool) -> int:
        return self.max_num_seqs or (GPU_SLOTS if on_gpu else CPU_SLOTS)

    def length(self, on_gpu: bool, of_model: int | None) -> int:
        """``of_model``: what the model was made for; None: it has no bound."""
        wanted = self.max_model_len or (GPU_LENGTH if on_gpu else CPU_LENGTH)
        return min(wanted, of_model) if of_model else wanted

    def rows(self, on_gpu: bool) -> int:
        return max(self.max_batched_tokens or (GPU_ROWS if on_gpu else CPU_ROWS), self.slots(on_gpu))

    def chunk(self, on_gpu: bool) -> int:
        return min(self.prefill_chunk or (GPU_CHUNK if on_gpu else CPU_CHUNK), self.rows(on_gpu))

    def queue(self, slots: int) -> int:
        return WAITING_PER_SLOT * slots if self.max_queue is None else self.max_queue

    def queued_tokens(self, slots: int, length: int) -> int:
        return self.max_queued_tokens or slots * length


def generation_settings(settings: ModelSettings) -> GenerationSettings:
    """INVALID_ARGUMENT, with the name, for a parameter that is not known or has no sense."""
    known = GenerationSettings.model_fields
    for name in settings.parameters:
        if name not in known:
            raise invalid_argument(f"parameters: a language model has no {name}{nearest(name, known)}")
    values: dict[str, Any] = dict(settings.parameters)
    if settings.max_batch_size:
        values.setdefault("max_num_seqs", settings.max_batch_size)
    try:
        found = GenerationSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid_argument(f"parameters.{first['loc'][0]}: {first['msg']}, got {first['input']!r:.100}") from None
    least = found.max_num_seqs or 1
    if found.max_batched_tokens is not None and found.max_batched_tokens < least:
        raise invalid_argument(
            f"parameters.max_batched_tokens is {found.max_batched_tokens}, less than the {least} texts that run at once"
        )
    return found
