from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.config.batching import (
    MAX_THREADS,
    VERSION_FILE,
    BatchingParameters,
    combined,
    parameters_without_file,
    read_version_parameters,
)
from tfs_lite.config.server_files import parse_batching_parameters, read_batching_parameters
from tfs_lite.config.text import MAX_FILE_BYTES
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols import messages

PROTO_TEXT = """
max_batch_size { value: 64 }
batch_timeout_micros: { value: 2000 }
max_enqueued_batches < value: 5 >
num_batch_threads { value: 4 }
thread_pool_name { value: "pool" }
allowed_batch_sizes: [8, 16]
allowed_batch_sizes: 64
pad_variable_length_inputs: true
enable_large_batch_splitting { value: true }
max_execution_batch_size { value: 32 }
"""
YAML = """
max_batch_size: 64
batch_timeout_micros: {value: 2000}
max_enqueued_batches: 5
num_batch_threads: 4
thread_pool_name: pool
allowed_batch_sizes: [8, 16, 64]
pad_variable_length_inputs: true
enable_large_batch_splitting: true
max_execution_batch_size: 32
"""
SPLIT = "enable_large_batch_splitting: true\n"


def parse(text: str, name: str = "b.yaml") -> BatchingParameters:
    return parse_batching_parameters(text, name)


def error_of(text: str, name: str) -> str:
    return refusal(parse, text, name)


def test_both_syntaxes_say_the_same() -> None:
    parameters = parse(PROTO_TEXT, "b.pbtxt")
    assert parameters == parse(YAML)
    assert parameters.model_dump() == {
        "max_batch_size": 64,
        "batch_timeout_micros": 2000,
        "max_enqueued_batches": 5,
        "num_batch_threads": 4,
        "thread_pool_name": "pool",
        "allowed_batch_sizes": (8, 16, 64),
        "pad_variable_length_inputs": True,
        "enable_large_batch_splitting": True,
        "max_execution_batch_size": 32,
    }
    assert (parameters.execution_batch_size, parameters.enqueued_batches) == (32, 5)


@pytest.mark.parametrize("name", ["b.pbtxt", "b.yaml"])
def test_an_empty_file_has_the_defaults_of_tensorflow_serving(name: str) -> None:
    parameters = parse("", name)
    assert parameters.num_batch_threads >= 1
    assert parameters.model_dump(exclude={"num_batch_threads"}) == {
        "max_batch_size": 1000,
        "batch_timeout_micros": 0,
        "max_enqueued_batches": 10,
        "thread_pool_name": "batch_threads",
        "allowed_batch_sizes": (),
        "pad_variable_length_inputs": False,
        "enable_large_batch_splitting": False,
        "max_execution_batch_size": None,
    }
    assert (parameters.execution_batch_size, parameters.enqueued_batches) == (1000, 10)


def test_without_a_file_only_the_name_of_the_pool_differs() -> None:
    expected = parse("thread_pool_name: model_server_batch_threads")
    assert parameters_without_file() == expected


