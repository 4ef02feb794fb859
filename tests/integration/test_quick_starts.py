"""A newcomer types what the README and the quick starts of ``docs`` say, line by line, and it works.

Only what belongs to the place is changed: directories lie below the test's own, and servers listen on free ports. Lines
that install something are held against the extras in ``pyproject.toml``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.remote.moto import Moto
from tests.support.remote.proxy import FaultProxy
from tests.support.servers.process import ServerProcess, wait_until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
FILE = re.compile(r"# ((?:\w+/)*[\w.]+\.(?:py|yaml|pbtxt|config))(?::.*)?\n")
"""The first line of a block that is a file."""
PORTS = ("--port=8500", "--rest_api_port=8501")
PATIENCE = 120.0


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    language: str
    text: str


def blocks(page: str, heading: str = "") -> list[Block]:
    """Those below a heading, up to the next one; without a heading those at the top of the page."""
    parts = re.split(r"(?m)^##+ (.*)$", (ROOT / page).read_text(encoding="utf-8"))
    text = dict(zip(parts[1::2], parts[2::2], strict=True))[heading] if heading else parts[0]
    return [Block(*found) for found in FENCE.findall(text)]


def commands(text: str) -> Iterator[str]:
    """Those of a block, without what they print where the block has prompts. Lines that go on are one command."""
    lines = text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    command = ""
    for line in lines:
        command += line + "\n"
        with suppress(ValueError):  # a quotation goes on
            if shlex.split(command, comments=True) and not line.endswith("\\"):
                yield command.strip()
                command = ""
    assert not command.strip()


class Newcomer:
    """Does what pages say in a directory of its own. ``places`` are paths of the pages and what they are here."""

    def __init__(self, directory: Path, **places: Path) -> None:
        self.directory = directory
        self.places = {f"/{name.replace('_', '/')}": str(path) for name, path in places.items()}
        self.server: ServerProcess | None = None
        self.env: dict[str, str] = {}
        self._open = ExitStack()
        (directory / ".venv").symlink_to(BIN.parent)
        (directory / "examples").symlink_to(ROOT / "examples")

    def __enter__(self) -> Newcomer:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def do(self, *given: Block) -> list[str]:
        """What each command has printed."""
        return [printed for block in given for printed in self._block(block)]

    def _block(self, block: Block) -> Iterator[str]:
        text = self._here(block.text)
        if found := FILE.match(text):
            path = self.directory / found[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._with_ports(text), encoding="utf-8")
            if found[1] == "save.py":  # nothing else on its page runs it
                yield self._run("python", found[1])
        elif block.language == "python":
            yield self._run("python", "-c", text)
        else:
            for command in commands(text):
                yield self._command(command)

    def _here(self, text: str) -> str:
        for there, here in self.places.items():
            text = re.sub(rf"(?<![\w.]){re.escape(there)}(?=[\s/\"'])", here, text)
        return text

    def _with_ports(self, text: str) -> str:
        if self.server is None:
            return text
        return text.replace(":8501", f":{self.server.http_port}").replace(":8500", f":{self.server.grpc_port}")

    def _command(self, command: str) -> str:
        words = shlex.split(os.path.expandvars(command.replace("$PWD", str(self.directory))), comments=True)
        if words[0] == "cd":  # to an empty directory, in which the test is
            return ""
        if "pip install" in command:
            return self._installs(words)
        if words[0].endswith("tfs-lite") and words[1] == "serve":
            return self._serve(words[2:])
        return self._run("bash", "-euc", re.sub(r"^curl ", "curl --silent --show-error --fail-with-body ", command))

    def _serve(self, flags: list[str]) -> str:
        flags = [flag for flag in flags if flag not in PORTS]
        self.server = self._open.enter_context(ServerProcess(*flags, directory=self.directory, env=self.env))
        self.server.wait_ready()
        return ""

    def _run(self, *command: str) -> str:
        env = {**os.environ, **self.env, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        if self.server is not None:
            needs_grpc = re.search(r"tfs-lite (predict|reload|record)\b", " ".join(command))
            env["TFS_LITE_SERVER"] = self.server.target if needs_grpc else f"127.0.0.1:{self.server.http_port}"
        done = subprocess.run(
            [self._with_ports(word) for word in command],
            cwd=self.directory,
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    @staticmethod
    def _installs(words: list[str]) -> str:
        known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        for extra in re.findall(r"tfs-lite\[(\w+)\]", " ".join(words)):
            assert extra in known
        return ""


def answer(printed: str) -> Any:
    return json.loads(printed)


def test_the_readme_saves_serves_asks_and_pushes(tmp_path: Path) -> None:
    snippet, serve, ask = blocks("README.md")[:3]
    with Newcomer(tmp_path, tmp_models=tmp_path / "models") as newcomer:
        (said,) = newcomer.do(snippet)
        assert re.fullmatch(r"1 \[\[.*\]\]\n", said)
        newcomer.do(serve)
        asked, *_, status = newcomer.do(ask)
        assert len(answer(asked)["predictions"][0]) == 2
        assert "ranker" in status
        assert newcomer.server is not None
        server = newcomer.server
        wait_until(lambda: server.get("/v2/models/ranker/versions/2/ready")[0] == 200, "the pushed version is served")


def test_the_first_page_of_the_site(tmp_path: Path) -> None:
    (start,) = blocks("docs/index.md")
    with Newcomer(tmp_path, tmp_models=tmp_path / "models") as newcomer:
        *_, asked = newcomer.do(start)
        assert len(answer(asked)["predictions"][0]) == 2
        _, save, *_ = commands(start.text)
        newcomer.do(Block("", save))
        assert newcomer.server is not None
        server = newcomer.server
        wait_until(lambda: server.get("/v2/models/ranker/versions/2/ready")[0] == 200, "the second version is served")


@pytest.mark.load
def test_a_model_in_production_and_back(tmp_path: Path) -> None:
    page = "docs/production.md"
    serve, ask = blocks(page, "Serve")
    places = {f"tmp_production_{name}": name for name in ("models", "candidate", "rejected")}
    with Newcomer(tmp_path, **{there: tmp_path / here for there, here in places.items()}) as newcomer:
        newcomer.do(*blocks(page, "Save"), serve)
        (asked,) = newcomer.do(ask)
        assert len(answer(asked)["predictions"][0]) == 2
        newcomer.do(*blocks(page, "Push"))
        assert newcomer.server is not None
        server = newcomer.server
        wait_until(lambda: server.get("/v2/models/ranker/versions/2/ready")[0] == 200, "the pushed version is served")
        status, explained, events, metrics = newcomer.do(*blocks(page, "Watch"))
        assert "ranker" in status
        assert "ranker" in explained
        assert "ranker@2" in events
        assert "tfs_lite_model_available" in metrics
        newcomer.do(*blocks(page, "Roll back"))
        wait_until(lambda: server.get("/v2/models/ranker/versions/1/ready")[0] == 200, "the version before is served")
        wait_until(lambda: server.get("/v2/models/ranker/versions/2/ready")[0] != 200, "the rejected version is gone")
        assert newcomer.do(ask)


@pytest.mark.slow
def test_the_readme_in_a_clone_serves_digits(tmp_path: Path) -> None:
    """What ``make`` would do with its environment is done with this one; ``make demo`` has tests of its own."""
    making, asking = blocks("README.md")[3:5]
    targets = [command.split()[1] for command in commands(making.text)]
    assert targets == ["demo", "demo-guard", "serve"]
    with Newcomer(tmp_path) as newcomer:
        dry = ["make", "--no-print-directory", "-n", "-o", ".venv/.installed"]
        recipes = {
            target: subprocess.run([*dry, target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
            for target in targets
        }
        assert recipes["demo"].split() == [".venv/bin/tfs-lite", "demo"]
        newcomer.do(Block("", recipes["serve"].replace("exec ", "")))
        predicted, explained, asked = newcomer.do(asking)
        assert "digits" in predicted + explained
        assert len(answer(asked)["predictions"][0]["probabilities"]) == 10


def test_models_in_python(tmp_path: Path) -> None:
    page = "docs/python-models.md"
    parts = [blocks(page, heading) for heading in ("A module with weights", "Any other class")]
    with Newcomer(tmp_path, models=tmp_path) as newcomer:
        for *files, _ in parts:
            newcomer.do(*files)
        newcomer.do(*blocks(page))
        for *_, ask in parts:
            (printed,) = newcomer.do(ask)
            assert printed in ask.text


def test_a_sequence(tmp_path: Path) -> None:
    *files, ask = blocks("docs/sequences.md")
    with Newcomer(tmp_path, models=tmp_path) as newcomer:
        newcomer.do(*files, *blocks("docs/python-models.md"))
        (printed,) = newcomer.do(ask)
        assert answer(printed)["outputs"][0]["data"] == [2.0]


@pytest.mark.load
def test_a_language_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `generate` is not installed")
    pytest.importorskip("openai")
    install, make, serve, curl, client = blocks("docs/language-models.md", "Quick start")[:5]
    with Newcomer(tmp_path) as newcomer:
        newcomer.do(install, make, serve)
        whole, pieces = newcomer.do(curl)
        assert answer(whole)["usage"]["completion_tokens"] > 0
        assert pieces.startswith("data: ")
        assert newcomer.do(client)


@pytest.mark.load
def test_embeddings(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `generate` is not installed")
    pytest.importorskip("openai")
    with Newcomer(tmp_path) as newcomer:
        *_, printed = newcomer.do(*blocks("docs/encoders.md")[:1], *blocks("docs/encoders.md", "Embeddings")[:3])
        assert printed.split()[0] == "64"


@pytest.mark.load
def test_an_onnx_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
    page = "docs/onnx.md"
    with Newcomer(tmp_path) as newcomer:
        *_, printed = newcomer.do(*blocks(page), *blocks(page, "From PyTorch to the first answer")[:2])
        assert len(answer(printed)["predictions"][0]) == 3


def test_a_saved_model(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="the extra `tensorflow` is not installed")
    page = "docs/savedmodel.md"
    with Newcomer(tmp_path) as newcomer:
        *_, printed = newcomer.do(*blocks(page, "From `save` to the first answer"))
        assert len(answer(printed)["predictions"][0]) == 3


def test_a_token(tmp_path: Path) -> None:
    make = blocks("docs/access.md", "Tokens")[0]
    with Newcomer(tmp_path) as newcomer:
        (printed,) = newcomer.do(make)
        assert "deploy manage,read sha256:" in printed


def test_from_a_token_to_a_refused_and_an_accepted_request(tmp_path: Path) -> None:
    save, serve, ask, printed, curl = blocks("docs/access.md", "From a token to a refused and an accepted request")
    with Newcomer(tmp_path, tmp_models=tmp_path / "models") as newcomer:
        newcomer.do(save, serve)
        (said,) = newcomer.do(ask)
        assert said == printed.text
        (accepted,) = newcomer.do(curl)
        assert len(answer(accepted)["predictions"][0]) == 2


def test_a_bucket(tmp_path: Path, moto: Moto) -> None:
    """A server like that of the page's script runs in this process."""
    script, save, serve, ask, end, explain = blocks("docs/remote.md", "Ten minutes with a bucket of your own")
    assert "python examples/remote/serve_bucket.py models > bucket.env & echo $! > bucket.pid" in script.text
    assert end.text == "kill $(cat bucket.pid)\n"
    with Newcomer(tmp_path) as newcomer, FaultProxy(moto.port) as proxy:
        moto.make_bucket("models")
        newcomer.env = {**moto.environment(proxy.port), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        newcomer.do(save, serve)
        asked, *_ = newcomer.do(ask)
        assert len(answer(asked)["predictions"][0]) == 2
        assert newcomer.server is not None
        server = newcomer.server
        wait_until(lambda: server.get("/v2/models/ranker/versions/2/ready")[0] == 200, "the pushed version is served")
        events = newcomer.do(Block("", "tfs-lite events ranker"))[0]
        assert all(f"ranker@2  {words}" in events for words in ("fetch begun", "fetched", "AVAILABLE"))
        proxy.fail("reset")
        wait_until(lambda: b"STORAGE_UNREACHABLE" in server.get("/v1/models/ranker:explain")[1], "it is away")
        (said,) = newcomer.do(explain)
        assert "STORAGE_UNREACHABLE" in said
        newcomer.do(Block("", serve.text.splitlines()[1]))
        server = newcomer.server
        assert b"FROM_CACHE" in server.get("/v1/models/ranker:explain")[1]
        assert server.get("/v2/models/ranker/versions/2/ready")[0] == 200


def test_a_platform_of_another_distribution(tmp_path: Path) -> None:
    """``pip install .`` is done by hand: the module and its entry points lie in a directory of ``PYTHONPATH``."""
    module, project, make, config, serve, ask, printed = blocks("docs/platforms.md", "A whole example")
    with Newcomer(tmp_path) as newcomer:
        newcomer.do(module, make, config)
        entry_points = tomllib.loads(project.text)["project"]["entry-points"]
        installed = tmp_path / "numpy_rows-1.0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy-rows\nVersion: 1.0\n")
        lines = [f"[{group}]\n{name} = {value}\n" for group, of in entry_points.items() for name, value in of.items()]
        (installed / "entry_points.txt").write_text("".join(lines))
        newcomer.env = {"PYTHONPATH": str(tmp_path)}
        newcomer.do(serve)
        (answered,) = newcomer.do(ask)
        assert answer(answered) == answer(printed.text)
        (refused,) = newcomer.do(Block("", ask.text.replace("[2, 0]", "[4]").strip() + " || true\n"))
        assert answer(refused)["error"] == "index: expected numbers from 0 to 3"


