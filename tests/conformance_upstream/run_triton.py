"""Runs tests that Triton has for its protocols (``qa/L0_...``), from a checkout of it, against ``tfs-lite serve``.

python run_triton.py CHECKOUT --server TFS_LITE [--only NAME] [--logs DIRECTORY]

Nothing of theirs is in this repository. Each suite's ``test.sh`` starts a server on ports 8000 and 8001 with models
that its generators make; here the server is ours, with its default flags and what the suite needs, and the models are
those of ``make_triton_models.py``. Four things are not theirs: a server is kept between cases
that change nothing but regions of shared memory, which are unregistered instead; their word ``np.object``, which numpy
no longer has, is set; values that their mock of a language model reads from a request's parameters are optional inputs,
because parameters reach no model here; and models of TensorFlow, TensorRT and OpenVINO are ones of ONNX under their
names. Exits with 1 if a case fails that the tables do not list.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import requests
from run_tensorflow_serving import printing_to, reason_of

HERE = Path(__file__).parent
GRPC_PORT, HTTP_PORT = 8001, 8000
"""The tests have them in their text."""
READY_SECONDS = 120.0
MAKERS = ("make_triton_models.py", "make_triton_scheduled_models.py", "make_triton_typed_models.py")


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases of one file, with one server."""

    file: str
    models: str
    client: str = ""
    """What the file's tests read as ``CLIENT_TYPE``; of a suite with an ``environment``, which models are tried."""
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    changes: bool = False
    """Whether cases change what is served: each has a copy of the folder, and a server of the ``models`` in it."""
    ready: tuple[str, ...] = ()
    """The models to wait for where the server is not ready itself."""
    environment: tuple[tuple[str, str], ...] = ()
    """What the file and Triton's scheduler read there: each case has a server of its own then, as theirs have."""

    shared: bool = False
    """Whether tensors lie in shared memory."""

    @property
    def name(self) -> str:
        """Of a suite that runs with several sets of models, with the one."""
        models = self.models if self.environment else ""
        return " ".join(filter(None, (self.file, self.client, models, "shared" if self.shared else "")))

    @property
    def log(self) -> str:
        return f"{self.models}{self.client}{'.shared' if self.shared else ''}.txt"


VALUES = (
    *("test_generate_stream", "test_streaming", "test_generate_stream_response_error"),
    *("test_zero_response", "test_many_response", "test_race_condition", "test_parameters"),
)
"""Those of the mock of a language model that send more than its two inputs."""
UNREGISTER = tuple(
    f"test_unregister_shm_{case}_{protocol}"
    for protocol in ("http", "grpc")
    for case in ("during_inference_single_req", "during_inference_multiple_req", "after_inference")
)
"""Those that use a slow model."""
LIFECYCLE = "L0_lifecycle/lifecycle_test.py"
SHARED = "TEST_SYSTEM_SHARED_MEMORY"
HOLD, HOLD_BACKLOG = "TRITONSERVER_DELAY_SCHEDULER", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


def _joined(backends: str) -> str:
    return backends.replace(" ", "+")


def batcher(models: str, *only: str, backends: str = "python libtorch", hold: int = 0) -> Suite:
    environment = (("BACKENDS", backends), *(((HOLD, str(hold)),) if hold else ()))
    return Suite("L0_batcher/batcher_test.py", models, _joined(backends), only, environment=environment)


def batchers(models: str, backends: str = "python libtorch") -> Iterator[Suite]:
    """What ``test.sh`` runs with models of fixed sizes and with ones of any."""
    static = ("preferred", "lt_any_preferred", "not_preferred", "gt_max_preferred")
    several = ("batch_not_preferred", "batch_gt_max_preferred", "batch_sum_gt_max_preferred", "same_output0")
    several = (*several, "same_output1", "different_outputs", "different_output_order")
    names = (*(f"test_static_batch_{name}" for name in static), *(f"test_multi_{name}" for name in several))
    yield batcher(models, *names, backends=backends)
    yield batcher(models, "test_multi_batch_delayed_sum_gt_max_preferred", backends=backends, hold=2)
    best = ("test_multi_batch_use_best_preferred", "test_multi_batch_delayed_use_max_batch")
    yield batcher(models, *best, backends=backends, hold=3)
    yield batcher(models, "test_multi_batch_use_biggest_preferred", backends=backends, hold=6)


