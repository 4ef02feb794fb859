"""Every setting of a server, under the name of its flag.

The defaults are those of a server made in Python: free ports, loopback only. The command line has its own defaults,
those of ``tensorflow_model_server``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tfs_lite.config.guard import MAX_BAKE_SECONDS, MIN_BAKE_SECONDS
from tfs_lite.config.replicas import CACHE_BYTES, DEFAULT_CLUSTER_NAME, RAY, ClusterOptions, port_range
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.serving.cache_size import cache_bytes
from tfs_lite.serving.statistics.trace_config import read_trace_config
from tfs_lite.storage.url import StorageUrl, is_url

MIB = 1024 * 1024

NATIVE, GRPCIO = "native", "grpcio"


GRPC_SERVERS = (NATIVE, GRPCIO)
URL_IN_EXPLICIT_MODE = "in the model_control_mode explicit models are loaded from directories of this machine only"
CONTROL_MODES = ("poll", "none", "explicit")
EVERY_MODEL = "*"
VERSION_POLICIES = ("availability", "resource")
BAKE_VERDICTS = ("revert", "tell")
WORKERS = ("auto", "thread", "process", RAY)
SANDBOXES = ("auto", "require", "off")
SEND_BATCHES = ("expect", "greedy")
MANAGEMENT_ACCESS = ("auto", "open", "token")
ACCESS = ("open", "token")
ACCESS_LOGS = ("off", "errors", "all")
SERVER_TIMINGS = ("never", "asked", "always")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Checked on construction; INVALID_ARGUMENT names the field. Sizes are in bytes, times as the name says."""

    # where it listens
    host: str = "127.0.0.1"
    """An address or a name; one of IPv6 may stand in brackets."""
    port: int | None = 0
    """gRPC. 0 means a free port, None no gRPC over TCP."""
    rest_api_port: int | None = 0
    """HTTP. 0 means a free port, None no HTTP."""
    grpc_socket_path: str = ""
    ssl_config_file: str = ""
    """TLS: an SSLConfig (text proto or YAML), read again when it changes."""
    rest_api_tls: bool = False
    """HTTP has TLS too, with the same file."""
    grpc_channel_arguments: str = ""
    """``name=value,...`` for gRPC's own settings."""
    grpc_server: str = "native"
    """The server of gRPC: our own transport (``native``), or gRPC's library (``grpcio``)."""
    grpc_max_threads: int = 0
    """The most gRPC calls in flight; one more is refused. 0 means no limit."""
    rest_api_num_threads: int = 4
    """Threads that parse and print large HTTP bodies."""
    rest_api_timeout_in_ms: int = 30_000
    """The time limit of a prediction over HTTP, from the moment when its request is whole; 0 or less: none."""
    rest_api_idle_timeout_seconds: float = 75.0
    """The seconds that an HTTP connection stays open without a request; its answers say so (``Keep-Alive``)."""
    rest_api_read_timeout_seconds: float = 60.0
    """The longest silence within a request body, and the longest time for the head of a request."""
    rest_api_write_timeout_seconds: float = 60.0
    """The longest time in which a client reads nothing of its answer."""
    rest_api_enable_cors_support: bool = False
    dashboard: bool = True
    """The page at ``/`` of the HTTP port, and the numbers of the last hours that it shows."""
    management_access: str = "auto"
    """Clients that may manage: this machine and the server's user, others with a token (``auto``), everybody
    (``open``), or only tokens and client certificates of the access file (``token``)."""
    read_access: str = "open"
    """Clients that may read status, statistics and metrics: everybody (``open``), or tokens and certificates
    (``token``)."""
    predict_access: str = "open"
    """Clients that may predict: everybody (``open``), or tokens and certificates (``token``)."""
    access_file: str = ""
    """Tokens and client certificates with their scopes, read again when the file changes."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which web pages may call the server to manage it, in addition to ``localhost`` and addresses."""
    monitoring_config_file: str = ""
    """A MonitoringConfig: the path of the page with TensorFlow Serving's metric names, or that there is none."""

    # what it serves: one of the three
    model_name: str = "default"
    model_base_path: str = ""
    model_config_file: str = ""
    model_repository: str = ""
    model_config_file_poll_wait_seconds: float = 0
    """Above 0: the file is read again this often, and applied when it has changed."""
    model_control_mode: str = "poll"
    """``poll``: watched and polled; ``none``: what is there at the start, later changes are ignored; ``explicit``:
    nothing but what ``load_model`` names and what the repository calls of V2 load and unload."""
    load_model: tuple[str, ...] = ()
    """The models that are loaded at the start in the mode explicit; a single ``*`` means all that there are."""
    model_config_list_root_dir: str | None = None
    """The directory (absolute) that relative base paths are below."""
    allowed_model_base_paths: tuple[str, ...] = ()
    """The directories and URLs below which a model's base path must lie; empty: any place."""
    trusted_model_base_paths: tuple[str, ...] = ()
    """Globs of directories and of URLs; below them models may bring code of their own. What was fetched from a URL is
    trusted by that alone."""

    # versions
    file_system_poll_wait_seconds: float = 1
    """Seconds between looks for new versions; 0: one look; below 0: none."""
    version_quiet_period_seconds: float = 2.0
    """A version without a manifest counts as complete when its files have not changed for so long."""
    remote_poll_wait_seconds: float = 60
    """Seconds between looks for new versions at URLs; each process takes a tenth more or less."""
    remote_quiet_seconds: float = 30.0
    """A version at a URL without a manifest counts as complete when its files have not changed for so long."""
    servable_versions_always_present: bool = False
    """A base path or repository that is emptied never withdraws what is loaded."""
    disk_timeout_seconds: float = 10.0
    """A look at a disk that has not answered for so long hangs: the rest goes on without it."""
    aspired_version_policy: str = "availability"
    allow_version_labels_for_unavailable_models: bool = False
    bake_seconds: int = 0
    """Above 0: a version that is pushed is on trial for so long. The one before it stays loaded, and answers what fails
    on the new one; one that proves worse is taken back. A model's ``guard.bake_seconds`` counts instead."""
    bake_requests: int = 0
    """A trial also waits for so many answers of the new version, a day at most."""
    bake_verdict: str = "revert"
    """A version that proves worse is taken back (``revert``), or events and explanations only tell of it (``tell``)."""

    # loading
    num_load_threads: int = 1
    num_unload_threads: int = 1
    slow_load_seconds: float = 120.0
    """A load that takes longer goes on, and gives its thread's place to the next one."""
    slow_unload_seconds: float = 30.0
    """An unload that takes longer goes on, and gives its thread's place to the next one."""
    num_initial_load_threads: int = 4
    """Threads that load while the models known at the start are loaded."""
    max_num_load_retries: int = 5
    load_retry_interval_micros: int = 60_000_000
    reload_timeout_seconds: float = 120.0
    """The seconds that applying a config waits for the new models to answer."""
    enable_model_warmup: bool = True
    num_request_iterations_for_warmup: int = 0
    """The number of times that each warm-up request is sent; 0 or less counts as 1."""
    flush_filesystem_caches: bool = True
    """Whether the system may forget the files that were read, after a load."""
    model_cache_dir: str = ""
    """The directory in which the server keeps files of URLs, and a node of the cluster those that it has fetched;
    empty: a directory of the user."""
    model_cache_bytes: int = CACHE_BYTES
    """The most that is kept there, in all; what is loaded stays."""
    device: str = "auto"
    per_process_gpu_memory_fraction: float = 0.0
    """The share of a GPU's memory that torch may take; 0: all of it."""
    total_model_memory_limit_bytes: int = 0
    """Main memory for all models; 0: what the machine has."""
    memory_reserve_bytes: int = -1
    """Main memory of a control group that models never get, in addition to what else is held there; -1: a tenth of its
    limit, at least 32 MiB and at most 1 GiB."""

    # running models
    enable_batching: bool = False
    """Requests that wait for a model are run together. A model's own ``dynamic_batching`` counts with and without."""
    batching_parameters_file: str = ""
    enable_per_model_batching_parameters: bool = False
    """A version is batched by the ``batching_params.pbtxt`` in its directory, and not at all without one."""
    send_batches: str = "expect"
    """The moment when a batch without a delay is run that could still grow: when no more requests are expected soon, or
    (``greedy``) at once."""
    worker: str = "auto"
    """The place where models run whose config names none: in a ``thread`` of the server, in a ``process`` of their own,
    or as replicas on the nodes of the cluster (``ray``). ``auto``: in a thread, but for those whose load or unload
    would hold up the requests of the others."""
    worker_sandbox: str = "auto"
    """Whether models' processes are confined: as far as the system can (``auto``), always, or the load fails
    (``require``), or never (``off``)."""
    saved_model_tags: str = "serve"
    """The tags, separated by commas, of the graph that is served from a SavedModel: it has exactly these."""
    sequence_drain_seconds: float = 60.0
    """The seconds that a withdrawn version stays for the sequences that have not ended."""
    openai_timeout_seconds: float = 600.0
    """The time limit of a request of OpenAI's API; a request may ask for less."""
    cache_config: str = ""
    """The response cache, as ``local,size=BYTES``; empty: there is none."""

    # the cluster
    cluster: str = ""
    """``auto``, ``HOST:PORT`` or ``ray://HOST:PORT`` of a Ray cluster; empty: there is none."""
    cluster_name: str = DEFAULT_CLUSTER_NAME
    """Servers with different names share a cluster and no replicas."""
    cluster_host: str = ""
    """The address on which server and replicas listen for one another; empty: the address of each one's node."""
    cluster_port: int = 0
    """The port on which the server listens for replicas; 0 means a free port."""
    replica_port_range: str = ""
    """``FIRST-LAST``: the ports on which replicas listen; empty: any free ports."""
    cluster_ssl_config_file: str = ""
    """TLS between server and replicas: an SSLConfig (text proto or YAML)."""
    replica_orphan_seconds: float = 600.0
    """A replica ends itself when no server has asked it for so long."""
    health_check_timeout_s: float = 60.0
    """A replica that does not answer for so long is given up; 0: never."""
    model_transfer: str = "shared"
    """The source from which replicas take a version's files: the same path on every node (``shared``), or the server
    (``fetch``)."""

    # answers
    enable_signature_method_name_check: bool = False
    """A signature may be called only by the method that it is meant for."""
    enable_serialization_as_tensor_content: bool = False
    """Tensors in gRPC answers are raw bytes instead of typed fields."""

    # the process
    drain_timeout_seconds: float = 30.0
    shutdown_delay_seconds: float = 0.0
    """The seconds that a stop goes on accepting after the server has ceased to be ready."""
    ready_requires_all_models: bool = False
    exit_on_initial_load_failure: bool = False

    access_log: str = "errors"
    """The requests that have a line in the log: ``off``, ``errors`` (at most 20 a second) or ``all``."""
    server_timing: str = "asked"
    """The requests whose answer says how long they took: ``never``, ``asked`` (by the header ``x-server-timing: 1``),
    ``always``."""
    trace_config: tuple[str, ...] = ()
    """Triton's settings of traces, such as ``rate=100``, ``level=TIMESTAMPS``, ``mode=opentelemetry``; a setting of one
    mode follows its name: ``opentelemetry``, ``url=http://...``."""

    # what is remembered
    state_directory: str = ""
    """The directory in which the history of events survives the server; empty: it ends with it. One server at a time
    may use it."""

    # bounds of requests
    max_message_bytes: int = 100 * MIB
    """The largest gRPC message and HTTP request body, before and after unpacking."""
    max_queued_requests: int = 1000
    """The most requests that wait for one version; one more is refused at once."""

    def __post_init__(self) -> None:
        for name in ("host", "cluster_host"):
            object.__setattr__(self, name, _without_brackets(getattr(self, name)))
        self._check_sources()
        self._check_choice("model_control_mode", CONTROL_MODES)
        self._check_first_models()
        self._check_choice("aspired_version_policy", VERSION_POLICIES)
        self._check_bake()
        self._check_choice("send_batches", SEND_BATCHES)
        self._check_choice("worker", WORKERS)
        self._check_choice("worker_sandbox", SANDBOXES)
        self._check_choice("grpc_server", GRPC_SERVERS)
        self._check_access()
        self._check_choice("access_log", ACCESS_LOGS)
        self._check_choice("server_timing", SERVER_TIMINGS)
        cache_bytes(self.cache_config)
        read_trace_config(self.trace_config)
        self._check_cluster()
        if self.port is None and not self.grpc_socket_path:
            raise invalid_argument("neither port nor grpc_socket_path is set: there is no way in for gRPC")
        if self.port and self.port == self.rest_api_port:
            raise invalid_argument(f"port and rest_api_port are both {self.port}")
        if self.rest_api_tls and not self.ssl_config_file:
            raise invalid_argument("rest_api_tls is set and ssl_config_file is not: there is no certificate")
        for name, least in _MINIMA.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise invalid_argument(f"{name} is {value}, expected at least {least}")
        if not 0 <= self.per_process_gpu_memory_fraction <= 1:
            raise invalid_argument(
                f"per_process_gpu_memory_fraction is {self.per_process_gpu_memory_fraction}, expected 0 to 1"
            )

    def _check_sources(self) -> None:
        if self.model_repository and (self.model_base_path or self.model_config_file):
            other = "model_config_file" if self.model_config_file else "model_base_path"
            raise invalid_argument(f"model_repository and {other} are both set: each says what is served, choose one")
        if self.model_base_path and not self.model_name:
            raise invalid_argument("model_base_path is set and model_name is empty")
        root = self.model_config_list_root_dir
        if root is not None and not root.startswith("/"):
            raise invalid_argument(f"model_config_list_root_dir is {root!r}, expected an absolute path")
        self._check_urls()

    def _check_urls(self) -> None:
        """Refuses what cannot be at a URL. Errors do not repeat URLs: people put keys into them."""
        if is_url(self.model_repository):
            raise invalid_argument(
                "model_repository is a URL, and a repository is a directory of this machine: name each model that is "
                "at a URL in a model_config_file"
            )
        if is_url(self.model_base_path):
            if self.is_explicit:
                raise invalid_argument(f"model_base_path is a URL: {URL_IN_EXPLICIT_MODE}")
            _check_url("model_base_path", self.model_base_path)
        for url in filter(is_url, self.allowed_model_base_paths):
            _check_url("allowed_model_base_paths", url)
        if self.model_cache_dir and not self.model_cache_dir.startswith("/"):
            raise invalid_argument(f"model_cache_dir is {self.model_cache_dir!r}, expected an absolute path")

    def _check_bake(self) -> None:
        self._check_choice("bake_verdict", BAKE_VERDICTS)
        if self.bake_seconds and not MIN_BAKE_SECONDS <= self.bake_seconds <= MAX_BAKE_SECONDS:
            expected = f"0 (no trial) or {MIN_BAKE_SECONDS} to {MAX_BAKE_SECONDS}"
            raise invalid_argument(f"bake_seconds is {self.bake_seconds}, expected {expected}")
        if self.bake_seconds and self.aspired_version_policy == "resource":
            raise invalid_argument(
                f"bake_seconds is {self.bake_seconds} and aspired_version_policy is resource, which unloads the old "
                "version before it loads the new one: nothing could answer in its place; set bake_seconds to 0"
            )

    def _check_first_models(self) -> None:
        if self.load_model and not self.is_explicit:
            raise invalid_argument("load_model is set without setting model_control_mode to explicit")
        if EVERY_MODEL in self.load_model and len(self.load_model) > 1:
            raise invalid_argument(f"load_model: {EVERY_MODEL} stands for all models and must stand alone")

    def _check_access(self) -> None:
        self._check_choice("management_access", MANAGEMENT_ACCESS)
        for name in ("read_access", "predict_access"):
            self._check_choice(name, ACCESS)
            if getattr(self, name) == "token" and not self.access_file:
                raise invalid_argument(f"{name} is token and access_file is not set: there are no tokens")

    def _check_cluster(self) -> None:
        """Options of a cluster are refused without one, and not ignored."""
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        options = self.cluster_options
        if options is None:
            if self.worker == RAY:
                raise invalid_argument("worker is ray and cluster is not set: say where the cluster is")
            for name in filter(_OF_CLUSTER.__contains__, given):
                raise invalid_argument(f"{name} is set and cluster is not")

    @property
    def cluster_options(self) -> ClusterOptions | None:
        """None without a cluster."""
        if not self.cluster:
            return None
        return ClusterOptions(
            address=self.cluster,
            name=self.cluster_name,
            host=self.cluster_host,
            port=self.cluster_port,
            port_range=port_range(self.replica_port_range),
            orphan_seconds=self.replica_orphan_seconds,
            health_check_timeout=self.health_check_timeout_s,
            ssl_config_file=self.cluster_ssl_config_file,
            transfer=self.model_transfer,
            cache_dir=self.model_cache_dir,
            cache_bytes=self.model_cache_bytes,
        )

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise invalid_argument(f"{name} is {value!r}, expected one of: {', '.join(choices)}")

    @property
    def slow_drain_seconds(self) -> float:
        """The seconds after which nothing waits any more for the last requests and sequences of a withdrawn version."""
        return self.slow_unload_seconds + self.sequence_drain_seconds

    @property
    def follows_changes(self) -> bool:
        """Whether the disk and the config are looked at again after the start."""
        return self.model_control_mode == "poll"

    @property
    def is_explicit(self) -> bool:
        """Whether models are loaded and unloaded by calls only."""
        return self.model_control_mode == "explicit"

    @property
    def looks_at_disk(self) -> bool:
        """Whether versions are looked for at all; if not, there is nothing to wait for at the start."""
        return self.file_system_poll_wait_seconds >= 0 or not self.follows_changes


