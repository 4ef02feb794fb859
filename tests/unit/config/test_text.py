"""Config files in both syntaxes: the same settings, and mistakes that name file, line and column."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.config.text import (
    MAX_FILE_BYTES,
    load_model_settings,
    parse_model_server_config,
    parse_model_settings,
    read_model_server_config,
)
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode

WORKING_DIRECTORY = Path("/srv")

PROTO_TEXT = """
# two models
model_config_list {
  config {
    name: "ranker"  base_path: '/models/' "ranker"
    model_version_policy { specific { versions: [3, 7] } }
    version_labels { key: "stable" value: 3 }
    version_labels { value: 7; key: "canary" }
  },
  config: <
    name: "other", base_path: "other"
    model_platform: "tensorflow"
    model_version_policy: { all {} }
  >
}
"""

YAML = """
# two models
model_config_list:
  config:
    - name: ranker
      base_path: /models/ranker
      model_version_policy: {specific: {versions: [3, 7]}}
      version_labels: {stable: 3, canary: 7}
    - name: other
      base_path: other
      model_platform: tensorflow
      model_version_policy:
        all: {}
"""


PLATFORMS = ("python", "pytorch_export")


def parse(text: str, name: str) -> ModelServerConfig:
    return parse_model_server_config(text, name, WORKING_DIRECTORY)


def message_of(text: str, name: str) -> str:
    return refusal(parse, text, name)


def test_text_format_and_yaml_say_the_same() -> None:
    expected = parse(PROTO_TEXT, "models.config")
    assert [model.name for model in expected.models] == ["ranker", "other"]
    assert expected.models[1].base_path == "/srv/other"
    for name in ("models.yaml", "models.yml"):
        assert parse(YAML, name) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('model_config_list {\n  config { nam: "m" }\n}', 'm.cfg:2:12: unknown field "nam"; did you mean "name"?'),
        ("model_config {}", 'm.cfg:1:1: unknown field "model_config"; did you mean "model_config_list"?'),
        ("model_config_list {\n  config { name: 3 } }", "m.cfg:2:18: Expected string"),
        ('model_config_list {\n  config { name: "m" ', "m.cfg:2:18: Expected"),
        ('model_config_list { config {\n name: "m" name: "n" } }', "m.cfg:2:"),
        ("model_config_list { config { model_type: PYTORCH } }", "m.cfg:1:42: Enum type"),
        ("", "m.cfg:1:1: it is empty: expected model_config_list { config {"),
        ("# only a remark", "m.cfg:1:1: it is empty"),
        ("custom_model_config { [type.googleapis.com/tensorflow.serving.ModelConfigList] { } }", "m.cfg:1:1: custom_"),
        (
            'model_config_list {\n  config { name: "m" base_path: "/x" }\n'
            '  config {\n    name: "m" base_path: "/y" } }',
            "m.cfg:4:5: model_config_list.config[1].name: Illegal to list model m multiple times",
        ),
        (
            'model_config_list { config {\n name: "m" base_path: "/m"\n model_version_policy { specific {\n'
            "versions: [1,\n 2, -3] } } } }",
            "m.cfg:5:5: model_config_list.config[0].model_version_policy.specific.versions[2]: Input should be",
        ),
        (
            'model_config_list { config {\n name: "m" base_path: "/m"\n model_version_policy { specific {\n'
            "versions: 1\nversions: -3 } } } }",
            "m.cfg:5:1: model_config_list.config[0].model_version_policy.specific.versions[1]: Input should be",
        ),
        (
            'model_config_list { config { name: "m" base_path: "/m"\n version_labels { key: "a" value: 1 }\n'
            ' version_labels { key: "b" value: -1 } } }',
            "m.cfg:3:2: model_config_list.config[0].version_labels.b: Input should be",
        ),
        (
            'model_config_list { config [ { name: "m" base_path: "/m" },\n { name: "n/" base_path: "/n" } ] }',
            'm.cfg:2:4: model_config_list.config[1].name: "n/" has',
        ),
        (
            'model_config_list { config { name: "m"\n logging_config { custom_logging_config {\n'
            '[type.googleapis.com/tensorflow.serving.ModelConfig] { name: "x" version_labels { key: "k" } } } }\n'
            "  base_path: '' } }",
            "m.cfg:4:3: model_config_list.config[0].base_path: is required; m.cfg:2:2: ",
        ),
        ('{"model_config_list": [{"config": {"name": "m"}}]}', "m.cfg:1:1: JSON is read from a file called *.yaml"),
    ],
)
def test_a_mistake_in_text_format_names_line_and_column(text: str, message: str) -> None:
    assert message_of(text, "m.cfg").startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_config_list:\n  config:\n    - nam: m\n      base_path: /m\n      name: m", "m.yaml:3:7: "),
        ("models: {}", "m.yaml:1:1: "),
        ("model_config_list: [", "m.yaml:1:21: "),
        ("model_config_list: {}\nmodel_config_list: {}", 'm.yaml:2:1: "model_config_list" comes twice'),
        ("model_config_list:\n", 'm.yaml:1:1: "model_config_list" has no value; write {} for an empty block'),
        ("a: &x 1\nb: *x", "m.yaml:2:4: aliases are not allowed"),
        ("\n[1]", "m.yaml:1:1: Input should be a valid dictionary"),
        ("a: 2020-13-45", "m.yaml:1:1: a value cannot be read"),
        ("a: 1\nb: \x00", "m.yaml:2:1: special characters are not allowed"),
        ("{1: 2}", "m.yaml:1:1: "),
        ("a: !!python/object:os.system {}", "m.yaml:1:4: could not determine a constructor"),
        ("a: " + "[" * 3000 + "]" * 3000, "m.yaml:1:1: the YAML is nested too deeply"),
        (
            "model_config_list:\n  config:\n  - {name: m, base_path: /m}\n  - base_path: /n\n    name: m",
            "m.yaml:5:5: model_config_list.config[1].name: Illegal to list model m multiple times",
        ),
        (
            "model_config_list:\n  config:\n  - name: m\n    base_path: /m\n"
            "    version_labels:\n      a: 1\n      b/: 2",
            'm.yaml:7:7: model_config_list.config[0].version_labels.b/: "b/" has',
        ),
    ],
)
def test_a_mistake_in_yaml_names_line_and_column(text: str, message: str) -> None:
    assert message_of(text, "m.yaml").startswith(message)


@given(st.text(max_size=60), st.sampled_from(["m.cfg", "m.yaml"]))
def test_no_text_raises_anything_but_a_serving_error(text: str, name: str) -> None:
    assert ": " in message_of(text, name)


PIECES = [
    *"{}[]<>:,;#'\"\n -",
    "model_config_list",
    "config",
    "name",
    "base_path",
    '"x"',
    "versions",
    "-1",
    "key",
    "value",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join), st.sampled_from(["m.cfg", "m.yaml"]))
def test_no_arrangement_of_tokens_raises_anything_but_a_serving_error(text: str, name: str) -> None:
    try:
        parse(text, name)
    except ServingError as error:
        assert str(error).startswith(name)  # noqa: PT017


def test_a_file_is_read_and_named_as_the_operator_named_it(tmp_path: Path) -> None:
    (tmp_path / "models.config").write_text(PROTO_TEXT)
    config = read_model_server_config("models.config", tmp_path)
    assert config.models[1].base_path == str(tmp_path / "other")
    (tmp_path / "models.yaml").write_text("models: {}")
    with pytest.raises(ServingError, match=r"^models\.yaml:1:1: "):
        read_model_server_config("models.yaml", tmp_path)


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "m.cfg").write_bytes(b"\xef\xbb\xbfmodel_config_list {}")
    assert read_model_server_config("m.cfg", tmp_path).models == ()


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (None, StatusCode.NOT_FOUND, "m.cfg: there is no such file"),
        (b"model_config_list {\n}\n# \xff", StatusCode.INVALID_ARGUMENT, "m.cfg:3:1: not UTF-8 text"),
        (b" " * (MAX_FILE_BYTES + 1), StatusCode.INVALID_ARGUMENT, f"m.cfg: larger than {MAX_FILE_BYTES} bytes"),
    ],
    ids=["missing", "binary", "huge"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, data: bytes | None, code: StatusCode, message: str) -> None:
    if data is not None:
        (tmp_path / "m.cfg").write_bytes(data)
    with pytest.raises(ServingError) as raised:
        read_model_server_config("m.cfg", tmp_path)
    assert (raised.value.code, str(raised.value)) == (code, message)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match=r"^\.: cannot be read") as raised:
        read_model_server_config(".", tmp_path)
    assert raised.value.code is StatusCode.FAILED_PRECONDITION


MODEL_PROTO_TEXT = """
name: "m"
platform: "pytorch_export"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
output { name: "y" data_type: TYPE_BF16 dims: 10 }
parameters { key: "max_tokens" value: { string_value: "16" } }
"""

MODEL_YAML = """
name: m
platform: pytorch_export
max_batch_size: 8
input: [{name: x, data_type: TYPE_FP32, dims: [3, -1]}]
output:
  - name: y
    data_type: TYPE_BF16
    dims: [10]
