"""Classify, Regress and MultiInference without a model: signatures, tasks, and what outputs say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support.errors import refusal
from tfs_lite.core.signature import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD, Signature, TensorSpec
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.messages import ClassificationResult, Message, MultiInferenceRequest, RegressionResult
from tfs_lite.protocols.tensorflow import classify_regress as inference
from tfs_lite.protocols.tensorflow.classify_regress import classification_result, regression_result


def signature(*outputs: str, method: str = PREDICT_METHOD, inputs: int = 2) -> Signature:
    specs = tuple(TensorSpec(f"x{number}") for number in range(inputs))
    return Signature(specs, tuple(TensorSpec(name) for name in outputs), method)


def texts(*labels: Any) -> np.ndarray[Any, Any]:
    return np.array(labels, object)


# Signatures


@pytest.mark.parametrize("key", ["", "serving_default"])
def test_default_signature_needs_no_name(key: str) -> None:
    one = signature()
    assert inference.find_inference_signature({"serving_default": one}, key) is one


def test_unknown_signature_is_named() -> None:
    message = refusal(inference.find_inference_signature, {"b": signature(), "a": signature()}, "c")
    assert message == "No signature was found with the name: c. The model has: a,b"


CLASSIFY, REGRESS = inference.check_classify_signature, inference.check_regress_signature


@pytest.mark.parametrize(
    ("check", "outputs", "wanted"),
    [
        (CLASSIFY, ("classes",), ("classes",)),
        (CLASSIFY, ("scores",), ("scores",)),
        (CLASSIFY, ("scores", "classes"), ("classes", "scores")),
        (CLASSIFY, ("logits", "scores", "hidden", "classes"), ("classes", "scores")),
        (CLASSIFY, (), ()),
        (REGRESS, ("outputs",), ("outputs",)),
        (REGRESS, ("hidden", "outputs"), ("outputs",)),
        (REGRESS, (), ()),
    ],
)
def test_only_the_known_outputs_are_wanted(check: Any, outputs: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    assert check(signature(*outputs)) == wanted


AT_LEAST_ONE = "Expected classification signature outputs to contain at least one of classes, scores."


@pytest.mark.parametrize(
    ("check", "given", "words"),
    [
        (CLASSIFY, signature("scores", inputs=0), "Expected one input Tensor"),
        (CLASSIFY, signature("scores", inputs=0), "No classification inputs found in SignatureDef"),
        (REGRESS, signature("outputs", inputs=0), "Expected one input Tensor"),
        (REGRESS, signature("outputs", inputs=0), "No regression inputs found in SignatureDef"),
        (CLASSIFY, signature("y"), f"{AT_LEAST_ONE} Outputs: {{y}}"),
        (CLASSIFY, signature("y", "z"), AT_LEAST_ONE),
        (CLASSIFY, signature("x", "y", "z"), f"Expected one or two output Tensors, found 3. {AT_LEAST_ONE}"),
        (REGRESS, signature("y"), "No regression outputs found in SignatureDef: outputs is not among {y}"),
        (REGRESS, signature("y", "z"), "Expected one output Tensor, found 2. No regression outputs"),
    ],
)
def test_signature_that_does_not_fit_is_refused_in_known_words(check: Any, given: Signature, words: str) -> None:
    assert words in refusal(check, given)


@pytest.mark.parametrize(
    ("check", "outputs", "good", "words"),
    [
        (CLASSIFY, "scores", CLASSIFY_METHOD, "Expected classification signature method_name to be"),
        (REGRESS, "outputs", REGRESS_METHOD, "Expected regression signature method_name to be"),
    ],
)
def test_method_name_counts_only_when_it_is_checked(check: Any, outputs: str, good: str, words: str) -> None:
    check(signature(outputs, method=good), True)
    for method in {PREDICT_METHOD, CLASSIFY_METHOD, REGRESS_METHOD, "", "other"} - {good}:
        check(signature(outputs, method=method), False)
        message = refusal(check, signature(outputs, method=method), True)
        assert words in message
        assert message.endswith(f"Was: {method or 'empty'}")


def test_predict_runs_signatures_of_every_known_method() -> None:
    for method in (PREDICT_METHOD, CLASSIFY_METHOD, REGRESS_METHOD):
        inference.check_predict_method(signature(method=method))
    assert "Expected prediction signature method_name" in refusal(inference.check_predict_method, signature(method="x"))


# Results


def test_labels_and_scores_become_classes_and_absent_ones_are_empty_and_zero() -> None:
    outputs = {
        "classes": texts([b"cat", "døg"], [b"", b"cat"]),
        "scores": np.array([[0.25, 0.75], [0, -1]], np.float32),
        "hidden": np.zeros(7),
    }
    expected = ClassificationResult()
    for row in ((("cat", 0.25), ("døg", 0.75)), (("", 0), ("cat", -1))):
        expected.classifications.add(classes=[{"label": label, "score": score} for label, score in row])
    assert classification_result(outputs, 2) == expected
    (scored,) = classification_result({"scores": np.array([[0.5, 2]], np.float32)}, 1).classifications
    assert [(item.label, item.score) for item in scored.classes] == [("", 0.5), ("", 2)]
    (labelled,) = classification_result({"classes": texts([b"a", b"b"])}, 1).classifications
    assert [(item.label, item.score) for item in labelled.classes] == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("outputs", [{"scores": np.zeros((3, 0), np.float32)}, {"classes": np.empty((3, 0), object)}])
def test_no_classes_are_a_row_for_each_example(outputs: Any) -> None:
    assert [len(row.classes) for row in classification_result(outputs, 3).classifications] == [0, 0, 0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_scores_and_values_of_any_floating_type_are_taken(dtype: Any) -> None:
    assert classification_result({"scores": np.array([[1.5]], dtype)}, 1).classifications[0].classes[0].score == 1.5
    assert regression_result({"outputs": np.array([1.5], dtype)}, 1).regressions[0].value == 1.5


def test_doubles_beyond_float_become_infinite() -> None:
    assert regression_result({"outputs": np.array([1e300])}, 1).regressions[0].value == float("inf")


@st.composite
def classified(draw: st.DrawFn) -> dict[str, Any]:
    shape = (draw(st.integers(1, 4)), draw(st.integers(0, 5)))
    labels = st.one_of(st.sampled_from([b"a", b"b" * 200]), st.text(max_size=9).map(str.encode))
    return {
        "classes": draw(npst.arrays(object, shape, elements=labels)),
        "scores": draw(npst.arrays(np.float32, shape)),
    }


@given(classified())
def test_result_is_what_adding_class_by_class_gives(outputs: dict[str, Any]) -> None:
    expected = ClassificationResult()
    for labels, scores in zip(outputs["classes"], outputs["scores"].tolist(), strict=True):
        added = expected.classifications.add().classes
        for label, score in zip(labels, scores, strict=True):
            added.add(label=label.decode(), score=score)
    got = classification_result(outputs, len(outputs["scores"]))
    assert ClassificationResult.FromString(got.SerializeToString()).SerializeToString() == expected.SerializeToString()


@given(npst.arrays(np.float32, st.integers(1, 9)), st.booleans())
def test_regressions_keep_order_and_bits(values: np.ndarray[Any, Any], column: bool) -> None:
    result = regression_result({"outputs": values[:, np.newaxis] if column else values}, len(values))
    assert result == RegressionResult.FromString(result.SerializeToString()) or np.isnan(values).any()
    assert np.array([item.value for item in result.regressions], np.float32).tobytes() == _quiet(values).tobytes()


def _quiet(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As Python's floats hold them: NaNs that signal are quieted on the way."""
    return np.array(values.tolist(), np.float32)


