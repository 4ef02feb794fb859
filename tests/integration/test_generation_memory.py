"""The cache of a language model counts: what does not fit is refused with figures, what is unloaded is given back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.language.concurrent_readers import ConcurrentReaders, MetricsPage
from tests.support.language.language_clients import LanguageClient, LanguageRequest
from tests.support.language.language_models import Size, calm_environment, publish_language
from tests.support.profiles import is_soak
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.status import StatusCode

LARGE = Size(slots=4, length=1024, layers=4, heads=4, head_size=256)
HUGE = Size(slots=12, length=1024, layers=4, heads=4, head_size=256)
ROOM = LARGE.cache_bytes * 3 // 2
"""For one large model, and not for two; the weights are next to nothing."""
LONG = 700
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
"""With several, glibc keeps the free end of each of the others, up to 64 MiB, whatever it is told."""
OUTPUT = 60
"""Tokens, so that all slots are in use at the same time."""


class MemoryFixture:
    def __init__(self, server: ServerProcess, probe: Probe, repository: Path) -> None:
        self.server, self.probe, self.page, self.repository = server, probe, MetricsPage(server), repository
        self.process = psutil.Process(server.pid)

    def publish(self, model: str, version: int, size: Size = LARGE) -> Path:
        return publish_language(self.repository / model, version, size)

    def clear(self, model: str) -> None:
        """Everything of the model is gone when this returns."""
        versions = self.probe.states(model)
        shutil.rmtree(self.repository / model)
        wait_until(lambda: set(self.probe.states(model).values()) <= {"END"}, f"{model} is gone: {versions}")

    def ask(self, model: str, prompt: str = "hello", tokens: int = 4) -> tuple[int, str]:
        with LanguageClient(self.server) as client:
            chunk = client.whole("v2_generate", LanguageRequest(model, prompt, tokens))
        return chunk.version, chunk.text


def _serve(repository: Path, policy: str, **env: str) -> Iterator[MemoryFixture]:
    publish_language(repository / "small", 1)
    flags = (
        f"--model_repository={repository}",
        f"--aspired_version_policy={policy}",
        f"--total_model_memory_limit_bytes={ROOM}",
        "--max_num_load_retries=0",
        "--ready_requires_all_models",
        "--rest_api_timeout_in_ms=0",
    )
    with ServerProcess(*flags, env=calm_environment() | env) as server, Probe(server) as probe:
        yield MemoryFixture(server, probe, repository)
    assert server.exit_code == 0


@pytest.fixture(scope="module")
def available(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryFixture]:
    yield from _serve(tmp_path_factory.mktemp("availability"), "availability")


@pytest.fixture(scope="module")
def sparing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryFixture]:
    yield from _serve(tmp_path_factory.mktemp("resource"), "resource", **ONE_HEAP)


def test_version_whose_cache_fits_nowhere_is_refused_and_the_old_one_goes_on(available):
    fixture, model = available, "grows"
    assert HUGE.cache_bytes > ROOM
    fixture.publish(model, 1, Size())
    fixture.probe.wait_available(model, 1)
    before = fixture.ask(model)
    fixture.publish(model, 2, HUGE)
    for _ in range(2):  # it stays so
        status = fixture.probe.wait_failed(model, 2).status
        assert status.code is StatusCode.RESOURCE_EXHAUSTED
        assert "Insufficient resources to load servable {name: grows version: 2}" in status.message
        assert f"total {ROOM}" in status.message
        wanted = int(status.message.partition("wanted ")[2].split(",")[0].split()[0])
        assert HUGE.cache_bytes <= wanted < HUGE.cache_bytes * 1.2
        assert fixture.ask(model) == before
        fixture.publish("bystander", 1 + len(fixture.probe.states("bystander")), Size())
        wait_until(lambda: "AVAILABLE" in fixture.probe.states("bystander").values(), "a small one is loaded")
    assert fixture.probe.states(model) == {1: "AVAILABLE", 2: "END"}
    fixture.clear(model)


def test_two_versions_at_once_take_the_room_of_both(available):
    fixture, model = available, "doubles"
    fixture.publish(model, 1)
    fixture.probe.wait_available(model, 1)
    before = fixture.ask(model)
    with ConcurrentReaders(fixture.server, [("openai", LanguageRequest(model, "hello", LONG))]) as readers:
        readers.wait_begun()
        fixture.publish(model, 2)
        status = fixture.probe.wait_failed(model, 2).status
    assert status.code is StatusCode.RESOURCE_EXHAUSTED
    assert readers.failures == []
    assert readers.responses[0].versions == {1}
    assert fixture.ask(model) == before
    fixture.clear(model)


def test_with_the_resource_policy_room_for_one_is_enough(sparing):
    fixture, model = sparing, "alternates"
    fixture.publish(model, 1)
    fixture.probe.wait_available(model, 1)
    with ConcurrentReaders(fixture.server, [("openai", LanguageRequest(model, "hello", LONG))]) as readers:
        readers.wait_begun()
        fixture.publish(model, 2)
        fixture.probe.wait_states(model, {1: "UNLOADING", 2: "START"})
    fixture.probe.wait_available(model, 2)
    assert readers.failures == []
    assert readers.responses[0].versions == {1}
    assert fixture.ask(model)[0] == 2
    fixture.clear(model)


def test_the_memory_of_weights_and_cache_is_given_back(sparing):
    fixture = sparing
    idle, full = [], []
    for version in range(1, 4 if is_soak() else 3):
        fixture.publish("written", version)
        fixture.probe.wait_available("written", version)
        fill(fixture, "written")
        full.append(fixture.process.memory_info().rss)
        fixture.clear("written")
        idle.append(fixture.process.memory_info().rss)
    figures = [(before >> 20, after >> 20) for before, after in zip(full, idle, strict=True)]
    assert all(before - after > LARGE.cache_bytes * 0.7 for before, after in zip(full, idle, strict=True)), figures
    assert full[-1] - full[0] < LARGE.cache_bytes * 0.2, figures


def fill(fixture: MemoryFixture, model: str) -> None:
    """Writes every slot of the cache nearly full. Prompts differ from the first character on."""
    prompts = [chr(ord("a") + slot) * (LARGE.length - OUTPUT) for slot in range(LARGE.slots)]
    with ThreadPoolExecutor(LARGE.slots) as pool:
        list(pool.map(lambda prompt: fixture.ask(model, prompt, OUTPUT), prompts))
    fixture.page.wait_idle(model)
