"""``examples/tiny_lm`` as its README has it, with less training: all at once, and piece by piece."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.servers.process import ServerProcess, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_lm"
PATIENCE = 200.0
BITS = re.compile(r"(\d\.\d\d) bits per ")
PROMPT = "The "
TOKENS = 60

pytest.importorskip("transformers", reason="the extra `generate` is not installed")
pytestmark = pytest.mark.slow


def run(command: list[str], directory: Path) -> str:
    """What it prints. Whatever it leaves in the directory of temporary files is found in ``directory``."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1", "TMPDIR": str(directory)}
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, env=env)
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
    return done.stdout.decode()


def run_script(name: str, directory: Path, *arguments: str) -> str:
    return run([sys.executable, str(EXAMPLE / name), *arguments], directory)


def written(printed: str) -> list[str]:
    """The texts behind bars, in their order, without the prompt."""
    blocks = re.findall(r"^  \| .*(?:\n  \| .*)*", printed, re.MULTILINE)
    texts = [block[4:].replace("\n  | ", "\n") for block in blocks]
    assert all(text.startswith(PROMPT) for text in texts)
    return [text[len(PROMPT) :] for text in texts]


def is_ready(server: ServerProcess, version: int) -> bool:
    return server.get(f"/v2/models/tiny_lm/versions/{version}/ready")[0] == 200


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def repository(place):
    """With version 1; what it was made of is beside it."""
    run_script("train.py", place, str(place / "trained"), "--steps=4")
    publish(place)
    shutil.copy(EXAMPLE / "config.yaml", place / "models" / "tiny_lm")
    return place / "models"


@pytest.fixture(scope="module")
def server(repository):
    with ServerProcess(f"--model_repository={repository}") as found:
        yield found


def publish(place: Path) -> None:
    command = [sys.executable, "-m", "tfs_lite.cli.main", "publish", str(place / "trained")]
    run([*command, "--base", str(place / "models" / "tiny_lm")], place)


def ask(server: ServerProcess, place: Path, way: str) -> tuple[str, str]:
    """A text, and the version that wrote it."""
    address = f"--address=127.0.0.1:{server.http_port}"
    printed = run_script("client.py", place, PROMPT, address, f"--by={way}", f"--tokens={TOKENS}")
    found = re.search(r"^written by version (.*)$", printed, re.MULTILINE)
    assert found is not None, printed
    (text,) = written(printed)
    return text, found[1]


@pytest.mark.load
def test_texts_that_have_begun_keep_their_version_while_the_next_ones_get_a_better_one(tmp_path):
    printed = run_script("demo.py", tmp_path, "--steps=32")
    assert "version 2 is served; 2 streams of version 1 are under way" in printed
    ended = re.findall(r"^the stream by \w+ has ended: (\d+) characters, all by version (\S+)$", printed, re.MULTILINE)
    assert [version for _, version in ended] == ["1", "1"]
    assert min(int(characters) for characters, _ in ended) > 100
    first, second = written(printed)
    assert first != second
    before, after = (float(bits) for bits in BITS.findall(printed))
    assert after < before < 8
    assert printed.endswith("every stream had one version, and none was cut off\n")
    assert list(tmp_path.glob("tiny-lm-*")) == []
    assert not [process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info)]


def test_all_three_ways_to_ask_get_the_same_text(server, place):
    """With one seed, and each alone in its steps."""
    pytest.importorskip("openai")
    answers = [ask(server, place, way) for way in ("openai", "http", "v2")]
    assert len(answers[0][0]) > TOKENS / 4
    assert answers[1:] == answers[:1] * 2


@pytest.mark.load
def test_version_that_was_trained_on_is_served_next_and_its_config_says_how_long(server, place, repository):
    text, version = ask(server, place, "http")
    assert version == "1"
    run_script("train.py", place, str(place / "trained"), "--steps=8")
    publish(place)
    wait_until(lambda: is_ready(server, 2), "version 2 is served")
    better, version = ask(server, place, "http")
    assert version == "2"
    assert better != text
    steps = [json.loads((repository / "tiny_lm" / each / "config.json").read_text())["steps"] for each in "12"]
    assert steps == [4, 12]
    wait_until(lambda: not is_ready(server, 1), "version 1 is gone")


def test_client_says_in_words_what_is_wrong(server, place):
    command = [sys.executable, str(EXAMPLE / "client.py"), f"--address=127.0.0.1:{server.http_port}", "--tokens=99999"]
    done = subprocess.run([*command, "--by=http"], capture_output=True, timeout=PATIENCE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "16384" in done.stderr
