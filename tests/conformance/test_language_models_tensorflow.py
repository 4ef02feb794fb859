"""Language models through TensorFlow Serving's own stubs and over its REST API."""

import grpc
import numpy as np
import pytest
import requests
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

PATIENCE = 60
LONG = 16_000
"""Tokens: many seconds of work for the model ``narrow``."""
INVALID = grpc.StatusCode.INVALID_ARGUMENT
SAMPLING = {
    "max_tokens": tf.int32,
    "min_tokens": tf.int32,
    "temperature": tf.float32,
    "top_p": tf.float32,
    "min_p": tf.float32,
    "repetition_penalty": tf.float32,
    "presence_penalty": tf.float32,
    "frequency_penalty": tf.float32,
    "top_k": tf.int32,
    "seed": tf.int64,
    "ignore_eos": tf.bool,
    "priority": tf.int32,
    "stop_token_ids": tf.int64,
}
OF_TEXT = {"text_input": tf.string, "echo": tf.bool, "stop": tf.string}
OUTPUTS = {"token_ids": tf.int64, "finish_reason": tf.string, "prompt_tokens": tf.int32, "completion_tokens": tf.int32}


@pytest.fixture(scope="module")
def lm(language_server, connect):
    one = connect(language_server.target)
    yield one
    one.channel.close()


@pytest.fixture(scope="module")
def post(language_server):
    """``post(path, body)``: (status, tree)."""
    with requests.Session() as session:

        def send(path, body):
            answer = session.post(f"{language_server.url}/v1/models/{path}:predict", json=body, timeout=PATIENCE)
            return answer.status_code, answer.json()

        yield send


def greedy(limit=24):
    """Scalars, as tf.make_tensor_proto makes them of Python's numbers."""
    return {"temperature": tf.make_tensor_proto(0.0), "max_tokens": tf.make_tensor_proto(limit)}


def plain(answer):
    return {name: tf.make_ndarray(proto).tolist() for name, proto in answer.outputs.items()}


def test_texts_are_what_transformers_writes(lm, answers):
    for answer in answers.values():
        found = lm.predict("writer", {"text_input": tf.make_tensor_proto([answer.asked]), **greedy()})
        assert plain(found) == {
            "text_output": [answer.text.encode()],
            "token_ids": [answer.tokens],
            "finish_reason": [b"length"],
            "prompt_tokens": [len(answer.prompt)],
            "completion_tokens": [24],
        }
        assert {name: proto.dtype for name, proto in found.outputs.items()} == {
            "text_output": tf.string.as_datatype_enum,
            **{name: dtype.as_datatype_enum for name, dtype in OUTPUTS.items()},
        }
        assert (found.model_spec.version.value, found.model_spec.signature_name) == (2, "serving_default")


@pytest.mark.parametrize("rows", [False, True], ids=["one text", "a row of a table"])
def test_tokens_are_a_prompt_as_well(lm, answers, rows):
    for answer in answers.values():
        ids = tf.make_tensor_proto([answer.prompt] if rows else answer.prompt, dtype=tf.int64)
        assert plain(lm.predict("writer", {"input_ids": ids, **greedy()}))["token_ids"] == [answer.tokens]


def test_several_texts_have_values_of_their_own(lm, answers):
    limits = [24, 3, 7, 1]
    inputs = {"text_input": list(answers), "max_tokens": np.array(limits, np.int32), "temperature": np.float32(0)}
    found = plain(lm.predict("writer", inputs))
    assert found["text_output"] == [a.text[:n].encode() for a, n in zip(answers.values(), limits, strict=True)]
    assert found["token_ids"] == [
        (a.tokens[:n] + [-1] * 24)[:24] for a, n in zip(answers.values(), limits, strict=True)
    ]
    assert found["completion_tokens"] == limits


def test_every_value_for_sampling_may_be_sent(lm, story):
    values = {
        name: tf.make_tensor_proto(value, dtype=SAMPLING[name])
        for name, value in (
            *(("max_tokens", 24), ("min_tokens", 2), ("temperature", 0.5), ("top_p", 0.9), ("min_p", 0.01)),
            *(("repetition_penalty", 1.1), ("presence_penalty", 0.1), ("frequency_penalty", 0.1), ("top_k", 1)),
            *(("seed", 2**40), ("ignore_eos", True), ("priority", -1), ("stop_token_ids", [1, 2])),
        )
    }
    assert set(values) == set(SAMPLING)
    text = {"text_input": [story.asked], "echo": True, "stop": ["never there"]}
    first, second = (plain(lm.predict("writer", {**text, **values})) for _ in range(2))
    assert first == second
    assert first["text_output"][0].startswith(story.asked.encode() + story.text[:1].encode())


def test_seed_and_stop(lm, story):
    def text(**values):
        return plain(lm.predict("writer", {"text_input": [story.asked], "max_tokens": np.int32(24), **values}))

    assert text(seed=np.int64(7)) == text(seed=np.int64(7)) != text(seed=np.int64(8))
    stopped = text(temperature=np.float32(0), stop=np.array([story.text[9:12].encode()], object))
    assert (stopped["text_output"], stopped["finish_reason"]) == ([story.text[:9].encode()], [b"stop"])