SEQUENCE_HOLDS = {
    (10, 2): ("backlog_fill",),
    (10, 3): ("backlog_fill_no_end",),
    (12, 2): ("backlog_same_correlation_id",),
    (16, 0): ("backlog_same_correlation_id_no_end",),
    (4, 0): ("backlog_sequence_timeout",),
    (8, 0): ("half_batch",),
    (12, 0): ("skip_batch", "full_batch", "ragged_batch", "ragged_batch_allowed", "backlog"),
}
"""How many requests have to wait in slots and in the backlog before the first batch of these cases."""
UNHELD = ("simple_sequence", "length1_sequence", "batch_size", "no_sequence_start", "no_sequence_start2")
UNHELD = (*UNHELD, "no_sequence_end", "no_correlation_id")
ENSEMBLES = ("sequences0", "sequences1")
"""The sets of sequence models whose ensembles are tried too."""
QUEUE_DELAYS = ("no_min_util", "half_min_util", "full_min_util")


def sequence(
    models: str, *only: str, instances: int = 1, backends: str = "onnx custom", hold: tuple[int, int] = (0, 0)
) -> Suite:
    """``models`` say the rest: 0 are without a batch, v have inputs of any size."""
    environment = {
        "BACKENDS": backends,
        "ENSEMBLES": str(int(models in ENSEMBLES and backends.startswith("onnx"))),
        "NO_BATCHING": str(int("nobatch" in backends)),
        "BATCHER_TYPE": "VARIABLE" if models.endswith("v") else "FIXED",
        "MODEL_INSTANCES": str(instances),
        "IMPLICIT_STATE": str(int("implicit" in models)),
        "INITIAL_STATE_FILE": "0",
    }
    if hold[0]:
        environment |= {HOLD: str(hold[0]), HOLD_BACKLOG: str(hold[1])}
    environment["BACKENDS"] = backends.replace("_nobatch", "")
    file = "L0_sequence_batcher/sequence_batcher_test.py"
    names = tuple(f"test_{name}" for name in only)
    return Suite(file, models, _joined(backends), names, environment=tuple(environment.items()))


def sequences(models: str, instances: int = 1, backends: str = "onnx custom") -> Iterator[Suite]:
    """What ``test.sh`` runs with every set of models; they have four slots together."""
    yield sequence(models, *UNHELD, instances=instances, backends=backends)
    for hold, names in SEQUENCE_HOLDS.items():
        if hold[0] in (8, 12) or instances == 1:  # the others do nothing with several instances
            yield sequence(models, *names, instances=instances, backends=backends, hold=hold)


def corrid(
    models: str, *only: str, instances: str = "1", more: tuple[tuple[str, str], ...] = (), hold: str = ""
) -> Suite:
    environment = (("BACKENDS", "onnx"), ("NO_BATCHING", "0"), ("MODEL_INSTANCES", instances), *more)
    if hold:
        environment += ((HOLD, hold), (HOLD_BACKLOG, "0"))
    return Suite(
        "L0_sequence_corrid_batcher/sequence_corrid_batcher_test.py", models, "", only, environment=environment
    )


ID_TYPES = ("STRING", "UINT64", "INT64", "UINT32", "INT32")
TRACE = tuple(f"--trace_config={each}" for each in ("triton,file=global_unittest.log", "level=TIMESTAMPS", "rate=1"))
NONE, EXPLICIT = ("--model_control_mode=none",), ("--model_control_mode=explicit",)
STRICT = ("--ready_requires_all_models",)
SAVEDMODEL, ONNX, SIMPLE = (f"{name}_float32_float32_float32" for name in ("savedmodel", "onnx", "simple"))
SLOW = "identity_zero_1_int32"
RELOADS = ("model_availability_on_reload_2", "model_availability_on_reload_3", "model_reload_fail")


def lifecycle(models: str, *only: str, flags: tuple[str, ...] = (), ready: tuple[str, ...] = ()) -> Suite:
    names = tuple(f"test_{name}" for name in only)
    return Suite(LIFECYCLE, f"lifecycle_{models}", only=names, flags=flags, changes=True, ready=ready)


