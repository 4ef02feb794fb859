"""``tensorflow.serving.PredictionService``: translates messages for the Predictor.

A call is timed from the moment its message is read until its answer is written; one whose message cannot be read is
counted for an unknown model. Answers are offered to the request
log, which cannot change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import invalid_argument
from tfs_lite.metrics.requests import GRPC, RequestMetrics
from tfs_lite.protocols.fields import names_at
from tfs_lite.protocols.messages import (
    ClassificationRequest,
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    Message,
    MultiInferenceRequest,
    PredictRequest,
    PredictResponse,
    RegressionRequest,
)
from tfs_lite.protocols.tensorflow import prediction_log
from tfs_lite.protocols.tensorflow.predict_answers import AnswerWriter
from tfs_lite.protocols.tensorflow.serving import model_spec, parse, read_model_spec, signature_def_map
from tfs_lite.request_log.sampler import NO_LOG, RequestLog
from tfs_lite.server.inference.classify_regress import Infer, Inferences
from tfs_lite.server.inference.pending import Inference
from tfs_lite.server.inference.predict_reader import PredictReader
from tfs_lite.server.inference.predictor import Lookup, Predictor
from tfs_lite.server.runtime.reply import ModelReply
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.transport.table import CallContext, Method, Reply, Rights, Scope, unary

SERVICE = "/tensorflow.serving.PredictionService"
SIGNATURE_DEF = "signature_def"


@dataclass(frozen=True, slots=True)
class _Method:
    """The differences of Classify and Regress."""

    name: str
    request: Any
    log: prediction_log.LoggedMethod


CLASSIFY = _Method("Classify", ClassificationRequest, prediction_log.LoggedMethod.CLASSIFY)
REGRESS = _Method("Regress", RegressionRequest, prediction_log.LoggedMethod.REGRESS)


class PredictionService:
    """TensorFlow Serving's prediction service, on the event loop. ``lookup`` finds the version for GetModelMetadata."""

    def __init__(
        self,
        predictor: Predictor,
        inferences: Inferences,
        lookup: Lookup,
        metrics: RequestMetrics,
        settings: PredictSettings,
        log: RequestLog = NO_LOG,
    ) -> None:
        self._predictor = predictor
        self._inferences = inferences
        self._lookup = lookup
        self._metrics = metrics
        self._reader = PredictReader(settings.check_method_names, settings.max_bytes)
        self._answers = AnswerWriter(settings.as_tensor_content)
        self._log = log

    def methods(self) -> list[Method]:
        rights = Rights(scope=Scope.PREDICT, models=names_at(1, 1))
        of_tasks = Rights(scope=Scope.PREDICT, models=names_at(1, 1, 1))
        return [
            unary(f"{SERVICE}/Predict", self.predict, refusable=True, **rights),
            unary(f"{SERVICE}/Classify", self.classify, refusable=True, **rights),
            unary(f"{SERVICE}/Regress", self.regress, refusable=True, **rights),
            unary(f"{SERVICE}/MultiInference", self.multi_inference, refusable=True, **of_tasks),
            unary(f"{SERVICE}/GetModelMetadata", self.get_model_metadata, **rights),
        ]

    def predict(self, data: bytes, context: CallContext) -> Reply[bytes]:
        with self._metrics.reading("Predict", context):
            parsed = self._reader.read(data)
        record = self._metrics.record("Predict", parsed.name, GRPC, context)

        def write(inference: Inference) -> bytes:
            if not record.shielded_from:  # the signature that it was checked against is not the one that has answered
                parsed.answered()
            signature = inference.run.signature
            answer = self._answers.write(inference.id, signature, inference.output)
            self._log.offer(inference.id, signature, len(data) + len(answer), partial(_predict_log, data, answer))
            return answer

        try:
            pending = self._predictor.begin(parsed.model(), parsed.plan, record, context.deadline)
        except Exception as error:
            record.end(error)
            raise
        return ModelReply(pending, record, write)

    async def classify(self, data: bytes, context: CallContext) -> bytes:
        return await self._with_examples(CLASSIFY, data, context, self._inferences.classify)

    async def regress(self, data: bytes, context: CallContext) -> bytes:
        return await self._with_examples(REGRESS, data, context, self._inferences.regress)

    async def _with_examples(self, method: _Method, data: bytes, context: CallContext, infer: Infer) -> bytes:
        with self._metrics.reading(method.name, context):
            request = parse(method.request, data)
        with self._metrics.record(method.name, request.model_spec.name, GRPC, context) as record:
            response = await infer(read_model_spec(request), request.input, record, context.deadline)
            answer = _bytes(response)
        self._offer(method.log, request, response, response.model_spec, len(data) + len(answer))
        return answer

    async def multi_inference(self, data: bytes, context: CallContext) -> bytes:
        with self._metrics.reading("MultiInference", context):
            request = parse(MultiInferenceRequest, data)
        name = request.tasks[0].model_spec.name if request.tasks else ""
        with self._metrics.record("MultiInference", name, GRPC, context) as record:
            response = await self._inferences.multi_inference(request, record, context.deadline)
            answer = _bytes(response)
        spec, size = response.results[0].model_spec, len(data) + len(answer)
        self._offer(prediction_log.LoggedMethod.MULTI_INFERENCE, request, response, spec, size)
        return answer

    async def get_model_metadata(self, data: bytes, context: CallContext) -> bytes:
        with self._metrics.reading("GetModelMetadata", context):
            request = parse(GetModelMetadataRequest, data)
        with self._metrics.record("GetModelMetadata", request.model_spec.name, GRPC, context) as record:
            ref = read_model_spec(request, require_name=False)
            _check_metadata_fields(request.metadata_field)
            if not ref.name:
                raise invalid_argument("ModelSpec has no name specified")
            with self._lookup(ref) as handle:
                record.version = handle.id.version
                response = GetModelMetadataResponse(model_spec=model_spec(ModelRef(ref.name, handle.id.version)))
                response.metadata[SIGNATURE_DEF].Pack(signature_def_map(handle.servable.signatures))
            return _bytes(response)

    def _offer(
        self, method: prediction_log.LoggedMethod, request: Message, response: Message, answered: Message, size: int
    ) -> None:
        """``answered`` is the model spec of the answer."""
        servable_id = ServableId(answered.name, answered.version.value)
        make = partial(prediction_log.make_log, method, request, response)
        self._log.offer(servable_id, answered.signature_name, size, make)


def _predict_log(data: bytes, answer: bytes) -> Message:
    """Makes the record of a prediction, on the log's thread."""
    request, response = parse(PredictRequest, data), parse(PredictResponse, answer)
    return prediction_log.make_log(prediction_log.LoggedMethod.PREDICT, request, response)


def _check_metadata_fields(fields: Any) -> None:
    if not fields:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in fields:
        if field != SIGNATURE_DEF:
            raise invalid_argument(f"Metadata field {field:.256} is not supported; {SIGNATURE_DEF} is")


def _bytes(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
