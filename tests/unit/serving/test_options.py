from __future__ import annotations

from typing import Any

import pytest

from tfs_lite.serving.options import ServerOptions
from tfs_lite.testing.errors import refusal

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_repository": "r", "model_base_path": "b"}, "model_repository and model_base_path"),
    ({"model_repository": "r", "model_config_file": "f"}, "model_repository and model_config_file"),
    ({"model_base_path": "b", "model_name": ""}, "model_name is empty"),
    ({"model_control_mode": "pull"}, "expected one of: poll, none, explicit"),
    ({"load_model": ("a",)}, "without setting model_control_mode to explicit"),
    ({"load_model": ("a", "*"), "model_control_mode": "explicit"}, "must stand alone"),
    ({"aspired_version_policy": "best"}, "expected one of: availability, resource"),
    ({"port": None}, "neither port nor grpc_socket_path"),
    ({"port": 8500, "rest_api_port": 8500}, "are both 8500"),
    ({"port": -1}, "port is -1"),
    ({"max_num_load_retries": -1}, "max_num_load_retries is -1, expected at least 0"),
    ({"max_message_bytes": 0}, "max_message_bytes is 0"),
    ({"model_config_list_root_dir": "relative"}, "expected an absolute path"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG)
def test_contradictory_or_impossible_settings_are_refused(fields: dict[str, Any], words: str) -> None:
    assert words in refusal(ServerOptions, **fields)


def test_defaults_take_free_ports_on_loopback() -> None:
    options = ServerOptions()
    assert (options.host, options.port, options.rest_api_port) == ("127.0.0.1", 0, 0)


def test_socket_alone_is_a_way_in() -> None:
    assert ServerOptions(port=None, grpc_socket_path="/tmp/s").port is None


def test_two_free_ports_are_not_the_same_port() -> None:
    assert ServerOptions(port=0, rest_api_port=0).port == 0
