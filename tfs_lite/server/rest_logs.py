"""What the request log keeps of a prediction over REST: the messages that gRPC would have carried.

Called on the log's own thread, for the few requests that are logged.
"""

from __future__ import annotations

from dataclasses import replace

from tfs_lite.protocols.messages import (
    ClassificationRequest,
    Message,
    PredictRequest,
    PredictResponse,
    RegressionRequest,
)
from tfs_lite.protocols.prediction_log import Method, make_log
from tfs_lite.protocols.serving import ModelRef, model_spec
from tfs_lite.protocols.tensor_proto import encode
from tfs_lite.server.predictor import Inference


def predict_log(ref: ModelRef, inference: Inference) -> Message:
    """A PredictionLog. ``ref`` is what the client asked for; the answer names what it got."""
    signature = inference.run.signature
    request = PredictRequest(model_spec=model_spec(replace(ref, signature=signature)))
    for name, array in inference.run.inputs.items():
        request.inputs[name].CopyFrom(encode(array))
    answered = ModelRef(inference.id.name, inference.id.version, signature=signature)
    response = PredictResponse(model_spec=model_spec(answered))
    for name, array in inference.output.items():
        response.outputs[name].CopyFrom(encode(array))
    return make_log(Method.PREDICT, request, response)


def example_log(method: Method, ref: ModelRef, input: Message, response: Message) -> Message:
    """A PredictionLog of a Classify or Regress request. ``input`` is an Input, ``response`` the method's answer."""
    kind = ClassificationRequest if method is Method.CLASSIFY else RegressionRequest
    return make_log(method, kind(model_spec=model_spec(ref), input=input), response)
