"""Every file of the corpora goes through its target: seeds, and inputs that broke something once (``found-*``).

Seeds are inputs that mean something, good and bad, from which a fuzzer starts: one file each, which is also where a new
one is written.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from handlers import close_handlers
from handlers_generation import close_handlers_generation
from handlers_v2 import close_handlers_v2
from mutators import MUTATORS
from promises import Violation
from targets import TARGETS

from tests.support.profiles import scaled

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(path for path in CORPUS.glob("*/*"))
DRIVER = CORPUS.parent / "drive.py"


@pytest.fixture(scope="module", autouse=True)
def one_set_of_handlers() -> Iterator[None]:
    yield
    close_handlers()
    close_handlers_v2()
    close_handlers_generation()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_input_of_the_corpora_keeps_the_promises(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_keep_the_promises(name: str) -> None:
    """A short search, the same one every time."""
    chance = random.Random(name)
    seeds = [path.read_bytes() for path in FILES if path.parent.name == name]
    for _ in range(scaled(150)):
        TARGETS[name](MUTATORS[name](chance.choice(seeds), chance))


def test_every_target_has_seeds_and_a_mutator_and_no_corpus_is_without_a_target() -> None:
    assert {path.parent.name for path in FILES} == set(TARGETS) == set(MUTATORS)


def test_a_broken_promise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import handlers

    monkeypatch.setattr(handlers.Handlers, "_release", lambda self: None)
    with pytest.raises(Violation, match="1 handles are not given back"):
        TARGETS["model_info"]((CORPUS / "model_info" / "default").read_bytes())


def test_the_driver_tells_how_it_went() -> None:
    command = [sys.executable, str(DRIVER), "tfrecord", "--search=plain", "--seconds=0.2", f"--corpus={CORPUS}/tensor"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": ""}, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert '"found": {}' in done.stdout