def test_outputs_and_versions_are_chosen(lm, story):
    inputs = {"text_input": [story.asked], **greedy()}
    found = {
        version: plain(lm.predict("writer", inputs, version=version, output_filter=["text_output"]))
        for version in (1, 2)
    }
    assert found[2] == {"text_output": [story.text.encode()]} != found[1]


def test_metadata_lists_every_input_and_output(lm):
    def signature(model):
        found = get_model_metadata_pb2.SignatureDefMap()
        lm.metadata(model).metadata["signature_def"].Unpack(found)
        (only,) = found.signature_def.values()
        assert only.method_name == "tensorflow/serving/predict"
        return only

    def types(tensors):
        return {name: tf.as_dtype(info.dtype) for name, info in tensors.items()}

    writer, numbers = signature("writer"), signature("numbers")
    assert types(writer.inputs) == {"input_ids": tf.int64, **SAMPLING, **OF_TEXT}
    assert types(writer.outputs) == {"text_output": tf.string, **OUTPUTS}
    assert [dim.size for dim in writer.inputs["text_input"].tensor_shape.dim] == [-1]
    assert writer.inputs["input_ids"].tensor_shape.unknown_rank
    assert types(numbers.inputs) == {"input_ids": tf.int64, **SAMPLING}
    assert types(numbers.outputs) == OUTPUTS


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "expected either text_input or input_ids"),
        ({"text_input": ["x"], "input_ids": np.array([1])}, "both came"),
        ({"text_input": ["x"], "temprature": np.float32(1)}, "temprature"),
        ({"text_input": ["x"], "temperature": np.float32(-1)}, "temperature is -1.0"),
        ({"text_input": ["x"], "temperature": np.float64(1)}, "temperature"),
        ({"input_ids": np.array([1, 2], np.int32)}, "input_ids"),
        ({"input_ids": np.array([1, 999])}, "999"),
        ({"text_input": ["x"], "max_tokens": np.int32(512)}, "512"),
        ({"text_input": ["x", "y"], "seed": np.array([1, 2, 3])}, "seed has 3 values"),
        ({"text_input": np.array([b"\xff"], object)}, "UTF-8"),
    ],
    ids=range(10),
)
def test_bad_requests_are_refused(lm, refused, inputs, words):
    refused(INVALID, words, lm.predict, "writer", inputs)


def test_deadline_of_the_call_ends_the_text(lm, refused, language_server):
    inputs = {"text_input": ["x"], "max_tokens": np.int32(LONG)}
    with language_server.ends("narrow", "deadline", "cancelled"):
        refused(grpc.StatusCode.DEADLINE_EXCEEDED, "", lm.predict, "narrow", inputs, timeout=0.3)


def test_full_queue_is_unavailable(lm, refused, language_server):
    """One place, and one text may wait: two more are one too many. A call that is cancelled ends its text."""
    with language_server.ends("narrow", "cancelled"):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "narrow"
        request.inputs["text_input"].CopyFrom(tf.make_tensor_proto(["x"]))
        request.inputs["max_tokens"].CopyFrom(tf.make_tensor_proto(LONG))
        running = lm.prediction.Predict.future(request, timeout=PATIENCE)
        language_server.wait_for("running", "narrow")
        inputs = {"text_input": ["x", "y"], "max_tokens": np.int32(2)}
        refused(grpc.StatusCode.UNAVAILABLE, "queue", lm.predict, "narrow", inputs)
        running.cancel()
    assert plain(lm.predict("narrow", inputs))["completion_tokens"] == [2, 2]


def test_rest_in_columns(post, answers):
    status, found = post("writer", {"inputs": {"text_input": list(answers), "temperature": 0, "max_tokens": 24}})
    assert (status, found) == (
        200,
        {
            "outputs": {
                "text_output": [answer.text for answer in answers.values()],
                "token_ids": [answer.tokens for answer in answers.values()],
                "finish_reason": ["length"] * 4,
                "prompt_tokens": [len(answer.prompt) for answer in answers.values()],
                "completion_tokens": [24] * 4,
            }
        },
    )


def test_rest_in_rows(post, answers):
    rows = [{"text_input": asked, "temperature": 0, "max_tokens": 24} for asked in answers]
    status, found = post("writer/versions/2", {"instances": rows})
    assert (status, [row["text_output"] for row in found["predictions"]]) == (200, [a.text for a in answers.values()])
    ids = [{"input_ids": answer.prompt, "temperature": 0, "max_tokens": 24} for answer in list(answers.values())[:1]]
    status, found = post("writer", {"instances": ids})
    assert (status, found["predictions"][0]["text_output"]) == (200, next(iter(answers.values())).text)


def test_rest_of_tokens(post, story):
    status, found = post("writer", {"inputs": {"input_ids": story.prompt, "temperature": 0, "max_tokens": 24}})
    assert (status, found["outputs"]["token_ids"]) == (200, [story.tokens])


def test_rest_refuses_bad_bodies(post):
    for body, words in (
        ({"inputs": {"text_input": ["x"], "top_p": 0}}, "top_p is 0.0"),
        ({"instances": [{"text_input": "x", "seed": 1}, {"text_input": "y"}]}, "every element has to have seed"),
        ({"inputs": {"max_tokens": 4}}, "expected either text_input or input_ids"),
    ):
        status, found = post("writer", body)
        assert (status, words in found["error"]) == (400, True), found
