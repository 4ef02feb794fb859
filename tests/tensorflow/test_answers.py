"""What the stock client of TensorFlow Serving gets from SavedModels, and from the same model in PyTorch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
apis = pytest.importorskip("tensorflow_serving.apis")

from tensorflow_serving.apis import (  # noqa: E402
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

if TYPE_CHECKING:
    from tests.support.servers.in_process import ServerFixture

ROWS = np.array([[1.0, 2.0], [-0.5, 0.25]], np.float32)
WEIGHTS = np.array([[1.0, -2.0, 0.5], [0.25, 0.5, -1.0]], np.float32)
SCORES = np.exp(ROWS @ WEIGHTS) / np.exp(ROWS @ WEIGHTS).sum(1, keepdims=True)
SUMS = (ROWS @ WEIGHTS).sum(1)
TIMEOUT = 30.0


@pytest.fixture(scope="module")
def stub(served: ServerFixture):
    with grpc.insecure_channel(served.target) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def examples(request: Any) -> Any:
    """The request with an Example of each row."""
    for row in ROWS:
        request.input.example_list.examples.add().features.feature["x"].float_list.value.extend(row)
    return request


def predict(
    stub, model: str, inputs: dict[str, Any], signature: str = "", filter: tuple[str, ...] = ()
) -> dict[str, Any]:
    request = predict_pb2.PredictRequest(output_filter=filter)
    request.model_spec.name, request.model_spec.signature_name = model, signature
    request.model_spec.version.value = 1
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return {name: tf.make_ndarray(proto) for name, proto in stub.Predict(request, timeout=TIMEOUT).outputs.items()}


def failure(call, *arguments: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    return caught.value


@pytest.mark.parametrize("model", ["three", "torch"])
def test_predict_answers_as_the_same_model_in_torch(stub, model: str) -> None:
    np.testing.assert_allclose(predict(stub, model, {"x": ROWS})["y"], SCORES, rtol=1e-5)


@pytest.mark.parametrize("model", ["three", "torch"])
def test_classify_has_labels_and_scores(stub, model: str) -> None:
    request = examples(classification_pb2.ClassificationRequest())
    request.model_spec.name, request.model_spec.signature_name = model, "classify"
    request.model_spec.version.value = 1
    result = stub.Classify(request, timeout=TIMEOUT).result
    for found, scores in zip(result.classifications, SCORES, strict=True):
        assert [each.label for each in found.classes] == ["cat", "dog", "owl"]
        np.testing.assert_allclose([each.score for each in found.classes], scores, rtol=1e-5)


@pytest.mark.parametrize("model", ["three", "torch"])
def test_regress_has_a_number_for_each_example(stub, model: str) -> None:
    request = examples(regression_pb2.RegressionRequest())
    request.model_spec.name, request.model_spec.signature_name = model, "regress"
    request.model_spec.version.value = 1
    found = [each.value for each in stub.Regress(request, timeout=TIMEOUT).result.regressions]
    np.testing.assert_allclose(found, SUMS, rtol=1e-5)


@pytest.mark.parametrize("model", ["three", "torch"])
def test_multi_inference_asks_several_signatures_at_once(stub, model: str) -> None:
    request = examples(inference_pb2.MultiInferenceRequest())
    for key, method in (("classify", "tensorflow/serving/classify"), ("regress", "tensorflow/serving/regress")):
        task = request.tasks.add(method_name=method)
        task.model_spec.name, task.model_spec.signature_name = model, key
        task.model_spec.version.value = 1
    first, second = stub.MultiInference(request, timeout=TIMEOUT).results
    scores = [each.score for each in first.classification_result.classifications[1].classes]
    np.testing.assert_allclose(scores, SCORES[1], rtol=1e-5)
    np.testing.assert_allclose([each.value for each in second.regression_result.regressions], SUMS, rtol=1e-5)


def test_predict_takes_serialised_examples_under_the_signatures_key(stub) -> None:
    texts = [
        example.SerializeToString()
        for example in examples(classification_pb2.ClassificationRequest()).input.example_list.examples
    ]
    answer = predict(stub, "three", {"inputs": texts}, "classify", filter=("scores",))
    assert set(answer) == {"scores"}
    np.testing.assert_allclose(answer["scores"], SCORES, rtol=1e-5)


def test_metadata_has_every_signature_with_its_method(stub) -> None:
    def signatures(model: str) -> dict[str, str]:
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = model
        found = get_model_metadata_pb2.SignatureDefMap()
        assert stub.GetModelMetadata(request, timeout=TIMEOUT).metadata["signature_def"].Unpack(found)
        return {key: definition.method_name for key, definition in found.signature_def.items()}

    assert signatures("three") == dict.fromkeys(
        ("serving_default", "classify", "regress"), "tensorflow/serving/predict"
    )
    assert signatures("old") == {
        "serving_default": "tensorflow/serving/classify",
        "regress": "tensorflow/serving/regress",
    }


def test_signature_that_the_model_has_not_is_refused_with_those_it_has(stub) -> None:
    error = failure(predict, stub, "three", {"x": ROWS}, "nothing")
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert 'Serving signature key "nothing" not found' in error.details()
    assert "classify,regress,serving_default" in error.details()


def test_graph_of_tensorflow_1_is_classified_with(stub) -> None:
    request = examples(classification_pb2.ClassificationRequest())
    request.model_spec.name = "old"
    result = stub.Classify(request, timeout=TIMEOUT).result
    np.testing.assert_allclose([each.score for each in result.classifications[0].classes], SCORES[0], rtol=1e-5)


def test_every_element_type_comes_back(stub) -> None:
    number = np.array([[1, 3]])
    inputs = {
        "half": number.astype(np.float16),
        "bfloat": tf.cast(number, tf.bfloat16).numpy(),
        **{
            name: number.astype(name)
            for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
        },
        "single": number.astype(np.float32),
        "double": number.astype(np.float64),
        "complex64": (number + 2j).astype(np.complex64),
        "complex128": (number - 2j).astype(np.complex128),
        "flag": np.array([[True, False]]),
        "text": np.array([[b"a\xff", b""]], object),
    }
    answer = predict(stub, "many", inputs, "same")
    for name, sent in inputs.items():
        assert answer[f"{name}_out"].dtype == sent.dtype, name
        np.testing.assert_array_equal(answer[f"{name}_out"], sent)


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ({"x": np.zeros((1, 3), np.float32)}, "x"),
        ({"x": np.zeros((1, 1, 2), np.float32)}, "x"),
        ({"x": np.zeros((1, 2), np.float64)}, "double"),
        ({"x": [["a", "b"]]}, "string"),
        ({}, "x"),
        ({"z": ROWS}, "z"),
        ({"x": ROWS, "z": ROWS}, "z"),
    ],
    ids=["width", "rank", "element type", "texts", "no input", "another input", "one input more"],
)
def test_wrong_input_is_refused_and_the_next_request_is_answered(stub, inputs: dict[str, Any], word: str) -> None:
    error = failure(predict, stub, "three", inputs)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    assert word in error.details()
    np.testing.assert_allclose(predict(stub, "three", {"x": ROWS})["y"], SCORES, rtol=1e-5)


@pytest.mark.parametrize("model", ["half", "shapeless"])
@pytest.mark.parametrize(
    "x", [[1.0, 2.0, 5.0], 2.0, [[1.0], [2.0]], [[1.0, 2.0]], [[[1.0]]], np.zeros((0, 3))], ids=str
)
def test_graph_takes_inputs_of_every_shape_as_in_tensorflow_serving(stub, model: str, x: Any) -> None:
    """It is declared as [-1, 1], or not at all."""
    sent = np.asarray(x, np.float32)
    found = predict(stub, model, {"x": sent})["y"]
    assert found.shape == sent.shape
    np.testing.assert_array_equal(found, sent / 2 + 2)


@pytest.mark.parametrize("model", ["half", "shapeless"])
def test_first_example_of_tensorflow_servings_readme_is_answered(served: ServerFixture, model: str) -> None:
    url = f"{served.url}/v1/models/{model}:predict"
    assert httpx.post(url, json={"instances": [1.0, 2.0, 5.0]}).json() == {"predictions": [2.5, 3.0, 4.5]}
    assert httpx.post(url, json={"inputs": [1.0, 2.0, 5.0]}).json() == {"outputs": [2.5, 3.0, 4.5]}
    assert httpx.post(url, json={"instances": [{"x": 1.0}, {"x": 2.0}]}).json() == {"predictions": [2.5, 3.0]}
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1.0, 2.0, 5.0]}]}
    (found,) = httpx.post(f"{served.url}/v2/models/{model}/infer", json=body).json()["outputs"]
    assert (found["shape"], found["data"]) == ([3], [2.5, 3.0, 4.5])


def test_what_the_graph_refuses_is_told_with_the_declared_shape(stub) -> None:
    error = failure(predict, stub, "three", {"x": np.zeros((2, 3), np.float32)})
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]" in error.details()
    assert "input x has size 3 in dimension 1, expected 2: got shape [2,3], expected [-1,2]" in error.details()


def test_references_are_answered_with_their_values(stub) -> None:
    """A variable of TensorFlow 1, as in TensorFlow Serving's own counter."""

    def call(signature: str, **inputs: Any) -> float:
        return float(predict(stub, "counter", inputs, signature)["output"])

    assert call("reset_counter") == 0.0
    assert [call("incr_counter"), call("incr_counter_by", delta=np.float32(2.5)), call("get_counter")] == [
        1.0,
        3.5,
        3.5,
    ]
    assert call("reset_counter") == 0.0


