"""A version that sequences live on stays for them when a newer one comes, as long as it may. A real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.schedulers.sum_repository import SumRepository, SumResponse, read_response, request_fields
from tests.support.servers.process import ServerProcess, wait_until
from tests.support.servers.v2_client import V2Client

LONG, SHORT = 600.0, 1.5
"""Seconds that a withdrawn version waits for its sequences."""
MODELS = ("rows", "states", "ids")

pytestmark = pytest.mark.slow


@dataclass
class SequencesFixture:
    server: ServerProcess
    sums: SumRepository
    client: V2Client

    def publish(self, version: int) -> None:
        """The version of every model."""
        self.sums.add("rows", version, batch=2)
        self.sums.add_states("states", version, batch=2)
        self.sums.add("ids", version, batch=2, oldest="max_candidate_sequences: 2")

    def ask(self, model: str, number: int, sequence: int, **how: Any) -> SumResponse:
        answer = read_response(self.client.call("ModelInfer", **request_fields(model, number, sequence, **how)))
        assert answer.version == answer.model_version
        return answer

    def refusal(self, model: str, number: int, sequence: int, **how: Any) -> tuple[grpc.StatusCode, str]:
        return self.client.refusal("ModelInfer", **request_fields(model, number, sequence, **how))

    def states(self, model: str) -> dict[int, str]:
        """Of the versions that are listed and not unloaded."""
        index = self.client.call("RepositoryIndex").models
        return {int(each.version): each.state for each in index if each.name == model and each.reason != "unloaded"}

    def newest(self) -> dict[str, int]:
        """What answers a request that names no version."""
        ready = self.client.call("RepositoryIndex", ready=True).models
        return {model: max(int(each.version) for each in ready if each.name == model) for model in MODELS}

    def swap(self, version: int) -> None:
        self.publish(version)
        wait_until(lambda: set(self.newest().values()) == {version}, f"version {version} answers")

    def wait_alone(self, model: str, version: int) -> None:
        wait_until(lambda: self.states(model) == {version: "READY"}, f"version {version} of {model} is alone")

    def metric(self, line: str) -> float:
        page = self.server.get("/metrics")[1].decode()
        found = re.search(rf"^{re.escape(line)} (\S+)", page, re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextmanager
def serving(directory: Path, drain: float) -> Iterator[SequencesFixture]:
    sums = SumRepository(directory)
    fixture = SequencesFixture(None, sums, None)  # type: ignore[arg-type]
    fixture.publish(1)
    flags = (
        f"--model_repository={sums.path}",
        f"--trusted_model_base_paths={sums.path}/*",
        f"--sequence_drain_seconds={drain}",
    )
    with ServerProcess(*flags) as server, grpc.insecure_channel(server.target) as channel:
        fixture.server, fixture.client = server, V2Client(channel)
        wait_until(lambda: set(fixture.newest().values()) == {1}, "version 1 answers")
        yield fixture
    assert server.exit_code == 0
    assert not server.leftovers()


def test_live_sequence_stays_on_its_version_and_new_ones_go_to_the_newest(tmp_path: Path) -> None:
    with serving(tmp_path, LONG) as fixture:
        for model in MODELS:
            assert fixture.ask(model, 1, 7, start=True).version == 1
            assert fixture.ask(model, 2, 7).sum == 3
        fixture.swap(2)
        for model in MODELS:
            fresh = fixture.ask(model, 10, 8, start=True)
            assert (fresh.sum, fresh.version) == (10, 2)
            old = fixture.ask(model, 3, 7)
            assert (old.sum, old.version) == (6, 1)
            assert fixture.metric(f'tfs_lite_sequences{{model="{model}",version="1"}}') == 1
        fixture.swap(3)
        for model in MODELS:
            answers = [fixture.ask(model, 4, 7), fixture.ask(model, 10, 8), fixture.ask(model, 5, 9, start=True)]
            assert [(each.sum, each.version) for each in answers] == [(10, 1), (20, 2), (5, 3)]

        for model in MODELS:
            last = fixture.ask(model, 5, 7, end=True)
            assert (last.sum, last.version) == (15, 1)
            wait_until(lambda model=model: 1 not in fixture.states(model), "the first version is unloaded at once")
            assert fixture.ask(model, 10, 8).sum == 30, "the second has a sequence yet"
            again = fixture.ask(model, 1, 8, start=True)
            assert (again.sum, again.version) == (1, 3), "a START begins anew, on the newest"
            fixture.wait_alone(model, 3)
            assert fixture.metric(f'tfs_lite_sequences_dropped_total{{model="{model}"}}') == 0


def test_sequence_that_outlives_the_bound_is_told_once_its_version_is_unloaded(tmp_path: Path) -> None:
    with serving(tmp_path, SHORT) as fixture:
        for model in MODELS:
            fixture.ask(model, 1, 7, start=True)
            fixture.ask(model, 1, 8, start=True)
        fixture.swap(2)
        for model in MODELS:
            fixture.wait_alone(model, 2)
            for sequence in (7, 8):
                code, text = fixture.refusal(model, 2, sequence)
                assert code is grpc.StatusCode.UNAVAILABLE
                assert text == (
                    f"sequence {sequence} of model {model} was on version 1, which was unloaded {SHORT:g} s after "
                    "it was withdrawn; start it again with sequence_start"
                )
            assert fixture.metric(f'tfs_lite_sequences_dropped_total{{model="{model}"}}') == 2
            again = fixture.ask(model, 5, 7, start=True)
            assert (again.sum, again.version) == (5, 2)
            assert fixture.ask(model, 5, 7, end=True).sum == 10


def test_request_of_a_stream_is_told_in_the_stream_and_the_stream_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, SHORT) as fixture:
        stream = fixture.client.stream()
        stream.send(**request_fields("ids", 1, 7, start=True))
        assert read_response(stream.next().infer_response).version == 1
        fixture.swap(2)
        fixture.wait_alone("ids", 2)
        stream.send(**request_fields("ids", 2, 7, id="late"))
        refused = stream.next()
        assert "was on version 1, which was unloaded" in refused.error_message
        assert refused.infer_response.id == "late"
        stream.send(**request_fields("ids", 3, 7, start=True, end=True))
        assert read_response(stream.next().infer_response).sum == 3
        stream.end()
        assert stream.rest() == []
