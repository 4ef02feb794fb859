"""Versions of language models that cannot be served: each ends with a state that says what is wrong with which file,
while the version before it answers on."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.language.tiny_version import BYTES_OF_TEXT, CONFIG, VOCABULARY, weights, write_version
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess
from tfs_lite.core.publish import publish
from tfs_lite.core.status import StatusCode

pytestmark = pytest.mark.slow

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer_config.json"
LOST, BAD, FORBIDDEN, WRONG = (
    StatusCode.DATA_LOSS,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.PERMISSION_DENIED,
    StatusCode.INVALID_ARGUMENT,
)
Edit = Callable[[Path], object]


def config(**fields: Any) -> Edit:
    """None takes a field out."""
    changed = {name: value for name, value in {**CONFIG, **fields}.items() if name not in fields or value is not None}
    return lambda directory: (directory / "config.json").write_text(json.dumps(changed))


def text(name: str, content: str) -> Edit:
    return lambda directory: (directory / name).write_text(content)


def tokenizer(**fields: Any) -> Edit:
    return text(TOKENIZER, json.dumps({**BYTES_OF_TEXT, **fields}))


def tensors(change: Callable[[dict[str, Any]], object]) -> Edit:
    def edit(directory: Path) -> None:
        found: dict[str, Any] = weights()
        change(found)
        save_file(found, directory / WEIGHTS)

    return edit


def header(change: Callable[[dict[str, Any]], object]) -> Edit:
    """Changes what the file says of its tensors, not the tensors."""

    def edit(directory: Path) -> None:
        data = (directory / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        said = json.loads(data[8 : 8 + length])
        change(said)
        told = json.dumps(said).encode()
        (directory / WEIGHTS).write_bytes(struct.pack("<Q", len(told)) + told + data[8 + length :])

    return edit


def length(value: int) -> Edit:
    return lambda directory: (directory / WEIGHTS).write_bytes(
        struct.pack("<Q", value) + (directory / WEIGHTS).read_bytes()[8:]
    )


def of(name: str, **fields: Any) -> Edit:
    return header(lambda said: said[name].update(fields))


def pickles(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))


def index(**weight_map: str) -> Edit:
    def edit(directory: Path) -> None:
        (directory / WEIGHTS).rename(directory / "part.safetensors")
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return edit


HEAD, NORM = "lm_head.weight", "model.norm.weight"
FILES: dict[str, tuple[Edit, StatusCode, tuple[str, ...]]] = {
    "config_cut": (text("config.json", '{"model_type": "lla'), LOST, ("config.json is truncated or no JSON",)),
    "config_is_a_list": (text("config.json", "[]"), LOST, ("config.json holds no JSON object",)),
    "config_far_too_deep": (text("config.json", "[" * 100_000), LOST, ("config.json",)),
    "no_model_type": (config(model_type=None), BAD, ("config.json has no model_type",)),
    "unknown_model_type": (config(model_type="abacus"), BAD, ("does not know model_type 'abacus'",)),
    "encoder": (config(model_type="bert", architectures=None), BAD, ("bert", "encoder")),
    "no_text_at_all": (config(model_type="vit", architectures=None), BAD, ("vit is no language model",)),
    "encoder_with_decoder": (config(model_type="t5", is_encoder_decoder=True), BAD, ("expected a decoder alone",)),
    "other_architecture": (config(architectures=["LlamaForTokenClassification"]), BAD, ("there is no tokenizer.json",)),
    "code": (config(auto_map={"AutoModel": "evil.Model"}), FORBIDDEN, ("config.json has auto_map",)),
    "quantised": (config(quantization_config={"bits": 4}), BAD, ("quantization_config",)),
    "size_is_a_text": (config(hidden_size="32"), BAD, ("config.json: hidden_size is '32'",)),
    "heads_do_not_divide": (config(num_attention_heads=3), BAD, ("config.json",)),
    "endless_layers": (config(num_hidden_layers=10**9), BAD, ("calls for 1000000000 layers",)),
    "endless_layers_of_a_part": (
        config(vision_config={"num_hidden_layers": 10**9}),
        BAD,
        ("calls for 1000000000 layers",),
    ),
    "endless_vocabulary": (config(vocab_size=2**30), BAD, ("config.json: vocab_size is 1073741824",)),
    "endless_width": (config(hidden_size=2**20), BAD, ("config.json: hidden_size is 1048576",)),
    "other_vocabulary": (config(vocab_size=VOCABULARY + 1), BAD, (WEIGHTS, "has shape [259, 32]", "[260, 32]")),
    "pickles": (pickles, BAD, ("the weights are pickles (pytorch_model.bin)", "safe_serialization")),
    "pickle_by_another_name": (
        lambda directory: (directory / WEIGHTS).write_bytes(pickle.dumps({"a": list(range(100))})),
        LOST,
        (WEIGHTS, "damaged"),
    ),
    "missing_tensor": (tensors(lambda found: found.pop(NORM)), BAD, (WEIGHTS, "lacks tensors", NORM)),
    "wrong_shape": (
        tensors(lambda found: found.update({HEAD: np.zeros((VOCABULARY, 31), np.float32)})),
        BAD,
        (WEIGHTS, HEAD, "[259, 31]"),
    ),
    "no_tensors": (tensors(dict.clear), BAD, ("the weights (model.safetensors) have no tensor",)),
    "cut": (
        lambda directory: (directory / WEIGHTS).write_bytes((directory / WEIGHTS).read_bytes()[:-1000]),
        LOST,
        (WEIGHTS, "truncated or damaged"),
    ),
    "empty": (lambda directory: (directory / WEIGHTS).write_bytes(b""), LOST, (WEIGHTS,)),
    "header_of_64_bits": (length(2**64 - 1), LOST, (WEIGHTS, "damaged")),
    "header_longer_than_the_file": (length(10_000_000), LOST, (WEIGHTS, "damaged")),
    "header_cut": (length(100), LOST, (WEIGHTS, "damaged")),
    "overlapping_tensors": (of(NORM, data_offsets=[0, 128]), LOST, (WEIGHTS, "damaged")),
    "tensor_past_the_end": (of(NORM, data_offsets=[2**40, 2**40 + 128]), LOST, (WEIGHTS, "damaged")),
    "shape_larger_than_its_bytes": (of(NORM, shape=[2**40]), LOST, (WEIGHTS, "damaged")),
    "shape_beyond_64_bits": (of(NORM, shape=[2**63, 2**63]), LOST, (WEIGHTS, "damaged")),
    "unknown_dtype": (of(NORM, dtype="F99"), LOST, (WEIGHTS, "damaged")),
    "shard_is_missing": (index(a="part.safetensors", b="other.safetensors"), BAD, ("names other.safetensors",)),
    "shard_outside": (index(a="../../next/1/model.safetensors"), FORBIDDEN, ("outside of the version's directory",)),
    "shard_is_a_pickle": (index(a="part.bin"), BAD, ("only .safetensors files are loaded",)),
    "tokenizer_cut": (text(TOKENIZER, '{"tokenizer'), LOST, (f"{TOKENIZER} is truncated or no JSON",)),
    "tokenizer_with_code": (tokenizer(auto_map={"AutoTokenizer": "evil.T"}), FORBIDDEN, (f"{TOKENIZER} has auto_map",)),
    "tokenizer_without_vocabulary": (text(TOKENIZER, "{}"), BAD, ("without a vocabulary",)),
    "vocabulary_is_damaged": (
        lambda directory: (
            (directory / TOKENIZER).write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}'),
            (directory / "tokenizer.json").write_text('{"model": {}}'),
        ),
        BAD,
        ("the tokenizer cannot be loaded",),
    ),
    "special_token_is_a_number": (tokenizer(bos_token=5), LOST, ("bos_token is 5, expected a text",)),
    "template_is_broken": (tokenizer(chat_template="{% for %}"), BAD, ("the chat template", "line 1")),
    "template_is_a_number": (tokenizer(chat_template=5), LOST, ("chat_template is no text",)),
    "end_is_a_text": (text("generation_config.json", '{"eos_token_id": "end"}'), BAD, ("eos_token_id is 'end'",)),
}
SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "unknown": ('parameters { key: "max_num_sets" value { string_value: "4" } }', ("max_num_sets", "max_num_seqs")),
    "no_places": ('parameters { key: "max_num_seqs" value { string_value: "0" } }', ("parameters.max_num_seqs", "'0'")),
    "no_number": ('parameters { key: "max_model_len" value { string_value: "long" } }', ("parameters.max_model_len",)),
    "far_too_many": (
        'parameters { key: "max_num_seqs" value { string_value: "99999" } }',
        ("parameters.max_num_seqs",),
    ),
    "dtype": ('parameters { key: "dtype" value { string_value: "int8" } }', ("parameters.dtype", "int8")),
    "rows": (
        'max_batch_size: 8 parameters { key: "max_batched_tokens" value { string_value: "4" } }',
        ("parameters.max_batched_tokens is 4, less than the 8",),
    ),
    "batching": ("max_batch_size: 8 dynamic_batching { }", ("dynamic_batching",)),
    "instances": ("instance_group [ { count: 2 } ]", ("instance_group: 2 instances",)),
    "inputs": ('input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]', ("input: a language model has inputs",)),
}


@dataclass
class BadFilesFixture:
    server: ServerProcess
    probe: Probe
    http: httpx.Client
    root: Path
    version: int = 1

    def publish(self, model: str, edit: Edit, scratch: Path) -> int:
        """The next version of the model: a good one, changed."""
        write_version(scratch / "version", BYTES_OF_TEXT)
        edit(scratch / "version")
        self.version += 1
        publish(str(scratch / "version"), str(self.root / model), self.version)
        return self.version

    def say(self, model: str = "next") -> tuple[str, list[int]]:
        """The version that has answered, and its tokens."""
        body = {"model": model, "prompt": [104, 105], "max_tokens": 3, "temperature": 0, "return_token_ids": True}
        answer = self.http.post("/openai/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-model-version"], answer.json()["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadFilesFixture]:
    root = tmp_path_factory.mktemp("bad_files")
    write_version(root / "next" / "1", BYTES_OF_TEXT)
    for name, (content, _) in SETTINGS.items():
        write_version(root / name / "1", BYTES_OF_TEXT)
        (root / name / "config.pbtxt").write_text(content)
    flags = (f"--model_repository={root}", "--max_num_load_retries=0", "--version_quiet_period_seconds=0.1")
    with (
        ServerProcess(*flags) as server,
        Probe(server) as probe,
        httpx.Client(base_url=f"http://127.0.0.1:{server.http_port}", timeout=20) as http,
    ):
        probe.wait_available("next", 1)
        yield BadFilesFixture(server, probe, http, root)
    assert server.exit_code == 0


@pytest.mark.parametrize("case", FILES)
def test_version_that_cannot_be_served_says_why_and_the_one_before_answers(
    fixture: BadFilesFixture, case: str, tmp_path: Path
) -> None:
    edit, code, words = FILES[case]
    known = fixture.say()
    status = fixture.probe.wait_failed("next", fixture.publish("next", edit, tmp_path)).status
    assert status.code is code, status
    for word in words:
        assert word in status.message
    assert str(fixture.root) not in status.message
    assert len(status.message) < 1000
    assert known[0] == "1"
    assert fixture.say() == known


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_without_sense_are_told_with_the_field(fixture: BadFilesFixture, case: str) -> None:
    status = fixture.probe.wait_failed(case, 1).status
    assert status.code is WRONG, status
    for word in SETTINGS[case][1]:
        assert word in status.message
    assert fixture.say()[0] == "1"


def test_labels_without_end_are_not_looked_at(fixture: BadFilesFixture, tmp_path: Path) -> None:
    write_version(tmp_path / "labels", BYTES_OF_TEXT)
    config(num_labels=2**62)(tmp_path / "labels")
    publish(str(tmp_path / "labels"), str(fixture.root / "labels"), 1)
    fixture.probe.wait_available("labels", 1)
    assert fixture.say("labels")[1] == fixture.say()[1]


def test_version_without_a_tokenizer_speaks_tokens(fixture: BadFilesFixture, tmp_path: Path) -> None:
    write_version(tmp_path / "silent", None)
    publish(str(tmp_path / "silent"), str(fixture.root / "silent"), 1)
    fixture.probe.wait_available("silent", 1)
    assert fixture.say("silent")[1] == fixture.say()[1]
    answer = fixture.http.post(
        "/openai/v1/completions", json={"model": "silent", "prompt": "hi", "return_token_ids": True}
    )
    assert (answer.status_code, "no tokenizer" in answer.json()["error"]["message"]) == (400, True)
