"""Versions of a language model come and go while texts are written: a text is its version's from beginning to end."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.language.concurrent_readers import ConcurrentReaders, MetricsPage
from tests.support.language.language_clients import PATIENCE, STREAMS, WHOLE, LanguageClient, LanguageRequest, Refused
from tests.support.language.language_models import Size, calm_environment, publish_language, write_language
from tests.support.profiles import is_soak
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.publish import publish

SIZE = Size(slots=20, length=1024)
RUNNING = 16
LONG, SHORT = 600, 12
PROMPTS = ("Once upon a time", "hello")
SOON = 60.0
SWAPS = 12 if is_soak() else 3
CLIENTS = 6


class SwapsFixture:
    """A server whose models ``writes_1`` and ``writes_2`` tell what versions of odd and of even numbers write."""

    def __init__(self, server: ServerProcess, probe: Probe, repository: Path) -> None:
        self.server, self.probe, self.page = server, probe, MetricsPage(server)
        self._repository = repository
        self._written = [repository.with_name(f"{repository.name}-weights-{seed}") for seed in (1, 2)]
        for seed, directory in enumerate(self._written, 1):
            write_language(directory, seed, SIZE)
        self._alone: dict[tuple[int, str, int], str] = {}

    def publish(self, model: str, version: int, wait: bool = True) -> None:
        publish(str(self._written[1 - version % 2]), str(self._repository / model), version)
        if wait:
            self.probe.wait_available(model, version)

    def alone(self, version: int, prompt: str, tokens: int) -> str:
        """What the version writes when nobody else is there."""
        seed = 2 - version % 2
        if (seed, prompt, tokens) not in self._alone:
            with LanguageClient(self.server) as client:
                asked = LanguageRequest(f"writes_{seed}", prompt, tokens)
                self._alone[seed, prompt, tokens] = client.whole("v2_grpc", asked).text
        return self._alone[seed, prompt, tokens]

    def running(self, model: str, version: int) -> float:
        return self.page.total("tfs_lite_generation_running", model=model, version=str(version))


def _serve(repository: Path, policy: str) -> Iterator[SwapsFixture]:
    for seed in (1, 2):
        publish_language(repository / f"writes_{seed}", 1, SIZE, seed=seed)
    flags = (
        f"--model_repository={repository}",
        f"--aspired_version_policy={policy}",
        "--ready_requires_all_models",
        "--rest_api_timeout_in_ms=0",
    )
    with ServerProcess(*flags, env=calm_environment()) as server, Probe(server) as probe:
        fixture = SwapsFixture(server, probe, repository)
        for prompt in PROMPTS:
            assert len(fixture.alone(1, prompt, LONG)) > LONG / 2
        yield fixture
    assert server.exit_code == 0


@pytest.fixture(scope="module")
def available(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwapsFixture]:
    yield from _serve(tmp_path_factory.mktemp("availability"), "availability")


@pytest.fixture(scope="module")
def sparing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwapsFixture]:
    yield from _serve(tmp_path_factory.mktemp("resource"), "resource")


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "_", request.node.name).removeprefix("test_")


def streams(model: str, doors: tuple[str, ...] = ("openai", "v2_events")) -> list[tuple[str, LanguageRequest]]:
    doors_and_prompts = itertools.islice(zip(itertools.cycle(doors), itertools.cycle(PROMPTS), strict=False), RUNNING)
    return [(door, LanguageRequest(model, prompt, LONG)) for door, prompt in doors_and_prompts]


def check_whole(fixture: SwapsFixture, readers: ConcurrentReaders, version: int) -> None:
    """Every stream has brought everything that the version writes, and nothing else."""
    assert readers.failures == []
    for response in readers.responses:
        assert response.versions == {version}
        assert response.text == fixture.alone(version, response.request.prompt, LONG), response.api
        assert response.finish == "length"


def check_new(fixture: SwapsFixture, model: str, version: int) -> None:
    """Whoever comes now is answered by the version, whatever the door."""
    expected = fixture.alone(version, PROMPTS[0], SHORT)
    asked = LanguageRequest(model, PROMPTS[0], SHORT)
    with LanguageClient(fixture.server) as client:
        for door in STREAMS:
            chunks = list(client.pieces(door, asked))
            assert {chunk.version for chunk in chunks} == {version}
            assert "".join(chunk.text for chunk in chunks) == expected, door
        for door in WHOLE:
            chunk = client.whole(door, asked)
            assert chunk.version in (version, 0)  # the REST API of TensorFlow Serving does not say which
            assert chunk.text == expected, door


@pytest.mark.parametrize(
    "doors", [pytest.param(("openai", "v2_events"), marks=pytest.mark.load), STREAMS], ids=["events", "all_doors"]
)
def test_streams_end_on_the_version_they_began_on_while_new_ones_get_the_next(available, model, doors):
    fixture = available
    fixture.publish(model, 1)
    with ConcurrentReaders(fixture.server, streams(model, doors)) as readers:
        readers.wait_begun()
        fixture.publish(model, 2)
        fixture.probe.wait_states(model, {1: "UNLOADING", 2: "AVAILABLE"}, SOON)
        assert fixture.running(model, 1) == RUNNING, "the texts ended before version 2 came"
        check_new(fixture, model, 2)
        assert fixture.running(model, 1) > 0
    check_whole(fixture, readers, 1)
    fixture.probe.wait_states(model, {1: "END", 2: "AVAILABLE"}, SOON)
    wait_until(
        lambda: not fixture.page.values("tfs_lite_generation_running", model=model, version="1"), "its state goes"
    )
    check_new(fixture, model, 2)


@pytest.mark.load
def test_with_the_resource_policy_the_next_version_waits_for_the_streams_of_the_old_one(sparing, model):
    fixture = sparing
    fixture.publish(model, 1)
    with ConcurrentReaders(fixture.server, streams(model)) as readers:
        readers.wait_begun()
        fixture.publish(model, 2, wait=False)
        fixture.probe.wait_states(model, {1: "UNLOADING", 2: "START"})
        refused = refusals(fixture, LanguageRequest(model, PROMPTS[0], SHORT))
        assert fixture.probe.states(model) == {1: "UNLOADING", 2: "START"}
        assert fixture.running(model, 1) == RUNNING
    assert refused == {
        **dict.fromkeys(("openai", "openai_whole"), 503),
        **dict.fromkeys(("v2_events", "v2_generate", "v2_infer", "rest_predict"), 404),
        **dict.fromkeys(("v2_grpc", "predict", "predict_streamed"), "NOT_FOUND"),
        "v2_stream": "ERROR",
    }
    check_whole(fixture, readers, 1)
    fixture.probe.wait_available(model, 2)
    assert fixture.probe.states(model) == {1: "END", 2: "AVAILABLE"}
    check_new(fixture, model, 2)


def refusals(fixture: SwapsFixture, asked: LanguageRequest) -> dict[str, int | str]:
    """By door."""
    found: dict[str, int | str] = {}
    with LanguageClient(fixture.server) as client:
        for door in (*STREAMS, *WHOLE):
            with pytest.raises(Refused) as caught:
                list(client.pieces(door, asked)) if door in STREAMS else client.whole(door, asked)
            found[door] = caught.value.code
    return found


class ClientLoad:
    """Clients that ask for short texts without pause, by all doors in turn, in a ``with`` block. ``texts``: version,
    prompt and text of each answer."""

    def __init__(self, fixture: SwapsFixture, model: str) -> None:
        self.texts: list[tuple[int, str, str]] = []
        self.failures: list[str] = []
        self._house, self._model = fixture, model
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call_on, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> ClientLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def versions(self) -> set[int]:
        return {version for version, _, _ in self.texts}

    def _call_on(self, number: int) -> None:
        doors = itertools.cycle((*STREAMS, *WHOLE)[number:] + (*STREAMS, *WHOLE)[:number])
        prompts = itertools.cycle(PROMPTS)
        with LanguageClient(self._house.server) as client:
            while not self._stop.is_set():
                self._call_once(client, next(doors), next(prompts))

    def _call_once(self, client: LanguageClient, door: str, prompt: str) -> None:
        asked = LanguageRequest(self._model, prompt, SHORT)
        try:
            chunks = list(client.pieces(door, asked)) if door in STREAMS else [client.whole(door, asked)]
        except Exception as error:
            self.failures.append(f"{door}: {error!r}")
            return
        for version in {chunk.version for chunk in chunks}:
            self.texts.append((version, prompt, "".join(chunk.text for chunk in chunks)))


def test_swaps_under_load_lose_no_text(available, model):
    fixture = available
    fixture.publish(model, 1)
    with ClientLoad(fixture, model) as load:
        for version in range(1, SWAPS + 1):
            if version > 1:
                fixture.publish(model, version)
            wait_until(lambda version=version: version in load.versions(), f"version {version} has answered", SOON)
    assert load.failures == []
    alone = {(seed, prompt): fixture.alone(seed, prompt, SHORT) for seed in (1, 2) for prompt in PROMPTS}
    assert alone[1, PROMPTS[0]] != alone[2, PROMPTS[0]]
    for version, prompt, text in load.texts:
        wanted = {alone[2 - version % 2, prompt]} if version else {alone[1, prompt], alone[2, prompt]}
        assert text in wanted, f"version {version}"
    gone = dict.fromkeys(range(1, SWAPS), "END")
    fixture.probe.wait_states(model, {**gone, SWAPS: "AVAILABLE"}, SOON)
    fixture.page.wait_idle(model)
