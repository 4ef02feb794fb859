"""Recorded requests run again: what the model is asked, and which requests are refused with which words."""

from __future__ import annotations

import threading
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.logs import examples_log, multi_log, predict_log
from tfs_lite.adapters.replay.requests import replay_of_body, replay_of_log
from tfs_lite.core.model import Model
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import CLASSIFY_METHOD, REGRESS_METHOD, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.messages import PredictionLog, TensorProto
from tfs_lite.protocols.tensorflow.prediction_log import logged_request
from tfs_lite.testing.lifecycle.servables import OwnClockServable

BATCH = SymbolicDim("batch")
X = TensorSpec("x", DataType.FLOAT, (BATCH, 2))
BIAS = TensorSpec("bias", DataType.FLOAT, (BATCH,))
ROWS = np.array([[1, 2], [3, 4]], np.float32)
EXAMPLES = [{"x": row} for row in ROWS.tolist()]
PATIENCE = 30.0


def output(name: str, dtype: DataType = DataType.FLOAT, *dims: int) -> TensorSpec:
    return TensorSpec(name, dtype, (BATCH, *dims))


class EveryMethod(Model):
    """Answers every signature as its method promises, and remembers what it was asked."""

    platform = "test"

    signatures: ClassVar = {
        "serving_default": Signature((X,), (output("y", DataType.FLOAT, 2), output("sum"))),
        "other": Signature((X,), (output("y", DataType.FLOAT, 2),)),
        "biased": Signature((X, BIAS), (output("y"),), defaults={"bias": np.float32(5)}),
        "label": Signature((X,), (output("classes", DataType.STRING, 1),), CLASSIFY_METHOD),
        "value": Signature((X,), (output("outputs"),), REGRESS_METHOD),
        "strange": Signature((X,), (output("y", DataType.FLOAT, 2),), "made/up"),
        "wide": Signature((X,), (output("outputs", DataType.FLOAT, 2),), REGRESS_METHOD),
    }

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict, tuple[str, ...]]] = []

    def run(self, signature, inputs, outputs):
        self.asked.append((signature, {name: array.tolist() for name, array in inputs.items()}, outputs))
        x = inputs["x"]
        value = x if signature == "wide" else x.sum(1)
        return {"y": x, "sum": x.sum(1), "classes": np.full((len(x), 1), b"cat", object), "outputs": value}

    def close(self) -> None:
        pass


@pytest.fixture
def model() -> EveryMethod:
    return EveryMethod()


@pytest.fixture
def servable(model):
    found = OwnClockServable([model], ServableId("m", 1))
    yield found
    found.close()


@pytest.fixture
def replay(servable):
    """Runs a logged request once."""

    def run(log, **options) -> None:
        request = logged_request(PredictionLog(**log))
        replay_of_log(servable.signatures, request, **options).once(servable, PATIENCE)

    return run


@pytest.fixture
def refused(replay):
    """The message with which a logged request is refused."""
    return partial(refusal, replay)


def predict(x=ROWS, **rest):
    return predict_log({"x": x}, **rest)


def classify(rows=EXAMPLES, **rest):
    return examples_log("classify", rows, **rest)


def regress(rows=EXAMPLES, **rest):
    return examples_log("regress", rows, **rest)


LABEL, VALUE = ("label", CLASSIFY_METHOD), ("value", REGRESS_METHOD)


@pytest.mark.parametrize(
    ("log", "runs"),
    [
        (predict(), [("serving_default", ())]),
        (predict(signature="other", output_filter=["y"]), [("other", ("y",))]),
        (predict(signature="strange"), [("strange", ())]),
        (classify(signature="label"), [("label", ("classes",))]),
        (regress(signature="value"), [("value", ("outputs",))]),
        (multi_log([VALUE, LABEL], EXAMPLES), [("value", ("outputs",)), ("label", ("classes",))]),
    ],
)
def test_the_model_is_asked_what_the_request_asks(model, replay, log, runs):
    replay(log)
    assert model.asked == [(signature, {"x": ROWS.tolist()}, outputs) for signature, outputs in runs]


def test_model_and_version_of_a_logged_request_do_not_count(model, replay):
    spec = {"name": "another", "version": {"value": 99}, "signature_name": "other"}
    replay(predict(model_spec=spec))
    assert [signature for signature, _, _ in model.asked] == ["other"]


