"""Several signatures of one model, on real models: exported programs and Python."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import tfs_lite
from tests.support.errors import refusal
from tests.support.servers.platforms import write_module, write_plain, write_python
from tfs_lite.adapters.python.model import open_python
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.adapters.signatures import SignedModel, mappings_of, sign
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.text import load_model_settings, parse_model_settings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import (
    CLASSIFY_METHOD,
    PREDICT_METHOD,
    REGRESS_METHOD,
    DataType,
    Signature,
    SymbolicDim,
    TensorSpec,
    check_inputs,
)
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import from_numpy
from tfs_lite.protocols.runs import fill_defaults

DIGITS = "\n".join(f"digit {number}" for number in range(10))
EXAMPLE = """
signatures:
  classify_digits: {method_name: classify, outputs: {scores: output_0}, label_filename: labels.txt}
"""


class Digits(torch.nn.Module):
    """Scores of ten digits: the first ten of 64 pixels."""

    def forward(self, x):
        return x[:, :10] * 2


class House(torch.nn.Module):
    """Two inputs, three outputs."""

    def forward(self, size, rooms):
        price = size * 2 + rooms
        return {"price": price, "classes_of": price > 1, "twice": price * 2}


@pytest.fixture(scope="session")
def digits_once(tmp_path_factory):
    return tfs_lite.save(Digits(), tmp_path_factory.mktemp("digits"), example_inputs=(torch.zeros(2, 64),))


@pytest.fixture(scope="session")
def house_once(tmp_path_factory):
    examples = {"size": torch.zeros(2), "rooms": torch.zeros(2)}
    return tfs_lite.save(House(), tmp_path_factory.mktemp("house"), example_inputs=examples)


@pytest.fixture
def digits(digits_once, tmp_path):
    return Path(shutil.copytree(digits_once, tmp_path / "digits" / "1"))


@pytest.fixture
def signed(request_for):
    """Opens the version of a directory under the settings of a YAML text, else under those beside it."""
    models = []

    def open_signed(directory, text="", opener=open_exported):
        settings = parse_model_settings(text, "config.yaml") if text else load_model_settings(directory, "m")
        request = request_for(directory, settings, trusted=True)
        models.append(opener(request))
        models[-1] = sign(models[-1], request)
        return models[-1]

    yield open_signed
    for model in models:
        model.close()


@pytest.fixture
def refused(signed):
    """The message with which a signature is refused as an invalid argument."""
    return partial(refusal, signed)


def pixels(rows=3):
    return np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)


def call(model, signature, inputs, outputs=()):
    """As a server calls it: with defaults, after the checks."""
    declared = model.signatures[signature or "serving_default"]
    filled = fill_defaults(declared, inputs)
    check_inputs(declared, {name: (from_numpy(array.dtype), array.shape) for name, array in filled.items()})
    return model.run(signature, filled, outputs)


def test_a_model_without_signatures_in_its_config_is_left_alone(exported_once, request_for):
    request = request_for(exported_once)
    model = open_exported(request)
    assert sign(model, request) is model
    model.close()


def test_the_example_of_the_guide_classifies_digits(digits, signed):
    (digits.parent / "config.yaml").write_text(EXAMPLE)
    (digits / "labels.txt").write_text(DIGITS)
    model = signed(digits)
    own, classify = model.signatures["serving_default"], model.signatures["classify_digits"]
    assert list(model.signatures) == ["serving_default", "classify_digits"]
    assert own.output_names == ("output_0",)
    assert classify.method_name == CLASSIFY_METHOD
    assert classify.inputs == own.inputs
    (scores,) = own.outputs
    assert scores.shape[1] == 10
    assert classify.outputs == (
        TensorSpec("scores", DataType.FLOAT, scores.shape),
        TensorSpec("classes", DataType.STRING, scores.shape),
    )
    answer = call(model, "classify_digits", {"x": pixels()})
    np.testing.assert_array_equal(answer["scores"], pixels()[:, :10] * 2)
    assert answer["classes"].tolist() == [[line.encode() for line in DIGITS.split("\n")]] * 3
    assert list(call(model, "classify_digits", {"x": pixels()}, ("classes",))) == ["classes"]
    assert call(model, "classify_digits", {"x": pixels(0)})["classes"].shape == (0, 10)
    np.testing.assert_array_equal(call(model, "", {"x": pixels()})["output_0"], answer["scores"])
    assert model.platform == "pytorch_export"
    assert model.resident_bytes() == 0


def test_a_key_that_is_not_there_is_named(digits, signed):
    model = signed(digits, "signatures: {other: {}}")
    with pytest.raises(ServingError, match='"nothing" not found'):
        model.run("nothing", {"x": pixels()}, ())


def test_names_of_inputs_and_outputs_are_the_clients(house_once, signed):
    model = signed(
        house_once,
        """
