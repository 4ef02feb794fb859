"""Archives that were damaged or made with bad intentions: they load, or fail with a status, and nothing else.

Every hostile archive tries to leave a file behind; none may.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.servers.platforms import SETTINGS, WIDTH, WRITERS, add_to_archive, rewrite_archive
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode

ID = ServableId("m", 1)
ARTEFACTS = {"pytorch_export": "model.pt2", "pytorch_libtorch": "model.pt"}
SEEDS = range(60)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A healthy archive of each platform."""
    return {
        artefact: WRITERS[platform](tmp_path_factory.mktemp(platform), 0.0) / artefact
        for platform, artefact in ARTEFACTS.items()
    }


@pytest.fixture
def sentinel(tmp_path):
    """What hostile archives try to create."""
    path = tmp_path / "sentinel"
    yield path
    assert not path.exists()


def load(path: Path) -> ServingError | None:
    """Loads a version and asks it once; the failure, if there is one, must be a status without stack or path."""
    settings = AdapterSettings(
        lambda models, request: models[0], "cpu", model_settings=lambda directory, model: SETTINGS
    )
    loader = ArtifactLoader(str(path.parent), "", settings, PLATFORMS)
    failure = None
    try:
        loader.load(ID)
        loader.servable.run("", {"x": np.zeros((1, WIDTH), np.float32)}, ())
    except ServingError as error:
        failure = error
    if loader.servable is not None:
        loader.unload()
    assert "\n" not in str(failure)
    assert str(path.parent) not in str(failure)
    return failure


def target(tmp_path, artefact):
    directory = tmp_path / "1"
    directory.mkdir(exist_ok=True)
    return directory / artefact