def test_model_that_was_saved_with_its_optimizer_is_served(stub) -> None:
    np.testing.assert_allclose(predict(stub, "trained", {"x": ROWS})["y"], SCORES, rtol=1e-5)


def test_tables_of_tensorflow_1_are_filled_from_the_versions_assets(stub) -> None:
    assert predict(stub, "half", {"word": ["two", "zero", "else"]}, "words")["number"].tolist() == [2, 0, -1]


def test_metadata_has_the_tensors_names_of_the_file(stub) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "half"
    found = get_model_metadata_pb2.SignatureDefMap()
    assert stub.GetModelMetadata(request, timeout=TIMEOUT).metadata["signature_def"].Unpack(found)
    regress = found.signature_def["regress_x_to_y"]
    assert (regress.inputs["inputs"].name, regress.outputs["outputs"].name) == ("tf_example:0", "y:0")


def test_no_rows_are_no_rows(stub) -> None:
    assert predict(stub, "three", {"x": np.zeros((0, 2), np.float32)})["y"].shape == (0, 3)
    assert predict(stub, "many", {"word": np.zeros((0,), object).astype(str)}, "words")["number"].shape == (0,)


def test_texts_are_looked_up_in_the_versions_vocabulary(stub) -> None:
    answer = predict(stub, "many", {"word": ["two", "zero", "else"]}, "words")
    assert answer["number"].tolist() == [2, 0, 3]
    assert answer["upper"].tolist() == [b"TWO", b"ZERO", b"ELSE"]