signatures:
  renamed: {inputs: {rooms: size, m2: rooms}, outputs: {a: twice, b: price, c: price}}
  same: {}
""",
    )
    renamed, same = model.signatures["renamed"], model.signatures["same"]
    own = model.signatures["serving_default"]
    assert renamed.input_names == ("rooms", "m2")
    assert renamed.output_names == ("b", "c", "a")
    assert [spec.shape for spec in renamed.inputs] == [spec.shape for spec in own.inputs]
    assert same == own
    inputs = {"rooms": np.array([1.0, 2.0], np.float32), "m2": np.array([10.0, 20.0], np.float32)}
    answer = call(model, "renamed", inputs)
    assert {name: array.tolist() for name, array in answer.items()} == {"a": [24, 48], "b": [12, 24], "c": [12, 24]}
    assert list(call(model, "renamed", inputs, ("c",))) == ["c"]


def test_the_models_own_signature_can_be_replaced(house_once, signed):
    model = signed(house_once, "signatures: {serving_default: {outputs: {y: price}}}")
    assert list(model.signatures) == ["serving_default"]
    inputs = {"size": np.ones(1, np.float32), "rooms": np.ones(1, np.float32)}
    assert call(model, "", inputs)["y"].tolist() == [3]


def test_classify_and_regress_take_the_only_output_or_the_one_that_is_named(digits, house_once, signed):
    model = signed(digits, "signatures: {c: {method_name: classify}, r: {method_name: regress}}")
    assert model.signatures["c"].output_names == ("scores",)
    assert model.signatures["r"].output_names == ("outputs",)
    model = signed(house_once, "signatures: {price: {method_name: regress, outputs: {outputs: price}}}")
    assert model.signatures["price"].method_name == REGRESS_METHOD
    assert model.signatures["price"].output_names == ("outputs",)


def test_a_default_fills_an_input_that_was_not_sent(house_once, signed):
    model = signed(house_once, "signatures: {s: {inputs: {m2: size, rooms: rooms}, defaults: {rooms: 5}}}")
    declared = model.signatures["s"]
    assert np.asarray(declared.defaults["rooms"]).tolist() == 5
    assert np.asarray(declared.defaults["rooms"]).dtype == np.float32
    answer = call(model, "s", {"m2": np.array([1.0, 2.0, 3.0], np.float32)})
    assert answer["price"].tolist() == [7, 9, 11]
    answer = call(model, "s", {"m2": np.ones(1, np.float32), "rooms": np.zeros(1, np.float32)})
    assert answer["price"].tolist() == [2]
    assert not model.signatures["serving_default"].defaults


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("{inputs: {a: siz, b: rooms}}", 'signatures.s.inputs.a: the model has no input "siz"; did you mean "size"?'),
        ("{inputs: {a: size}}", 'signatures.s.inputs: nothing feeds the input "rooms" of the model'),
        ("{outputs: {y: prise}}", 'signatures.s.outputs.y: the model has no output "prise"; did you mean "price"?'),
        (
            "{method_name: classify}",
            "signatures.s.outputs: classify needs classes or scores; say which outputs of the model they are "
            "(it has price, classes_of, twice)",
        ),
        (
            "{method_name: regress}",
            "signatures.s.outputs: regress needs outputs; say which outputs of the model they are "
            "(it has price, classes_of, twice)",
        ),
        ("{defaults: {area: 1}}", "signatures.s.defaults.area: there is no such input"),
        ("{defaults: {size: [1]}}", "signatures.s.defaults.size: it has shape [1], one row has []"),
        ("{defaults: {size: true}}", "signatures.s.defaults.size: JSON Value: true"),
        ("{defaults: {size: 1.0e+39}}", "signatures.s.defaults.size: 1e+39 is too large for float"),
        (
            "{method_name: classify, outputs: {scores: price}, label_filename: labels.txt}",
            "signatures.s.label_filename: there is no file labels.txt in the version or beside it",
        ),
    ],
)
def test_a_signature_that_does_not_fit_the_model_is_an_invalid_argument(house_once, refused, wish, message):
    assert refused(house_once, f"signatures: {{s: {wish}}}").startswith(message)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [("a\nb\nc", "the file has 3 labels, the scores have 10 classes"), ("", "labels.txt has 0 labels")],
)
def test_labels_that_do_not_fit_the_scores_are_an_invalid_argument(digits, refused, labels, reason):
    (digits / "labels.txt").write_text(labels)
    text = refused(digits, EXAMPLE)
    assert text.startswith("signatures.classify_digits.label_filename: ")
    assert reason in text


def test_labels_need_scores_of_rank_two(tmp_path, house_once, refused):
    house = Path(shutil.copytree(house_once, tmp_path / "1"))
    (house / "labels.txt").write_text("a")
    wish = "{method_name: classify, outputs: {scores: price}, label_filename: labels.txt}"
    reason = "signatures.s.label_filename: scores have shape [-1], labels need [batch,classes]"
    assert refused(house, f"signatures: {{s: {wish}}}") == reason


PLAIN = """
class Model:
    def __init__(self, context): pass
    def predict(self, inputs):
        return {"scores": inputs["x"], "total": inputs["x"].sum(1)}