NET = """import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, values):
        return self.linear(values)
"""


def write_torchserve_archive(directory: Path) -> None:
    """``tiny.mar``, with what ``torch-model-archiver`` puts in."""
    import torch

    (directory / "net.py").write_text(NET)
    scope: dict[str, Any] = {}
    exec(NET, scope)
    torch.save(scope["Net"]().state_dict(), directory / "tiny.pth")
    model = {"modelName": "tiny", "serializedFile": "tiny.pth", "handler": "base_handler", "modelFile": "net.py"}
    about = {"createdOn": "01/02/2024 03:04:05", "runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    with zipfile.ZipFile(directory / "tiny.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(about))
        for name in ("net.py", "tiny.pth"):
            archive.write(directory / name, name)
            (directory / name).unlink()


def test_an_archive_of_torchserve(tmp_path: Path) -> None:
    page = "docs/from-torchserve.md"
    write_torchserve_archive(tmp_path)
    with Newcomer(tmp_path) as newcomer:
        *_, asked = newcomer.do(*blocks(page, "A module and its weights"))
        assert len(answer(asked)["predictions"][0]) == 2
        *_, named = newcomer.do(*blocks(page, "A handler"))
        assert answer(named)["predictions"][0]["name"] in ("small", "large")


TORCHVISION = """import types

import torch


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.steps = torch.nn.Sequential(
            torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.BatchNorm2d(width), torch.nn.ReLU()
        )

    def forward(self, x):
        return x + self.steps(x)


def get_model(name, weights):
    width = {"resnet18": 8, "resnet34": 16}[name]
    first = torch.nn.Conv2d(3, width, 7, stride=8)
    last = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 1000))
    return torch.nn.Sequential(first, Block(width), Block(width), *last)


class ResNet18_Weights:
    DEFAULT = types.SimpleNamespace(meta={"categories": [f"class {number}" for number in range(1000)]})
"""
"""Small residual networks in place of torchvision's, which is no dependency and whose weights lie behind a network."""