def test_every_field_of_the_message_is_a_setting() -> None:
    fields = {field.name for field in messages.BatchingParameters.DESCRIPTOR.fields}
    assert fields == set(BatchingParameters.model_fields)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("batch_timeout_micros {}", "batch_timeout_micros", 0),
        ("batch_timeout_micros { value: 0 }", "batch_timeout_micros", 0),
        ('thread_pool_name { value: "" }', "thread_pool_name", ""),
        ("enable_large_batch_splitting { value: false }", "enable_large_batch_splitting", False),
        ("max_enqueued_batches { value: 0 }", "enqueued_batches", 1),
        ("max_batch_size { value: 7 } max_execution_batch_size { value: 7 }", "execution_batch_size", 7),
        ("max_batch_size { value: 7 } allowed_batch_sizes: 7", "allowed_batch_sizes", (7,)),
        ("allowed_batch_sizes: 1000", "allowed_batch_sizes", (1000,)),
        (
            "max_batch_size { value: 9 } enable_large_batch_splitting { value: true } allowed_batch_sizes: [2, 9] "
            "max_execution_batch_size { value: 4 }",
            "execution_batch_size",
            4,
        ),
    ],
)
def test_values_at_the_edges(text: str, field: str, value: object) -> None:
    assert getattr(parse(text, "b.pbtxt"), field) == value


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("max_batch_size: 64", "b.pbtxt", "b.pbtxt:1:"),
        ("\nmax_batch_size { value: 0 }", "b.pbtxt", "b.pbtxt:2:1: max_batch_size: Input should be .* equal to 1, got"),
        ("max_batch_size {}", "b.pbtxt", "b.pbtxt:1:1: max_batch_size: Input should be"),
        ("max_batch_size { value: -1 }", "b.pbtxt", "b.pbtxt:1:1: max_batch_size: Input should be"),
        ("max_batch_size { value: 9223372036854775808 }", "b.pbtxt", "b.pbtxt:1:25: "),
        ("max_batch_size: 9223372036854775808", "b.yaml", "b.yaml:1:1: max_batch_size: Input should be less"),
        ("max_batch_size: 1.5", "b.yaml", "b.yaml:1:1: max_batch_size: Input should be a valid integer, got 1.5"),
        ("max_batch_size: true", "b.yaml", "b.yaml:1:1: max_batch_size: Input should be a valid integer, got True"),
        ("max_batch_size: {valu: 1}", "b.yaml", "b.yaml:1:1: max_batch_size: Input should be a valid integer, got"),
        ("max_batch_size: {value: {value: 1}}", "b.yaml", "b.yaml:1:1: max_batch_size: Input should be a valid integ"),
        ("batch_timeout_micros { value: -1 }", "b.pbtxt", "b.pbtxt:1:1: batch_timeout_micros: Input should be"),
        ("max_enqueued_batches: -1", "b.yaml", "b.yaml:1:1: max_enqueued_batches: Input should be"),
        (SPLIT + "max_enqueued_batches: 0", "b.yaml", "b.yaml:2:1: max_enqueued_batches: must be 1 or more with"),
        ("num_batch_threads { value: 0 }", "b.pbtxt", "b.pbtxt:1:1: num_batch_threads: Input should be"),
        (f"num_batch_threads: {MAX_THREADS + 1}", "b.yaml", "b.yaml:1:1: num_batch_threads: Input should be"),
        ("thread_pool_name: 5", "b.yaml", "b.yaml:1:1: thread_pool_name: Input should be a valid string, got 5"),
        ("pad_variable_length_inputs { value: true }", "b.pbtxt", "b.pbtxt:1:"),
        ("pad_variable_length_inputs: 1", "b.yaml", "b.yaml:1:1: pad_variable_length_inputs: Input should be a valid"),
        ("max_batchsize { value: 4 }", "b.pbtxt", 'b.pbtxt:1:1: unknown field "max_batchsize"; did you mean "max_b'),
        (
            "max_batch_size { value: 8 }\nallowed_batch_sizes: [\n2, 4]",
            "b.pbtxt",
            "b.pbtxt:3:4: allowed_batch_sizes[1]: Last entry in allowed_batch_sizes must match max_batch_size: got 4, "
            "expected 8",
        ),
        (
            SPLIT + "max_execution_batch_size: 4\nmax_batch_size: 8\nallowed_batch_sizes: [2, 4]",
            "b.yaml",
            "b.yaml:4:26: allowed_batch_sizes[1]: Last entry in allowed_batch_sizes must match max_batch_size",
        ),
        (
            "max_batch_size { value: 4 }\nallowed_batch_sizes: 4\nallowed_batch_sizes: 2",
            "b.pbtxt",
            "b.pbtxt:3:1: allowed_batch_sizes[1]: sizes must ascend; 2 comes after 4",
        ),
        ("allowed_batch_sizes: [4, 4, 1000]", "b.yaml", "b.yaml:1:26: allowed_batch_sizes[1]: sizes must ascend"),
        ("allowed_batch_sizes: [0, 1000]", "b.yaml", "b.yaml:1:23: allowed_batch_sizes[0]: Input should be"),
        (
            SPLIT + "max_execution_batch_size: 1001",
            "b.yaml",
            "b.yaml:2:1: max_execution_batch_size: must be at most max_batch_size, 1000; got 1001",
        ),
        ("max_execution_batch_size: 1001", "b.yaml", "b.yaml:1:1: max_execution_batch_size: must be at most"),
        (
            "max_execution_batch_size { value: 10 }",
            "b.pbtxt",
            "b.pbtxt:1:1: max_execution_batch_size: has a meaning only with enable_large_batch_splitting",
        ),
        (SPLIT + "max_execution_batch_size: 0", "b.yaml", "b.yaml:2:1: max_execution_batch_size: Input should be"),
    ],
)
def test_a_mistake_names_file_place_and_field(text: str, name: str, message: str) -> None:
    pattern = ".*".join(re.escape(part) for part in message.split(".*"))
    assert re.match(pattern, error_of(text, name))