"""
UNDECLARED = "input: [{name: x, data_type: TYPE_FP32, dims: [-1, -1]}]\n"


@pytest.fixture
def plain(tmp_path):
    directory = write_python(tmp_path / "1", PLAIN)
    (directory / "labels.txt").write_text("cat\ndog\n")
    return directory


def test_undeclared_outputs_have_the_names_that_are_given_and_no_type(plain, signed):
    model = signed(
        plain,
        UNDECLARED
        + """
signatures:
  c: {method_name: classify, outputs: {scores: scores}, label_filename: labels.txt}
  all: {inputs: {pixels: x}}
  wrong: {outputs: {y: nowhere}}
""",
        open_python,
    )
    row = np.array([[1, 2]], np.float32)
    assert model.signatures["c"].outputs == (TensorSpec("scores"), TensorSpec("classes", DataType.STRING))
    assert model.signatures["all"].outputs == ()
    answer = call(model, "c", {"x": row})
    assert answer["classes"].tolist() == [[b"cat", b"dog"]]
    assert list(answer) == ["scores", "classes"]
    assert sorted(call(model, "all", {"pixels": row})) == ["scores", "total"]
    assert call(model, "wrong", {"x": row}) == {}


def test_an_answer_with_another_number_of_classes_than_labels_is_the_models_fault(plain, signed):
    wish = "signatures: {c: {method_name: classify, outputs: {scores: scores}, label_filename: labels.txt}}"
    model = signed(plain, UNDECLARED + wish, open_python)
    x = {"x": np.zeros((4, 3), np.float32)}
    message = refusal(call, model, "c", x, code=StatusCode.INTERNAL)
    assert message == "model m version 1: the model returned scores of shape [4,3], but there are 2 labels"
    assert list(call(model, "c", x, ("scores",))) == ["scores"]


@pytest.mark.parametrize("method", ["classify", "regress"])
def test_undeclared_outputs_have_to_be_named_for_classify_and_regress(plain, refused, method):
    wish = f"signatures: {{s: {{method_name: {method}}}}}"
    assert "it does not declare its outputs" in refused(plain, UNDECLARED + wish, open_python)


def test_texts_have_defaults_too(tmp_path, signed):
    source = PLAIN.replace('{"scores": inputs["x"], "total": inputs["x"].sum(1)}', '{"y": inputs["x"] + inputs["t"]}')
    directory = write_python(tmp_path / "1", source)
    model = signed(
        directory,
        """
