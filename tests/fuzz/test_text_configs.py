"""Hostile config files: whatever text comes, in either syntax, it becomes settings or one INVALID_ARGUMENT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.config.server_files import (
    parse_batching_parameters,
    parse_monitoring_config,
    parse_ssl_config,
    read_batching_parameters,
    read_monitoring_config,
    read_ssl_config,
)
from tfs_lite.config.settings import Settings
from tfs_lite.config.text import load_model_settings, parse_model_server_config, parse_model_settings
from tfs_lite.config.text import read_model_server_config as read_served
from tfs_lite.core.status import ServingError, StatusCode

PAIR = trustme.CA().issue_cert("localhost")
KEY, CERT = PAIR.private_key_pem.bytes().decode(), PAIR.cert_chain_pems[0].bytes().decode()


def parse_served(text: str, name: str) -> Settings:
    return parse_model_server_config(text, name, Path("/srv"), ("python", "pytorch_export"))


PARSERS: dict[str, Callable[[str, str], Settings]] = {
    "served": parse_served,
    "model": parse_model_settings,
    "ssl": parse_ssl_config,
    "monitoring": parse_monitoring_config,
    "batching": parse_batching_parameters,
}
READERS: dict[str, Callable[[str, Path], Settings]] = {
    "served": read_served,
    "ssl": read_ssl_config,
    "monitoring": read_monitoring_config,
    "batching": read_batching_parameters,
}
PROTO_TEXT = {
    "served": """
        model_config_list {
          config {  # one
            name: "ranker"  base_path: '/models/' "r\\x61nker"  model_type: TENSORFLOW
            model_version_policy { specific { versions: [3, 7] } }
            version_labels { key: "stable" value: 3 }, version_labels { value: 7; key: "canary" }
            logging_config {
              log_collector_config { type: "file" filename_prefix: "/log/r" } sampling_config { sampling_rate: 0.5 }
            }
          },
          config: < name: "other", base_path: "other" model_platform: "python" model_version_policy: { all {} } >
        }
        """,
    "model": """
        name: "m" platform: "pytorch_export" max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
        output { name: "y" data_type: TYPE_BF16 dims: 10 }
        parameters { key: "max_tokens" value: { string_value: "16" } }
        signatures {
          key: "again"
          value {
            method_name: "classify" inputs { key: "a" value: "x" } outputs { key: "scores" value: "y" }
            defaults { key: "a" value: "[1, 2, 3]" } label_filename: "labels.txt"
          }
        }
        warmup { body: "{\\"instances\\": [[1, 2, 3]]}" count: 2 }
        """,
    "ssl": f"server_key: {json.dumps(KEY)} server_cert: {json.dumps(CERT)} custom_ca: '' client_verify: false",
    "monitoring": 'prometheus_config { enable: true path: "/metrics" }',
    "batching": """
        max_batch_size { value: 64 } batch_timeout_micros { value: 2000 } num_batch_threads { value: 4 }
        allowed_batch_sizes: [8, 16, 64] thread_pool_name { value: "pool" } pad_variable_length_inputs: true
        enable_large_batch_splitting { value: true } max_execution_batch_size { value: 32 }
        """,
}
YAML = {
    "served": """
model_config_list:
  config:
    - name: ranker
      base_path: /models/ranker  # where
      model_version_policy: {specific: {versions: [3, 7]}}
      version_labels: {stable: 3, "canary": 7}
    - {name: other, base_path: 'other', model_platform: python, model_version_policy: {all: {}}}
""",
    "model": """
name: m
max_batch_size: 8
input: [{name: x, data_type: TYPE_FP32, dims: [3, -1]}]
output:
  - {name: y, data_type: TYPE_BF16, dims: [10]}
parameters: {max_tokens: 16, fast: true, rate: .5}
signatures:
  again: {method_name: classify, inputs: {a: x}, outputs: {scores: y}, defaults: {a: [1, 2.5, 3]}}
warmup:
  - body: {instances: [[1, 2, 3]]}
    count: 2
