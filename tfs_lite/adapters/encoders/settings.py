"""The ``parameters`` in the config of an encoder, and the fields of a model config that an encoder cannot have.

    parameters { key: "pooling" value { string_value: "cls" } }

All parameters are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.replicas import RAY
from tfs_lite.config.settings import Flag, Settings, nearest
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument

CPU_TOKENS, GPU_TOKENS = 4096, 65_536
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "input": "an encoder has inputs of its own",
        "output": "an encoder has outputs of its own",
        "sequence_batching": "requests of an encoder have no state",
    }
)
"""Field -> why it is refused."""


class EncoderSettings(Settings):
    """The settings of an encoder; None means what the files say."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The dtype of the weights. auto means float32 on the CPU and bfloat16 on a GPU. Answers are float32."""
    max_length: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """The most tokens of a text, with those that the tokenizer adds; at most what the network takes."""
    pooling: Literal["mean", "cls", "lasttoken", "max"] | None = None
    """How the vectors of a text's tokens become one."""
    normalize: Flag | None = None
    """Whether embeddings have length 1."""
    max_batch_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """The most tokens of one forward, padding included. A longer text runs alone."""
    inputs: Literal["text", "tokens", "pixels", "images"] | None = None
    """The inputs of ``serving_default``: texts, or tokens of a tokenizer at the client; pixels as the network takes
    them, or encoded images. None means text, or pixels."""

    def tokens(self, on_gpu: bool) -> int:
        return self.max_batch_tokens or (GPU_TOKENS if on_gpu else CPU_TOKENS)

    def dtype_name(self, on_gpu: bool) -> str:
        return ("bfloat16" if on_gpu else "float32") if self.dtype == "auto" else self.dtype


def encoder_settings(settings: ModelSettings) -> EncoderSettings:
    """Reads the settings of a config. INVALID_ARGUMENT, with the name, for an unknown parameter, an invalid value, or a
    field that an encoder cannot have; UNIMPLEMENTED for replicas."""
    for name, reason in REFUSED.items():
        if getattr(settings, name):
            raise invalid_argument(f"{name}: {reason}")
    if settings.model_transaction_policy.decoupled:
        raise invalid_argument("model_transaction_policy.decoupled: an encoder answers once")
    for index, group in enumerate(settings.instance_group):
        if group.worker == "process":
            raise invalid_argument(f"instance_group[{index}].worker: an encoder runs in the server's process")
        if group.worker == RAY:
            message = f"instance_group[{index}].worker: an encoder has no replicas yet"
            raise ServingError(StatusCode.UNIMPLEMENTED, message)
    known = EncoderSettings.model_fields
    for name in settings.parameters:
        if name not in known:
            raise invalid_argument(f"parameters: an encoder has no {name}{nearest(name, known)}")
    values: dict[str, Any] = dict(settings.parameters)
    try:
        return EncoderSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid_argument(f"parameters.{first['loc'][0]}: {first['msg']}, got {first['input']!r:.100}") from None
