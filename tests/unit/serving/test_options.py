from __future__ import annotations

from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.config.replicas import ClusterOptions
from tfs_lite.serving.options import ServerOptions

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_repository": "r", "model_base_path": "b"}, "model_repository and model_base_path"),
    ({"model_repository": "r", "model_config_file": "f"}, "model_repository and model_config_file"),
    ({"model_base_path": "b", "model_name": ""}, "model_name is empty"),
    ({"model_control_mode": "pull"}, "expected one of: poll, none, explicit"),
    ({"load_model": ("a",)}, "without setting model_control_mode to explicit"),
    ({"load_model": ("a", "*"), "model_control_mode": "explicit"}, "must stand alone"),
    ({"bake_seconds": 59}, "bake_seconds is 59, expected 0 (no trial) or 60 to 86400"),
    ({"bake_seconds": 86401}, "expected 0 (no trial) or 60 to 86400"),
    ({"bake_verdict": "ask"}, "expected one of: revert, tell"),
    ({"bake_requests": -1}, "bake_requests is -1, expected at least 0"),
    (
        {"bake_seconds": 600, "aspired_version_policy": "resource"},
        "bake_seconds is 600 and aspired_version_policy is resource",
    ),
    ({"aspired_version_policy": "best"}, "expected one of: availability, resource"),
    ({"port": None}, "neither port nor grpc_socket_path"),
    ({"port": 8500, "rest_api_port": 8500}, "are both 8500"),
    ({"port": -1}, "port is -1"),
    ({"max_num_load_retries": -1}, "max_num_load_retries is -1, expected at least 0"),
    ({"max_message_bytes": 0}, "max_message_bytes is 0"),
    ({"model_config_list_root_dir": "relative"}, "expected an absolute path"),
    ({"worker": "fork"}, "expected one of: auto, thread, process, ray"),
    ({"worker": "ray"}, "worker is ray and cluster is not set"),
    ({"cluster_name": "mine"}, "cluster_name is set and cluster is not"),
    ({"cluster_host": "10.0.0.1"}, "cluster_host is set and cluster is not"),
    ({"cluster_port": 7000}, "cluster_port is set and cluster is not"),
    ({"replica_port_range": "1-2"}, "replica_port_range is set and cluster is not"),
    ({"cluster_ssl_config_file": "tls"}, "cluster_ssl_config_file is set and cluster is not"),
    ({"model_transfer": "fetch"}, "model_transfer is set and cluster is not"),
    ({"replica_orphan_seconds": 5.0}, "replica_orphan_seconds is set and cluster is not"),
    ({"health_check_timeout_s": 0.0}, "health_check_timeout_s is set and cluster is not"),
    *[
        ({"cluster": address}, f"cluster is {address!r}, expected auto, HOST:PORT or ray://HOST:PORT")
        for address in ("head", "http://head:1", "ray://head", "head:port", ":6379", "head:6379/x", "a b:1")
    ],
    ({"cluster": "auto", "cluster_name": ""}, "cluster_name is ''"),
    ({"cluster": "auto", "cluster_name": "a/b"}, "cluster_name is 'a/b', expected at most 64 letters"),
    ({"cluster": "auto", "cluster_name": "a" * 65}, "expected at most 64 letters"),
    ({"cluster": "auto", "cluster_port": -1}, "cluster_port is -1"),
    *[
        ({"cluster": "auto", "replica_port_range": text}, f"replica_port_range is {text!r}, expected FIRST-LAST")
        for text in ("20000", "2-1", "0-5", "1-65536", "a-b", "1-2-3", "-1-5")
    ],
    ({"cluster": "auto", "model_transfer": "copy"}, "expected one of: shared, fetch"),
    ({"model_cache_dir": "c"}, "model_cache_dir is 'c', expected an absolute path"),
    ({"model_cache_bytes": 0}, "model_cache_bytes is 0, expected at least 1"),
    ({"remote_poll_wait_seconds": 0.5}, "remote_poll_wait_seconds is 0.5, expected at least 1"),
    ({"remote_quiet_seconds": -1}, "remote_quiet_seconds is -1, expected at least 0"),
    ({"model_repository": "s3://b/m"}, "model_repository is a URL, and a repository is a directory of this machine"),
    ({"model_base_path": "http://h/m"}, "model_base_path: the URL has another scheme than s3://"),
    ({"model_base_path": "s3://key@b/m"}, "model_base_path: the URL has a user or a key"),
    ({"model_base_path": "s3://b/m", "model_control_mode": "explicit"}, "from directories of this machine only"),
    ({"allowed_model_base_paths": ("/m", "s3://b/../m")}, "allowed_model_base_paths: the URL has an empty part"),
    ({"cluster": "auto", "model_transfer": "fetch", "model_cache_bytes": 0}, "model_cache_bytes is 0"),
    ({"cluster": "auto", "replica_orphan_seconds": 0.5}, "replica_orphan_seconds is 0.5, expected at least 1"),
    ({"cluster": "auto", "health_check_timeout_s": -1.0}, "health_check_timeout_s is -1.0"),
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


def test_server_without_a_cluster_has_no_options_of_one() -> None:
    assert ServerOptions().cluster_options is None


@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:6379", "[::1]:6379", "ray://head-svc:10001"])
def test_cluster_is_named_by_its_address(address: str) -> None:
    assert ServerOptions(cluster=address).cluster_options == ClusterOptions(address)


def test_options_of_the_cluster_are_those_of_the_flags() -> None:
    options = ServerOptions(
        worker="ray",
        cluster="ray://head:10001",
        cluster_name="mine",
        cluster_host="10.0.0.1",
        cluster_port=7000,
        replica_port_range="20000-20999",
        cluster_ssl_config_file="/etc/tls.pbtxt",
        replica_orphan_seconds=5.0,
        health_check_timeout_s=0.0,
        model_transfer="fetch",
        model_cache_dir="/var/cache/models",
        model_cache_bytes=2**40,
    ).cluster_options
    assert options == ClusterOptions(
        "ray://head:10001",
        name="mine",
        host="10.0.0.1",
        port=7000,
        port_range=(20000, 20999),
        orphan_seconds=5.0,
        health_check_timeout=0.0,
        ssl_config_file="/etc/tls.pbtxt",
        transfer="fetch",
        cache_dir="/var/cache/models",
        cache_bytes=2**40,
    )
    assert options.fetches


@pytest.mark.parametrize("host", ["::1", "::", "127.0.0.1", "localhost"])
def test_an_address_of_ipv6_may_stand_in_brackets(host: str) -> None:
    assert ServerOptions(host=f"[{host}]", model_base_path="/m").host == host
    assert ServerOptions(host=host, model_base_path="/m").host == host


def test_the_directory_and_the_size_of_the_cache_need_no_cluster() -> None:
    options = ServerOptions(model_base_path="s3://bucket/m", model_cache_dir="/c", model_cache_bytes=2**30)
    assert options.cluster_options is None


def test_errors_of_urls_do_not_repeat_them() -> None:
    assert "secret" not in refusal(ServerOptions, model_base_path="s3://id:secret@b/m")
