"""PredictionService from bytes to bytes: checks in their order, counts, the log, and the flags that change it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.support.errors import refusal
from tests.support.servers.examples import rows
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import CLASSIFY_METHOD, REGRESS_METHOD, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import StatusCode, not_found
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode
from tfs_lite.server.inference.classify_regress import Inferences
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.tensorflow.prediction_service import SERVICE, PredictionService
from tfs_lite.server.tensorflow.settings import PredictSettings
from tfs_lite.transport.table import CallContext

BATCH = SymbolicDim("batch")
X = TensorSpec("x", DataType.FLOAT, (BATCH,))
K = TensorSpec("k", DataType.FLOAT, (BATCH,))
OUTPUTS = (
    TensorSpec("scores", DataType.FLOAT, (BATCH, 1)),
    TensorSpec("outputs", DataType.FLOAT, (BATCH,)),
    TensorSpec("text", DataType.STRING, (BATCH,)),
)
SENT = rows({"x": [1.5]}, {"x": [2.5]})


class Echo:
    """Answers at once."""

    traits = Traits("test")
    signatures: ClassVar[dict[str, Signature]] = {
        "serving_default": Signature((X, K), OUTPUTS),
        "scored": Signature((X,), OUTPUTS, CLASSIFY_METHOD),
        "valued": Signature((X,), OUTPUTS, REGRESS_METHOD),
        "half": Signature((X, K), OUTPUTS, "tensorflow/serving/other", {"k": np.array(5, np.float32)}),
    }

    def submit(self, call: PredictCall) -> None:
        x: Any = call.inputs["x"]
        texts = np.array([b"text"] * len(x), object)
        k: Any = call.inputs.get("k", 0)
        answers = {"scores": (x + k)[:, np.newaxis], "outputs": x + k, "text": texts}
        call.on_done({name: answers[name] for name in call.outputs or answers})

    def cancel(self, call: PredictCall) -> None:
        """Every call is answered by now."""

    def close(self) -> None:
        """Nothing to do."""


class Log:
    def __init__(self) -> None:
        self.offers: list[tuple[ServableId, str, int, Callable[[], Message]]] = []

    def offer(self, servable_id: ServableId, signature: str, size: int, make: Callable[[], Message]) -> None:
        self.offers.append((servable_id, signature, size, make))


class ServiceFixture:
    def __init__(self, **flags: Any) -> None:
        self.registry = CollectorRegistry()
        self.log = Log()
        metrics = RequestMetrics(self.registry, lambda name: name == "m")
        predictor = Predictor(self.lookup, metrics)
        inferences = Inferences(predictor, flags.get("check_method_names", False))
        settings = PredictSettings(**{"max_bytes": 1000, **flags})
        self.service = PredictionService(predictor, inferences, self.lookup, metrics, settings, self.log)
        self.handlers: dict[str, Any] = {method.name: method.handler for method in self.service.methods()}

    def lookup(self, ref: ModelRef) -> ServableHandle:
        if ref.name != "m":
            raise not_found(f"Servable not found for request: Latest({ref.name})")
        return ServableHandle(ServableId("m", 7), Echo(), lambda: None)

    def call(self, method: str, request: Message | bytes) -> Message:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answer = asyncio.run(self._ask(method, data))
        return ANSWERS[method].FromString(answer)

    async def _ask(self, method: str, data: bytes) -> bytes:
        answer: bytes = await self.handlers[method](data, CallContext(None))
        return answer

    def counts(self) -> dict[tuple[str, str, str], float]:
        """By method, model and code."""
        return {
            (sample.labels["method"], sample.labels["model"], sample.labels["code"]): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "tfs_lite_requests_total"
        }


ANSWERS = {
    "Predict": messages.PredictResponse,
    "Classify": messages.ClassificationResponse,
    "Regress": messages.RegressionResponse,
    "MultiInference": messages.MultiInferenceResponse,
    "GetModelMetadata": messages.GetModelMetadataResponse,
}


@pytest.fixture
def fixture() -> ServiceFixture:
    return ServiceFixture()


def predict(signature: str = "", outputs: Any = (), model: str = "m", **inputs: Any) -> Message:
    """Inputs are arrays or TensorProtos."""
    request = messages.PredictRequest(
        model_spec={"name": model, "signature_name": signature}, output_filter=list(outputs)
    )
    for name, value in inputs.items():
        tensor = encode(np.asarray(value, np.float32)) if isinstance(value, list) else value
        request.inputs[name].CopyFrom(tensor)
    return request


def classify(signature: str = "scored", input: Message = SENT, model: str = "m") -> Message:
    spec = {"name": model, "signature_name": signature}
    return messages.ClassificationRequest(model_spec=spec, input=input)


def regress(signature: str = "valued", input: Message = SENT, model: str = "m") -> Message:
    return messages.RegressionRequest(model_spec={"name": model, "signature_name": signature}, input=input)


def multi(*keys: str, input: Message = SENT, model: str = "m") -> Message:
    request = messages.MultiInferenceRequest(input=input)
    for key in keys or ("valued", "scored"):
        method = CLASSIFY_METHOD if key == "scored" else REGRESS_METHOD
        request.tasks.add(model_spec={"name": model, "signature_name": key}, method_name=method)
    return request


def metadata(model: str = "m") -> Message:
    return messages.GetModelMetadataRequest(model_spec={"name": model}, metadata_field=["signature_def"])


REQUESTS = {
    "Predict": predict(x=[1], k=[2]),
    "Classify": classify(),
    "Regress": regress(),
    "MultiInference": multi(),
    "GetModelMetadata": metadata(),
}
FIELDS = {
    "Predict": "predict_log",
    "Classify": "classify_log",
    "Regress": "regress_log",
    "MultiInference": "multi_inference_log",
}


def test_every_method_of_the_service_is_there(fixture: ServiceFixture) -> None:
    assert {method.path for method in fixture.service.methods()} == {f"{SERVICE}/{name}" for name in ANSWERS}


@pytest.mark.parametrize("method", ANSWERS)
def test_every_method_is_counted_by_model_and_code(fixture: ServiceFixture, method: str) -> None:
    fixture.call(method, REQUESTS[method])
    nobody = {
        "Predict": predict(model="nobody", x=[1], k=[2]),
        "Classify": classify(model="nobody"),
        "Regress": regress(model="nobody"),
        "MultiInference": multi(model="nobody"),
        "GetModelMetadata": metadata("nobody"),
    }
    assert "Latest(nobody)" in refusal(fixture.call, method, nobody[method], code=StatusCode.NOT_FOUND)
    refusal(fixture.call, method, b"")
    counts = {(model, code): value for (found, model, code), value in fixture.counts().items() if found == method}
    assert counts.pop(("m", "OK")) == 1
    assert counts.pop(("unknown", "NOT_FOUND")) == 1
    assert {code: value for (_, code), value in counts.items()} == {"INVALID_ARGUMENT": 1}


@pytest.mark.parametrize("method", ANSWERS)
def test_bytes_that_are_no_message_count_for_an_unknown_model(fixture: ServiceFixture, method: str) -> None:
    assert "are not a tensorflow.serving." in refusal(fixture.call, method, b"\xff\xff")
    assert fixture.counts() == {(method, "unknown", "INVALID_ARGUMENT"): 1}


@pytest.mark.parametrize("method", sorted(set(ANSWERS) - {"MultiInference"}))
def test_model_must_be_named(fixture: ServiceFixture, method: str) -> None:
    assert refusal(fixture.call, method, b"") == "Missing ModelSpec"
    unnamed = type(REQUESTS[method])()
    unnamed.CopyFrom(REQUESTS[method])
    unnamed.model_spec.name = ""
    assert refusal(fixture.call, method, unnamed) == "ModelSpec has no name specified"


# Predict


def test_checks_of_predict_come_in_the_known_order(fixture: ServiceFixture) -> None:
    broken = messages.TensorProto(dtype=1, tensor_shape={"dim": [{"size": -1}]})
    steps = [
        (predict("no", w=broken), 'Serving signature key "no" not found'),
        (predict("", ("no",), w=broken), "input size does not match signature: 1!=2"),
        (predict("", ("no",), x=broken, w=broken), "Signature input alias: k not found in request"),
        (predict("half", ("no",), x=broken, w=broken), "Inputs contains invalid name: w."),
        (predict("", ("no",), x=broken, k=broken), "tensor parsing error: "),
        (predict("", ("no",), x=encode(np.zeros(1)), k=[1]), "output tensor alias not found in signature: no"),
        (predict("", ("text", "text"), x=encode(np.zeros(1)), k=[1]), "duplicate output tensor alias: text"),
        (predict("", (), x=encode(np.zeros(1)), k=[1]), "to be float but double is provided"),
    ]
    codes = [StatusCode.FAILED_PRECONDITION] + [StatusCode.INVALID_ARGUMENT] * 7
    for (request, words), code in zip(steps, codes, strict=True):
        assert words in refusal(fixture.call, "Predict", request, code=code)


def test_predict_fills_in_defaults(fixture: ServiceFixture) -> None:
    answer = fixture.call("Predict", predict("half", ("outputs",), x=[1, 2]))
    assert {name: list(tensor.float_val) for name, tensor in answer.outputs.items()} == {"outputs": [6, 7]}
    assert (answer.model_spec.version.value, answer.model_spec.signature_name) == (7, "half")


@pytest.mark.parametrize("key", ["scored", "valued"])
def test_predict_works_on_signatures_of_other_methods(key: str) -> None:
    fixture = ServiceFixture(check_method_names=True)
    assert set(fixture.call("Predict", predict(key, x=[1])).outputs) == {"scores", "outputs", "text"}


def test_predict_checks_the_method_name_before_the_inputs_where_the_server_says_so(fixture: ServiceFixture) -> None:
    fixture.call("Predict", predict("half", x=[1]))
    message = refusal(ServiceFixture(check_method_names=True).call, "Predict", predict("half"))
    assert message.startswith("Expected prediction signature method_name")
    assert message.endswith("Was: tensorflow/serving/other")


def test_repeated_values_fill_no_more_than_the_bound() -> None:
    short = messages.TensorProto(dtype=1, tensor_shape={"dim": [{"size": 26}]}, float_val=[1])
    assert "at most 100 are allowed" in refusal(
        ServiceFixture(max_bytes=100).call, "Predict", predict("scored", x=short)
    )


def test_answers_carry_typed_fields_or_raw_bytes(fixture: ServiceFixture) -> None:
    request = predict("scored", x=[1.5])
    typed, raw = fixture.call("Predict", request), ServiceFixture(as_tensor_content=True).call("Predict", request)
    assert list(typed.outputs["outputs"].float_val) == [1.5]
    assert not typed.outputs["outputs"].tensor_content
    assert raw.outputs["outputs"].tensor_content == np.float32(1.5).tobytes()
    assert not raw.outputs["outputs"].float_val
    assert raw.outputs["text"] == typed.outputs["text"]
    for name in typed.outputs:
        assert decode(raw.outputs[name], name).tolist() == decode(typed.outputs[name], name).tolist()


# The log


@pytest.mark.parametrize("method", FIELDS)
def test_answered_requests_are_offered_to_the_log(fixture: ServiceFixture, method: str) -> None:
    request = REQUESTS[method]
    answer = fixture.call(method, request)
    ((servable_id, signature, size, make),) = fixture.log.offers
    assert servable_id == ServableId("m", 7)
    spec = answer.results[0].model_spec if method == "MultiInference" else answer.model_spec
    assert signature == spec.signature_name != ""
    assert size == request.ByteSize() + answer.ByteSize()
    log = make()
    assert log.WhichOneof("log_type") == FIELDS[method]
    assert not log.HasField("log_metadata")
    entry = getattr(log, FIELDS[method])
    assert (entry.request, entry.response) == (request, answer)


@pytest.mark.parametrize("as_content", [False, True], ids=["typed", "content"])
def test_requests_that_differ_in_numbers_are_answered_counted_and_logged_each_as_it_is(as_content: bool) -> None:
    fixture = ServiceFixture(as_tensor_content=as_content)
    requests = [predict(x=[number, 1], k=[10, 20]) for number in range(4)]

    async def main() -> list[bytes]:
        ask = fixture.handlers["Predict"]
        return [await ask(request.SerializeToString(), CallContext(None)) for request in requests]

    answers = [messages.PredictResponse.FromString(answer) for answer in asyncio.run(main())]
    assert [decode(answer.outputs["outputs"], "").tolist() for answer in answers] == [[n + 10, 21] for n in range(4)]
    assert fixture.counts() == {("Predict", "m", "OK"): 4}
    logs = [make().predict_log for _, _, _, make in fixture.log.offers]
    assert [(log.request, log.response) for log in logs] == list(zip(requests, answers, strict=True))


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Predict", predict()),
        ("Classify", classify(input=messages.Input())),
        ("Regress", regress("nope")),
        ("MultiInference", multi("nope")),
    ],
)
def test_refused_requests_are_not_logged(fixture: ServiceFixture, method: str, request_: Message) -> None:
    refusal(fixture.call, method, request_)
    assert fixture.log.offers == []


def test_metadata_is_not_logged(fixture: ServiceFixture) -> None:
    packed = fixture.call("GetModelMetadata", metadata()).metadata["signature_def"]
    found = messages.SignatureDefMap.FromString(packed.value).signature_def
    assert set(found) == set(Echo.signatures)
    assert fixture.log.offers == []