parameters: {max_tokens: 16}
"""


def test_model_settings_say_the_same_in_both_syntaxes() -> None:
    settings = parse_model_settings(MODEL_PROTO_TEXT, "config.pbtxt")
    assert settings.input[0].data_type is DataType.FLOAT
    assert settings.parameters == {"max_tokens": "16"}
    assert parse_model_settings(MODEL_YAML, "config.yaml") == settings


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.pbtxt", "\nmax_batchsize: 3", 'config.pbtxt:2:1: unknown field "max_batchsize"; did you mean "max_b'),
        ("config.pbtxt", "sequence_batchin {}", 'config.pbtxt:1:1: unknown field "sequence_batchin"; did you mean "s'),
        (
            "config.pbtxt",
            'parameters { key: "a" value {} }\nparameters { key: "b" }\n parameters { value {} key: "a" }',
            "config.pbtxt:1:14: parameters: a key comes twice",
        ),
        (
            "config.pbtxt",
            'ensemble_scheduling { step {\n input_map { key: "a" value: "b" }\n input_map { key: "a" value: "c" } } }',
            "config.pbtxt:2:14: ensemble_scheduling.step[0].input_map: a key comes twice",
        ),
        ("config.pbtxt", 'input {\n name: "x" data_type: TYPE_FP33 dims: 1 }', "config.pbtxt:2:23: Enum type"),
        ("config.pbtxt", 'input {\n name: "x" dims: 1 }', "config.pbtxt:1:1: input[0].data_type: is required"),
        (
            "config.pbtxt",
            'output { name: "x" data_type: TYPE_BOOL\ndims: [1, 0] }',
            "config.pbtxt:2:11: output[0].dims[1]",
        ),
        (
            "config.yaml",
            "input: [{name: x, data_type: TYPE_FP33, dims: [1]}]",
            "config.yaml:1:19: input[0].data_type: ",
        ),
        ("config.yaml", "parameters: {a: [1]}", "config.yaml:1:14: parameters.a: "),
    ],
)
def test_a_mistake_in_model_settings_names_line_and_column(name: str, text: str, message: str) -> None:
    assert refusal(parse_model_settings, text, name).startswith(message)


def test_without_files_a_model_has_default_settings(tmp_path: Path) -> None:
    assert load_model_settings(tmp_path / "1", "m") == parse_model_settings("", "config.pbtxt")


def test_the_file_of_a_version_replaces_the_file_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "config.pbtxt").write_text("max_batch_size: 4 platform: 'python'")
    (tmp_path / "2" / "config.yaml").write_text("max_batch_size: 8")
    first, second = load_model_settings(tmp_path / "1", "m"), load_model_settings(tmp_path / "2", "m")
    assert (first.max_batch_size, first.platform) == (4, "python")
    assert (second.max_batch_size, second.platform) == (8, "")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.pbtxt": "", "config.yaml": ""}, "model m has both config.pbtxt and config.yaml; keep one"),
        ({"1/config.pbtxt": "\nmax_batch_size: -1"}, "1/config.pbtxt:2:1: max_batch_size: Input should be"),
        ({"config.yaml": "name: other"}, 'config.yaml: name is "other", but the model is called "m"'),
    ],
)
def test_contradictory_model_settings_are_refused_by_relative_name(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    (tmp_path / "1").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    refused = refusal(load_model_settings, tmp_path / "1", "m")
    assert refused.startswith(message)
    assert str(tmp_path) not in refused


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (
            'model_config_list {\n config {\n  name: "m" base_path: "/m"\n  model_platform: "caffe"\n } }',
            "m.cfg",
            'm.cfg:4:3: model_config_list.config[0].model_platform: model m requests unsupported platform "caffe"; '
            "this server has: python, pytorch_export",
        ),
        (
            "model_config_list:\n  config:\n    - name: m\n      base_path: /m\n      model_platform: pythom",
            "m.yaml",
            'm.yaml:5:7: model_config_list.config[0].model_platform: model m requests unsupported platform "pythom"; '
            'did you mean "python"?',
        ),
    ],
)
def test_platform_that_the_server_lacks_is_refused_with_its_place(text: str, name: str, words: str) -> None:
    assert refusal(parse_model_server_config, text, name, WORKING_DIRECTORY, PLATFORMS) == words
    assert parse(text, name).models, "without a server's platforms it cannot be told"


def test_platforms_of_the_server_and_the_choice_by_artefact_are_taken() -> None:
    for platform in (*PLATFORMS, "tensorflow", ""):
        text = f'model_config_list {{ config {{ name: "m" base_path: "/m" model_platform: "{platform}" }} }}'
        config = parse_model_server_config(text, "m.cfg", WORKING_DIRECTORY, PLATFORMS)
        assert config.models[0].model_platform == platform


def test_an_enum_number_beyond_64_bits_is_a_mistake_like_any_other() -> None:
    assert "config.pbtxt:1:1: a value cannot be read" in refusal(
        parse_model_settings, "input { data_type: 92233720368547758076 }", "config.pbtxt"
    )


def make_dangling_link(path):
    path.symlink_to(path.parent / "gone")


@pytest.mark.parametrize("make", [make_dangling_link, Path.mkdir, os.mkfifo])
def test_config_that_is_there_but_cannot_be_read_is_an_error_and_not_no_config(tmp_path, make):
    (tmp_path / "1").mkdir()
    make(tmp_path / "config.pbtxt")
    with pytest.raises(ServingError, match=r"^config.pbtxt: "):
        load_model_settings(tmp_path / "1", "m")