ONE_BY_ONE = (
    Suite("L0_input_validation/input_validation_test.py", "input_validation"),
    Suite("L0_string_io/string_client_test.py", "string_io"),
    Suite("L0_http/http_test.py", "http"),
    Suite("L0_http/generate_endpoint_test.py", "generate", without=VALUES),
    Suite("L0_http/generate_endpoint_test.py", "generate_values", only=VALUES),
    Suite("L0_http/http_request_many_chunks.py", "simple"),
    Suite("L0_shared_memory/shared_memory_test.py", "simple", client="http", without=UNREGISTER),
    Suite("L0_shared_memory/shared_memory_test.py", "simple", client="grpc", without=UNREGISTER),
    Suite("L0_shared_memory/shared_memory_test.py", "slow", client="http", only=UNREGISTER[:3]),
    Suite("L0_shared_memory/shared_memory_test.py", "slow", client="grpc", only=UNREGISTER[3:]),
    Suite("L0_logging/logging_endpoint_test.py", "simple"),
    Suite("L0_simple_ensemble/ensemble_test.py", "ensemble", changes=True),
    Suite(LIFECYCLE, "lifecycle_load", only=("test_dynamic_model_load_unload",), changes=True),
    Suite(LIFECYCLE, "lifecycle_load", only=("test_dynamic_model_load_unload_disabled",), flags=NONE, changes=True),
    Suite(LIFECYCLE, "lifecycle_versions", only=("test_dynamic_version_load_unload",), changes=True),
    Suite(
        LIFECYCLE, "lifecycle_versions", only=("test_dynamic_version_load_unload_disabled",), flags=NONE, changes=True
    ),
    Suite(LIFECYCLE, "lifecycle_control", only=("test_model_control",), flags=EXPLICIT, changes=True),
    Suite(LIFECYCLE, "lifecycle_fail", only=("test_model_control_fail",), flags=EXPLICIT, changes=True),
    Suite("L0_infer/infer_test.py", "infer"),
    Suite("L0_optional_input/optional_input_test.py", "optional", environment=(("BACKENDS", "python"),)),
    Suite("L0_trace/trace_endpoint_test.py", "simple", flags=TRACE),
    lifecycle("broken", "parse_error_modelfail", flags=STRICT, ready=(SAVEDMODEL, ONNX)),
    lifecycle("broken", "parse_error_modelfail_nostrict", ready=(SAVEDMODEL, ONNX)),
    lifecycle("none", "parse_error_model_no_version", flags=STRICT, ready=(SAVEDMODEL, ONNX)),
    lifecycle("names", "parse_ignore_non_intergral_version"),
    lifecycle("zeros", "parse_ignore_zero_prefixed_version"),
    lifecycle("modify", "dynamic_model_modify", "dynamic_file_delete"),
    lifecycle("control", "model_control_ensemble", flags=EXPLICIT),
    lifecycle("platform", "load_same_model_different_platform", flags=(*EXPLICIT, f"--load_model={SIMPLE}")),
    lifecycle("reload", "model_availability_on_reload", flags=(*EXPLICIT, f"--load_model={SLOW}")),
    lifecycle("reload2", *RELOADS, flags=(*EXPLICIT, f"--load_model={SLOW}")),
    lifecycle("override", "config_override", flags=EXPLICIT),
    lifecycle("shutdown", "shutdown_dynamic"),
    *batchers("batcher"),
    *batchers("batcher_var"),
    batcher(
        "batcher_var", *(f"test_multi_batch_{name}different_shape" for name in ("not_preferred_", "preferred_", ""))
    ),
    batcher("batcher_var", "test_multi_batch_different_shape_allow_ragged"),
    batcher("batcher_var", "test_multi_batch_delayed_preferred_different_shape", hold=4),
    *(
        batcher("batcher_preferred", f"test_preferred_batch_only_{name}", hold=hold)
        for name, hold in (("aligned", 4), ("unaligned", 5), ("use_biggest_preferred", 7), ("use_no_preferred_size", 3))
    ),
    *batchers("batcher", "onnx"),
    batcher("batcher_default", "test_max_queue_delay_only_default"),
    batcher("batcher_20ms", "test_max_queue_delay_only_non_default"),
    batcher("batcher_unordered", "test_multi_batch_preserve_ordering", hold=12),
    batcher("batcher_ordered", "test_multi_batch_preserve_ordering", hold=12),
    Suite("L0_batcher/queue_timeout_test.py", "batcher_timeout"),
    *sequences("sequences1"),
    *sequences("sequences2", 2),
    *sequences("sequences4", 4),
    *sequences("sequences0", 4, "onnx_nobatch"),
    *sequences("sequencesv", 1, "onnx"),
    *sequences("sequences1", 1, "libtorch"),
    *sequences("sequences_implicit1", 1, "onnx"),
    *sequences("sequences_implicit4", 4, "onnx_nobatch"),
    sequence(
        "sequences_delay", *(f"queue_delay_{n}" for n in QUEUE_DELAYS), backends="onnx libtorch custom", hold=(2, 0)
    ),
    sequence("sequences_timeout", "request_timeout", "send_request_after_timeout"),
    sequence("sequences_order", "sequence_with_preserve_ordering", "sequence_without_preserve_ordering"),
    corrid("sequences_corrid4", "test_skip_batch", instances="4", hold="12"),
    *(
        corrid(
            f"sequences_corrid_{kind}",
            "test_corrid_data_type",
            more=(("TRITONSERVER_CORRID_DATA_TYPE", f"TYPE_{kind}"),),
        )
        for kind in ID_TYPES
    ),
)
IN_REGIONS = ("infer_test", "batcher_test", "sequence_batcher_test", "sequence_corrid_batcher_test")
"""The files whose cases can have their tensors in shared memory."""
NEVER = ("sequences_timeout", "sequences_order", *(f"sequences_corrid_{kind}" for kind in ID_TYPES))
SUITES = (
    *ONE_BY_ONE,
    *(
        replace(suite, shared=True)
        for suite in ONE_BY_ONE
        if Path(suite.file).stem in IN_REGIONS and suite.models not in NEVER
    ),
)
TIMEOUT = "backlog_sequence_timeout"
NOT_OURS = {
    "http_test.test_loading_large_invalid_model": "needs 10 GiB of memory in the client; 413: docs/kserve-v2.md",
    "shared_memory_test.test_python_client_leak": "measures the client alone",
    "batcher_test.test_multi_batch_different_shape_allow_ragged": "ragged batches: docs/model-config.md",
    "sequence_batcher_test.test_ragged_batch_allowed": "ragged batches: docs/model-config.md",
    "shared_memory_test.test_register_reserved_names": "names of its Python backend's own regions",
}
DIFFERS = {
    f"{file}.{name}": f"{what}: docs/conformance.md"
    for file, name, what in (
        ("http_test", "test_byte_too_many_elements", "a raw body for an input [-1] of texts is one text"),
        ("http_test", "test_content_encoding_chunked_manually", "Content-Length beside Transfer-Encoding is 400"),
        ("http_test", "test_negative_dimensions", "400, and not 500"),
        ("generate_endpoint_test", "test_generate_stream_response_error", "an error names model and version"),
        ("shared_memory_test", "test_infer_integer_overflow http", "offset and size are added without overflow"),
        *(
            ("shared_memory_test", name, "unregistering counts at once for other requests")
            for name in UNREGISTER
            if "during" in name
        ),
        ("lifecycle_test", "test_parse_error_model_no_version", "the message says: is not found"),
        ("lifecycle_test", "test_model_reload_fail", "other words for a GPU that is not there; version 1 stays"),
        ("lifecycle_test", "test_config_override", "the config of a load call stays until the model is unloaded"),
        ("lifecycle_test", "test_shutdown_dynamic", "what comes on an open connection during the drain is answered"),
        ("batcher_test", "test_max_queue_delay_only_default", "how many requests the first batch has is chance"),
        (
            "queue_timeout_test",
            "test_default_queue_policy_timeout_prompt_response",
            "the message says for what it waited",
        ),
        *(
            ("sequence_batcher_test", f"test_{name} {models}", "an error in an ensemble names the step")
            for models, more in (("onnx+custom sequences1", ("batch_size", TIMEOUT)), ("onnx_nobatch sequences0", ()))
            for name in ("no_correlation_id", "no_sequence_start", "no_sequence_start2", *more)
        ),
    )
}
"""What differs by decision, and the page that says so."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/triton-inference-server/server")
    parser.add_argument("--server", type=Path, required=True, help="tfs-lite, in an environment with onnx and torch")
    parser.add_argument("--only", default="", help="run the cases with this in FILE CASE")
    parser.add_argument("--logs", type=Path, help="a directory for what each case and its server print")
    arguments = parser.parse_args()
    logs = arguments.logs or Path(tempfile.mkdtemp(prefix="tfs-lite-upstream-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    numpy.object = object  # type: ignore[attr-defined]
    sys.path.append(str(arguments.checkout.resolve() / "qa" / "common"))
    ends = []
    with tempfile.TemporaryDirectory(prefix="tfs-lite-upstream-") as directory:
        root = Path(directory)
        for script in MAKERS:
            subprocess.run([arguments.server.parent / "python", HERE / script, root], check=True)
        os.chdir(root)  # their cases leave files where they run
        for suite in SUITES:
            for name, found, reason in run(suite, arguments, root, logs):
                print(f"{suite.name} {name}".ljust(92), f"{found:<10} {reason}", flush=True)
                ends.append(found)
    print(", ".join(f"{ends.count(end)} {end}" for end in ("pass", "differs", "not ours", "FAILS")), f"(logs: {logs})")
    return int("FAILS" in ends)


def run(suite: Suite, arguments: argparse.Namespace, root: Path, logs: Path) -> Iterator[tuple[str, str, str]]:
    """The name, the end and the reason of each case of a suite."""
    os.environ["CLIENT_TYPE"] = suite.client
    for name in (HOLD, HOLD_BACKLOG):
        os.environ.pop(name, None)
    os.environ.update(suite.environment)
    os.environ[SHARED] = str(int(suite.shared))
    with printing_to(logs / "import.txt"):
        cases = list(cases_of(suite, arguments.checkout.resolve() / "qa" / suite.file))
    cases = [case for case in cases if arguments.only in f"{suite.name} {case._testMethodName}"]
    log = logs / f"{Path(suite.file).stem}.{suite.log}"
    if suite.changes:
        for case in cases:
            folder = root / f"{suite.models}.{case._testMethodName}"
            shutil.copytree(root / suite.models, folder)
            os.chdir(folder)
            with serving(suite, arguments.server, folder / "models", log):
                yield ended(case, suite, logs)
        os.chdir(root)
    elif suite.environment:
        for case in cases:
            with serving(suite, arguments.server, root / suite.models, log):
                yield ended(case, suite, logs)
    elif cases:
        with serving(suite, arguments.server, root / suite.models, log):
            for case in cases:
                yield ended(case, suite, logs)


def ended(case: unittest.TestCase, suite: Suite, logs: Path) -> tuple[str, str, str]:
    """The name, the end and the reason of a case, which is run if it is ours."""
    name = case._testMethodName
    if (key := f"{Path(suite.file).stem}.{name}") in NOT_OURS:
        return name, "not ours", NOT_OURS[key]
    result = unittest.TestResult()
    with printing_to(logs / f"{key}.{suite.log}"):
        unregister_regions()
        case.run(result)
        for _, trace in (*result.failures, *result.errors):
            print(trace)
    keys = (key, f"{key} {suite.client}", f"{key} {suite.client} {suite.models}")
    differs = next((DIFFERS[each] for each in keys if each in DIFFERS), "")
    if bad := [*result.failures, *result.errors]:
        return name, "differs" if differs else "FAILS", differs or reason_of(bad[0][1])
    return name, "pass", "the table says that it differs" if differs else ""


def cases_of(suite: Suite, path: Path) -> Iterator[unittest.TestCase]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for group in unittest.defaultTestLoader.loadTestsFromModule(module):
        for case in group:
            name = case._testMethodName
            if (not suite.only or name in suite.only) and name not in suite.without:
                yield case


@contextmanager
def serving(suite: Suite, server: Path, models: Path, log: Path) -> Iterator[None]:
    """A server of these models, ready, on the tests' ports."""
    program = [server.parent / "python", HERE / "held_server.py"] if HOLD in dict(suite.environment) else [server]
    command = [*program, "serve", f"--model_repository={models}", f"--trusted_model_base_paths={models}/*"]
    command += [f"--port={GRPC_PORT}", f"--rest_api_port={HTTP_PORT}", *suite.flags]
    with open(log, "ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        os.environ["SERVER_PID"] = str(process.pid)
        for path in [f"models/{name}" for name in suite.ready] or ["health"]:
            wait_ready(process, log, path)
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(process: subprocess.Popen[bytes], log: Path, path: str) -> None:
    ends = time.monotonic() + READY_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            break
        try:
            if requests.get(f"http://127.0.0.1:{HTTP_PORT}/v2/{path}/ready", timeout=5).ok:
                return
        except requests.RequestException:
            pass
        time.sleep(0.2)
    sys.exit(f"the server is not ready: {log}")


def unregister_regions() -> None:
    requests.post(f"http://127.0.0.1:{HTTP_PORT}/v2/systemsharedmemory/unregister", timeout=5).raise_for_status()


if __name__ == "__main__":
    sys.exit(main())