SCORES = np.zeros((2, 3), np.float32)
LABELS = texts(*[[b"a", b"b", b"c"]] * 2)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"scores": SCORES[0]}, "Expected Tensor shape: [batch_size num_classes] but got [3]"),
        ({"classes": LABELS[0]}, "Expected Tensor shape: [batch_size num_classes] but got [3]"),
        ({"scores": SCORES[:, :, np.newaxis]}, "but got [2,3,1]"),
        ({"classes": SCORES}, "Expected classes Tensor of DT_STRING. Got: DT_FLOAT"),
        ({"scores": LABELS}, "Expected scores Tensor of DT_FLOAT. Got: DT_STRING"),
        ({"scores": SCORES.astype(np.int64)}, "Expected scores Tensor of DT_FLOAT. Got: DT_INT64"),
        ({"classes": LABELS[:1]}, "Expected classes output batch size of 2. Got: 1"),
        ({"scores": SCORES[:1]}, "Expected scores output batch size of 2. Got: 1"),
        ({"classes": LABELS, "scores": SCORES[:, :2]}, "class and score should match in dim_size(1). Got 3 vs. 2"),
        ({"classes": texts([b"\xff"], [b"a"])}, "a class label that is no UTF-8 text: b'\\xff'"),
        ({"classes": texts(["\ud800"], [b"a"])}, "a class label that is no UTF-8 text"),
        ({"classes": texts([b"a"], [7])}, "a class label of type int, expected bytes"),
        ({"classes": texts([[1]], [b"a"])[:, :1]}, "expected bytes"),
        ({"y": SCORES}, AT_LEAST_ONE),
        ({}, "Expected one or two output Tensors, found 0"),
    ],
)
def test_outputs_that_are_no_classes_are_refused_in_known_words(outputs: Any, words: str) -> None:
    assert words in refusal(classification_result, outputs, 2)


