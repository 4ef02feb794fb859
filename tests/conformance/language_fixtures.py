"""Fixtures for language models: a server of tiny ones, and the responses of transformers itself to a few prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.servers import PATIENCE, make_models, new_server, running
from tests.support.servers.process import ServerProcess, wait_until

_SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")


@dataclass(frozen=True)
class Answer:
    """Greedy, of version 2 of the model ``writer``. ``prompt`` and ``tokens`` are numbers; one token is one byte."""

    asked: str
    prompt: list[int]
    tokens: list[int]
    text: str
    logprobs: list[float]


class LanguageServer:
    """The process, and metrics of one model."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.target = process.target
        self.http = f"127.0.0.1:{process.http_port}"
        self.url = f"http://{self.http}"

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all samples of tfs_lite_generation_``name`` that have the labels."""
        status, page = self.process.get("/metrics")
        assert status == 200
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        found = (_SAMPLE.fullmatch(line) for line in page.decode().splitlines())
        hits = [each for each in found if each and each[1] == f"tfs_lite_generation_{name}"]
        return sum(float(each[3]) for each in hits if wanted <= set(each[2].split(",")))

    def wait_for(self, name: str, model: str) -> None:
        """Some text of the model is there: ``name`` is running or waiting."""
        wait_until(lambda: self.metric(name, model=model), f"a text of {model} is {name}", PATIENCE)

    def wait_idle(self, model: str) -> None:
        """No text of the model runs or waits."""
        states = ("running", "waiting")
        wait_until(lambda: not any(self.metric(name, model=model) for name in states), f"{model} is idle", PATIENCE)

    @contextmanager
    def ends(self, model: str, *outcomes: str, count: int = 1) -> Iterator[None]:
        """``count`` texts of the model end in one of these ways within the block or soon after; then it is idle."""

        def ended() -> float:
            return sum(self.metric("text_seconds_count", model=model, outcome=outcome) for outcome in outcomes)

        wanted = ended() + count
        yield
        self.wait_idle(model)
        wait_until(lambda: ended() >= wanted, f"{count} texts of {model} have ended by {outcomes}", PATIENCE)
        assert ended() == wanted


@pytest.fixture(scope="session")
def language_root(tmp_path_factory) -> Path:
    return make_models("make_language_models.py", tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="session")
def answers(language_root: Path) -> dict[str, Answer]:
    """By prompt."""
    found: dict[str, Any] = json.loads((language_root / "expected.json").read_text())
    return {asked: Answer(asked, **answer) for asked, answer in found.items()}


@pytest.fixture(scope="session")
def story(answers: dict[str, Answer]) -> Answer:
    return answers["Once upon a time"]


@pytest.fixture(scope="session")
def chat_answer(answers: dict[str, Answer]) -> Answer:
    """The one to a user who says "How are you?"."""
    return answers["<|user|>How are you?\n<|assistant|>"]


@pytest.fixture(scope="session")
def language_server(language_root: Path) -> Iterator[LanguageServer]:
    process = new_server(f"--model_repository={language_root / 'models'}", "--ready_requires_all_models")
    for server in map(LanguageServer, running(process)):
        # The server is ready when each model answers, which the newest version of writer does first.
        wait_until(lambda: _available(process) == {1, 2}, "both versions of writer are available", PATIENCE)
        yield server


def _available(process: ServerProcess) -> set[int]:
    """The versions of ``writer`` that answer."""
    rows = json.loads(process.get("/v1/models/writer")[1])["model_version_status"]
    return {int(row["version"]) for row in rows if row["state"] == "AVAILABLE"}
