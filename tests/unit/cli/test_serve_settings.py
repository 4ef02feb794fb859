"""From flags to the server's options, torch's threads and the help text."""

from __future__ import annotations

import os

import pytest

from tfs_lite.cli.flag_parser import parse_flags
from tfs_lite.cli.flags import FIRST_FLAGS, FLAGS
from tfs_lite.cli.output import UsageError
from tfs_lite.cli.serve import OPENMP_THREADS, help_text, server_options, tell_openmp, torch_threads
from tfs_lite.core.threads import usable_cpus
from tfs_lite.serving.options import ServerOptions

REST = max(usable_cpus() - 1, 1)
ODD = ("", " ", "0", "-3", "many")
"""Numbers of threads with which OpenMP can do nothing."""


def options(*argv: str) -> ServerOptions:
    return server_options(parse_flags(argv, {}))


def test_flags_become_the_options_of_the_same_name() -> None:
    found = options("--model_base_path=/m", "--model_name=digits", "--num_load_threads=3", "--drain_timeout_seconds=5")
    assert (found.model_base_path, found.model_name, found.num_load_threads) == ("/m", "digits", 3)
    assert found.drain_timeout_seconds == 5.0
    assert (found.port, found.rest_api_port, found.host) == (8500, 8501, "127.0.0.1")


def test_port_zero_turns_an_endpoint_off() -> None:
    assert options("--model_base_path=/m", "--rest_api_port=0").rest_api_port is None
    assert options("--model_base_path=/m", "--port=0", "--grpc_socket_path=/tmp/s").port is None


def test_a_config_file_overrides_the_base_path_that_a_container_always_gives() -> None:
    assert options("--model_base_path=/m", "--model_config_file=/c").model_config_file == "/c"


def test_models_of_the_start_are_named_one_by_one_or_in_a_list() -> None:
    flags = ("--model_repository=/r", "--model_control_mode=explicit")
    assert options(*flags, "--load_model=a", "--load-model=b,c").load_model == ("a", "b", "c")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "nothing to serve: give --model_base_path"),
        ("--model_base_path=/m --port=0", "neither port nor grpc_socket_path"),
        ("--model_repository=/r --model_base_path=/m", "model_repository and model_base_path are both set"),
        ("--model_base_path=/m --port=8600 --rest_api_port=8600", "port and rest_api_port are both 8600"),
        ("--model_repository=/r --load_model=a", "load_model is set without setting model_control_mode to explicit"),
    ],
)
def test_flags_that_contradict_one_another_or_serve_nothing_are_wrong_usage(flags: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options(*flags.split())


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ([], (0, 0)),
        (["--tensorflow_session_parallelism=3"], (3, 3)),
        (["--tensorflow_intra_op_parallelism=2"], (2, 0)),
        (["--tensorflow_inter_op_parallelism=2"], (0, 2)),
        (["--tensorflow_session_parallelism=3", "--tensorflow_intra_op_parallelism=2"], (2, 3)),
    ],
)
def test_parallelism_flags_set_torchs_threads(flags: list[str], threads: tuple[int, int]) -> None:
    assert torch_threads(parse_flags(flags, {})) == threads


@pytest.mark.parametrize(
    ("flag", "surroundings", "number", "told"),
    [(3, "2", 3, "3"), (0, "2", 2, "2"), (0, " 4,2", 4, " 4,2"), *((0, odd, REST, str(REST)) for odd in ODD)],
)
def test_openmp_is_told_the_flag_or_what_the_environment_says_or_all_cores_but_one(
    monkeypatch: pytest.MonkeyPatch, flag: int, surroundings: str, number: int, told: str
) -> None:
    monkeypatch.setenv(OPENMP_THREADS, surroundings)
    assert tell_openmp(flag) == number
    assert os.environ[OPENMP_THREADS] == told


def test_all_three_parallelism_flags_contradict_one_another() -> None:
    flags = [f"--tensorflow_{kind}_parallelism=2" for kind in ("session", "intra_op", "inter_op")]
    with pytest.raises(UsageError, match="not all three"):
        torch_threads(parse_flags(flags, {}))


def test_help_names_every_flag_once() -> None:
    lines = help_text().splitlines()
    grouped = lines.index(f"{FLAGS[0].group}:")
    first = [line.split("=")[0].split()[0] for line in lines[:grouped] if line.startswith("  --")]
    assert first == [f"--{name}" for name in FIRST_FLAGS], "those to begin with stand above the groups"
    lines = lines[grouped:]
    for flag in FLAGS:
        spelled = [line for line in lines if line.split("=")[0].split()[:1] == [f"--{flag.name}"]]
        assert len(spelled) == 1, flag.name
    assert max(len(line) for line in lines) <= 140
