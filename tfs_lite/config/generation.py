"""The ``parameters`` in the config of a language model, with the names that vLLM and transformers use.

    max_batch_size: 8
    parameters { key: "max_model_len" value { string_value: "1024" } }

All parameters are optional. ``max_batch_size`` of the config is the number of slots, unless ``max_num_seqs`` is set.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Flag, Settings, nearest
from tfs_lite.core.status import invalid_argument

CPU_SLOTS, GPU_SLOTS = 16, 64
CPU_LENGTH, GPU_LENGTH = 2048, 8192
CPU_ROWS, GPU_ROWS = 512, 2048
CPU_CHUNK, GPU_CHUNK = 256, 512
MAX_SLOTS = 4096
WAITING_PER_SLOT = 4


Count = Annotated[int, Field(ge=1, lt=2**31)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class GenerationSettings(Settings):
    """The settings of a language model. None means a default for the device and the model."""

    max_num_seqs: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None
    """The number of cache slots: texts that run at once."""
    max_model_len: Count | None = None
    """Tokens of one text, prompt and output together; at most what the model was made for."""
    max_batched_tokens: Count | None = None
    """The most rows of one step; at least as many as slots."""
    prefill_chunk: Count | None = None
    """The most rows of one prompt in one step."""
    prefill_slowdown: Annotated[float, Field(ge=1.05, le=1000)] = 1.8
    """The factor by which a step of decoding texts may take longer when it reads prompts as well. A step always reads
    at least 16 rows of a long prompt, and short prompts of 64 rows together."""
    prefix_reuse: Flag = True
    """Whether a prompt reuses the cache of another text with the same first tokens."""
    max_queue: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """The most texts that wait; further ones are refused. None means four for each slot."""
    max_queued_tokens: Count | None = None
    """The most prompt tokens of the texts that wait. None means as many as all slots hold."""
    queue_timeout: Seconds = 30.0
    """Seconds until a text that still waits is refused."""
    policy: Literal["fifo", "longest_first", "shortest_first"] = "fifo"
    """The rule for which waiting text of one priority comes next. The last two policies go by ``max_tokens``, for
    offline work."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The dtype of weights and cache. auto means float32 on the CPU and bfloat16 on a GPU."""
    fallback: Literal["interleaved", "refuse"] = "interleaved"
    """The way to serve a model that gives other answers in a batch than alone: one text at a time in each step, or not
    at all."""
    packed_weights: Flag = True
    """Whether large linear layers are repacked at load on the CPU, by which steps take a half to a third of the time. A
    model whose output layer shares the weights of its input layer then holds them twice."""
    cuda_graphs: Flag = True
    """Whether steps that only decode are captured as CUDA graphs at load, on a GPU: a step of few texts then takes a
    fifth of the time."""
    stream_idle_timeout: Seconds = 60.0
    """Seconds after which a stream of OpenAI's API is ended whose client reads nothing."""

    def slots(self, on_gpu: bool) -> int:
        return self.max_num_seqs or (GPU_SLOTS if on_gpu else CPU_SLOTS)

    def length(self, on_gpu: bool, of_model: int | None) -> int:
        """``of_model``: the length that the model was made for; None if it has no bound."""
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
    """INVALID_ARGUMENT, with the name, for an unknown parameter or an invalid value."""
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
