"""Batching as clients see it: flags, files and configs that ask for it, and what becomes of requests that wait.

The model adds its version to every number and says how many rows its run had. A row of the number ``HOLD`` makes it
wait until the gate is open, so that tests decide what queues up meanwhile; a row of ``POISON`` makes it fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from tests.support.servers.in_process import TIMEOUT, ServerFixture, serving
from tests.support.servers.process import wait_until
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols import messages
from tfs_lite.protocols.tensorflow.tensor_proto import encode

HOLD, POISON = -1.0, 13.0
LONG = 120_000_000
"""Microseconds: a batch that waits so long waits for what the test does next."""
SOURCE = """
import pathlib
import time

import torch

GATE = pathlib.Path(GATE_PATH)


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        x = inputs["x"]
        if (x == HOLD).any():
            (GATE / "entered").touch()
            latest = time.monotonic() + 60
            while not (GATE / "open").exists() and time.monotonic() < latest:
                time.sleep(0.002)
        if (x == POISON).any():
            raise ValueError("poison")
        return RETURNS
"""
RETURNS = '{"y": x + VERSION, "rows": torch.full((len(x),), float(len(x)))}'
CONFIG = """
max_batch_size: 16
input: [{name: x, data_type: TYPE_FP32, dims: [DIMS]}]
output: [{name: y, data_type: TYPE_FP32, dims: [DIMS]}, {name: rows, data_type: TYPE_FP32, dims: []}]
"""
SECOND_INPUT = "input: [{name: x, data_type: TYPE_FP32, dims: [3]}, {name: z, data_type: TYPE_FP32, dims: [3]}]"
REST_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.DEADLINE_EXCEEDED: 504,
    StatusCode.FAILED_PRECONDITION: 412,
    StatusCode.INTERNAL: 500,
    StatusCode.UNAVAILABLE: 503,
}
PROTOCOLS = ("grpc", "rest")

Answer = dict[str, list]
Outcome = Answer | tuple[StatusCode, str]


def parameters(**fields: object) -> str:
    """A parameters file."""
    wrapped = {
        key: value if isinstance(value, list | bool) else f"{{ value: {value} }}" for key, value in fields.items()
    }
    return "\n".join(f"{key}: {value}" for key, value in wrapped.items()).replace("True", "true")


def write_version(
    root: Path, version: int = 1, *, dims: str = "3", config: str = "", returns: str = RETURNS, batching: str = ""
) -> Path:
    """Writes ``root/m/<version>/``; ``batching``: its own parameters."""
    directory = root / "m" / str(version)
    directory.mkdir(parents=True)
    source = SOURCE.replace("RETURNS", returns).replace("VERSION", str(version)).replace("GATE_PATH", repr(str(root)))
    (directory / "model.py").write_text(source.replace("HOLD", str(HOLD)).replace("POISON", str(POISON)))
    common = re.sub("^input:.*$", "", CONFIG, flags=re.MULTILINE) if "input:" in config else CONFIG
    (directory / "config.yaml").write_text(common.replace("DIMS", dims) + config)
    if batching:
        (directory / "batching_params.pbtxt").write_text(batching)
    return directory


class Client:
    """Asks a fixture, over either protocol, from threads of its own."""

    def __init__(self, fixture: ServerFixture, pool: ThreadPoolExecutor) -> None:
        self.fixture = fixture
        self._pool = pool

    def ask(self, x: Sequence, protocol: str = "grpc", timeout: float | None = None) -> Outcome:
        """The outputs, or code and text."""
        return self._rest(x) if protocol == "rest" else self._grpc(x, timeout)

    def later(self, x: Sequence, protocol: str = "grpc", timeout: float | None = None) -> Future[Outcome]:
        return self._pool.submit(self.ask, x, protocol, timeout)

    def _grpc(self, x: Sequence, timeout: float | None) -> Outcome:
        try:
            answer = self.fixture.client.predict("m", {"x": np.array(x, np.float32)}, timeout=timeout)
        except ServingError as error:
            return error.code, error.status.message
        return {name: array.tolist() for name, array in answer.outputs.items()}

    def _rest(self, x: Sequence) -> Outcome:
        reply = httpx.post(f"{self.fixture.url}/v1/models/m:predict", json={"inputs": {"x": x}}, timeout=TIMEOUT)
        if reply.status_code == 200:
            outputs: Answer = reply.json()["outputs"]
            return outputs
        (code,) = [code for code, status in REST_STATUS.items() if status == reply.status_code]
        return code, reply.json()["error"]

    def hold(self) -> Future[Outcome]:
        """A request that is in the model until the gate is opened."""
        held = self.later([[HOLD] * 3])
        wait_until((self.fixture.root / "entered").exists, "the model is busy", TIMEOUT)
        return held

    def wait_rows(self, rows: int) -> None:
        """Until so many wait in the queue."""
        wait_until(lambda: self.metric("tfs_lite_queue_rows") == rows, f"{rows} rows wait", TIMEOUT)

    def queue(self, x: Sequence, rows: int, protocol: str = "grpc", timeout: float | None = None) -> Future[Outcome]:
        """Asks, and waits until ``rows`` rows wait."""
        asked = self.later(x, protocol, timeout)
        self.wait_rows(rows)
        return asked

    def open(self) -> None:
        (self.fixture.root / "open").touch()

    def metric(self, name: str) -> float:
        """The sum over all versions of the model."""
        page = httpx.get(f"{self.fixture.url}/metrics", timeout=TIMEOUT).text
        return sum(
            float(value) for value in re.findall(rf'^{name}\{{[^}}]*model="m"[^}}]*\}} (\S+)', page, re.MULTILINE)
        )


Make = Callable[..., Client]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Starts a server of one model. ``batching``: the file for all of it; ``version``: see :func:`write_version`."""
    with ExitStack() as stack:

        def client(batching: str | None = None, version: dict[str, str] | None = None, **fields: object) -> Client:
            write_version(tmp_path, **(version or {}))
            if batching is not None:
                (tmp_path / "batching.pbtxt").write_text(batching)
                fields |= {"enable_batching": True, "batching_parameters_file": str(tmp_path / "batching.pbtxt")}
            served = {"model_name": "m", "model_base_path": str(tmp_path / "m")}
            fixture = stack.enter_context(serving(tmp_path, trusted_model_base_paths=str(tmp_path), **served, **fields))
            stack.callback((tmp_path / "open").touch)
            return Client(fixture, stack.enter_context(ThreadPoolExecutor(8)))

        yield client