max_batch_size: 8
input: [{name: x, data_type: TYPE_STRING, dims: [1]}, {name: t, data_type: TYPE_STRING, dims: [1]}]
output: [{name: y, data_type: TYPE_STRING, dims: [1]}]
signatures: {s: {defaults: {t: ["!"]}}}
""",
        open_python,
    )
    answer = call(model, "s", {"x": np.array([[b"a"], [b"b"]], object)})
    assert answer["y"].tolist() == [[b"a!"], [b"b!"]]


@pytest.mark.parametrize("write", [write_module, write_plain])
def test_a_failure_of_the_model_is_told_as_it_is(tmp_path, signed, write):
    directory = write(tmp_path / "1", 0.0)
    config = "input: [{name: x, data_type: TYPE_FP32, dims: [-1, -1]}]\nsignatures: {s: {inputs: {pixels: x}}}"
    model = signed(directory, config, open_python)
    with pytest.raises(ServingError, match="model m version 1 failed"):
        call(model, "s", {"pixels": np.zeros((1, 3), np.float32)})


OWN = Signature(
    inputs=(TensorSpec("x", DataType.FLOAT, (SymbolicDim("s0"), 4)),),
    outputs=(
        TensorSpec("classes", DataType.STRING, (SymbolicDim("s0"), 2)),
        TensorSpec("other", DataType.FLOAT, (SymbolicDim("s0"),)),
        TensorSpec("scores", DataType.FLOAT, (SymbolicDim("s0"), 2)),
        TensorSpec("outputs", DataType.FLOAT, (SymbolicDim("s0"), 1)),
    ),
)


def settings(**wish):
    return ModelSettings(signatures={"s": wish})


def test_outputs_that_are_called_as_the_method_calls_them_are_taken():
    def outputs_of(method):
        return mappings_of({"serving_default": OWN}, settings(method_name=method), "")["s"].signature.output_names

    assert outputs_of("classify") == ("classes", "scores")
    assert outputs_of("regress") == ("outputs",)
    assert outputs_of("predict") == OWN.output_names


def test_labels_for_a_model_that_gives_classes_itself_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_text("a\nb")
    with pytest.raises(ServingError, match='the model has an output "classes" already; keep one of both'):
        mappings_of(
            {"serving_default": OWN}, settings(method_name="classify", label_filename="labels.txt"), str(tmp_path)
        )
    with pytest.raises(ServingError, match="the output classes has the labels already"):
        parse_model_settings(
            "signatures: {s: {method_name: classify, outputs: {classes: a}, label_filename: labels.txt}}", "c.yaml"
        )


def test_a_dimension_keeps_its_symbol_under_another_name():
    call = mappings_of({"serving_default": OWN}, settings(inputs={"pixels": "x"}, outputs={"y": "other"}), "")["s"]
    assert call.signature.inputs[0].shape == OWN.inputs[0].shape
    assert call.signature.outputs[0].shape == OWN.outputs[1].shape
    assert call.signature.method_name == PREDICT_METHOD


def test_closing_the_signed_model_closes_the_model(plain, request_for):
    request = request_for(plain, parse_model_settings(UNDECLARED + "signatures: {s: {}}", "c.yaml"), trusted=True)
    model = sign(open_python(request), request)
    assert isinstance(model, SignedModel)
    assert model.resident_bytes() is None
    model.close()
    with pytest.raises(ServingError):
        model.run("", {"x": np.zeros((1, 1), np.float32)}, ())


def test_a_failure_leaves_no_model_behind(house_once, loader_for):
    loader = loader_for(house_once, parse_model_settings("signatures: {s: {outputs: {y: nowhere}}}", "c.yaml"))
    with pytest.raises(ServingError, match=r"model m version 1: signatures\.s\.outputs\.y: the model has no output"):
        loader.load(ServableId("m", 1))
    assert loader.servable is None


def test_conditions_on_sizes_speak_of_the_clients_names(signed, tmp_path):
    examples = {"x": torch.zeros(8, 64)}
    dims = {"x": {0: torch.export.Dim("batch", min=5)}}
    directory = tfs_lite.save(Digits(), tmp_path, example_inputs=examples, dynamic_dims=dims)
    text = "signatures: {serving_default: {inputs: {pixels: x}}, other: {}}"
    signatures = signed(directory, text).signatures
    assert signatures["serving_default"].conditions.shown() == ("pixels.shape[0] >= 5",)
    assert signatures["other"].conditions.shown() == ("x.shape[0] >= 5",)
