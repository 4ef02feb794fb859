"""Signatures and warm-up requests of a model's config, in both syntaxes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Document, build
from tfs_lite.config.signatures import ModelSignature, WarmupRequest, short_method
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.signature import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD

YAML = """
signatures:
  serving_default: {}
  classify_digits: {method_name: classify, outputs: {scores: output_0}, label_filename: labels.txt}
  score:
    inputs: {pixels: x, bias: b}
    defaults: {bias: [0.5, -1], unit: '"cm"', raw: {b64: AAE=}, flag: true, size: 3}
warmup:
  - {body: {instances: [[1, 2]]}, count: 3}
  - {body: '{"instances": [[1, 2]]}', count: 0}
"""
PBTXT = r"""
signatures { key: "serving_default" value {} }
signatures {
  key: "classify_digits"
  value {
    method_name: "classify"
    outputs { key: "scores" value: "output_0" }
    label_filename: "labels.txt"
  }
}
signatures {
  key: "score"
  value {
    inputs { key: "pixels" value: "x" }
    inputs { key: "bias" value: "b" }
    defaults { key: "bias" value: "[0.5, -1]" }
    defaults { key: "unit" value: "\"cm\"" }
    defaults { key: "raw" value: "{\"b64\": \"AAE=\"}" }
    defaults { key: "flag" value: "true" }
    defaults { key: "size" value: "3" }
  }
}
warmup { body: "{\"instances\": [[1, 2]]}" count: 3 }
warmup { body: "{\"instances\": [[1, 2]]}" }
"""


def signature(**fields: Any) -> ModelSignature:
    return build(ModelSettings, Document({"signatures": {"s": fields}})).signatures["s"]


def message_of(**fields: Any) -> str:
    return refusal(build, ModelSettings, Document(fields))


def test_both_syntaxes_mean_the_same() -> None:
    with_all_inputs = YAML.replace("bias: b}", "bias: b, unit: u, raw: r, flag: f, size: s}")
    more = "".join(f'inputs {{ key: "{name}" value: "{name[0]}" }} ' for name in ("unit", "raw", "flag", "size"))
    settings = parse_model_settings(with_all_inputs, "config.yaml")
    again = parse_model_settings(PBTXT.replace("    defaults", f"    {more}\n    defaults", 1), "config.pbtxt")
    assert settings == again
    assert settings.signatures["classify_digits"] == ModelSignature(
        method_name=CLASSIFY_METHOD, outputs={"scores": "output_0"}, label_filename="labels.txt"
    )
    assert settings.signatures["score"].defaults == {
        "bias": "[0.5, -1]",
        "unit": '"cm"',
        "raw": '{"b64": "AAE="}',
        "flag": "true",
        "size": "3",
    }
    assert settings.warmup == (
        WarmupRequest(body='{"instances": [[1, 2]]}', count=3),
        WarmupRequest(body='{"instances": [[1, 2]]}'),
    )
    assert settings.warmup[1].count == 1


def test_a_signature_that_says_nothing_is_the_models_own() -> None:
    assert signature() == ModelSignature(
        method_name=PREDICT_METHOD, inputs={}, outputs={}, defaults={}, label_filename=""
    )


@pytest.mark.parametrize(
    ("name", "long"),
    [
        ("", PREDICT_METHOD),
        ("predict", PREDICT_METHOD),
        ("classify", CLASSIFY_METHOD),
        ("regress", REGRESS_METHOD),
        ("tensorflow/serving/classify", CLASSIFY_METHOD),
    ],
)
def test_methods_have_a_short_and_a_long_name(name: str, long: str) -> None:
    assert signature(method_name=name).method_name == long
    assert short_method(long) in ("predict", "classify", "regress")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method_name": "clasify"}, 'signatures.s.method_name: "clasify" is no method; did you mean "classify"?'),
        ({"method_name": "tensorflow/serving/other"}, "is no method; known: classify, predict, regress"),
        ({"inputs": {"a": "x", "b": "x"}}, 'signatures.s.inputs.b: "a" and "b" both feed the input "x" of the model'),
        ({"inputs": {"": "x"}}, "at least 1 character"),
        ({"outputs": {"y": ""}}, "signatures.s.outputs.y: String should have at least 1 character"),
        (
            {"method_name": "classify", "outputs": {"score": "y"}},
            'signatures.s.outputs.score: "score" is no output of classify; it has classes and scores',
        ),
        (
            {"method_name": "regress", "outputs": {"y": "y"}},
            'signatures.s.outputs.y: "y" is no output of regress; it has outputs',
        ),
        ({"inputs": {"a": "x"}, "defaults": {"b": 1}}, "signatures.s.defaults.b: there is no such input; known: a"),
        ({"defaults": {"a": "Paris"}}, "signatures.s.defaults.a: JSON Parse error"),
        ({"defaults": {"a": "1e999"}}, "signatures.s.defaults.a: JSON Parse error"),
        ({"defaults": {"a": "[" * 100_000}}, "signatures.s.defaults.a: JSON Parse error"),
        ({"defaults": {"a": b"raw"}}, "signatures.s.defaults.a: bytes values have no form in JSON"),
        ({"label_filename": "labels.txt"}, "signatures.s.label_filename: labels are for classify, not for predict"),
        (
            {"method_name": "classify", "outputs": {"classes": "c", "scores": "s"}, "label_filename": "labels.txt"},
            "signatures.s.label_filename: the output classes has the labels already; keep one of both",
        ),
        ({"output": {}}, 'signatures.s.output: unknown field; did you mean "outputs"?'),
    ],
)
def test_a_mistake_in_a_signature_names_the_field(fields: dict[str, Any], message: str) -> None:
    assert message in message_of(signatures={"s": fields})


@pytest.mark.parametrize("name", ["/etc/passwd", "../labels.txt", "a/../../b", "..", "a\0b"])
def test_labels_outside_of_the_model_are_refused(name: str) -> None:
    message = message_of(signatures={"s": {"method_name": "classify", "label_filename": name}})
    assert "leads out of the model's directory" in message


@pytest.mark.parametrize("name", ["labels.txt", "assets/labels.txt", "..data/labels.txt"])
def test_labels_below_the_model_are_fine(name: str) -> None:
    assert signature(method_name="classify", label_filename=name).label_filename == name


def test_a_signature_needs_a_name() -> None:
    assert "at least 1 character" in message_of(signatures={"": {}})


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([{}], "warmup[0].body: is required"),
        ([{"body": "{"}], "warmup[0].body: JSON Parse error"),
        ([{"body": "[1]"}], "warmup[0].body: expected a JSON object"),
        ([{"body": [1]}], "warmup[0].body: expected a JSON object"),
        ([{"body": {}, "count": -1}], "warmup[0].count: "),
        ([{"body": {}, "count": 1001}], "warmup[0].count: "),
        ([{"body": {}, "count": 900}, {"body": {}, "count": 101}], "warmup[1]: more than 1000 requests in all"),
        ([{"body": {}}] * 1001, "warmup[1000]: more than 1000 requests in all"),
    ],
)
def test_a_mistake_in_a_warm_up_request_names_the_field(requests: list[Any], message: str) -> None:
    assert message in message_of(warmup=requests)


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("config.yaml", "signatures:\n  s:\n    method_name: guess\n", "config.yaml:3:5: signatures.s.method_name: "),
        ("config.pbtxt", 'signatures {\n  key: "s"\n  value {\n    method_name: "guess"\n  }\n}', "config.pbtxt:"),
        ("config.yaml", "warmup:\n  - body: [1]\n", "config.yaml:2:5: warmup[0].body: "),
        ("config.pbtxt", 'warmup { body: "[1]" }', "config.pbtxt:1:10: warmup[0].body: "),
    ],
)
def test_a_mistake_in_a_file_has_its_place(name: str, text: str, place: str) -> None:
    assert refusal(parse_model_settings, text, name).startswith(place)


GUIDE = Path(__file__).parents[3] / "docs" / "signatures.md"
EXAMPLES = re.findall(r"```(yaml)?\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.mark.parametrize(("syntax", "text"), [example for example in EXAMPLES if "signatures" in example[1]])
def test_the_examples_of_the_guide_are_good_configs(syntax: str, text: str) -> None:
    assert parse_model_settings(text, "config.yaml" if syntax else "config.pbtxt").signatures


def test_the_examples_of_the_guide_say_the_same_in_both_syntaxes() -> None:
    texts = [text for _, text in EXAMPLES]
    first, second = (parse_model_settings(texts[i], f"config.{s}") for i, s in enumerate(("yaml", "pbtxt")))
    assert first == second
