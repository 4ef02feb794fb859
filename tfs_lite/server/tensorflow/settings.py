"""The options that the services of TensorFlow Serving's API share."""

from __future__ import annotations

from dataclasses import dataclass

from tfs_lite.protocols.dtypes import MAX_FILL_BYTES
from tfs_lite.serving.options import ServerOptions


@dataclass(frozen=True, slots=True)
class PredictSettings:
    """``max_bytes`` bounds the size of a tensor whose values the client sends once and the server repeats.
    ``as_tensor_content``: answers of Predict over gRPC carry raw bytes instead of typed fields. ``check_method_names``:
    Predict refuses signatures whose method is not one of TensorFlow Serving's."""

    max_bytes: int = MAX_FILL_BYTES
    as_tensor_content: bool = False
    check_method_names: bool = False

    @classmethod
    def from_options(cls, options: ServerOptions) -> PredictSettings:
        return cls(
            options.max_message_bytes,
            options.enable_serialization_as_tensor_content,
            options.enable_signature_method_name_check,
        )
