"""Traces of a real server in a real collector: every protocol, batches, ensembles, failures, collectors in trouble."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.servers.collector import CollectedSpan, GrpcTraceCollector, TraceCollector
from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.process import wait_until
from tfs_lite.core.status import ServingError
from tfs_lite.operations.traces.feature import Traces
from tfs_lite.protocols.messages import Message, PredictRequest
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.protocols.v2 import messages as v2

pytest.importorskip("opentelemetry.proto", reason="the extra `otel` is not installed")

TIMEOUT = 60.0
OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.2"}
CONFIG = """
platform: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
%s
"""
SOURCE = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        if float(inputs["x"].max()) > 1000:
            raise ValueError("these numbers are too large")
        return {"y": inputs["x"] + 1}
"""
TWICE = """
platform: "ensemble"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
ensemble_scheduling {
  step { model_name: "plus" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "z" } }
  step { model_name: "worker" model_version: -1 input_map { key: "x" value: "z" } output_map { key: "y" value: "y" } }
}
"""
BATCHED = "dynamic_batching { max_queue_delay_microseconds: 3000 }"
WORKER = 'parameters { key: "worker" value { string_value: "process" } }'
RANDOM = Random(7)


def write(repository: Path, name: str, text: str, source: str = SOURCE) -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(text)
    (directory / "model.py").write_text(source)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    write(found, "plus", CONFIG % BATCHED)
    write(found, "worker", CONFIG % WORKER)
    write(found, "twice", TWICE, "")
    return found


@contextmanager
def traced(repository: Path, collector: TraceCollector, *more: str, **fields: Any) -> Iterator[ServerFixture]:
    words = ("mode=opentelemetry", "level=TIMESTAMPS", "opentelemetry", f"url={collector.url}")
    delay = ("opentelemetry", "bsp_schedule_delay=50")
    with serving(
        repository,
        model_repository=str(repository),
        trusted_model_base_paths=(str(repository / "**"),),
        ready_requires_all_models=True,
        trace_config=(*words, *delay, *more),
        **fields,
    ) as served:
        yield served


def new_parent() -> tuple[str, str]:
    """Ids of a span of a client."""
    return f"{RANDOM.getrandbits(128) | 1:032x}", f"{RANDOM.getrandbits(64) | 1:016x}"


def traceparent(ids: tuple[str, str], flags: str = "01") -> str:
    return f"00-{ids[0]}-{ids[1]}-{flags}"


def predict_request(model: str, inputs: dict[str, Any]) -> Message:
    request = PredictRequest()
    request.model_spec.name = model
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(encode(array))
    return request


