"""What a client sees of sequences: which rows they have, who waits, what ends them. A real server, gRPC streams."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from tests.support.schedulers.sum_repository import SumRepository, SumResponse, read_response, request_fields
from tests.support.servers.process import ServerProcess, wait_until
from tests.support.servers.v2_client import V2Client, V2Stream

IDLE = 1.0
DELAY = 1.0
FIGURE = "max_candidate_sequences: 4 preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1000000"
MUST_START = "must specify the START flag on the first request of the sequence"
EXPIRED = "timeout of the corresponding sequence has been expired"

pytestmark = [pytest.mark.slow, pytest.mark.wire]


@dataclass
class SequencesFixture:
    """A server and its models; ``client`` has a connection of its own."""

    server: ServerProcess
    sums: SumRepository
    client: V2Client

    def ask(self, model: str, number: int, sequence: int | str, **how: Any) -> SumResponse:
        return read_response(self.client.call("ModelInfer", **request_fields(model, number, sequence, **how)))

    def refusal(self, model: str, number: int, sequence: int | str, **how: Any) -> tuple[grpc.StatusCode, str]:
        return self.client.refusal("ModelInfer", **request_fields(model, number, sequence, **how))

    def stream(self, model: str) -> Stream:
        return Stream(self.client.stream(), model)

    def failures(self, model: str, reason: str) -> int:
        page = self.server.get("/metrics")[1].decode()
        labels = f'model="{model}",reason="{reason}",version="1"'
        return int(re.findall(rf"^nv_inference_request_failure\{{{labels}\}} (\d+)", page, re.MULTILINE)[0])

    def live(self, model: str) -> int:
        page = self.server.get("/metrics")[1].decode()
        found = re.findall(rf'^tfs_lite_sequences\{{model="{model}",version="1"\}} (\S+)', page, re.MULTILINE)
        return int(float(found[0])) if found else 0

    def waiting(self, model: str) -> int:
        """Requests in slots and in the backlog that were not handed to an instance."""
        page = self.server.get("/metrics")[1].decode()
        found = re.findall(rf'^tfs_lite_queue_depth\{{model="{model}",version="1"\}} (\S+)', page, re.MULTILINE)
        return int(float(found[0])) if found else 0

    def wait_waiting(self, model: str, count: int) -> None:
        wait_until(lambda: self.waiting(model) == count, f"{count} requests wait at {model}")


class Stream:
    """A ModelStreamInfer to one model."""

    def __init__(self, inner: V2Stream, model: str) -> None:
        self._inner = inner
        self._model = model

    def send(self, number: int, sequence: int | str, **how: Any) -> None:
        self._inner.send(**request_fields(self._model, number, sequence, **how))

    def next(self) -> SumResponse:
        answer = self._inner.next()
        assert not answer.error_message, answer.error_message
        return read_response(answer.infer_response)

    def error(self) -> str:
        text: str = self._inner.next().error_message
        return text

    def end(self) -> list[SumResponse]:
        self._inner.end()
        return [read_response(answer.infer_response) for answer in self._inner.rest()]

    def cancel(self) -> None:
        self._inner.calls.cancel()
        self._inner.end()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SequencesFixture]:
    sums = SumRepository(tmp_path_factory.mktemp("sums"))
    sums.add("direct_stateful_model", 1, batch=2, instances=2)
    sums.add("waiting", 1, batch=2, direct="max_queue_delay_microseconds: 30000000 minimum_slot_utilization: 1.0")
    sums.add("oldest", 1, batch=4, oldest=FIGURE)
    sums.add("one", 1, batch=1)
    sums.add("four", 1, batch=4)
    sums.add("idle", 1, batch=1, idle=IDLE)
    flags = (f"--model_repository={sums.path}", f"--trusted_model_base_paths={sums.path}/*")
    with ServerProcess(*flags) as server, grpc.insecure_channel(server.target) as channel:
        yield SequencesFixture(server, sums, V2Client(channel))
    assert server.exit_code == 0
    assert not server.leftovers()


@pytest.fixture
def fixture(started: SequencesFixture) -> Iterator[SequencesFixture]:
    """Whatever the test did, the server serves on, and nothing of it is left."""
    yield started
    assert started.server.exit_code is None, started.server.log()
    assert started.ask("one", 5, 999, start=True, end=True).sum == 5


# Direct


def test_four_sequences_have_a_row_each_and_the_fifth_waits_for_one(fixture: SequencesFixture) -> None:
    ids = (11, 12, 13, 14)
    streams = {id: fixture.stream("direct_stateful_model") for id in (*ids, 15)}
    firsts = {}
    for id in ids:
        streams[id].send(id, id, start=True)
        firsts[id] = streams[id].next()
    instances = [firsts[id].outputs["INSTANCE"] for id in ids]
    assert instances[:2] == instances[2:], "slot 0 of either instance is taken before slot 1 of any"
    assert instances[0] != instances[1]

    streams[15].send(15, 15, start=True)
    streams[15].send(1, 15)
    fixture.wait_waiting("direct_stateful_model", 2)
    for id in ids:
        streams[id].send(100, id)
        assert streams[id].next().sum == 100 + id

    streams[12].send(1000, 12, end=True)
    assert streams[12].next().sum == 1112
    promoted, second = streams[15].next(), streams[15].next()
    assert (promoted.sum, second.sum) == (15, 16)
    assert promoted.outputs["INSTANCE"] == firsts[12].outputs["INSTANCE"]
    assert (promoted.row("READIES"), promoted.row("STARTS"), promoted.row("IDS")) == ([1], [1], [15])

    for id in (11, 13, 14, 15):
        streams[id].send(0, id, end=True)
        streams[id].next()
    assert all(stream.end() == [] for stream in streams.values())


PLAN = {1: 3, 2: 2, 3: 2, 4: 3, 5: 1, 6: 1}
"""The number of requests of each sequence; there are rows for four of them."""


def test_waiting_sequences_have_the_rows_of_ended_ones_in_the_very_next_run(fixture: SequencesFixture) -> None:
    fixture.sums.hold()
    streams = {id: fixture.stream("four") for id in (99, *PLAN)}
    streams[99].send(1, 99, start=True, end=True)
    fixture.sums.wait_held()
    for id, count in PLAN.items():
        before = fixture.waiting("four")
        for number in range(count):
            streams[id].send(1, id, start=number == 0, end=number == count - 1)
        fixture.wait_waiting("four", before + count)
    fixture.sums.let_go()
    answers = [answer for stream in streams.values() for answer in stream.end()]
    runs = {answer.run: answer.row("IDS") for answer in answers}
    assert [runs[run] for run in sorted(runs)] == [[99], [1, 2, 3, 4], [1, 2, 3, 4], [1, 5, 6, 4]]
    (found,) = json.loads(fixture.server.get("/v2/models/four/stats")[1])["model_stats"]
    sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in found["batch_stats"]}
    assert (found["inference_count"], found["execution_count"], sizes) == (13, 4, {1: 1, 4: 3})


def test_rows_of_a_batch_are_ready_start_or_nobodys(fixture: SequencesFixture) -> None:
    model = "direct_stateful_model"
    stream = {id: fixture.stream(model) for id in (21, 22, 23)}
    stream[21].send(1, 21, start=True)  # row 0 of one instance
    first = stream[21].next()
    stream[22].send(1, 22, start=True)  # row 0 of the other
    other = stream[22].next()

    fixture.sums.hold()
    stream[21].send(10, 21)
    fixture.sums.wait_held()
    stream[23].send(2, 23, start=True)  # row 1 of the first, which stands still
    stream[21].send(100, 21)
    fixture.wait_waiting(model, 2)
    fixture.sums.let_go()

    assert stream[21].next().sum == 11
    both, beside = stream[21].next(), stream[23].next()
    assert both.run == beside.run
    assert (both.row("READIES"), both.row("STARTS"), both.row("IDS")) == ([1, 1], [0, 1], [21, 23])
    assert (both.sum, beside.sum) == (111, 2)

    stream[23].send(3, 23, end=True)
    alone = stream[23].next()
    assert alone.sum == 5
    assert (alone.row("READIES"), alone.row("STARTS"), alone.row("IDS")) == ([0, 1], [0, 0], [0, 23])
    assert alone.outputs["INSTANCE"] == first.outputs["INSTANCE"] != other.outputs["INSTANCE"]
    for id in (21, 22):
        stream[id].send(0, id, end=True)
        narrow = stream[id].next()
        assert narrow.row("READIES") == [1], "no row above the highest that has a request"
    assert all(each.end() == [] for each in stream.values())


def test_batch_of_direct_waits_until_enough_slots_are_ready(fixture: SequencesFixture) -> None:
    left, right = fixture.stream("waiting"), fixture.stream("waiting")
    left.send(1, 31, start=True)
    fixture.wait_waiting("waiting", 1)
    right.send(2, 32, start=True)
    first, second = left.next(), right.next()
    assert first.run == second.run
    assert first.row("STARTS") == [1, 1]
    left.send(3, 31, end=True)
    right.send(4, 32, end=True)
    assert (left.next().sum, right.next().sum) == (4, 6)
    assert left.end() == right.end() == []


# Oldest


def test_oldest_never_has_two_requests_of_a_sequence_in_a_batch(fixture: SequencesFixture) -> None:
    counts = {41: 3, 42: 3, 43: 3, 44: 2}
    streams = {id: fixture.stream("oldest") for id in counts}
    for id, count in counts.items():
        for index in range(count):
            streams[id].send(1, id, start=index == 0, end=index == count - 1)
    answers = {id: [streams[id].next() for _ in range(count)] for id, count in counts.items()}

    assert {id: [each.sum for each in found] for id, found in answers.items()} == {
        41: [1, 2, 3],
        42: [1, 2, 3],
        43: [1, 2, 3],
        44: [1, 2],
    }
    runs: dict[tuple[int, int], list[int]] = {}
    for id, found in answers.items():
        for each in found:
            runs.setdefault(each.run, []).append(id)
            assert each.row("READIES") == [1] * len(each.row("IDS")), "no null rows"
    assert [runs[run] for run in sorted(runs)] == [[41, 42, 43, 44], [41, 42, 43, 44], [41, 42, 43]]
    assert answers[41][2].at - answers[41][1].at >= 0.9 * DELAY, "three are not what it waits for"
    assert all(stream.end() == [] for stream in streams.values())


# What ends sequences, and what is refused


def test_request_without_start_of_an_unknown_sequence_is_refused(fixture: SequencesFixture) -> None:
    for model in ("direct_stateful_model", "oldest"):
        code, text = fixture.refusal(model, 1, 51)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert MUST_START in text
        assert "51" in text
        assert model in text
        stream = fixture.stream(model)
        stream.send(1, 51)
        assert MUST_START in stream.error()
        stream.send(1, 51, start=True, end=True)
        assert stream.next().sum == 1, "the stream goes on"
        assert stream.end() == []


def test_id_after_its_end_needs_a_start(fixture: SequencesFixture) -> None:
    assert fixture.ask("one", 1, 52, start=True).sum == 1
    assert fixture.ask("one", 2, 52, end=True).sum == 3
    assert MUST_START in fixture.refusal("one", 3, 52)[1]


def test_sequence_that_is_idle_is_forgotten_and_its_slot_given_to_the_next(fixture: SequencesFixture) -> None:
    assert fixture.ask("idle", 1, 53, start=True).sum == 1
    since = time.monotonic()
    second = fixture.stream("idle")
    second.send(2, 54, start=True)
    second.send(3, 54, end=True)
    answer = second.next()
    assert (answer.sum, second.next().sum) == (2, 5)
    assert answer.at - since >= IDLE * 0.9, "it waited for the slot"
    code, text = fixture.refusal("idle", 3, 53)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert MUST_START in text
    assert second.end() == []


def test_timeout_ends_a_sequence_in_the_backlog_with_all_that_waits_of_it(fixture: SequencesFixture) -> None:
    before = fixture.failures("one", "REJECTED")
    assert fixture.ask("one", 1, 61, start=True, timeout=0.01).sum == 1
    waiting = fixture.stream("one")
    waiting.send(1, 62, start=True)
    waiting.send(2, 62, timeout=0.2)
    assert EXPIRED in waiting.error()
    assert EXPIRED in waiting.error()
    waiting.send(3, 62)
    assert MUST_START in waiting.error()
    assert fixture.ask("one", 2, 61, end=True).sum == 3, "in its slot a sequence has no timeout"
    wait_until(lambda: fixture.failures("one", "REJECTED") == before + 2, "both are counted as rejected")
    code, _ = fixture.refusal("one", 3, 62)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert waiting.end() == []


def test_timeout_in_the_backlog_is_unavailable(fixture: SequencesFixture) -> None:
    assert fixture.ask("one", 1, 63, start=True).sum == 1
    code, text = fixture.refusal("one", 1, 64, start=True, timeout=0.1)
    assert (code, EXPIRED in text) == (grpc.StatusCode.UNAVAILABLE, True)
    assert fixture.ask("one", 1, 63, end=True).sum == 2


def test_cancelled_stream_takes_its_sequence_out_of_the_slot(fixture: SequencesFixture) -> None:
    before = fixture.failures("one", "CANCELED")
    stream, next_ = fixture.stream("one"), fixture.stream("one")
    stream.send(1, 71, start=True)
    assert stream.next().sum == 1
    fixture.sums.hold()
    stream.send(2, 71)
    fixture.sums.wait_held()
    stream.send(3, 71)
    stream.send(4, 71)
    next_.send(5, 72, start=True)
    fixture.wait_waiting("one", 3)
    stream.cancel()
    wait_until(lambda: fixture.live("one") == 1, "the cancelled sequence is gone")
    fixture.sums.let_go()
    assert next_.next().sum == 5
    wait_until(lambda: fixture.failures("one", "CANCELED") >= before + 2, "those that waited are counted")
    assert MUST_START in fixture.refusal("one", 6, 71)[1]
    next_.send(0, 72, end=True)
    next_.next()
    assert fixture.ask("one", 7, 71, start=True, end=True).sum == 7
    assert next_.end() == []
    wait_until(lambda: fixture.live("one") == 0, "no sequence goes on")