def test_inputs_that_a_request_leaves_out_have_their_defaults(model, replay):
    replay(predict(signature="biased"))
    assert model.asked[0][1] == {"x": ROWS.tolist(), "bias": [5, 5]}


INVALID, PRECONDITION = StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("log", "code", "message"),
    [
        (predict(signature="nowhere"), PRECONDITION, 'Serving signature key "nowhere" not found'),
        ({"predict_log": {}}, INVALID, "input size does not match signature: 0!=1"),
        (predict(ROWS.astype(np.int32)), INVALID, "Expects arg[0] to be float but int32 is provided"),
        (predict(np.zeros((1, 3), np.float32)), INVALID, "input x has size 3 in dimension 1, expected 2"),
        (predict(TensorProto(dtype=1, tensor_content=b"123")), INVALID, "tensor parsing error: x: "),
        (predict(output_filter=["z"]), INVALID, "output tensor alias not found in signature: z"),
        (classify([], signature="label"), INVALID, "Input is empty"),
        (classify(signature="nowhere"), INVALID, "No signature was found with the name: nowhere"),
        (classify(), INVALID, "Expected classification signature outputs to contain at least one of"),
        (regress(signature="label"), INVALID, "No regression outputs found in SignatureDef"),
        (multi_log([], EXAMPLES), INVALID, "ModelSpec has no name specified"),
        (multi_log([LABEL, LABEL], EXAMPLES), INVALID, "Duplicate evaluation of signature: label"),
        (
            multi_log([("label", "other")], EXAMPLES),
            StatusCode.UNIMPLEMENTED,
            "Unsupported signature method_name: other",
        ),
    ],
)
def test_a_request_is_refused_as_a_live_one_is(model, refused, log, code, message):
    assert refused(log, code=code).startswith(message)
    assert model.asked == []


@pytest.mark.parametrize("log", [regress(signature="wide"), multi_log([("wide", REGRESS_METHOD)], EXAMPLES)])
def test_an_answer_that_its_method_does_not_allow_is_an_error(refused, log):
    assert "Expected output Tensor shape to be either [batch_size] or [batch_size, 1]" in refused(log)


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (predict(signature="strange"), "prediction"),
        (classify([{"x": [1.0, 2.0]}], signature="value"), "classification"),
        (regress(signature="label"), "regression"),
        (multi_log([("value", CLASSIFY_METHOD)], EXAMPLES), "classification"),
    ],
)
def test_method_names_are_checked_where_the_server_checks_them(refused, log, kind):
    assert f"Expected {kind} signature method_name" in refused(log, check_method_names=True)


@pytest.mark.parametrize("body", ['{"instances": [[1, 2], [3, 4]]}', '{"inputs": {"x": [[1, 2], [3, 4]]}}'])
def test_a_body_is_read_as_rest_reads_it(model, servable, body):
    replay_of_body(servable.signatures, body).once(servable, PATIENCE)
    assert model.asked == [("serving_default", {"x": ROWS.tolist()}, ())]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"instances"', "JSON Parse error"),
        ('{"instances": [[1, 2]], "inputs": 1}', "only one of 'instances' or 'inputs'"),
        ('{"signature_name": "nowhere", "inputs": 1}', 'Serving signature name: "nowhere" not found'),
        ('{"inputs": [["a", "b"]]}', "JSON Value"),
        ('{"inputs": [[1, 2, 3]]}', "input x has size 3 in dimension 1, expected 2"),
    ],
)
def test_a_body_is_refused_as_rest_refuses_it(model, servable, body, message):
    assert message in refusal(replay_of_body, servable.signatures, body)


def test_a_model_that_does_not_answer_is_not_waited_for_for_ever(model, servable):
    gate = threading.Event()
    model.run = lambda signature, inputs, outputs: {"y": inputs["x"]} if gate.wait(PATIENCE) else {}
    replay = replay_of_body(servable.signatures, '{"inputs": [[1, 2]]}')
    try:
        message = refusal(replay.once, servable, 0.05, code=StatusCode.DEADLINE_EXCEEDED)
    finally:
        gate.set()
    assert message == "the model did not answer within 0.05 s"