def rows_of(*asked: Future[Outcome]) -> list[float]:
    """How many rows the run had in which each was answered."""
    answers = [each.result(TIMEOUT) for each in asked]
    assert all(isinstance(answer, dict) for answer in answers), answers
    return [answer["rows"][0] for answer in answers]


ONE, TWO = [[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]

# Where batching comes from.


def test_flag_alone_runs_together_what_has_queued_up(make):
    client = make(enable_batching=True)
    held = client.hold()
    first, second = client.queue(ONE, 1), client.queue(TWO, 3, "rest")
    client.open()
    assert rows_of(held, first, second) == [1, 3, 3]
    assert first.result()["y"] == [[2.0, 3.0, 4.0]]
    assert second.result()["y"] == [[5.0, 6.0, 7.0], [8.0, 9.0, 10.0]]


def test_without_the_flag_every_request_runs_alone(make):
    client = make()
    held = client.hold()
    waiting = [client.later(ONE), client.later(ONE)]
    client.wait_rows(2)
    client.open()
    assert rows_of(held, *waiting) == [1, 1, 1]


def test_batch_leaves_when_it_is_full_or_its_time_is_over(make):
    client = make(parameters(max_batch_size=4, batch_timeout_micros=LONG))
    first = client.queue(TWO, 2)
    assert rows_of(client.later(TWO), first) == [4, 4]


def test_batch_that_stays_small_leaves_after_its_time(make):
    client = make(parameters(max_batch_size=4, batch_timeout_micros=20_000))
    assert rows_of(client.later(TWO)) == [2]
    assert client.metric("tfs_lite_batch_queue_seconds_sum") >= 0.02


def test_version_brings_its_own_parameters(make):
    own = parameters(max_batch_size=3, batch_timeout_micros=LONG)
    client = make(parameters(max_batch_size=8), {"batching": own}, enable_per_model_batching_parameters=True)
    first = client.queue(ONE, 1)
    assert rows_of(client.later(TWO), first) == [3, 3]


def test_version_without_its_own_parameters_is_not_batched(make):
    client = make(parameters(max_batch_size=8, batch_timeout_micros=LONG), enable_per_model_batching_parameters=True)
    assert rows_of(client.later(ONE), client.later(TWO)) == [1, 2]


def test_bad_parameters_of_a_version_fail_its_load(make):
    client = make(
        parameters(max_batch_size=8),
        {"batching": "max_batch_size { value: 8 } allowed_batch_sizes: [ 2, 4 ]"},
        enable_per_model_batching_parameters=True,
        max_num_load_retries=0,
        ready=False,
    )
    client.fixture.wait_states({1: VersionState.END})
    (status,) = client.fixture.status().values()
    assert status.status.code is StatusCode.INVALID_ARGUMENT
    assert "Last entry in allowed_batch_sizes must match max_batch_size" in status.status.message


def test_config_of_the_model_batches_without_any_flag(make):
    client = make(
        version={"config": f"dynamic_batching: {{max_queue_delay_microseconds: {LONG}, preferred_batch_size: [3]}}"}
    )
    first = client.queue(ONE, 1)
    assert rows_of(client.later(TWO, "rest"), first) == [3, 3]


def test_config_of_the_model_bounds_its_queue(make):
    policy = "dynamic_batching: {default_queue_policy: {max_queue_size: 1}}"
    client = make(version={"config": policy})
    held = client.hold()
    waiting = client.queue(ONE, 1)
    code, text = client.ask(ONE)
    client.open()
    assert (code, rows_of(held, waiting)) == (StatusCode.UNAVAILABLE, [1, 1])
    assert "Exceeds maximum queue size" in text


def test_config_of_the_model_says_how_long_a_request_may_wait(make):
    policy = "{default_timeout_microseconds: 20000, timeout_action: REJECT}"
    client = make(version={"config": f"dynamic_batching: {{default_queue_policy: {policy}}}"})
    held = client.hold()
    code, text = client.ask(ONE)
    client.open()
    assert (code, rows_of(held)) == (StatusCode.UNAVAILABLE, [1])
    assert "Request timeout expired" in text


# Sizes.


def test_runs_are_filled_up_to_an_allowed_size_and_nobody_sees_it(make):
    client = make(parameters(max_batch_size=8, allowed_batch_sizes=[4, 8]))
    assert client.ask([[1.0] * 3] * 3) == {"y": [[2.0] * 3] * 3, "rows": [4.0] * 3}
    assert client.ask([[1.0] * 3] * 5)["rows"] == [8.0] * 5
    assert client.metric("tfs_lite_batch_padding_rows_sum") == 1 + 3


def test_large_request_is_run_in_pieces_and_answered_as_one(make):
    client = make(parameters(max_batch_size=10, max_execution_batch_size=4, enable_large_batch_splitting="true"))
    x = np.arange(20, 47, dtype=float).reshape(9, 3).tolist()
    assert client.ask(x, "rest") == {"y": (np.array(x) + 1).tolist(), "rows": [4.0] * 8 + [1.0]}
    code, text = client.ask([[0.0] * 3] * 11)
    assert code is StatusCode.INVALID_ARGUMENT
    assert "Task size 11 is larger than maximum input batch size 10" in text


def test_requests_of_other_lengths_are_filled_up_if_the_file_says_so(make):
    version = {
        "dims": "-1",
        "returns": '{"y": x.sum(1, keepdim=True), "rows": torch.full((len(x),), float(x.shape[1]))}',
    }
    client = make(parameters(max_batch_size=2, batch_timeout_micros=LONG, pad_variable_length_inputs=True), version)
    short = client.queue([[1.0, 1.0]], 1)
    long = client.later([[2.0, 2.0, 2.0, 2.0]])
    assert rows_of(short, long) == [4, 4]
    assert short.result()["y"] == [[4.0]]


# The conditions that have a text of their own, over both protocols.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_request_of_too_many_rows_is_refused(make, protocol):
    code, text = make(parameters(max_batch_size=4)).ask([[0.0] * 3] * 5, protocol)
    assert code is StatusCode.INVALID_ARGUMENT
    assert "Task size 5 is larger than maximum input batch size 4" in text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_full_queue_refuses_and_keeps_what_it_has(make, protocol):
    client = make(parameters(max_batch_size=2, max_enqueued_batches=1))
    held = client.hold()
    waiting = client.queue(TWO, 2)
    code, text = client.ask(ONE, protocol)
    client.open()
    assert code is StatusCode.UNAVAILABLE
    assert "The batch scheduling queue to which this task was submitted is full" in text
    assert rows_of(held, waiting) == [1, 2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_input_without_dimensions_is_refused(make, protocol):
    code, text = make(parameters(max_batch_size=4)).ask(1.0, protocol)
    assert code is StatusCode.INVALID_ARGUMENT
    assert "x" in text


@pytest.mark.parametrize("inputs", [{}, {"x": ONE, "z": TWO}], ids=["none", "other_rows"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_inputs_have_to_be_there_and_to_agree_on_the_rows(make, protocol, inputs):
    client = make(parameters(max_batch_size=4), {"config": SECOND_INPUT})
    if protocol == "grpc":
        with pytest.raises(ServingError) as caught:
            client.fixture.client.predict("m", {name: np.array(value, np.float32) for name, value in inputs.items()})
        code, text = caught.value.code, str(caught.value)
    else:
        reply = httpx.post(f"{client.fixture.url}/v1/models/m:predict", json={"inputs": inputs}, timeout=TIMEOUT)
        code, text = StatusCode.INVALID_ARGUMENT, reply.json()["error"]
        assert reply.status_code == 400
    assert code is StatusCode.INVALID_ARGUMENT
    assert re.search(r"\b[xz]\b", text)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_of_different_lengths_run_apart_without_padding(make, protocol):
    returns = RETURNS.replace("x + VERSION", "x * 2")
    client = make(parameters(max_batch_size=4), {"dims": "-1", "returns": returns})
    held = client.hold()
    short, long = client.queue([[1.0]], 1, protocol), client.queue([[1.0, 2.0]], 2, protocol)
    client.open()
    assert rows_of(held, short, long) == [1, 1, 1]
    assert (short.result()["y"], long.result()["y"]) == ([[2.0]], [[2.0, 4.0]])


def test_request_without_elements_is_kept_apart_from_others_with_padding(make):
    client = make(
        parameters(max_batch_size=4, pad_variable_length_inputs=True),
        {"dims": "-1", "returns": RETURNS.replace("x + VERSION", "x * 2")},
    )
    held = client.hold()
    empty, plain = client.queue([[]], 1), client.queue([[1.0, 2.0]], 2)
    client.open()
    assert rows_of(held, empty, plain) == [1, 1, 1]
    assert empty.result()["y"] == [[]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_input_of_too_many_dimensions_cannot_be_filled_up(make, protocol):
    client = make(
        parameters(max_batch_size=4, pad_variable_length_inputs=True),
        {"dims": "-1, -1, -1, -1, -1, -1", "returns": RETURNS},
    )
    code, text = client.ask([[[[[[[1.0]]]]]]], protocol)
    assert code is StatusCode.INVALID_ARGUMENT
    assert "Only tensors with rank from 1 to 6 can be padded" in text


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("returns", "shape"),
    [('{"y": x.sum(), "rows": x.sum()}', r"float\[\]"), ('{"y": x[:1], "rows": x[:1, 0]}', r"float\[1,3\]")],
    ids=["no_dimension", "too_few_rows"],
)
def test_outputs_that_are_not_row_for_row_reach_nobody(make, protocol, returns, shape):
    client = make(parameters(max_batch_size=4, batch_timeout_micros=LONG), {"returns": returns})
    first = client.queue(TWO, 2)
    for code, text in (client.ask(TWO, protocol), first.result(TIMEOUT)):
        assert code is StatusCode.INTERNAL
        assert re.search(f"the model returned output y as {shape}, expected float", text)


def test_deadline_that_passes_in_the_queue_is_told_and_the_request_is_not_run(make):
    client = make(parameters(max_batch_size=4))
    held = client.hold()
    code, _ = client.ask(ONE, timeout=0.2)
    client.wait_rows(0)
    client.open()
    assert (code, rows_of(held)) == (StatusCode.DEADLINE_EXCEEDED, [1])
    assert rows_of(client.later(ONE)) == [1]
    assert client.metric("tfs_lite_batch_size_sum") == 2


def test_deadline_of_rest_requests_passes_in_the_queue_too(make):
    client = make(parameters(max_batch_size=4, batch_timeout_micros=LONG), rest_api_timeout_in_ms=200)
    code, _ = client.ask(ONE, "rest")
    assert code is StatusCode.DEADLINE_EXCEEDED
    client.wait_rows(0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_request_that_breaks_the_model_fails_alone(make, protocol):
    client = make(parameters(max_batch_size=4, batch_timeout_micros=LONG))
    first = client.queue(ONE, 1)
    second = client.queue(ONE, 2)
    bad = client.queue([[POISON] * 3], 3, protocol)
    last = client.later(ONE)
    assert rows_of(first, second, last) == [2, 2, 1]
    assert bad.result(TIMEOUT)[0] is StatusCode.INTERNAL


# Clients and versions that come and go.


def test_client_that_hangs_up_leaves_the_queue(make):
    client = make(parameters(max_batch_size=4))
    held = client.hold()
    request = messages.PredictRequest(model_spec={"name": "m"})
    request.inputs["x"].CopyFrom(encode(np.array(TWO, np.float32)))
    with grpc.insecure_channel(client.fixture.target) as channel:
        predict = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=messages.PredictRequest.SerializeToString,
            response_deserializer=messages.PredictResponse.FromString,
        )
        call = predict.future(request, timeout=TIMEOUT)
        client.wait_rows(2)
        call.cancel()
        client.wait_rows(0)
    stays = client.queue(ONE, 1)
    client.open()
    assert rows_of(held, stays) == [1, 1]


def test_what_waits_for_an_old_version_is_answered_by_it(make, tmp_path):
    client = make(parameters(max_batch_size=4))
    held = client.hold()
    waiting = [client.queue(ONE, 1), client.queue(TWO, 3, "rest")]
    write_version(tmp_path, 2)
    client.fixture.wait_states({1: VersionState.UNLOADING, 2: VersionState.AVAILABLE})
    assert client.ask(ONE) == {"y": [[3.0, 4.0, 5.0]], "rows": [1.0]}
    client.open()
    assert rows_of(held, *waiting) == [1, 3, 3]
    assert waiting[0].result()["y"] == [[2.0, 3.0, 4.0]]
    client.fixture.wait_states({1: VersionState.END, 2: VersionState.AVAILABLE})


def test_metrics_tell_of_batches(make):
    client = make(parameters(max_batch_size=4, batch_timeout_micros=LONG, allowed_batch_sizes=[4]))
    first = client.queue(ONE, 1)
    assert client.metric("tfs_lite_queue_rows") == 1
    second = client.queue(TWO, 3)
    assert rows_of(client.later(ONE), first, second) == [4, 4, 4]
    names = ("size_sum", "size_count", "calls_sum", "padding_rows_sum", "run_seconds_count", "queue_seconds_count")
    assert [client.metric(f"tfs_lite_batch_{name}") for name in names] == [4, 1, 3, 0, 1, 3]
