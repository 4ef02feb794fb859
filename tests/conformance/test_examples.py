"""Classify, Regress and MultiInference through upstream's stubs, with tf.train.Example as users build them."""

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, get_model_metadata_pb2, inference_pb2, model_pb2, regression_pb2

TIMEOUT = 60.0
CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def example(**features):
    kinds = {float: "float_list", int: "int64_list", bytes: "bytes_list"}
    found = {name: tf.train.Feature(**{kinds[type(value)]: {"value": [value]}}) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=found))


def fill(request, examples, model, signature, context=None):
    request.model_spec.MergeFrom(model_pb2.ModelSpec(name=model, signature_name=signature))
    kind = request.input.example_list if context is None else request.input.example_list_with_context
    kind.examples.extend(examples)
    if context is not None:
        kind.context.CopyFrom(context)
    return request


def regress(stock, *examples, signature=REGRESS, model="half_plus_two"):
    request = fill(regression_pb2.RegressionRequest(), examples, model, signature)
    return stock.prediction.Regress(request, timeout=TIMEOUT)


def classify(stock, *examples, signature="", model="digits", context=None):
    request = fill(classification_pb2.ClassificationRequest(), examples, model, signature, context)
    return stock.prediction.Classify(request, timeout=TIMEOUT)


def test_half_plus_two_regresses_as_upstreams_own_example_does(stock):
    answer = regress(stock, example(x=1.0), example(x=2.0), example(x=5.0))
    assert [item.value for item in answer.result.regressions] == [2.5, 3.0, 4.5]
    assert answer.model_spec.version.value == 123
    assert answer.model_spec.signature_name == "tensorflow/serving/regress"


def test_half_plus_three_is_another_signature_of_the_same_model(stock):
    answer = regress(stock, example(x=1.0), example(x=5.0), signature="regress_x_to_y2")
    assert [item.value for item in answer.result.regressions] == [3.5, 5.5]


def test_half_plus_two_predicts_the_documented_instances(stock):
    answer = stock.predict("half_plus_two", {"x": np.array([1.0, 2.0, 5.0], np.float32)}, output_filter=["y"])
    assert list(answer.outputs["y"].float_val) == [2.5, 3.0, 4.5]


def test_integers_may_feed_float_inputs(stock):
    assert regress(stock, example(x=4)).result.regressions[0].value == 4.0


def test_classes_have_the_labels_of_the_file_and_the_scores_of_the_model(stock):
    answer = classify(stock, example(length=3.0, width=1.0), example(length=1.0, width=3.0))
    first, second = answer.result.classifications
    assert [item.label for item in first.classes] == ["long", "wide", "neither"]
    np.testing.assert_allclose([item.score for item in first.classes], tf.nn.softmax([3.0, 1.0, 2.0]), rtol=1e-6)
    assert max(second.classes, key=lambda item: item.score).label == "wide"
    assert answer.model_spec.signature_name == "serving_default"


def test_a_feature_left_out_takes_its_default(stock):
    plain, spelled = classify(stock, example(length=3.0)), classify(stock, example(length=3.0, width=0.5))
    assert plain.result == spelled.result


def test_the_context_feeds_every_example_and_an_example_wins_over_it(stock):
    answer = classify(stock, example(length=3.0), example(length=3.0, width=9.0), context=example(width=1.0))
    labels = [max(item.classes, key=lambda c: c.score).label for item in answer.result.classifications]
    assert labels == ["long", "wide"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda stock: regress(stock), "Input is empty"),
        (lambda stock: regress(stock, example(other=1.0)), "x"),
        (lambda stock: regress(stock, example(x=b"text")), "x"),
        (lambda stock: regress(stock, example(x=1.0), signature="nope"), "No signature was found with the name: nope"),
        (lambda stock: classify(stock, example(x=1.0), model="half_plus_two"), "Expected"),
        (lambda stock: regress(stock, example(length=1.0, width=1.0), model="digits", signature=""), "output"),
    ],
    ids=["empty", "missing feature", "wrong kind", "unknown signature", "no scores", "no regression"],
)
def test_bad_input_is_refused_with_invalid_argument(stock, refused, call, words):
    refused(INVALID, words, call, stock)


def multi(stock, *tasks):
    request = inference_pb2.MultiInferenceRequest()
    for model, signature, method in tasks:
        request.tasks.add(method_name=method, model_spec={"name": model, "signature_name": signature})
    request.input.example_list.examples.append(example(length=3.0, width=1.0))
    return stock.prediction.MultiInference(request, timeout=TIMEOUT)


def test_several_tasks_are_answered_in_their_order_by_one_version(stock):
    answer = multi(stock, ("digits", "total", REGRESS), ("digits", "", CLASSIFY))
    total, classes = answer.results
    assert total.regression_result.regressions[0].value == 4.0
    assert classes.classification_result.classifications[0].classes[0].label == "long"
    assert {item.model_spec.version.value for item in answer.results} == {123}


@pytest.mark.parametrize(
    ("tasks", "code", "words"),
    [
        ((), INVALID, "ModelSpec has no name specified"),
        ((("digits", "", CLASSIFY), ("half_plus_two", "", REGRESS)), INVALID, "must access the same model name"),
        ((("digits", "", CLASSIFY), ("digits", "serving_default", CLASSIFY)), INVALID, "Duplicate evaluation"),
        ((("digits", "nope", CLASSIFY),), INVALID, "Requested signature not found in model graph: nope"),
        ((("digits", "", "tensorflow/serving/predict"),), grpc.StatusCode.UNIMPLEMENTED, "Unsupported signature"),
        ((("nobody", "", CLASSIFY),), grpc.StatusCode.NOT_FOUND, "Servable not found"),
    ],
)
def test_contradicting_tasks_are_refused(stock, refused, tasks, code, words):
    refused(code, words, multi, stock, *tasks)


def test_metadata_has_every_signature_with_its_method(stock):
    answer = stock.metadata("digits")
    found = get_model_metadata_pb2.SignatureDefMap()
    answer.metadata["signature_def"].Unpack(found)
    methods = {key: signature.method_name for key, signature in found.signature_def.items()}
    assert methods["serving_default"] == CLASSIFY
    assert methods["total"] == REGRESS
    assert "width" in found.signature_def["serving_default"].defaults
