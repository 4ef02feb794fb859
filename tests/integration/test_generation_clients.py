"""Clients of language models that leave, are late, read slowly or never, are too many, or meet a server that ends."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.language.concurrent_readers import ConcurrentReaders, MetricsPage, StalledReader
from tests.support.language.language_clients import PATIENCE, STREAMS, WHOLE, LanguageClient, LanguageRequest, Refused
from tests.support.language.language_models import Size, calm_environment, publish_language
from tests.support.profiles import is_soak
from tests.support.servers.models import TaggedArchives
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, wait_until

LEAVING = 200 if is_soak() else 60
AT_ONCE = 12
GROWTH = 60 << 20
"""Bytes by which the process may be larger afterwards."""
LONG = 800
WIDE = Size(slots=6, length=1024, parameters={"max_queue": "400", "stream_idle_timeout": "600"})
NARROW = Size(slots=1, length=4096, parameters={"max_queue": "2"})
DOORS = (*STREAMS, *WHOLE)
DONE = "tfs_lite_generation_text_seconds_count"


class ClientsFixture:
    def __init__(self, server: ServerProcess, probe: Probe, repository: Path) -> None:
        self.server, self.probe, self.page, self.repository = server, probe, MetricsPage(server), repository


def serve(repository: Path, *flags: str) -> ServerProcess:
    more = ("--ready_requires_all_models", "--rest_api_timeout_in_ms=0", *flags)
    return ServerProcess(f"--model_repository={repository}", *more, env=calm_environment())


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory, archives: TaggedArchives) -> Iterator[ClientsFixture]:
    repository = tmp_path_factory.mktemp("models")
    publish_language(repository / "wide", 1, WIDE)
    publish_language(repository / "narrow", 1, NARROW, seed=7)
    archives.write_version(3, repository / "digits")
    with serve(repository) as server, Probe(server) as probe:
        yield ClientsFixture(server, probe, repository)
    assert server.exit_code == 0


def ask(client: LanguageClient, door: str, asked: LanguageRequest) -> str:
    if door in WHOLE:
        return client.whole(door, asked).text
    return "".join(chunk.text for chunk in client.pieces(door, asked))


def alone(fixture: ClientsFixture, asked: LanguageRequest) -> str:
    with LanguageClient(fixture.server) as client:
        return ask(client, "predict", asked)


# Those that leave.


def visit(fixture: ClientsFixture, number: int) -> str:
    """One client, who behaves as its number says. Returns what became of it."""
    numbers = random.Random(number)
    door, manner = DOORS[number % len(DOORS)], numbers.choice(["stays", "leaves", "leaves", "deadline"])
    asked = LanguageRequest("wide", f"client {number} says", numbers.randrange(1, 120))
    patience = PATIENCE
    if manner == "deadline":
        asked = LanguageRequest(asked.model, asked.prompt, asked.tokens, timeout=numbers.uniform(0.002, 0.3))
    if manner == "leaves" and door in WHOLE:
        patience = numbers.uniform(0.001, 0.2)
    stays = numbers.randrange(0, asked.tokens) if manner == "leaves" else asked.tokens
    with LanguageClient(fixture.server, patience) as client:
        try:
            if door in WHOLE:
                client.whole(door, asked)
                return "whole"
            with closing(client.pieces(door, asked)) as pieces:  # type: ignore[type-var]
                return "whole" if sum(1 for _ in itertools.islice(pieces, stays + 1)) <= stays else "left"
        except httpx.TimeoutException:
            return "left"
        except Refused as refused:
            return {"GONE": "left", 504: "deadline", "DEADLINE_EXCEEDED": "deadline"}.get(refused.code, str(refused))


def test_clients_that_leave_at_any_moment_leave_nothing_behind(fixture):
    process = psutil.Process(fixture.server.pid)
    rounds: list[Counter[str]] = []
    sizes = []
    expected = alone(fixture, LanguageRequest("wide", "hello", 20))
    for start in (1000, 2000):  # the first round fills pools and caches
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rounds.append(Counter(pool.map(lambda number: visit(fixture, number), range(start, start + LEAVING // 2))))
        fixture.page.wait_idle("wide")
        sizes.append(process.memory_info().rss)
    found = rounds[0] + rounds[1]
    late = [how for how in found if how.startswith("ERROR") and "deadline" in how]  # in the midst of a stream
    found["deadline"] += sum(found.pop(how) for how in late)
    assert (found.total(), set(found)) == (LEAVING, {"whole", "left", "deadline"})
    assert min(found["whole"], found["left"], found["deadline"]) >= LEAVING // 20, found
    assert fixture.page.outcomes("wide")["cancelled"] >= LEAVING // 20
    assert sizes[1] - sizes[0] < GROWTH, sizes
    assert alone(fixture, LanguageRequest("wide", "hello", 20)) == expected
    assert "Traceback" not in fixture.server.log()


def test_the_place_of_one_who_leaves_is_free_at_once(fixture):
    first, second = LanguageRequest("narrow", "first", LONG), LanguageRequest("narrow", "second", 4)
    expected = alone(fixture, second)
    for door in STREAMS:
        before = fixture.page.outcomes("narrow")
        with LanguageClient(fixture.server) as client, closing(client.pieces(door, first)) as pieces:
            next(pieces)
        assert alone(fixture, second) == expected
        fixture.page.wait_idle("narrow")
        assert fixture.page.outcomes("narrow") - before == Counter(cancelled=1, length=1), door


# Those that read slowly.


def ended(fixture: ClientsFixture, model: str, version: int = 1) -> float:
    return fixture.page.total(DONE, model=model, version=str(version), outcome="length")


@pytest.mark.parametrize("door", ["openai", pytest.param("v2_events", marks=pytest.mark.load)])
def test_stream_whose_reader_pauses_until_the_text_is_over_brings_everything(fixture, door):
    asked = LanguageRequest("wide", "a long story", LONG)
    expected, before = alone(fixture, asked), ended(fixture, "wide")
    with StalledReader(fixture.server, door, asked) as stalled:
        wait_until(lambda: ended(fixture, "wide") == before + 1, "the text is over", PATIENCE)
        events = stalled.events()
    if door == "openai":
        assert "".join(event["choices"][0]["text"] for event in events) == expected
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert len(events) < LONG, "the reader was never behind"
    else:
        assert "".join(event["text_output"] for event in events) == expected
        assert events[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("door", [pytest.param("v2_stream", marks=pytest.mark.load), "predict_streamed"])
def test_grpc_stream_whose_reader_pauses_until_the_text_is_over_brings_everything(fixture, door):
    asked = LanguageRequest("wide", "a long story", LONG)
    expected, before = alone(fixture, asked), ended(fixture, "wide")
    with LanguageClient(fixture.server) as client, closing(client.pieces(door, asked)) as pieces:
        first = next(pieces)
        wait_until(lambda: ended(fixture, "wide") == before + 1, "the text is over", PATIENCE)
        chunks = [first, *pieces]
    assert "".join(chunk.text for chunk in chunks) == expected
    assert chunks[-1].finish == "length"


def test_readers_that_never_read_hold_up_neither_others_nor_the_unloading(fixture):
    model, asked = "unread", LanguageRequest("unread", "hello", LONG)
    publish_language(fixture.repository / model, 1, WIDE)
    fixture.probe.wait_available(model, 1)
    expected = alone(fixture, asked)
    with ExitStack() as readers:
        for door in ("openai", "v2_events"):
            readers.enter_context(StalledReader(fixture.server, door, asked))
        for door in ("v2_stream", "predict_streamed"):
            client = readers.enter_context(LanguageClient(fixture.server))
            next(readers.enter_context(closing(client.pieces(door, asked))))
        wait_until(lambda: fixture.page.state(model)[0] + ended(fixture, model) >= 5, "all have begun", PATIENCE)
        assert alone(fixture, asked) == expected
        publish_language(fixture.repository / model, 2, WIDE)
        fixture.probe.wait_available(model, 2)
        fixture.probe.wait_states(model, {1: "END"})
        assert ended(fixture, model) == 6, "their texts were not cut short"
    fixture.page.wait_idle(model)


# Too many.


@pytest.mark.wire
def test_full_queue_refuses_at_once_by_every_door_and_harms_nobody(fixture):
    first, *others = asked = [
        LanguageRequest("narrow", "one", 3 * LONG),
        LanguageRequest("narrow", "two", 40),
        LanguageRequest("narrow", "three", 40),
    ]
    # Of the longest text its beginning.
    expected = [alone(fixture, LanguageRequest(each.model, each.prompt, min(each.tokens, LONG))) for each in asked]
    refused: dict[str, Refused] = {}
    with ExitStack() as audiences:
        running = audiences.enter_context(ConcurrentReaders(fixture.server, [("openai", first)]))
        running.wait_begun()
        doors = zip(("v2_events", "v2_stream"), others, strict=True)
        waiting = audiences.enter_context(ConcurrentReaders(fixture.server, list(doors)))
        wait_until(lambda: fixture.page.state("narrow")[:2] == (1, 2), "one runs and two wait", PATIENCE)
        with LanguageClient(fixture.server) as client:
            for door in DOORS:
                with pytest.raises(Refused) as caught:
                    ask(client, door, LanguageRequest("narrow", "four", 4))
                refused[door] = caught.value
        assert running.over + waiting.over == 0, "the refusals came after a text had ended"
    assert running.failures + waiting.failures == []
    texts = [response.text for response in (*running.responses, *waiting.responses)]
    assert all(text.startswith(begin) for text, begin in zip(texts, expected, strict=True))
    assert texts[1:] == expected[1:]
    assert running.responses[0].finish == "length"
    codes = {door: each.code for door, each in refused.items()}
    assert codes == {
        **dict.fromkeys(("openai", "openai_whole"), 429),
        **dict.fromkeys(("v2_events", "v2_generate", "v2_infer", "rest_predict"), 503),
        **dict.fromkeys(("v2_grpc", "predict", "predict_streamed"), "UNAVAILABLE"),
        "v2_stream": "ERROR",
    }
    assert all("queue is full" in str(each) for each in refused.values())
    assert all(1 <= int(refused[door].headers["retry-after"]) <= 60 for door in ("openai", "openai_whole"))


# Others beside them.


def test_two_language_models_and_another_one_are_served_and_counted_side_by_side(fixture):
    wide, narrow = LanguageRequest("wide", "side by side", 40), LanguageRequest("narrow", "side by side", 40)
    expected = alone(fixture, wide), alone(fixture, narrow)
    assert expected[0] != expected[1]
    names = ("tfs_lite_generation_output_tokens_total", "tfs_lite_requests_total")
    before = {(name, model): fixture.page.total(name, model=model) for name in names for model in ("wide", "narrow")}
    rows = fixture.page.total(names[1], model="digits")
    asked: Sequence[tuple[str, LanguageRequest]] = [("openai", wide), ("v2_events", narrow), ("v2_stream", wide)]
    stop, answers = threading.Event(), []

    def call_digits() -> None:
        while not stop.is_set():
            answers.append(fixture.probe.ask("digits"))

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call_digits)
        with ConcurrentReaders(fixture.server, asked) as readers:
            pass
        wait_until(lambda: bool(answers), "the other model has answered", PATIENCE)
        stop.set()
        calling.result(PATIENCE)
    assert readers.failures == []
    assert [response.text for response in readers.responses] == [expected[0], expected[1], expected[0]]
    assert set(answers) == {3}
    gained = {key: fixture.page.total(key[0], model=key[1]) - value for key, value in before.items()}
    assert [gained[names[0], model] for model in ("wide", "narrow")] == [80, 40]
    assert [gained[names[1], model] for model in ("wide", "narrow")] == [2, 1]
    assert fixture.page.total(names[1], model="digits") - rows == len(answers)
    assert fixture.page.values("tfs_lite_generation_running", model="digits") == []
    for model, size in (("wide", WIDE), ("narrow", NARROW)):
        assert fixture.page.total("tfs_lite_generation_cache_tokens", model=model) == size.slots * size.length
    fixture.page.wait_idle("wide")
    fixture.page.wait_idle("narrow")


# The end.


@pytest.fixture
def ending(tmp_path: Path) -> Iterator[ServerProcess]:
    publish_language(tmp_path / "models" / "lm", 1, Size(slots=12, length=4096))
    with serve(tmp_path / "models", "--drain_timeout_seconds=100") as server:
        yield server
    assert not server.leftovers()


@pytest.mark.wire
def test_streams_that_run_are_finished_when_the_server_is_told_to_end(ending):
    asked = LanguageRequest("lm", "the end", LONG)  # with slots left for those who knock meanwhile
    with LanguageClient(ending) as client:
        expected = ask(client, "predict", asked)
    with ConcurrentReaders(ending, [(door, asked) for door in STREAMS + STREAMS]) as readers:
        readers.wait_begun()
        assert MetricsPage(ending).state("lm")[0] == 8
        ending.terminate()
        ending.wait_status("/readyz", 503)
        with LanguageClient(ending) as late:
            for door, code in (("openai", 503), ("v2_grpc", "UNAVAILABLE")):
                assert wait_until(lambda door=door: refusal(late, door), f"{door} takes no more") == code
        assert readers.over < 8, "the texts were over before the server refused others"
    assert readers.failures == []
    assert [response.text for response in readers.responses] == [expected] * 8
    assert ending.wait() == 0
    assert "Traceback" not in ending.log()


def refusal(client: LanguageClient, door: str) -> int | str:
    """Empty if there was none."""
    try:
        ask(client, door, LanguageRequest("lm", "too late", 1))
    except Refused as refused:
        return refused.code
    return ""


@pytest.mark.load
def test_second_signal_ends_the_server_in_mid_text(ending):
    asked = LanguageRequest("lm", "the end", 4000)
    with ConcurrentReaders(ending, [(door, asked) for door in STREAMS]) as readers:
        readers.wait_begun()
        ending.terminate()
        ending.wait_status("/readyz", 503)
        assert ending.exit_code is None
        ending.terminate()
        ending.wait(30)
    assert len(readers.failures) == len(STREAMS)
    assert all(response.finish == "" for response in readers.responses)