def _check_url(name: str, url: str) -> None:
    try:
        StorageUrl.parse(url)
    except ServingError as error:
        raise invalid_argument(f"{name}: {error.status.message}") from None


def _without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


_MINIMA = {
    "port": 0,
    "rest_api_port": 0,
    "grpc_max_threads": 0,
    "rest_api_num_threads": 1,
    "rest_api_idle_timeout_seconds": 0.1,
    "rest_api_read_timeout_seconds": 0.1,
    "rest_api_write_timeout_seconds": 0.1,
    "bake_requests": 0,
    "num_load_threads": 0,
    "num_unload_threads": 0,
    "num_initial_load_threads": 1,
    "max_num_load_retries": 0,
    "version_quiet_period_seconds": 0,
    "remote_poll_wait_seconds": 1,
    "remote_quiet_seconds": 0,
    "reload_timeout_seconds": 0,
    "disk_timeout_seconds": 0.1,
    "slow_load_seconds": 0.1,
    "slow_unload_seconds": 0.1,
    "total_model_memory_limit_bytes": 0,
    "memory_reserve_bytes": -1,
    "drain_timeout_seconds": 0,
    "shutdown_delay_seconds": 0,
    "max_message_bytes": 1,
    "max_queued_requests": 1,
    "sequence_drain_seconds": 0,
    "openai_timeout_seconds": 0.001,
    "cluster_port": 0,
    "replica_orphan_seconds": 1,
    "health_check_timeout_s": 0,
    "model_cache_bytes": 1,
}
_OF_CLUSTER = frozenset(
    {
        "cluster_name",
        "cluster_host",
        "cluster_port",
        "replica_port_range",
        "cluster_ssl_config_file",
        "replica_orphan_seconds",
        "health_check_timeout_s",
        "model_transfer",
    }
)
