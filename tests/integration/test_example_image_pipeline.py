"""``examples/image_pipeline`` as its README has it, with less training: make, serve, ask, make again."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.support.profiles import is_soak, scaled
from tests.support.servers.process import ServerProcess, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "image_pipeline"
STEPS = scaled(120)
PATIENCE = 120.0

pytest.importorskip("PIL", reason="the extra `examples` is not installed")
pytestmark = pytest.mark.slow


def run(script: str, *arguments: str) -> str:
    """What a script of the example prints."""
    command = [sys.executable, str(EXAMPLE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"image_pipeline_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pipeline") / "models"
    run("make.py", str(directory), f"--steps={STEPS}")
    return directory


@pytest.fixture(scope="module")
def server(repository):
    with ServerProcess(f"--model_repository={repository}", f"--trusted_model_base_paths={repository}") as found:
        yield found


@pytest.fixture(scope="module")
def client():
    return loaded("client")


@pytest.fixture(scope="module")
def pictures():
    """Of the kind that the networks know, made of what they were not trained with."""
    return loaded("pictures").Painter(5, training=False).paint(4)


def address(server: ServerProcess) -> str:
    return f"127.0.0.1:{server.http_port}"


def runs(server: ServerProcess) -> dict[str, int]:
    """Rows that each model has run."""
    status, body = server.get("/v2/models/stats")
    assert status == 200
    return {stats["name"]: stats["inference_count"] for stats in json.loads(body)["model_stats"]}


def picture_file(image: np.ndarray, kind: str = "PNG", size: tuple[int, int] | None = None) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    found = Image.fromarray(image)
    (found.resize(size) if size else found).save(file, kind)
    return file.getvalue()


def test_client_tells_digits_and_pixels_far_better_than_by_chance(server):
    printed = run("client.py", f"--address={address(server)}", "--count=30")
    found = re.search(r"^(\d+)% of the digits and (\d+)% of the pixels are right$", printed, re.MULTILINE)
    assert found is not None, printed
    if is_soak():  # with less training they only have to be told
        assert int(found[1]) >= 25  # by chance: 10
        assert int(found[2]) >= 65  # by chance: 33; if all were flower: about 45


def test_ensemble_answers_as_its_models_do_one_after_the_other(server, client, pictures, repository):
    import torch

    answer = client.ask_plainly(address(server), picture_file(pictures.images[0]))
    image = torch.from_numpy(pictures.images[:1]).permute(0, 3, 1, 2).float() / 255
    for name, output in (("classification", "CLASSIFICATION"), ("segmentation", "SEGMENTATION")):
        newest = max(repository.glob(f"{name}_model/*/model.pt2"))
        exported = torch.export.load(newest).module()
        with torch.inference_mode():
            expected = exported(FORMATTED_IMAGE=image)[f"{output}_OUTPUT"][0].numpy()
        np.testing.assert_allclose(answer[output], expected, rtol=1e-4, atol=1e-5)


def test_probabilities_of_every_picture_add_up_to_one(server, client, pictures):
    answer = client.ask_plainly(address(server), picture_file(pictures.images[1], "JPEG", size=(200, 117)))
    assert answer["CLASSIFICATION"].shape == (10,)
    assert answer["SEGMENTATION"].shape == (3, 32, 32)
    np.testing.assert_allclose(answer["CLASSIFICATION"].sum(), 1, atol=1e-4)
    np.testing.assert_allclose(answer["SEGMENTATION"].sum(0), np.ones((32, 32)), atol=1e-4)


def test_output_that_nobody_asks_for_is_not_computed(server, client, pictures):
    before = runs(server)
    answer = client.ask_plainly(address(server), picture_file(pictures.images[2]), ["CLASSIFICATION"])
    after = runs(server)
    assert set(answer) == {"CLASSIFICATION"}
    assert {name: after[name] - before[name] for name in before} == {
        "ensemble_image_model": 1,
        "image_preprocess_model": 1,
        "classification_model": 1,
        "segmentation_model": 0,
    }


def test_bytes_that_are_no_image_are_refused_in_words(server, client):
    with pytest.raises(
        RuntimeError, match=r"in ensemble 'ensemble_image_model', .*11 bytes are not a PNG or JPEG image"
    ):
        client.ask_plainly(address(server), b"not a photo")


def test_image_of_too_many_pixels_is_refused(server, client):
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (5000, 4000)).save(file, "PNG")
    with pytest.raises(RuntimeError, match="5000 x 4000 pixels, expected at most 16000000"):
        client.ask_plainly(address(server), file.getvalue())


@pytest.mark.load
def test_networks_made_again_are_served_as_version_2_and_the_ensemble_uses_them(server, client, pictures, repository):
    image = picture_file(pictures.images[0])
    before = client.ask_plainly(address(server), image)
    run("make.py", str(repository), "--steps=10")
    for name in ("classification_model", "segmentation_model"):
        wait_until(lambda name=name: server.get(f"/v2/models/{name}/versions/2/ready")[0] == 200, f"{name} 2 is served")
    after = client.ask_plainly(address(server), image)
    assert np.abs(after["CLASSIFICATION"] - before["CLASSIFICATION"]).max() > 1e-3
    assert np.abs(after["SEGMENTATION"] - before["SEGMENTATION"]).max() > 1e-3
    assert "changed on disk" not in server.log()