SHAPE = "Expected output Tensor shape to be either [batch_size] or [batch_size, 1]"


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"outputs": np.zeros((2, 2), np.float32)}, f"{SHAPE} but got [2,2]"),
        ({"outputs": np.zeros((2, 1, 1), np.float32)}, SHAPE),
        ({"outputs": np.float32(1).reshape(())}, f"{SHAPE} but got []"),
        ({"outputs": np.zeros(3, np.float32)}, "Input batch size did not match output batch size: 2 vs. 3"),
        ({"outputs": np.zeros((1, 1), np.float32)}, "Input batch size did not match output batch size: 2 vs. 1"),
        ({"outputs": np.zeros(2, np.int64)}, "Expected output Tensor of DT_FLOAT. Got: DT_INT64"),
        ({"y": np.zeros(2, np.float32)}, "No regression outputs found in SignatureDef"),
        ({}, "Expected one output Tensor, found 0"),
    ],
)
def test_outputs_that_are_no_values_are_refused_in_known_words(outputs: Any, words: str) -> None:
    assert words in refusal(regression_result, outputs, 2)


# Tasks

SIGNATURES = {
    "serving_default": signature("scores", method=CLASSIFY_METHOD),
    "price": signature("outputs", method=REGRESS_METHOD),
    "plain": signature("y"),
}


def request(*tasks: tuple[str, str, str]) -> Message:
    """Of model, signature and method."""
    return MultiInferenceRequest(
        tasks=[
            {"model_spec": {"name": model, "signature_name": key}, "method_name": method}
            for model, key, method in tasks
        ]
    )


def test_tasks_keep_their_order_and_know_what_they_want() -> None:
    tasks = inference.read_tasks(request(("m", "price", REGRESS_METHOD), ("m", "", CLASSIFY_METHOD)), SIGNATURES)
    assert [(task.key, task.kind.field, task.outputs) for task in tasks] == [
        ("price", "regression_result", ("outputs",)),
        ("serving_default", "classification_result", ("scores",)),
    ]


DEFAULT = ("m", "", CLASSIFY_METHOD)


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ((DEFAULT, ("", "price", REGRESS_METHOD)), "Found ModelSpec with an empty model name"),
        ((DEFAULT, ("other", "price", REGRESS_METHOD)), "must access the same model name: m, not other"),
        ((DEFAULT, DEFAULT), "Duplicate evaluation of signature: serving_default"),
        ((DEFAULT, ("m", "serving_default", REGRESS_METHOD)), "Duplicate evaluation of signature: serving_default"),
        ((("m", "nope", CLASSIFY_METHOD),), "Requested signature not found in model graph: nope"),
        ((("m", "price", CLASSIFY_METHOD),), AT_LEAST_ONE),
        ((DEFAULT, ("m", "plain", REGRESS_METHOD)), "No regression outputs found in SignatureDef"),
    ],
)
def test_tasks_that_make_no_sense_are_refused_in_known_words(tasks: Any, words: str) -> None:
    assert words in refusal(inference.read_tasks, request(*tasks), SIGNATURES)


@pytest.mark.parametrize("method", [PREDICT_METHOD, "", "classify"])
def test_tasks_of_other_methods_are_not_implemented(method: str) -> None:
    message = refusal(inference.read_tasks, request(("m", "", method)), SIGNATURES, code=StatusCode.UNIMPLEMENTED)
    assert message.startswith(f"Unsupported signature method_name: {method}.")


def test_method_names_of_signatures_are_checked_for_each_task() -> None:
    signatures = {"serving_default": signature("scores")}
    inference.read_tasks(request(DEFAULT), signatures)
    assert "method_name" in refusal(inference.read_tasks, request(DEFAULT), signatures, True)


@pytest.mark.parametrize(
    "asked", [request(), request(("", "", CLASSIFY_METHOD)), MultiInferenceRequest(tasks=[{}, {"method_name": "x"}])]
)
def test_request_without_a_model_names_none(asked: Message) -> None:
    assert refusal(inference.first_model_spec, asked) == "ModelSpec has no name specified"


def test_first_task_chooses_the_version() -> None:
    asked = request(DEFAULT, ("m", "price", REGRESS_METHOD))
    asked.tasks[0].model_spec.version.value = 3
    asked.tasks[1].model_spec.version_label = "ignored"
    ref = inference.first_model_spec(asked)
    assert (ref.name, ref.version, ref.label) == ("m", 3, None)
