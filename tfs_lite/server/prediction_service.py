"""``tensorflow.serving.PredictionService``: messages on the outside, the Predictor on the inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols import tensor_proto
from tfs_lite.protocols.messages import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    Message,
    PredictRequest,
    PredictResponse,
)
from tfs_lite.protocols.serving import ModelRef, model_spec, parse, read_model_spec, signature_def_map
from tfs_lite.server.grpc_table import CallContext, Method, UnaryHandler, unary
from tfs_lite.server.predictor import Lookup, Prediction, PredictionRequest, Predictor
from tfs_lite.server.request_metrics import RequestMetrics

SERVICE = "/tensorflow.serving.PredictionService"
SIGNATURE_DEF = "signature_def"
LATER = ("Classify", "Regress", "MultiInference")


class PredictionService:
    """``max_bytes`` bounds what a tensor may be filled up to when a client sends fewer values than elements."""

    def __init__(self, predictor: Predictor, lookup: Lookup, metrics: RequestMetrics, max_bytes: int) -> None:
        self._predictor = predictor
        self._lookup = lookup
        self._metrics = metrics
        self._max_bytes = max_bytes

    def methods(self) -> list[Method]:
        return [
            unary(f"{SERVICE}/Predict", self.predict),
            unary(f"{SERVICE}/GetModelMetadata", self.get_model_metadata),
            *(unary(f"{SERVICE}/{name}", _not_yet(name)) for name in LATER),
        ]

    async def predict(self, data: bytes, context: CallContext) -> bytes:
        message = parse(PredictRequest, data)
        prediction = await self._predictor.predict(
            PredictionRequest(
                model=read_model_spec(message),
                inputs=message.inputs,
                decode=self._decode,
                wanted=tuple(message.output_filter),
                deadline=context.deadline,
            )
        )
        return _predict_response(prediction)

    async def get_model_metadata(self, data: bytes, context: CallContext) -> bytes:
        message = parse(GetModelMetadataRequest, data)
        ref = read_model_spec(message, require_name=False)
        _check_metadata_fields(message.metadata_field)
        if not ref.name:
            raise invalid_argument("ModelSpec has no name specified")
        with self._metrics.record("GetModelMetadata", ref.name) as record, self._lookup(ref) as handle:
            record.version = handle.id.version
            response = GetModelMetadataResponse(model_spec=model_spec(ModelRef(ref.name, handle.id.version)))
            response.metadata[SIGNATURE_DEF].Pack(signature_def_map(handle.servable.signatures))
        return _bytes(response)

    def _decode(self, tensor: Message, alias: str) -> Any:
        return tensor_proto.decode(tensor, alias, self._max_bytes)


def _predict_response(prediction: Prediction) -> bytes:
    ref = ModelRef(prediction.id.name, prediction.id.version, signature=prediction.signature)
    response = PredictResponse(model_spec=model_spec(ref))
    for name, array in prediction.outputs.items():
        response.outputs[name].CopyFrom(tensor_proto.encode(np.asarray(array)))
    return _bytes(response)


def _check_metadata_fields(fields: Any) -> None:
    if not fields:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in fields:
        if field != SIGNATURE_DEF:
            raise invalid_argument(f"Metadata field {field} is not supported; {SIGNATURE_DEF} is")


def _not_yet(name: str) -> UnaryHandler:
    async def refuse(data: bytes, context: CallContext) -> bytes:
        raise ServingError(
            StatusCode.UNIMPLEMENTED, f"{name} is not available in this version of the server; Predict is"
        )

    return refuse


def _bytes(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
