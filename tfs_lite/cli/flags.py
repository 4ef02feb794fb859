"""Every flag of ``tfs-lite serve`` in one table: name, type, default, help, and whether it is honoured.

The help text and ``docs/flags.md`` keep this order: the groups that are used most first, and so the flags in each.

The names, types and defaults are those of ``tensorflow_model_server``, so that its command lines work unchanged, and
some flags are ours. A flag for something that PyTorch does not have is accepted with its default or a value in
``also_fine``, which ask for what happens anyway, and refused otherwise: no flag is accepted and ignored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from tfs_lite.core.threads import usable_cpus

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_CPUS = usable_cpus()


class FlagType(enum.Enum):
    """The type of a flag's value, and its words in error messages."""

    BOOL = "true or false"
    INT = "a whole number"
    FLOAT = "a number"
    STRING = "text"
    LIST = "a comma-separated list"
    """A list may be given several times, which appends; the command line replaces the environment."""


class Support(enum.Enum):
    """Whether a flag is honoured."""

    HONOURED = "honoured"
    NO_MEANING = "no meaning for PyTorch"
    """It is for something that only TensorFlow has."""
    NOT_YET = "not supported yet"
    """Its name is taken."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``reason`` says why it is not honoured; ``pattern`` and ``expects`` restrict a text value."""

    name: str
    kind: FlagType
    default: Any
    help: str
    group: str
    support: Support = Support.HONOURED
    reason: str = ""
    also_fine: tuple[Any, ...] = field(default=())
    minimum: float | None = None
    maximum: float | None = None
    in_environment: bool = True
    pattern: str = ""
    expects: str = ""

    @property
    def expected(self) -> str:
        """The kind of value that is expected, for error messages."""
        if self.expects:
            return self.expects
        low = "" if self.minimum is None else f" from {self.minimum:g}"
        high = "" if self.maximum is None else f" up to {self.maximum:.0f}"
        return f"{self.kind.value}{low}{high}"

    def accepts(self, value: Any) -> bool:
        """Whether the flag may have this value."""
        return self.support is Support.HONOURED or value == self.default or value in self.also_fine