""",
    "ssl": yaml.safe_dump({"server_key": KEY, "server_cert": CERT, "client_verify": False}),
    "monitoring": "prometheus_config:\n  enable: true\n  path: /metrics\n",
    "batching": "max_batch_size: 64\nbatch_timeout_micros: {value: 9}\nallowed_batch_sizes: [8, 64]\n",
}
KINDS = st.sampled_from(sorted(PARSERS))
SYNTAXES = st.sampled_from([("c.pbtxt", PROTO_TEXT), ("c.yaml", YAML)])
TRAPS = [
    *"{}[]<>:;,#'\"\\\n\0\t&*!|>%@`?-~=",
    *("\r\n", "- ", "? ", "---\n", "...\n", "<<: {}", "null", "{}", "[]", "!!binary ", "!!set ", "!!timestamp "),
    *("!!python/name:os.system ", "&a ", "*a", "-0", "0x1f", "1e999", "nan", "inf", ".inf", "1_0", "1:1:1", "0o9"),
    *(
        "9" * 25,
        "-1",
        "2020-13-45",
        "true",
        "TYPE_FP32",
        "value",
        "key",
        "name",
        "\ufeff",
        "\u2028",
        "\ud800",
        "\U0001f600",
    ),
    *("\\xff", "\\777", "\\N{DASH}", "\\ud800", '"\\ud800"', "'\\200'", "custom_model_config", "[a.b/c.D] {}"),
    "[type.googleapis.com/google.protobuf.Any] { }",
]


def attempt(kind: str, text: str, name: str) -> None:
    """Settings, or a refusal that says where."""
    try:
        PARSERS[kind](text, name)
    except ServingError as error:
        assert error.code is StatusCode.INVALID_ARGUMENT  # noqa: PT017
        assert str(error).startswith(f"{name}:")  # noqa: PT017


@pytest.mark.parametrize("kind", sorted(PARSERS))
def test_the_texts_that_get_damaged_are_good(kind: str) -> None:
    for name, texts in (("c.pbtxt", PROTO_TEXT), ("c.yaml", YAML)):
        assert isinstance(PARSERS[kind](texts[kind], name), Settings)


@given(kind=KINDS, syntax=SYNTAXES, data=st.data())
@examples(600)
def test_damaged_files_never_break_the_parsers(
    kind: str, syntax: tuple[str, dict[str, str]], data: st.DataObject
) -> None:
    name, texts = syntax
    text = texts[kind]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        piece = data.draw(st.one_of(st.sampled_from(["", text[start:end] * 2, *TRAPS]), st.text(max_size=6)))
        text = text[:start] + piece + text[end:]
    attempt(kind, text, name)


@given(kind=KINDS, name=st.sampled_from(["c.pbtxt", "c.yaml"]), pieces=st.data())
@examples(300)
def test_words_of_the_format_in_any_order_never_break_the_parsers(kind: str, name: str, pieces: st.DataObject) -> None:
    words = [*TRAPS, *PROTO_TEXT[kind].split()[:40], *YAML[kind].split()[:40]]
    text = pieces.draw(st.lists(st.sampled_from(words), max_size=20).map(" ".join))
    attempt(kind, text, name)


@given(kind=st.sampled_from(sorted(READERS)), name=st.sampled_from(["c.pbtxt", "c.yaml"]), data=st.binary(max_size=60))
@examples(200)
def test_random_bytes_never_break_the_readers(
    kind: str, name: str, data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data)
    try:
        READERS[kind](name, path.parent)
    except ServingError as error:
        assert error.code is StatusCode.INVALID_ARGUMENT  # noqa: PT017


@given(name=st.sampled_from(["config.pbtxt", "config.yaml"]), data=st.binary(max_size=60))
@examples(60)
def test_random_bytes_never_break_the_settings_of_a_model(
    name: str, data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.getbasetemp() / f"model-{name}"
    base.mkdir(exist_ok=True)
    (base / name).write_bytes(data)
    try:
        load_model_settings(base / "1", "m")
    except ServingError as error:
        assert error.code is StatusCode.INVALID_ARGUMENT  # noqa: PT017


DEEP = 20_000
ANY = "[type.googleapis.com/google.protobuf.Any] {"


@pytest.mark.parametrize("kind", sorted(PARSERS))
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "a: " + "[" * DEEP),
        ("c.yaml", "{a: " * DEEP + "1" + "}" * DEEP),
        ("c.yaml", "- " * DEEP + "a"),
        ("c.yaml", "? " * DEEP + "a"),
        ("c.yaml", "".join(f"{' ' * depth}a:\n" for depth in range(1500))),
        ("c.pbtxt", "model_config_list {" * DEEP),
        ("c.pbtxt", "input [" * DEEP),
        ("c.pbtxt", f"custom_model_config {{ {ANY * 5000}"),
        ("c.pbtxt", f"custom_model_config {{ {ANY * 400 + '}' * 400} }}"),
        *(("c.pbtxt", f"custom_model_config {{ {ANY * deep + '}' * deep} }}") for deep in range(200, 330, 10)),
    ],
    ids=lambda value: value[:24] if len(value) > 9 else value,
)
def test_deep_nesting_ends_early(kind: str, name: str, text: str) -> None:
    with pytest.raises(ServingError) as raised:
        PARSERS[kind](text, name)
    assert raised.value.code is StatusCode.INVALID_ARGUMENT


BOMB = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12))


@pytest.mark.parametrize("kind", sorted(PARSERS))
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a0: &a0 [x]\n" + BOMB, "c.yaml:2:10: aliases are not allowed"),
        ("a: &a {<<: *a}", "c.yaml:1:12: aliases are not allowed"),
        ("a: &a [*a]", "c.yaml:1:8: aliases are not allowed"),
        ("a: " + "1" * 5000, "c.yaml:1:4: a value cannot be read"),
        ("a: 1" + ":10" * 50_000, "c.yaml:1:4: a value cannot be read"),
        ("a: " + "9" * 300, "c.yaml:1:1: "),
        *((f"a: !!{tag} x", "c.yaml:1:1: a value cannot be read") for tag in ("timestamp", "bool", "int", "float")),
        ("a: 0x" + "f" * 100_000, "c.yaml:1:4: a value cannot be read"),
    ],
    ids=["bomb", "merge", "itself", "digits", "base-60", "large", "timestamp", "bool", "int", "float", "hex"],
)
def test_small_files_never_become_large_values(kind: str, text: str, message: str) -> None:
    with pytest.raises(ServingError) as raised:
        PARSERS[kind](text, "c.yaml")
    assert raised.value.code is StatusCode.INVALID_ARGUMENT
    assert message in str(raised.value)
    assert len(str(raised.value)) < 2000