@pytest.mark.parametrize("artefact", ARTEFACTS.values())
def test_truncated_archive_is_damage(originals, tmp_path, artefact):
    data = originals[artefact].read_bytes()
    lengths = {0, 1, 30, len(data) - 1, len(data) - 22} | {len(data) * part // 20 for part in range(20)}
    for length in sorted(lengths):
        path = target(tmp_path, artefact)
        path.write_bytes(data[:length])
        error = load(path)
        assert error is not None, length
        assert error.code is StatusCode.DATA_LOSS


@pytest.mark.parametrize("artefact", ARTEFACTS.values())
def test_flipped_bytes_are_noticed_or_do_no_harm(originals, tmp_path, artefact):
    data = originals[artefact].read_bytes()
    for seed in SEEDS:
        chance = random.Random(seed)
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        path = target(tmp_path, artefact)
        path.write_bytes(changed)
        load(path)


@pytest.mark.parametrize("artefact", ARTEFACTS.values())
def test_pieces_of_archives_glued_together_are_noticed(originals, tmp_path, artefact):
    data = originals[artefact].read_bytes()
    for seed in SEEDS:
        chance = random.Random(seed)
        a, b = sorted(chance.randrange(len(data)) for _ in range(2))
        path = target(tmp_path, artefact)
        path.write_bytes(chance.choice([data[:a] + data[b:], data[:b] + data[a:], data[a:b] + data, data + data[a:]]))
        assert load(path) is not None, seed


def leaves(value, path=()):
    """Every place in a document that holds no list and no object."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def put(document, path, value):
    *parents, last = path
    for part in parents:
        document = document[part]
    document[last] = value


def evil_texts(sentinel):
    call = f"__import__('pathlib').Path({str(sentinel)!r}).touch()"
    return [
        call,
        f"x={call}",
        f"x\n    {call}\n    y",
        f"x); {call}; (y",
        f'x"),{call},("',
        f"Symbol('s0', positive={call})",
        f"[{call} for s0 in (1,)]",
        "torch.os.system",
        "_operator.attrgetter",
        "builtins.eval",
        "9**9**9**9",
        "u99999999999",
        "\x00",
        "\ud7ff",
        "a" * 100_000,
    ]


def test_program_with_any_one_text_replaced_runs_no_code(originals, tmp_path, sentinel):
    source = originals["model.pt2"]
    with zipfile.ZipFile(source) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("models/model.json"))
        text = archive.read(member)
    texts = evil_texts(sentinel)
    for seed, place in enumerate(leaves(json.loads(text))):
        program = json.loads(text)
        put(program, place, texts[seed % len(texts)])
        changed = json.dumps(program).encode()
        path = rewrite_archive(
            source,
            target(tmp_path, "model.pt2"),
            lambda name, data, changed=changed: changed if name == "models/model.json" else data,
        )
        load(path)
        assert not sentinel.exists(), place


def test_program_with_values_of_other_types_fails_with_a_status(originals, tmp_path):
    source = originals["model.pt2"]
    for seed in SEEDS:
        chance = random.Random(seed)

        def edit(name, data, chance=chance):
            if not name.endswith(".json"):
                return data
            document = json.loads(data)
            places = list(leaves(document))
            for place in chance.sample(places, min(2, len(places))):
                put(document, place, chance.choice([None, -1, 2**70, 1.5, True, [], {}, [[]], {"as_int": 3}, ""]))
            return json.dumps(document).encode()

        load(rewrite_archive(source, target(tmp_path, "model.pt2"), edit))


class Payload:
    """Unpickling it creates the sentinel."""

    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self):
        return (Path.touch, (self._sentinel,))


def torch_saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_pickles_anywhere_in_an_archive_run_no_code(originals, tmp_path, sentinel):
    evil = [pickle.dumps(Payload(sentinel)), torch_saved(Payload(sentinel)), torch_saved(((Payload(sentinel),), {}))]
    for artefact, source in originals.items():
        with zipfile.ZipFile(source) as archive:
            members = [name.partition("/")[2] for name in archive.namelist()]
        extra = ["data/weights/model.pt", "data/constants/model.pt", "data/constants/custom_obj_0", "data.pkl"]
        for member in [*members, *extra]:
            for data in evil:
                path = target(tmp_path, artefact)
                if member in members:
                    rewrite_archive(source, path, lambda name, old, m=member, d=data: d if name == m else old)
                else:
                    add_to_archive(source, path, {member: data})
                load(path)
                assert not sentinel.exists(), (artefact, member)
            path.unlink()


def test_pickle_smuggled_past_the_list_of_weights_runs_no_code(originals, tmp_path, sentinel):
    evil = torch_saved(Payload(sentinel))

    def edit(name, data):
        if name == "data/weights/model_weights_config.json":
            config = json.loads(data)
            for entry in config["config"].values():
                entry["use_pickle"] = True
            return json.dumps(config).encode()
        return evil if name.startswith("data/weights/weight_") else data

    error = load(rewrite_archive(originals["model.pt2"], target(tmp_path, "model.pt2"), edit))
    assert error is not None
    assert error.code is StatusCode.PERMISSION_DENIED


def test_directory_that_hides_another_program_runs_no_code(originals, tmp_path, sentinel):
    """Two closing directories: a lenient reader sees the harmless archive, another one the hostile one."""
    healthy = originals["model.pt2"].read_bytes()
    evil_path = rewrite_archive(
        originals["model.pt2"],
        tmp_path / "evil.pt2",
        lambda name, data: torch_saved(((Payload(sentinel),), {})) if "sample_inputs" in name else data,
    )
    evil = evil_path.read_bytes()
    length, offset = struct.unpack_from("<II", evil, len(evil) - 10)
    shifted = evil[:-10] + struct.pack("<II", length, offset + len(healthy)) + evil[-2:]
    for data in (healthy + evil, healthy + shifted, evil + healthy, healthy[:-22] + evil, evil[:-22] + healthy):
        path = target(tmp_path, "model.pt2")
        path.write_bytes(data)
        assert load(path) is not None
        path.unlink()


@pytest.mark.parametrize("size", [10_000_000, 200_000_000])
def test_archive_that_unpacks_to_much_more_is_refused(originals, tmp_path, size):
    path = target(tmp_path, "model.pt2")
    rewrite_archive(originals["model.pt2"], path, lambda name, data: data)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/extra/zeros", b"\0" * size)
    error = load(path)
    assert error is not None
    assert error.code is StatusCode.PERMISSION_DENIED
