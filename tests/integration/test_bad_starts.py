"""What stops a server from starting: one line that says what and where; exit code 1, or 2 for wrong usage."""

from __future__ import annotations

import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.servers.process import ServerProcess, default_command, free_ports
from tfs_lite.cli import serve
from tfs_lite.cli.main import main


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "base"
    base.mkdir()
    return base


def refused_process(*flags: str, exit_code: int, **options) -> str:
    """The one line of a server process that does not start."""
    server = ServerProcess(*flags, command=default_command(), **options).start()
    try:
        assert server.wait() == exit_code, server.log()
        return only_line(server.log())
    finally:
        server.stop()


@pytest.fixture
def refused(monkeypatch, capsys):
    """The one line of ``tfs-lite serve`` in this process, which keeps its signals, log and threads."""

    def start(*flags: str, exit_code: int) -> str:
        for name in ("StopSignal", "start_logging", "tell_openmp", "_unblock_outputs", "_set_torch_threads"):
            monkeypatch.setattr(serve, name, Mock())
        port, rest_port = free_ports(2)
        assert main(["serve", f"--port={port}", f"--rest_api_port={rest_port}", *flags]) == exit_code
        return only_line(capsys.readouterr().err)

    return start


def only_line(log: str) -> str:
    lines = log.strip().splitlines()
    assert len(lines) == 1, log
    assert lines[0].startswith("tfs-lite: ")
    return lines[0]


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--model_nmae=x", ("model_nmae", "--model_name")),
        ("--rest-api-prt=5", ("rest_api_prt", "--rest_api_port")),
        ("--file_system_poll_wait_seconds=soon", ("file_system_poll_wait_seconds", "soon", "whole number")),
        ("--port=70000", ("port", "70000", "65535")),
        ("--max_num_load_retries=-1", ("max_num_load_retries", "-1")),
        ("--aspired_version_policy=best", ("aspired_version_policy", "best", "availability")),
        ("--exit_on_initial_load_failure=perhaps", ("exit_on_initial_load_failure", "perhaps", "true or false")),
        ("--device=gpu0", ("device", "gpu0", "cuda")),
        ("--prefer_tflite_model=true", ("prefer_tflite_model", "TensorFlow Lite")),
        ("--send_batches=later", ("send_batches", "expect or greedy", "later")),
        ("stray", ("stray",)),
    ],
)
def test_wrong_flag_is_wrong_usage(refused, base, flag, words):
    line = refused(f"--model_base_path={base}", flag, exit_code=2)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batching_parameters_file=x"], ("batching_parameters_file", "without setting enable_batching")),
        (["--enable_per_model_batching_parameters"], ("enable_per_model_batching_parameters", "enable_batching")),
        (["--enable_batching", "--batching_parameters_file=batching.pbtxt"], ("batching.pbtxt",)),
        (["--enable_batching", "--batching_parameters_file={base}/sizes"], ("Last entry in allowed_batch_sizes must",)),
    ],
)
def test_batching_that_cannot_be_what_was_meant_stops_the_start(refused, base, flags, words):
    (base / "sizes").write_text("max_batch_size { value: 8 } allowed_batch_sizes: [ 2, 4 ]")
    line = refused(f"--model_base_path={base}", *(flag.format(base=base) for flag in flags), exit_code=1)
    assert all(word in line for word in words), line


def test_environment_is_checked_like_a_flag(base):
    env = {"TFS_LITE_MAX_NUM_LOAD_RETRIES": "many"}
    line = refused_process(f"--model_base_path={base}", exit_code=2, env=env)
    assert "TFS_LITE_MAX_NUM_LOAD_RETRIES" in line
    assert "many" in line


def test_nothing_to_serve_is_told(refused):
    line = refused(exit_code=2)
    assert "--model_base_path" in line
    assert "--model_config_file" in line


def test_two_sources_of_models_contradict(refused, base):
    line = refused(f"--model_base_path={base}", f"--model_repository={base}", exit_code=2)
    assert "model_repository" in line
    assert "model_base_path" in line


@pytest.mark.parametrize("flag", ["port", "rest_api_port"])
def test_port_in_use_is_named(base, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ServerProcess(f"--model_base_path={base}", f"--{flag}={port}").start()
        try:
            assert server.wait() == 1
            last = server.log().strip().splitlines()[-1]
            assert str(port) in last
            assert f"(--{flag})" in last
            assert "Traceback" not in server.log()
        finally:
            server.stop()


def test_missing_config_file_is_named(tmp_path):
    line = refused_process(f"--model_config_file={tmp_path}/nothing.config", exit_code=1)
    assert "nothing.config" in line


def test_directory_as_config_file_is_named(refused, tmp_path):
    line = refused(f"--model_config_file={tmp_path}", exit_code=1)
    assert str(tmp_path) in line


CONFIGS = {
    "syntax": ("models.config", 'model_config_list {\n  config { base_path "/m" }\n}\n', ":2:22:", ()),
    "unknown_key": (
        "models.config",
        'model_config_list {\n  config {\n    name: "a"\n    base_paht: "/m"\n  }\n}\n',
        ":4:5:",
        ("base_paht", "base_path"),
    ),
    "unknown_key_in_yaml": (
        "models.yaml",
        "model_config_list:\n  config:\n    - name: a\n      base_paht: /m\n",
        ":4:7:",
        ("base_paht", "base_path"),
    ),
    "duplicate": (
        "models.config",
        'model_config_list {\n  config { name: "a" base_path: "/m" }\n  config { name: "a" base_path: "/n" }\n}\n',
        ":3:",
        ("Illegal to list model a multiple times",),
    ),
    "contradiction": (
        "models.config",
        'model_config_list {\n config {\n  name: "a" base_path: "/m"\n'
        '  model_type: TENSORFLOW model_platform: "tensorflow"\n } }\n',
        ":4:",
        ("Illegal setting both",),
    ),
    "unknown_platform": (
        "models.config",
        'model_config_list { config { name: "a" base_path: "/m" model_platform: "caffe" } }\n',
        "models.config:1:56: model_config_list.config[0].model_platform: ",
        ("caffe", "requests unsupported platform", "this server has: ensemble, onnxruntime_onnx, python, pytorch_"),
    ),
    "no_text": ("models.config", "\x00\x01\x02\xff", "models.config", ()),
}


@pytest.mark.parametrize(("name", "text", "place", "words"), CONFIGS.values(), ids=CONFIGS)
def test_bad_config_file_is_refused_with_its_place(refused, tmp_path, name, text, place, words):
    (tmp_path / name).write_text(text)
    line = refused(f"--model_config_file={tmp_path / name}", exit_code=1)
    assert place in line
    assert all(word in line for word in words), line


@pytest.mark.parametrize("outside", ["allowed/../elsewhere", "allowed/link"])
def test_model_outside_the_allowed_roots_is_refused(refused, tmp_path, outside):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "elsewhere")
    line = refused(
        f"--model_base_path={tmp_path}/{outside}", f"--allowed_model_base_paths={tmp_path}/allowed", exit_code=1
    )
    assert "allowed_model_base_paths" in line
    assert "default" in line, "the model is named"


def test_model_that_fails_at_the_start_ends_the_server_only_where_that_was_asked_for(base):
    (base / "1").mkdir()
    (base / "1" / "model.pt2").write_bytes(b"no archive at all")
    server = ServerProcess(f"--model_base_path={base}", "--exit_on_initial_load_failure").start()
    try:
        assert server.wait() == 1
        last = server.log().strip().splitlines()[-1]
        assert last.startswith("tfs-lite: ")
        assert "default" in last
        assert "model.pt2" in last
    finally:
        server.stop()
