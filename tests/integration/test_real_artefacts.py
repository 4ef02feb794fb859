"""Models inside public wheels answer through a server as their own library does.

Each library runs as it is, on a picture, a sound or a text; its sessions of onnxruntime ask a server besides, compare
the answers bit for bit, and go on with the server's. Install what is to be tried (``pip install --no-deps silero-vad
magika rapidocr rapidocr-onnxruntime nudenet ddddocr openwakeword basic-pitch speechmos faster-whisper``); the rest is
skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra onnx")

import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess
from tfs_lite.client import Client
from tfs_lite.core.publish import publish

pytestmark = pytest.mark.load
TYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
SOUND = (np.random.default_rng(0).standard_normal(16000 * 2) * 2000).astype(np.int16)


class Server:
    """A server with default flags and batching, and how often it was asked for each model."""

    def __init__(self, base: Path, process: ServerProcess) -> None:
        self.base = base
        self.probe = Probe(process)
        self.client = Client(process.target)
        self.runs = Counter[str]()
        self._names = dict[bytes, str]()

    def name_of(self, model: str | bytes) -> str:
        """Publishes the file once, and waits for it."""
        content = model if isinstance(model, bytes) else Path(model).read_bytes()
        key = hashlib.sha256(content).digest()
        if key not in self._names:
            name = f"m{len(self._names)}" if isinstance(model, bytes) else Path(model).stem.replace(".", "_")
            name = f"{name}_{key.hex()[:6]}"
            file = self.base.with_name("model.onnx")
            file.write_bytes(content)
            publish(str(file), str(self.base / name), 1)
            self.probe.wait_available(name, 1)
            self._names[key] = name
        return self._names[key]

    def ask(self, name: str, feeds: dict[str, Any]) -> dict[str, Any]:
        self.runs[name] += 1
        return {name: np.asarray(array) for name, array in self.client.predict(name, feeds).outputs.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("artefacts") / "models"
    base.mkdir()
    flags = (f"--model_repository={base}", "--version_quiet_period_seconds=0", "--enable_batching")
    with ServerProcess(*flags) as process:
        yield Server(base, process)


@pytest.fixture
def sessions(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Sessions ask the server, and compare. Counts the runs."""
    bare = onnxruntime.InferenceSession

    class Served(bare):  # type: ignore[misc,valid-type]
        def __init__(self, model: Any, *arguments: Any, **rest: Any) -> None:
            super().__init__(model, *arguments, **rest)
            self.served = server.name_of(model if isinstance(model, bytes) else str(model))

        def run(self, names: Any, feeds: Any, *rest: Any) -> Any:
            expected = super().run(names, feeds, *rest)
            types = {value.name: TYPES.get(value.type) for value in self.get_inputs()}  # of inputs that are lists
            answer = server.ask(self.served, {name: np.asarray(array, types[name]) for name, array in feeds.items()})
            wanted = names or [output.name for output in self.get_outputs()]
            for name, array in zip(wanted, expected, strict=True):
                assert answer[name].dtype == np.asarray(array).dtype, (self.served, name)
                assert answer[name].shape == np.asarray(array).shape, (self.served, name)
                assert np.array_equal(answer[name], array, equal_nan=True), (self.served, name)
            return [answer[name] for name in wanted]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Served)
    server.runs.clear()
    yield server.runs
    print(dict(server.runs))


def picture(path: Path) -> Any:
    """A page with words."""
    cv2 = pytest.importorskip("cv2")
    page = np.full((240, 480, 3), 255, np.uint8)
    for row, words in enumerate(("Serving 2026", "hello world")):
        cv2.putText(page, words, (20, 80 + 90 * row), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (0, 0, 0), 3)
    cv2.imwrite(str(path), page)
    return page


def files_of(package: str, pattern: str) -> list[Path]:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return sorted(Path(found.submodule_search_locations[0]).rglob(pattern))