SIZES = st.integers(-1, 5)


@given(sizes=st.lists(SIZES, max_size=3), most=SIZES, run=SIZES, waiting=st.integers(-1, 2), splitting=st.booleans())
def test_parameters_that_pass_are_consistent(
    sizes: list[int], most: int, run: int, waiting: int, splitting: bool
) -> None:
    text = (
        f"max_batch_size {{ value: {most} }} max_execution_batch_size {{ value: {run} }} "
        f"max_enqueued_batches {{ value: {waiting} }} allowed_batch_sizes: {sizes} "
        f"enable_large_batch_splitting {{ value: {str(splitting).lower()} }}"
    )
    wanted = (
        1 <= run <= most
        and (splitting or run == most)
        and waiting >= int(splitting)
        and all(size >= 1 for size in sizes)
        and sizes == sorted(set(sizes))
        and (not sizes or sizes[-1] == most)
    )
    try:
        parameters = parse(text, "b.pbtxt")
    except ServingError as error:
        assert error.code is StatusCode.INVALID_ARGUMENT  # noqa: PT017
        assert not wanted
    else:
        assert wanted
        assert (parameters.execution_batch_size, parameters.enqueued_batches) == (run, max(waiting, 1))


def test_a_file_is_read_below_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "b.pbtxt").write_text(PROTO_TEXT)
    assert read_batching_parameters("b.pbtxt", tmp_path) == parse(YAML)


def version_error(directory: Path) -> str:
    message = refusal(read_version_parameters, directory)
    assert str(directory.parent) not in message
    return message


@pytest.fixture
def version(tmp_path: Path) -> Path:
    directory = tmp_path / "7"
    directory.mkdir()
    return directory


def test_a_version_may_have_parameters_of_its_own(version: Path) -> None:
    assert read_version_parameters(version) is None
    (version / VERSION_FILE).write_text("\ufeff" + PROTO_TEXT, encoding="utf-8")
    assert read_version_parameters(version) == parse(YAML)


def test_a_version_that_is_no_directory_has_no_parameters(version: Path) -> None:
    (version / "file").touch()
    assert read_version_parameters(version / "gone") is None
    assert read_version_parameters(version / "file") is None


def test_a_mistake_in_the_file_of_a_version_names_file_and_line(version: Path) -> None:
    (version / VERSION_FILE).write_text("# ours\nmax_batch_size { value: 0 }")
    assert version_error(version).startswith("7/batching_params.pbtxt:2:1: max_batch_size: Input should be")
    (version / VERSION_FILE).write_bytes(b"# ours\n\xff")
    assert version_error(version) == "7/batching_params.pbtxt:2:1: not UTF-8 text"


def test_the_file_of_a_version_is_never_reached_through_a_link(version: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password")
    (version / VERSION_FILE).symlink_to("../secret")
    assert version_error(version) == "7/batching_params.pbtxt: has to be a plain file of the version, not a link"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_the_file_of_a_version_has_to_be_a_plain_file(version: Path, make: Callable[[Path], None]) -> None:
    make(version / VERSION_FILE)
    assert "has to be a plain file of the version, not something else" in version_error(version)


def test_the_file_of_a_version_is_bounded(version: Path) -> None:
    text = "max_batch_size { value: 5 }"
    (version / VERSION_FILE).write_text(text + " " * (MAX_FILE_BYTES - len(text)))
    assert read_version_parameters(version) == parse(text, "b.pbtxt")
    (version / VERSION_FILE).write_text(text + " " * (MAX_FILE_BYTES - len(text) + 1))
    assert version_error(version) == f"7/batching_params.pbtxt: larger than {MAX_FILE_BYTES} bytes"


def test_with_files_per_model_the_one_of_the_server_is_only_about_threads() -> None:
    server = BatchingParameters(max_batch_size=5, num_batch_threads=3, thread_pool_name="all")
    version = BatchingParameters(max_batch_size=64, allowed_batch_sizes=(8, 64), num_batch_threads=9)
    expected = BatchingParameters(
        max_batch_size=64, allowed_batch_sizes=(8, 64), num_batch_threads=3, thread_pool_name="all"
    )
    assert combined(server, version) == expected
    assert combined(server, None) is None
