"""Command lines and environments: every spelling that works, and a clear line for every one that does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tfs_lite.cli.flag_parser import FlagValues, parse_flags
from tfs_lite.cli.flags import FLAGS
from tfs_lite.cli.output import UsageError


def parse(*argv: str, environ: Mapping[str, str] | None = None) -> FlagValues:
    return parse_flags(argv, environ or {})


def error_of(*argv: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse(*argv, environ=environ)
    return str(caught.value)


@pytest.mark.parametrize(
    "argv",
    [
        ["--rest_api_port=9001"],
        ["--rest_api_port", "9001"],
        ["--rest-api-port=9001"],
        ["--rest-api-port", "9001"],
        ["--rest_api_port=1", "--rest_api_port=9001"],
    ],
)
def test_all_spellings_of_a_value_mean_the_same(argv: Sequence[str]) -> None:
    assert parse(*argv)["rest_api_port"] == 9001


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--ready_requires_all_models"], True),
        (["--ready_requires_all_models=true"], True),
        (["--ready_requires_all_models=false"], False),
        (["--ready-requires-all-models", "true"], True),
        (["--ready-requires-all-models", "false"], False),
        (["--ready_requires_all_models", "--port=1"], True),
        ([], False),
    ],
)
def test_booleans_may_be_bare_or_have_a_value(argv: Sequence[str], expected: bool) -> None:
    assert parse(*argv)["ready_requires_all_models"] is expected


def test_a_command_line_of_the_upstream_container_works_unchanged() -> None:
    settings = parse(
        "--port=8500",
        "--rest_api_port=8501",
        "--model_name=model",
        "--model_base_path=/models/model",
        "--model_config_file=/config/models.config",
        "--model_config_file_poll_wait_seconds=60",
        "--enable_model_warmup=true",
        "--enable_grpc_healthcheck_service=true",
        "--tensorflow_intra_op_parallelism=4",
        "--enable_profiler=false",
    )
    assert settings["model_config_file_poll_wait_seconds"] == 60
    assert settings["tensorflow_intra_op_parallelism"] == 4


def test_numbers_may_be_negative_also_as_a_word_of_their_own() -> None:
    assert parse("--file_system_poll_wait_seconds", "-1")["file_system_poll_wait_seconds"] == -1


def test_lists_are_split_at_commas_and_add_up() -> None:
    settings = parse("--trusted_model_base_paths=/a/*, /b", "--trusted-model-base-paths", "/c")
    assert settings["trusted_model_base_paths"] == ("/a/*", "/b", "/c")


def test_the_environment_sets_defaults_and_the_command_line_wins() -> None:
    environ = {"TFS_LITE_PORT": "1234", "TFS_LITE_REST_API_PORT": "1235", "TFS_LITE_TRUSTED_MODEL_BASE_PATHS": "/e"}
    settings = parse("--port=99", "--trusted_model_base_paths=/c", environ=environ)
    assert (settings["port"], settings["rest_api_port"]) == (99, 1235)
    assert settings["trusted_model_base_paths"] == ("/c",)


def test_a_variable_that_a_template_left_empty_is_not_set() -> None:
    for flag in FLAGS:
        assert parse(environ={f"TFS_LITE_{flag.name.upper()}": ""}) == parse()


def test_only_names_of_flags_count_in_the_environment() -> None:
    environ = {"TFS_LITE_VERSION": "1.2.3", "TFS_LITE_HELP": "x", "TFS_LITE_NONSENSE": "y", "PORT": "1"}
    assert parse(environ=environ).values == parse().values


def test_an_unknown_flag_is_refused_with_the_nearest_spelling_if_there_is_one() -> None:
    assert error_of("--rest_api_prot=1") == "unknown flag --rest_api_prot (did you mean --rest_api_port?)"
    assert error_of("--zzzzzz") == "unknown flag --zzzzzz"
    assert "write --ready_requires_all_models=false" in error_of("--noready_requires_all_models")
    assert "write --ready_requires_all_models=false" in error_of("--no-ready-requires-all-models")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--port=abc", "--port: expected a whole number from 0 up to 65535, got 'abc'"),
        ("--port=70000", "--port: expected a whole number from 0 up to 65535, got '70000'"),
        ("--port=", "--port: expected a whole number from 0 up to 65535, got ''"),
        ("--port=0x10", "--port: expected a whole number from 0 up to 65535, got '0x10'"),
        ("--ready_requires_all_models=1", "--ready_requires_all_models: expected true or false, got '1'"),
        ("--drain_timeout_seconds=nan", "--drain_timeout_seconds: expected a number from 0, got 'nan'"),
        (
            "--max_num_load_retries=-1",
            "--max_num_load_retries: expected a whole number from 0 up to 2147483647, got '-1'",
        ),
        (
            "--num_load_threads=99999999999",
            "--num_load_threads: expected a whole number from 0 up to 2147483647, got '99999999999'",
        ),
        ("--aspired_version_policy=best", "--aspired_version_policy: expected availability or resource, got 'best'"),
        ("--device=gpu", "--device: expected auto, cpu or cuda[:N], got 'gpu'"),
        ("--device=", "--device: expected auto, cpu or cuda[:N], got ''"),
    ],
)
def test_a_malformed_value_is_refused_with_the_flag_and_what_was_expected(word: str, expected: str) -> None:
    assert error_of(word) == expected


def test_a_malformed_variable_is_refused_under_its_own_name() -> None:
    assert error_of(environ={"TFS_LITE_PORT": "x"}).startswith("TFS_LITE_PORT: expected a whole number")


@pytest.mark.parametrize("argv", [["--port"], ["--port", "--rest_api_port=1"]])
def test_a_missing_value_is_refused(argv: Sequence[str]) -> None:
    assert error_of(*argv) == "--port needs a value: expected a whole number from 0 up to 65535"


@pytest.mark.parametrize("word", ["models", "-p", "--", "-port=1"])
def test_a_word_that_is_no_flag_is_refused(word: str) -> None:
    assert error_of(word) == f"unexpected argument {word!r}: flags are written --name=value"


@pytest.mark.parametrize(
    "word", ["--xla_cpu_compilation_enabled", "--mixed_precision=bfloat16", "--num_tflite_pools=77"]
)
def test_a_flag_that_only_tensorflow_has_is_refused_with_the_reason(word: str) -> None:
    assert "has no meaning for PyTorch" in error_of(word)


@pytest.mark.parametrize(
    "word",
    [
        "--enable_batching=false",
        "--mixed_precision=",
        "--enable_profiler=false",
        "--skip_initialize_tpu",
        "--prefer_tflite_model=false",
    ],
)
def test_a_value_that_asks_for_what_happens_anyway_passes(word: str) -> None:
    parse(word)


@pytest.mark.parametrize(("name", "least"), [("rest_api_num_threads", 1), ("grpc_max_threads", 0)])
def test_a_number_of_threads_has_a_least_value(name: str, least: int) -> None:
    for value in (least, 5, 1000, 2**31 - 1):
        assert parse(f"--{name}={value}")[name] == value
    expected = f"--{name}: expected a whole number from {least} up to 2147483647, got "
    assert error_of(f"--{name}={least - 1}") == f"{expected}'{least - 1}'"
    assert error_of(f"--{name}=many") == f"{expected}'many'"


def test_an_unsupported_setting_from_the_environment_is_refused_too() -> None:
    assert error_of(environ={"TFS_LITE_XLA_CPU_COMPILATION_ENABLED": "true"}).startswith(
        "TFS_LITE_XLA_CPU_COMPILATION_ENABLED=true has no meaning for PyTorch: "
    )
