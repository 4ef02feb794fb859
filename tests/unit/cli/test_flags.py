"""The table of flags: complete, consistent, and every value it takes means something."""

from __future__ import annotations

import dataclasses
import os

import pytest

from tfs_lite.cli.flags import FLAGS, Flag, FlagType, Support
from tfs_lite.cli.serve import OWN_FLAGS
from tfs_lite.serving.options import ServerOptions

CPUS = len(os.sched_getaffinity(0))

UPSTREAM = {
    "port": 8500,
    "grpc_socket_path": "",
    "rest_api_num_threads": 4 * CPUS,
    "rest_api_timeout_in_ms": 30000,
    "rest_api_enable_cors_support": False,
    "enable_batching": False,
    "batching_parameters_file": "",
    "enable_per_model_batching_parameters": False,
    "allow_version_labels_for_unavailable_models": False,
    "model_config_file": "",
    "model_config_file_poll_wait_seconds": 0,
    "model_name": "default",
    "model_base_path": "",
    "max_num_load_retries": 5,
    "load_retry_interval_micros": 60000000,
    "file_system_poll_wait_seconds": 1,
    "flush_filesystem_caches": True,
    "tensorflow_session_parallelism": 0,
    "tensorflow_session_config_file": "",
    "tensorflow_intra_op_parallelism": 0,
    "tensorflow_inter_op_parallelism": 0,
    "use_alts_credentials": False,
    "ssl_config_file": "",
    "platform_config_file": "",
    "per_process_gpu_memory_fraction": 0.0,
    "saved_model_tags": "serve",
    "grpc_channel_arguments": "",
    "enable_model_warmup": True,
    "num_request_iterations_for_warmup": 0,
    "version": False,
    "monitoring_config_file": "",
    "remove_unused_fields_from_bundle_metagraph": True,
    "prefer_tflite_model": False,
    "num_tflite_pools": CPUS,
    "num_tflite_interpreters_per_pool": 1,
    "enable_signature_method_name_check": False,
    "xla_cpu_compilation_enabled": False,
    "xla_gpu_compilation_enabled": False,
    "enable_profiler": True,
    "thread_pool_factory_config_file": "",
    "mixed_precision": "",
    "skip_initialize_tpu": False,
    "enable_grpc_healthcheck_service": False,
    "enable_serialization_as_tensor_content": False,
}
"""TensorFlow Serving's flags with its defaults, where ours are the same."""

OTHER_DEFAULTS = {"rest_api_port": 8501, "num_load_threads": 1, "num_unload_threads": 1, "grpc_max_threads": 0}
"""HTTP is on; loads and unloads have a thread of their own, one at a time all the same; and the number of calls inside
is not bounded by a number of threads."""


def find(name: str) -> Flag:
    return next(flag for flag in FLAGS if flag.name == name)


@pytest.mark.parametrize(("name", "default"), [*UPSTREAM.items(), *OTHER_DEFAULTS.items()])
def test_every_upstream_flag_is_known_with_its_default(name: str, default: object) -> None:
    assert find(name).default == default


def test_flags_are_the_options_of_the_server_and_those_that_the_command_uses() -> None:
    fields = {field.name for field in dataclasses.fields(ServerOptions)}
    names = [flag.name for flag in FLAGS]
    assert len(names) == len(set(names))
    assert fields <= set(names)
    honoured = {flag.name for flag in FLAGS if flag.support is Support.HONOURED}
    assert honoured - fields == OWN_FLAGS


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_flag_has_help_a_default_of_its_type_and_a_reason_if_it_is_not_honoured(flag: Flag) -> None:
    types = {FlagType.BOOL: bool, FlagType.INT: int, FlagType.FLOAT: float, FlagType.STRING: str, FlagType.LIST: tuple}
    assert type(flag.default) is types[flag.kind]
    assert flag.help
    assert flag.accepts(flag.default)
    assert bool(flag.reason) is (flag.support is not Support.HONOURED)


def test_defaults_agree_with_those_of_the_server() -> None:
    differing = {"port", "rest_api_port", "model_config_list_root_dir", "rest_api_num_threads"}
    for field in dataclasses.fields(ServerOptions):
        if field.name not in differing:
            assert find(field.name).default == field.default, field.name