def test_variable_keeps_what_requests_did_to_it(stub) -> None:
    first = float(predict(stub, "many", {"add": np.float32(1)}, "count")["total"])
    assert float(predict(stub, "many", {"add": np.float32(2)}, "count")["total"]) == first + 2


def test_models_own_refusal_blames_the_request_without_a_path_or_a_stack(stub) -> None:
    error = failure(predict, stub, "many", {"word": ["bad"]}, "words")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "a bad word" in error.details()
    assert "\n" not in error.details()
    assert "site-packages" not in error.details()


def test_example_that_cannot_be_parsed_blames_the_request(stub) -> None:
    error = failure(predict, stub, "three", {"inputs": [b"nonsense"]}, "regress")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Could not parse example input" in error.details()


def test_rest_takes_the_signatures_name(served: ServerFixture) -> None:
    url = f"{served.url}/v1/models/three/versions/1"
    example = {"x": [1.0, 2.0]}
    found = httpx.post(f"{url}:regress", json={"signature_name": "regress", "examples": [example]}).json()
    np.testing.assert_allclose(found["results"], SUMS[:1], rtol=1e-5)
    found = httpx.post(f"{url}:classify", json={"signature_name": "classify", "examples": [example]}).json()
    assert [label for label, _ in found["results"][0]] == ["cat", "dog", "owl"]
    found = httpx.post(f"{url}:predict", json={"instances": ROWS.tolist()}).json()
    np.testing.assert_allclose(found["predictions"], SCORES, rtol=1e-5)
    assert set(httpx.get(f"{url}/metadata").json()["metadata"]["signature_def"]["signature_def"]) == {
        "classify",
        "regress",
        "serving_default",
    }


def test_v2_serves_the_default_signature(served: ServerFixture) -> None:
    url = f"{served.url}/v2/models/three/versions/1"
    metadata = httpx.get(url).json()
    assert metadata["platform"] == "tensorflow_savedmodel"
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": ROWS.ravel().tolist()}]}
    (found,) = httpx.post(f"{url}/infer", content=json.dumps(body)).json()["outputs"]
    np.testing.assert_allclose(found["data"], SCORES.ravel(), rtol=1e-5)