class Asking:
    """One request over each protocol, as a part of a client's trace. ``asked``: the clients' spans."""

    def __init__(self, served: ServerFixture) -> None:
        self.asked: list[tuple[str, str]] = []
        self._served = served
        self._channel = grpc.insecure_channel(served.target)
        self._http = httpx.Client(base_url=served.url, timeout=TIMEOUT)
        self._lock = threading.Lock()

    def close(self) -> None:
        self._channel.close()
        self._http.close()

    def parent(self) -> tuple[str, str]:
        ids = new_parent()
        with self._lock:
            self.asked.append(ids)
        return ids

    def grpc_predict(self, model: str = "plus", value: float = 1.0, ids: tuple[str, str] | None = None) -> None:
        request = predict_request(model, {"x": np.full((1, 3), value, np.float32)})
        self._call("/tensorflow.serving.PredictionService/Predict", request.SerializeToString(), ids)

    def v2_grpc(self) -> None:
        request = v2.ModelInferRequest(model_name="plus", raw_input_contents=[np.ones(3, np.float32).tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
        self._call("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString(), None)

    def rest(self, model: str = "plus") -> None:
        self._post(f"/v1/models/{model}:predict", {"instances": [[1.0, 2.0, 3.0]]})

    def v2_rest(self) -> None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}
        self._post("/v2/models/plus/infer", {"inputs": [tensor]})

    def _call(self, path: str, data: bytes, ids: tuple[str, str] | None) -> None:
        metadata = (("traceparent", traceparent(ids or self.parent())),)
        self._channel.unary_unary(path)(data, metadata=metadata, timeout=TIMEOUT)

    def _post(self, path: str, body: object) -> None:
        answer = self._http.post(path, json=body, headers={"traceparent": traceparent(self.parent())})
        assert answer.status_code == 200, answer.text


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    with TraceCollector() as found:
        yield found


def servers(spans: list[CollectedSpan]) -> list[CollectedSpan]:
    return [span for span in spans if span.kind == 2]


def wait_for_servers(collector: TraceCollector, number: int) -> list[CollectedSpan]:
    wait_until(lambda: len(servers(collector.spans)) >= number, f"{number} requests are traced", TIMEOUT)
    return servers(collector.spans)


def check_nesting(spans: list[CollectedSpan]) -> None:
    """A child does not leave its parent, and moments do not leave their span."""
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    for span in spans:
        assert span.start <= span.end, span
        assert all(span.start <= at <= span.end for _, at in span.events), span
        parent = by_id.get((span.trace_id, span.parent_id))
        if parent is not None:
            assert parent.start <= span.start, (parent, span)
            assert span.end <= parent.end, (parent, span)


def test_each_of_50_requests_at_once_over_four_protocols_is_one_trace_with_the_right_parent(
    repository: Path, collector: TraceCollector
) -> None:
    with traced(repository, collector, "rate=0") as served:
        asking = Asking(served)
        ways = [asking.grpc_predict, asking.v2_grpc, asking.rest, asking.v2_rest]
        with ThreadPoolExecutor(10) as pool:
            for done in [pool.submit(ways[number % 4]) for number in range(50)]:
                done.result()
        asking.close()
        found = wait_for_servers(collector, 50)
    spans = collector.spans  # the server has stopped: everything was sent
    assert sorted((span.trace_id, span.parent_id) for span in found) == sorted(asking.asked)
    assert all(span.attributes["tfs_lite.sampled_by"] == "context" for span in found)
    for root in found:
        below = {span.name for span in spans if span.trace_id == root.trace_id and span.parent_id == root.span_id}
        assert below == {"decode", "queue", "compute", "encode"}
    check_nesting(spans)
    computes = {(span.trace_id, span.span_id): span for span in spans if span.name == "compute"}
    batches = {(span.trace_id, span.span_id): span for span in spans if span.name == "batch plus@1"}
    linked = Counter(link for batch in batches.values() for link in batch.links)
    assert linked == Counter(dict.fromkeys(computes, 1))
    for batch in batches.values():
        assert batch.attributes["tfs_lite.calls"] == len(batch.links)
    for place, compute in computes.items():
        (batch_of,) = compute.links
        assert place in batches[batch_of].links


def test_steps_of_an_ensemble_and_models_in_processes_of_their_own_belong_to_the_callers_trace(
    repository: Path, collector: TraceCollector
) -> None:
    with traced(repository, collector, "rate=0") as served:
        asking = Asking(served)
        asking.rest("twice")
        asking.grpc_predict("worker")
        asking.close()
        wait_for_servers(collector, 2)
    ensemble, worker = (collector.of_trace(trace_id) for trace_id, _ in asking.asked)
    root = ensemble["Predict twice"]
    steps = [ensemble["step plus"], ensemble["step worker"]]
    assert [step.parent_id for step in steps] == [root.span_id] * 2
    below = [span for span in collector.spans if span.parent_id in {step.span_id for step in steps}]
    assert Counter(span.name for span in below if span.name == "compute") == {"compute": 2}
    assert worker["compute"].parent_id == worker["Predict worker"].span_id
    check_nesting(collector.spans)
    assert {span.resource["service.name"] for span in collector.spans} == {"tfs_lite"}


def test_the_tracestate_of_a_caller_goes_with_every_span_of_its_trace(
    repository: Path, collector: TraceCollector
) -> None:
    ids = new_parent()
    with traced(repository, collector, "rate=0") as served:
        body = {"instances": [[1.0, 2.0, 3.0]]}
        headers = {"traceparent": traceparent(ids), "tracestate": "vendor=a:b,other@x=1"}
        answer = httpx.post(f"{served.url}/v1/models/plus:predict", json=body, headers=headers, timeout=TIMEOUT)
        assert answer.status_code == 200, answer.text
        wait_for_servers(collector, 1)
    states = {span.name: span.state for span in collector.spans if span.trace_id == ids[0]}
    names = ("Predict plus", "decode", "queue", "compute", "encode")
    assert states == dict.fromkeys(names, "vendor=a:b,other@x=1")


def test_failures_are_traced_at_rate_0_and_say_where_and_why(repository: Path, collector: TraceCollector) -> None:
    with traced(repository, collector, "rate=0") as served:
        asking = Asking(served)
        asking.rest()  # in a trace of its own
        ids = new_parent()
        with pytest.raises(grpc.RpcError):
            asking.grpc_predict("plus", 5000.0, ids)
        with pytest.raises(ServingError):
            served.client.predict("nothing", {"x": np.ones((1, 3), np.float32)})
        asking.close()
        wait_for_servers(collector, 3)
    found = collector.of_trace(ids[0])["Predict plus"]
    assert found.failed
    assert (found.attributes["tfs_lite.code"], found.attributes["tfs_lite.stage"]) == ("INTERNAL", "run")
    unknown = next(span for span in servers(collector.spans) if span.name == "Predict nothing")
    assert (unknown.attributes["tfs_lite.sampled_by"], unknown.parent_id) == ("failure", "")
    assert unknown.attributes["tfs_lite.stage"] == "route"


def test_every_nth_request_is_traced_and_callers_that_do_not_record_are_not_followed(
    repository: Path, collector: TraceCollector
) -> None:
    with traced(repository, collector, "rate=3", "count=2") as served:
        for _ in range(9):
            served.predict("plus")
        channel = grpc.insecure_channel(served.target)
        request = predict_request("plus", {"x": np.ones((1, 3), np.float32)}).SerializeToString()
        ids = new_parent()
        predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        for _ in range(5):
            predict(request, metadata=(("traceparent", traceparent(ids, "00")),), timeout=TIMEOUT)
        channel.close()
        wait_for_servers(collector, 2)
    by_rate = [span for span in servers(collector.spans) if span.attributes["tfs_lite.sampled_by"] == "rate"]
    assert len(by_rate) == 2
    assert not collector.of_trace(ids[0])


def lost(served: ServerFixture) -> float:
    """Traces that were dropped, for any reason."""
    value = served.server.core.registry.get_sample_value
    return sum(value("tfs_lite_traces_dropped_total", {"reason": why}) or 0 for why in ("queue_full", "not_taken"))


@pytest.mark.parametrize("status", [400, 500])
def test_a_collector_that_comes_back_gets_the_traces_of_then_and_each_lost_one_is_counted(
    repository: Path, collector: TraceCollector, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1000")  # milliseconds of attempts for one export
    collector.status = status
    asked = 0
    with traced(repository, collector, "rate=1", "opentelemetry", "bsp_max_queue_size=10") as served:

        def ask() -> None:
            nonlocal asked
            assert served.predict("plus").version == 1
            asked += 1

        for _ in range(30):
            ask()
        wait_until(lambda: lost(served) > 0, "traces are dropped", TIMEOUT)
        collector.status = 200
        ask()
        exported = lambda: served.server.core.registry.get_sample_value("tfs_lite_traces_exported_total") or 0  # noqa: E731

        def all_told() -> bool:
            if not exported():
                ask()
            return bool(exported()) and exported() + lost(served) == asked

        wait_until(all_told, "traces arrive again, and each is accounted for", TIMEOUT)
        arrived = exported()
    assert len(servers(collector.spans)) == arrived


@pytest.mark.parametrize("trouble", ["down", "slow", "broken"])
def test_a_collector_in_trouble_costs_traces_which_are_counted_and_no_request(
    repository: Path, collector: TraceCollector, trouble: str
) -> None:
    before = collector.url
    if trouble == "slow":
        collector.open.clear()
    elif trouble == "broken":
        collector.status = 400
    with traced(repository, collector, "rate=1", "opentelemetry", "bsp_max_queue_size=10") as served:
        if trouble == "down":
            collector.__exit__(None, None, None)
        for _ in range(60):
            assert served.predict("plus").version == 1
        least = 1 if trouble == "broken" else 30
        wait_until(lambda: lost(served) >= least, "traces are dropped", TIMEOUT)
        assert served.predict("plus").version == 1
        collector.open.set()
    assert collector.url == before or trouble == "down"


def test_a_forked_process_sends_nothing(repository: Path, collector: TraceCollector) -> None:
    with traced(repository, collector, "rate=1") as served:
        served.predict("plus")
        wait_for_servers(collector, 1)
        exporter = served.server.core.find(Traces).exporter
        assert exporter is not None
        child = os.fork()
        if child == 0:
            alive = {thread.name for thread in threading.enumerate()}
            os._exit(1 if "tfs-traces" in alive else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_texts_over_openai_have_their_prompts_and_tokens_in_the_callers_trace(
    tmp_path: Path, collector: TraceCollector
) -> None:
    pytest.importorskip("transformers", reason="the extra `generate` is not installed")
    from tests.support.language.language_models import publish_language

    publish_language(tmp_path / "lm", 1)
    with traced(tmp_path, collector, "rate=0") as served:
        for stream in (False, True):
            ids = new_parent()
            body = {"model": "lm", "prompt": "abc", "max_tokens": 5, "stream": stream}
            headers = {"traceparent": traceparent(ids), "x-request-id": "text"}
            answer = httpx.post(f"{served.url}/openai/v1/completions", json=body, headers=headers, timeout=TIMEOUT)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-request-id"] == "text"
            wait_for_servers(collector, 1 + stream)
            found = [span for span in collector.spans if span.trace_id == ids[0]]
            by_name = {span.name: span for span in found}
            assert by_name["Completions lm"].parent_id == ids[1]
            compute = by_name["compute"]
            (prefill,) = [span for span in found if span.name == "prefill"]
            (tokens,) = [span for span in found if span.name == "decode" and span.parent_id == compute.span_id]
            assert prefill.parent_id == compute.span_id
            assert (prefill.attributes["tfs_lite.tokens"], tokens.attributes["tfs_lite.tokens"]) == (3, 5)
        check_nesting(collector.spans)


def test_openmetrics_has_the_ids_of_traces_that_the_collector_has(repository: Path, collector: TraceCollector) -> None:
    with traced(repository, collector, "rate=1") as served:
        served.predict("plus")
        page = lambda: httpx.get(f"{served.url}/metrics", headers=OPENMETRICS, timeout=TIMEOUT).text  # noqa: E731
        families = ("tfs_lite_request_seconds", "tfs_lite_batch_queue_seconds")
        wait_until(lambda: page().count("trace_id=") == len(families), "both histograms have an exemplar", TIMEOUT)
        found = {
            family.name: (sample, sample.exemplar)
            for family in text_string_to_metric_families(page())
            for sample in family.samples
            if sample.exemplar is not None
        }
        text = httpx.get(f"{served.url}/metrics", timeout=TIMEOUT).text
        (root,) = servers(collector.spans)
    assert set(found) == set(families)
    for sample, exemplar in found.values():
        assert exemplar.labels == {"trace_id": root.trace_id}
        assert exemplar.value <= float(sample.labels["le"])
        assert abs(float(exemplar.timestamp) - root.end / 1e9) < 60
    assert "trace_id" not in text


def test_what_waits_is_sent_when_the_server_stops(repository: Path, collector: TraceCollector) -> None:
    with traced(repository, collector, "rate=1", "opentelemetry", "bsp_schedule_delay=600000") as served:
        for _ in range(3):
            served.predict("plus")
        assert not collector.spans
        begun = time.monotonic()
    assert len(servers(collector.spans)) == 3
    assert time.monotonic() - begun < TIMEOUT


def test_environment_of_the_standard_sends_traces_by_grpc_and_never_ends_the_start(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with GrpcTraceCollector() as collector:
        variables = {
            "PROTOCOL": "grpc",
            "ENDPOINT": f"http://{collector.url}",
            "TIMEOUT": "10000",
            "COMPRESSION": "zip",
            "CERTIFICATE": "/not/there.pem",
        }
        for name, value in variables.items():
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with serving(
            repository,
            model_repository=str(repository),
            trusted_model_base_paths=(str(repository / "**"),),
            ready_requires_all_models=True,
            trace_config=("mode=opentelemetry", "level=TIMESTAMPS"),
        ) as served:
            for _ in range(3):
                served.predict("plus")
            wait_for_servers(collector, 3)
    said = [record.getMessage() for record in caplog.records if record.name == "tfs_lite.operations.traces.exporter"]
    assert any("OTEL_EXPORTER_OTLP_COMPRESSION is zip" in text for text in said)
    assert f"traces go to {collector.url} by grpc" in said


def test_environment_that_wants_no_traces_gets_none_in_the_log_either(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    caplog.set_level("INFO")
    with serving(
        repository,
        model_repository=str(repository),
        trusted_model_base_paths=(str(repository / "**"),),
        ready_requires_all_models=True,
        trace_config=("mode=opentelemetry", "level=TIMESTAMPS", "rate=1"),
    ) as served:
        served.predict("plus")
    assert not [record for record in caplog.records if record.name == "tfs_lite.trace"]