class _Group:
    """Makes the flags of one group of the help text and of ``docs/flags.md``."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(self, name: str, kind: FlagType, default: Any, text: str, **rest: Any) -> Flag:
        words = rest.pop("words", "")
        if words:
            rest |= {"pattern": words, "expects": " or ".join(words.split("|"))}
        if kind is FlagType.INT:
            rest.setdefault("maximum", INT32_MAX)
        return Flag(name, kind, default, text, self.title, **rest)

    def no_meaning(self, name: str, kind: FlagType, default: Any, reason: str, **rest: Any) -> Flag:
        return self(name, kind, default, reason, support=Support.NO_MEANING, reason=reason, **rest)

    def not_yet(self, name: str, kind: FlagType, default: Any, reason: str) -> Flag:
        return self(name, kind, default, f"not supported yet: {reason}", support=Support.NOT_YET, reason=reason)


_what = _Group("What is served")
_where = _Group("Where it listens")
_versions = _Group("Versions")
_load = _Group("Loading and memory")
_run = _Group("Running models")
_limit = _Group("Limits of requests and connections")
_who = _Group("Who may do what")
_process = _Group("The process and its log")
_cluster = _Group("Replicas in a Ray cluster")
_tf = _Group("TensorFlow only (refused unless the value asks for what happens anyway)")
_BOOL, _INT, _FLOAT, _STRING, _LIST = FlagType.BOOL, FlagType.INT, FlagType.FLOAT, FlagType.STRING, FlagType.LIST

FLAGS: tuple[Flag, ...] = (
    _what("model_name", _STRING, "default", "name of the model whose versions are in --model_base_path"),
    _what("model_base_path", _STRING, "", "directory or URL (s3://...) that holds the numbered versions of one model"),
    _what("model_repository", _STRING, "", "serve every DIR/<model>/<version>/, also models that appear later"),
    _what("model_config_file", _STRING, "", "ModelServerConfig (text proto or YAML); overrides name and base path"),
    _what("model_config_file_poll_wait_seconds", _INT, 0, "read the config file again this often; 0: only once"),
    _what(
        "trusted_model_base_paths", _LIST, (), "globs, also of URLs; models below may bring code (model.py, pickles)"
    ),
    _what(
        "model_control_mode",
        _STRING,
        "poll",
        "none: later changes are ignored; explicit: load and unload by V2's repository calls only",
        pattern="poll|none|explicit",
        expects="poll, none or explicit",
    ),
    _what("load_model", _LIST, (), "in the mode explicit, the models to load at the start; *: all"),
    _what(
        "allowed_model_base_paths", _LIST, (), "directories and URLs that every model must lie below; empty: anywhere"
    ),
    _what("model_config_list_root_dir", _STRING, "", "relative base paths are below this directory"),
    _where("port", _INT, 8500, "gRPC port; 0: none, which takes --grpc_socket_path", minimum=0, maximum=65535),
    _where("rest_api_port", _INT, 8501, "HTTP port; 0: none", minimum=0, maximum=65535),
    _where("host", _STRING, "127.0.0.1", "address to listen on; 0.0.0.0 for all"),
    _where("ssl_config_file", _STRING, "", "TLS for gRPC: an SSLConfig (text proto or YAML), read again on change"),
    _where("rest_api_tls", _BOOL, False, "TLS for HTTP too, from --ssl_config_file"),
    _where("grpc_socket_path", _STRING, "", "gRPC on this UNIX socket too"),
    _where("rest_api_enable_cors_support", _BOOL, False, "web pages of every origin may predict (CORS headers)"),
    _where("dashboard", _BOOL, True, "serve the dashboard at / of the HTTP port"),
    _where(
        "monitoring_config_file",
        _STRING,
        "",
        "MonitoringConfig: the path of the page with TensorFlow Serving's metric names",
    ),
    _where(
        "grpc_server",
        _STRING,
        "native",
        "native: this package's gRPC transport; grpcio: gRPC's library",
        words="native|grpcio",
    ),
    _where("grpc_channel_arguments", _STRING, "", "gRPC's own settings: name=value,..."),
    _where("rest_api_num_threads", _INT, 4 * _CPUS, "threads that parse and print large HTTP bodies", minimum=1),
    _where("enable_grpc_healthcheck_service", _BOOL, False, "no effect: the health service is always on"),
    _versions(
        "aspired_version_policy",
        _STRING,
        "availability",
        "resource: unload the old version, then load the new",
        words="availability|resource",
    ),
    _versions(
        "bake_seconds",
        _INT,
        0,
        "trial of a new version: the old one stays and answers what fails; 60 to 86400; 0: none",
        minimum=0,
        maximum=86400,
    ),
    _versions("bake_requests", _INT, 0, "a trial also waits for so many answers, a day at most", minimum=0),
    _versions(
        "bake_verdict",
        _STRING,
        "revert",
        "take a version back that proves worse in its trial, or only tell of it",
        words="revert|tell",
    ),
    _versions(
        "file_system_poll_wait_seconds", _INT, 1, "seconds between looks for new versions; 0: look once; below 0: never"
    ),
    _versions(
        "version_quiet_period_seconds",
        _FLOAT,
        2.0,
        "a version without a manifest is whole after so long without changes",
        minimum=0,
    ),
    _versions("remote_poll_wait_seconds", _FLOAT, 60.0, "seconds between looks for new versions at URLs", minimum=1),
    _versions(
        "remote_quiet_seconds",
        _FLOAT,
        30.0,
        "a version at a URL without a manifest is whole after so long without changes",
        minimum=0,
    ),
    _versions("servable_versions_always_present", _BOOL, False, "a base path that is emptied withdraws nothing"),
    _versions(
        "sequence_drain_seconds", _FLOAT, 60.0, "longest wait of a withdrawn version for its sequences", minimum=0
    ),
    _versions(
        "allow_version_labels_for_unavailable_models", _BOOL, False, "a new label may name a version not loaded yet"
    ),
    _load("ready_requires_all_models", _BOOL, False, "not ready until every model has a version available"),
    _load("exit_on_initial_load_failure", _BOOL, False, "stop when a model fails to load at the start"),
    _load("max_num_load_retries", _INT, 5, "attempts after a failed load", minimum=0),
    _load(
        "load_retry_interval_micros",
        _INT,
        60_000_000,
        "microseconds between attempts; negative: none",
        maximum=INT64_MAX,
    ),
    _load("enable_model_warmup", _BOOL, True, "send a version its warm-up requests before it becomes available"),
    _load("num_request_iterations_for_warmup", _INT, 0, "how often each warm-up request is sent; 0 or less: once"),
    _load(
        "total_model_memory_limit_bytes",
        _INT,
        0,
        "bytes for all models; 0: all that there is",
        minimum=0,
        maximum=INT64_MAX,
    ),
    _load(
        "memory_reserve_bytes",
        _INT,
        -1,
        "bytes of container memory that models never get; -1: a tenth, from 32 MiB to 1 GiB",
        minimum=-1,
        maximum=INT64_MAX,
    ),
    _load("num_load_threads", _INT, 1, "threads that load; 0: the manager's own thread", minimum=0),
    _load("num_initial_load_threads", _INT, 4, "threads that load the models known at the start", minimum=1),
    _load("num_unload_threads", _INT, 1, "threads that unload; 0: the manager's own thread", minimum=0),
    _load("reload_timeout_seconds", _FLOAT, 120.0, "longest wait of a new config for its new models", minimum=0),
    _load(
        "slow_load_seconds", _FLOAT, 120.0, "after so long a load goes on, and others do not wait for it", minimum=0.1
    ),
    _load(
        "slow_unload_seconds",
        _FLOAT,
        30.0,
        "after so long an unload goes on, and others do not wait for it",
        minimum=0.1,
    ),
    _load(
        "disk_timeout_seconds",
        _FLOAT,
        10.0,
        "a disk that is silent for so long hangs; others do not wait for it",
        minimum=0.1,
    ),
    _load("flush_filesystem_caches", _BOOL, True, "let the system forget the files of a version that was loaded"),
    _load(
        "model_cache_dir", _STRING, "", "where files of URLs are kept, and a node's copies; empty: in the user's cache"
    ),
    _load("model_cache_bytes", _INT, 50 * 2**30, "bytes that are kept there at most", minimum=1, maximum=INT64_MAX),
    _run(
        "device",
        _STRING,
        "auto",
        "where models run",
        pattern="auto|cpu|cuda(:[0-9]+)?",
        expects="auto, cpu or cuda[:N]",
    ),
    _run(
        "worker",
        _STRING,
        "auto",
        "where models run: in threads of the server, in processes of their own, in replicas (ray)",
        words="auto|thread|process|ray",
    ),
    _run("enable_batching", _BOOL, False, "run requests that wait for the same model together"),
    _run("batching_parameters_file", _STRING, "", "BatchingParameters (text proto or YAML)"),
    _run("enable_per_model_batching_parameters", _BOOL, False, "batch by the batching_params.pbtxt of each version"),
    _run(
        "send_batches",
        _STRING,
        "expect",
        "run a batch that could grow once no more is expected, or at once (greedy)",
        words="expect|greedy",
    ),
    _run(
        "worker_sandbox",
        _STRING,
        "auto",
        "confine models' processes: as far as the system can (auto), or load nothing (require)",
        words="auto|require|off",
    ),
    _run(
        "tensorflow_intra_op_parallelism",
        _INT,
        0,
        "threads inside an operator; 0: OMP_NUM_THREADS, or all cores but one",
        minimum=0,
    ),
    _run("tensorflow_inter_op_parallelism", _INT, 0, "threads between operators; 0: torch decides", minimum=0),
    _run("tensorflow_session_parallelism", _INT, 0, "both of the last two; 0: each its default", minimum=0),
    _run("cache_config", _STRING, "", "response cache: local,size=BYTES; empty: none"),
    _run(
        "per_process_gpu_memory_fraction", _FLOAT, 0.0, "torch's share of a GPU's memory; 0: all", minimum=0, maximum=1
    ),
    _run("saved_model_tags", _STRING, "serve", "tags of the SavedModel graph to serve, separated by commas"),
    _run("enable_signature_method_name_check", _BOOL, False, "a signature takes only the method it is meant for"),
    _run("enable_serialization_as_tensor_content", _BOOL, False, "tensors in gRPC answers are raw bytes"),
    _limit("max_message_bytes", _INT, 100 * 2**20, "bytes of a gRPC message or HTTP request body", minimum=1),
    _limit(
        "max_queued_requests", _INT, 1000, "requests that wait for one version; one more is refused at once", minimum=1
    ),
    _limit("rest_api_timeout_in_ms", _INT, 30000, "time limit of a prediction over HTTP; 0 or less: none"),
    _limit("openai_timeout_seconds", _FLOAT, 600.0, "time limit of a request of OpenAI's API", minimum=0.001),
    _limit("grpc_max_threads", _INT, 0, "gRPC calls in progress; one more is refused; 0: no limit", minimum=0),
    _limit("rest_api_idle_timeout_seconds", _FLOAT, 75.0, "longest idle time of an HTTP connection", minimum=0.1),
    _limit("rest_api_read_timeout_seconds", _FLOAT, 60.0, "longest silence within an HTTP request body", minimum=0.1),
    _limit(
        "rest_api_write_timeout_seconds",
        _FLOAT,
        60.0,
        "longest time in which a client reads nothing of its answer",
        minimum=0.1,
    ),
    _who(
        "management_access",
        _STRING,
        "auto",
        "who may reload, load, unload, change settings; auto: this machine and tokens",
        words="auto|open|token",
    ),
    _who("predict_access", _STRING, "open", "who may predict", words="open|token"),
    _who("read_access", _STRING, "open", "who may read status, statistics and metrics", words="open|token"),
    _who("access_file", _STRING, "", "tokens and certificates: lines of NAME SCOPES SECRET, read again on change"),
    _who("allowed_hosts", _LIST, (), "host names under which web pages may manage the server; addresses always may"),
    _process("log_level", _STRING, "info", "least level that is logged", words="debug|info|warning|error"),
    _process("log_format", _STRING, "text", "how lines of the log are written", words="text|json"),
    _process(
        "access_log",
        _STRING,
        "errors",
        "a line for each request, or for those that fail (at most 20 a second)",
        words="off|errors|all",
    ),
    _process(
        "drain_timeout_seconds",
        _FLOAT,
        30.0,
        "after SIGTERM, longest wait for requests in progress and for loads",
        minimum=0,
    ),
    _process("shutdown_delay_seconds", _FLOAT, 0.0, "after SIGTERM, accept requests for so long, not ready", minimum=0),
    _process("state_directory", _STRING, "", "keeps the history of events across restarts; empty: nothing is kept"),
    _process(
        "server_timing", _STRING, "asked", "which clients are told how long a request took", words="never|asked|always"
    ),
    _process("trace_config", _LIST, (), "Triton's: rate=N, level=L, count=N, mode=M, opentelemetry,url=U; repeatable"),
    _process("json", _BOOL, False, "say what is served as one line of JSON", in_environment=False),
    _process("version", _BOOL, False, "print the version and stop", in_environment=False),
    _process("help", _BOOL, False, "print this and stop", in_environment=False),
    _cluster("cluster", _STRING, "", "address: auto, HOST:PORT or ray://HOST:PORT; empty: there is no cluster"),
    _cluster("cluster_name", _STRING, "default", "servers with different names share no replicas"),
    _cluster(
        "model_transfer",
        _STRING,
        "shared",
        "nodes read models at the same path (shared), or from the server",
        words="shared|fetch",
    ),
    _cluster("cluster_ssl_config_file", _STRING, "", "TLS between server and replicas: an SSLConfig"),
    _cluster("cluster_host", _STRING, "", "where server and replicas listen; empty: their nodes' addresses"),
    _cluster("cluster_port", _INT, 0, "port of the server for replicas; 0: a free port", minimum=0, maximum=65535),
    _cluster("replica_port_range", _STRING, "", "ports of replicas: FIRST-LAST; empty: any free port"),
    _cluster("replica_orphan_seconds", _FLOAT, 600.0, "a replica ends after so long without a server", minimum=1),
    _cluster(
        "health_check_timeout_s", _FLOAT, 60.0, "a replica that is silent for so long is given up; 0: never", minimum=0
    ),
    _cluster.not_yet("cluster_standby", _BOOL, False, "one server decides; a second one is refused"),
    _tf.no_meaning("use_alts_credentials", _BOOL, False, "ALTS exists only inside Google's cloud"),
    _tf.no_meaning("platform_config_file", _STRING, "", "it configures TensorFlow session bundles"),
    _tf.no_meaning("tensorflow_session_config_file", _STRING, "", "there is no TensorFlow session"),
    _tf.no_meaning("remove_unused_fields_from_bundle_metagraph", _BOOL, True, "PyTorch artefacts have no meta graph"),
    _tf.no_meaning("prefer_tflite_model", _BOOL, False, "there are no TensorFlow Lite models"),
    _tf.no_meaning("num_tflite_pools", _INT, _CPUS, "there are no TensorFlow Lite models"),
    _tf.no_meaning("num_tflite_interpreters_per_pool", _INT, 1, "there are no TensorFlow Lite models"),
    _tf.no_meaning("xla_cpu_compilation_enabled", _BOOL, False, "XLA compiles no PyTorch artefacts"),
    _tf.no_meaning("xla_gpu_compilation_enabled", _BOOL, False, "XLA compiles no PyTorch artefacts"),
    _tf.no_meaning("enable_profiler", _BOOL, True, "there is no TensorFlow profiler", also_fine=(False,)),
    _tf.no_meaning("thread_pool_factory_config_file", _STRING, "", "it names TensorFlow thread pools"),
    _tf.no_meaning("mixed_precision", _STRING, "", "a PyTorch artefact fixes its number types"),
    _tf.no_meaning("skip_initialize_tpu", _BOOL, False, "no TPU is used", also_fine=(True,)),
)

FIRST_FLAGS = (
    *("model_name", "model_base_path", "model_repository", "model_config_file"),
    *("host", "port", "rest_api_port"),
    *("enable_batching", "access_file", "state_directory"),
)
"""The names of the flags to begin with: what is served, where, and what a server in production has."""