def test_silero_vad(sessions: Counter[str]) -> None:
    silero = pytest.importorskip("silero_vad")
    torch = pytest.importorskip("torch")
    model = silero.load_silero_vad(onnx=True)
    sound = torch.from_numpy(SOUND.astype(np.float32) / 32768)
    for start in range(0, 5 * 512, 512):
        assert 0 <= model(sound[start : start + 512], 16000).item() <= 1
    assert sum(sessions.values()) == 5


def test_magika(sessions: Counter[str]) -> None:
    magika = pytest.importorskip("magika")
    texts = {
        b"import os\nprint(os.getcwd())\n" * 20: "python",
        b"<html><body><p>hello</p></body></html>\n" * 20: "html",
    }
    library = magika.Magika()
    for text, label in texts.items():
        assert library.identify_bytes(text).output.label == label
    assert sum(sessions.values()) == len(texts)


@pytest.mark.parametrize("package", ["rapidocr", "rapidocr_onnxruntime"])
def test_rapidocr(sessions: Counter[str], tmp_path: Path, package: str) -> None:
    """Three networks: where words are, which way up, and what they are."""
    library = pytest.importorskip(package)
    page = picture(tmp_path / "page.png")
    found = library.RapidOCR()(page)
    texts = list(found.txts) if hasattr(found, "txts") else [line[1] for line in found[0]]
    assert any("Serving" in text for text in texts), texts
    assert len(sessions) == 3


def test_nudenet(sessions: Counter[str], tmp_path: Path) -> None:
    nudenet = pytest.importorskip("nudenet")
    picture(tmp_path / "page.png")
    assert nudenet.NudeDetector().detect(str(tmp_path / "page.png")) == []
    assert sum(sessions.values()) == 1


def test_ddddocr(sessions: Counter[str], tmp_path: Path) -> None:
    ddddocr = pytest.importorskip("ddddocr")
    picture(tmp_path / "page.png")
    content = (tmp_path / "page.png").read_bytes()
    assert ddddocr.DdddOcr(show_ad=False).classification(content)
    assert ddddocr.DdddOcr(det=True, ocr=False, show_ad=False).detection(content)
    assert len(sessions) == 2


def test_openwakeword(sessions: Counter[str]) -> None:
    """Pictures of sound, what they are like, and words in them: a state of the library between them."""
    openwakeword = pytest.importorskip("openwakeword")
    models = [str(path) for path in files_of("openwakeword", "*_v0.1.onnx") if "jarvis" in path.name]
    library = openwakeword.Model(wakeword_model_paths=models)
    for start in range(0, 10 * 1280, 1280):
        library.predict(SOUND[start : start + 1280])
    assert len(sessions) == 3


@pytest.mark.parametrize(
    ("package", "pattern"),
    [
        ("basic_pitch", "nmp.onnx"),
        ("silero_vad", "*.onnx"),
        ("faster_whisper", "*.onnx"),
        ("speechmos", "*.onnx"),
        ("openwakeword", "*.onnx"),
    ],
)
def test_files_of_a_library_answer_as_bare_onnxruntime_does(
    server: Server, sessions: Counter[str], package: str, pattern: str
) -> None:
    """With made-up inputs: open sizes are 1, and the number of samples of a frame where that is one."""
    for path in files_of(package, pattern):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        feeds = {value.name: made_up(path, value) for value in session.get_inputs()}
        with contextlib.suppress(InvalidArgument):  # made-up inputs may be none for it; then nobody asks the server
            session.run(None, feeds)
    assert sessions


def made_up(path: Path, value: Any) -> Any:
    generator = np.random.default_rng(1)
    if value.type == "tensor(int64)":
        return np.array(16000 if value.name == "sr" else 1, np.int64).reshape([1] * len(value.shape))
    sizes = [size if isinstance(size, int) else 1 for size in value.shape]
    if value.shape and not isinstance(value.shape[-1], int):
        sizes[-1] = 576 if "silero" in path.name else 16000
    return generator.standard_normal(sizes).astype(np.float32)