@pytest.mark.load
def test_a_resnet_is_served_pushed_under_load_and_rolled_back(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    page = "docs/tutorial-resnet.md"
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/models.py").write_text(TORCHVISION)
    with Newcomer(tmp_path) as newcomer:
        newcomer.do(*blocks(page, "1. Install"), *blocks(page, "2. Save"))
        *_, checked = newcomer.do(*blocks(page, "3. Labels and batching"))
        assert "served" in checked
        assert "classes string[-1,1000]" in checked
        *_, asked = newcomer.do(*blocks(page, "4. Serve and ask"))
        assert re.fullmatch(r"version 1\n(  0\.\d% class \d+\n){3}", asked)
        loaded, _ = newcomer.do(*blocks(page, "5. Push a second version under load"))
        assert re.fullmatch(r"version 1: \d+ answers; version 2: 20\d answers; errors: 0\n", loaded)
        push, remove = blocks(page, "6. When a push fails")
        *made, explain = commands(push.text)
        newcomer.do(Block("", "\n".join(made)))
        assert newcomer.server is not None
        server = newcomer.server
        wait_until(lambda: b"ARTEFACT_REFUSED" in server.get("/v1/models/resnet:explain")[1], "it is refused")
        (explained,) = newcomer.do(Block("", explain))
        assert all(line.split(" (since")[0] in explained for line in push.text.splitlines()[4:] if "..." not in line)
        newcomer.do(remove)
        went_back, asked, _ = newcomer.do(*blocks(page, "7. Roll back"))
        assert "version 1 answers now" in went_back
        assert asked.startswith("version 1\n")


TINY = """from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

words = {word: i for i, word in enumerate("[PAD] [UNK] [CLS] [SEP] a an what great awful film day".split())}
made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
made.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
names = {0: "NEGATIVE", 1: "POSITIVE"}
config = DistilBertConfig(vocab_size=len(words), dim=32, hidden_dim=64, n_layers=2, n_heads=2, id2label=names)
DistilBertForSequenceClassification(config).save_pretrained("first")
PreTrainedTokenizerFast(
    tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=128
).save_pretrained("first")
"""
"""Makes, in place of the hub's, a classifier with random weights."""


@pytest.mark.load
def test_a_classifier_is_tuned_and_pushed_under_the_guard(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `generate` is not installed")
    page = "docs/tutorial-classifier.md"
    install, fetch, run = blocks(page, "1. Install, and fetch a model")
    assert 'save_pretrained("first")' in fetch.text
    with Newcomer(tmp_path) as newcomer:
        newcomer.do(install, Block("python", f"# first.py\n{TINY}"), run)
        *_, checked = newcomer.do(*blocks(page, "2. Publish and check"))
        assert "served" in checked
        serve, ask, printed = blocks(page, "3. Serve and ask")
        newcomer.do(serve)
        assert newcomer.server is not None
        server = newcomer.server
        for asked, shown in zip(newcomer.do(ask), printed.text.splitlines(), strict=True):
            assert answer(asked).keys() == answer(shown.replace(", ...]", "]")).keys()
        tune, push, whole = blocks(page, "4. Fine-tune, and push too early")
        *made, explain = commands(push.text)
        newcomer.do(tune, Block("", "\n".join(made)))
        wait_until(lambda: b"ARTEFACT_REFUSED" in server.get("/v1/models/moods:explain")[1], "it is refused")
        (explained,) = newcomer.do(Block("", explain))
        assert "there is no tokenizer.json" in explained
        newcomer.do(whole)
        wait_until(lambda: server.get("/v2/models/moods/versions/3/ready")[0] == 200, "the whole version is served")
        watch, accept = blocks(page, "5. The trial")
        (watched,) = newcomer.do(watch)
        assert "version 3 answers, but it is on trial until" in watched
        accepted, asked = newcomer.do(accept)
        assert "accepted" in accepted
        assert answer(asked)["predictions"][0]["labels"] in ("NEGATIVE", "POSITIVE")


@pytest.mark.load
def test_a_config_of_openvino_model_server(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnx")
    page = "docs/from-openvino.md"
    with Newcomer(tmp_path) as newcomer:
        newcomer.do(*blocks(page, "1. Install"))
        refused, _, served = newcomer.do(*blocks(page, "2. The files"))
        assert "iris.onnx is an ONNX model under another" in " ".join(refused.split())
        assert "onnxruntime_onnx" in served
        translated, checked = newcomer.do(*blocks(page, "3. The config"))
        assert translated == "iris has no longer: nireq=4\n"
        assert "served" in checked
        serve, ask, printed = blocks(page, "4. Serve and ask")
        newcomer.do(serve)
        assert [answer(asked) for asked in newcomer.do(ask)] == [answer(line) for line in printed.text.splitlines()]
        (push,) = blocks(page, "5. Push, explain, roll back")
        published, explain, rollback = commands(push.text)
        newcomer.do(Block("", published))
        assert newcomer.server is not None
        server = newcomer.server
        wait_until(lambda: server.get("/v2/models/iris/versions/2/ready")[0] == 200, "the pushed version is served")
        explained, went_back = newcomer.do(Block("", f"{explain}\n{rollback}"))
        assert explained.startswith("iris (SERVING): version 2 answers")
        assert went_back.startswith("model iris: version 1 answers now")


@pytest.mark.load
def test_a_config_and_the_flags_of_tensorflow_serving(tmp_path: Path) -> None:
    page = "docs/from-tf-serving.md"
    model, config, save, serve, ask, push = blocks(page, "Ten minutes")
    with Newcomer(tmp_path) as newcomer:
        *_, checked = newcomer.do(model, config, save)
        assert "served" in checked
        newcomer.do(serve)
        (asked,) = newcomer.do(ask)
        assert asked in ask.text
        *_, reloaded, labelled = newcomer.do(push)
        assert "version_labels" in reloaded
        assert labelled in push.text


def test_pages_name_the_torch_that_the_project_takes() -> None:
    """Without bounds pip takes the newest torch, which the next ``pip install .`` replaces by another build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bounds,) = (name for name in project["dependencies"] if re.match(r"torch\b", name))
    pages = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    named = [found for page in pages for found in re.findall(r"pip install[^`\n]*?\b(torch\b[^' ]*)", page.read_text())]
    assert set(named) == {bounds}
