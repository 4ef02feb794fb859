"""Digests of a version's files, and the generation that names its replicas."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tfs_lite.cluster.replicas import generation
from tfs_lite.cluster.replicas.generation import files_digest, generation_of, version_files
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.publish import publish
from tfs_lite.core.status import ServingError, StatusCode

MIB = 1 << 20


@pytest.fixture
def version(tmp_path: Path) -> Path:
    made = tmp_path / "m" / "1"
    (made / "data" / "words").mkdir(parents=True)
    (made / "model.pt2").write_bytes(b"weights")
    (made / "data" / "words" / "a.txt").write_bytes(b"words")
    return made


def test_a_copy_on_another_node_has_the_same_digest(version: Path, tmp_path: Path) -> None:
    shutil.copytree(version, tmp_path / "elsewhere")
    assert files_digest(str(version)) == files_digest(str(tmp_path / "elsewhere"))
    assert len(files_digest(str(version))) == 32


@pytest.mark.parametrize(
    "change",
    [
        lambda version: (version / "model.pt2").write_bytes(b"WEIGHTS"),
        lambda version: (version / "model.pt2").write_bytes(b"weights!"),
        lambda version: (version / "model.pt2").rename(version / "model.pt"),
        lambda version: (version / "data" / "more.txt").write_bytes(b""),
        lambda version: (version / "data" / "words" / "a.txt").unlink(),
        lambda version: (version / "data" / "words" / "a.txt").rename(version / "data" / "a.txt"),
    ],
    ids=["content", "size", "name", "added", "removed", "moved"],
)
def test_every_difference_of_files_is_one_of_the_digest(version: Path, change) -> None:
    before = files_digest(str(version))
    change(version)
    assert files_digest(str(version)) != before


@pytest.mark.parametrize("size", [MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 5 * MIB])
def test_first_and_last_mib_count(version: Path, size: int) -> None:
    weights = version / "model.pt2"
    weights.write_bytes(bytes(size))
    digests = {files_digest(str(version))}
    for place in (0, min(MIB, size) - 1, max(size - MIB, 0), size - 1):
        with weights.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        digests.add(files_digest(str(version)))
        weights.write_bytes(bytes(size))
    assert len(digests) == 1 + len({0, min(MIB, size) - 1, max(size - MIB, 0), size - 1})


def test_manifest_stands_for_the_contents_that_it_lists(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.pt2").write_bytes(bytes(5 * MIB))
    published = Path(publish(str(source), str(tmp_path / "m"), 1).path)
    before = files_digest(str(published))
    assert files_digest(str(shutil.copytree(published, tmp_path / "copy"))) == before  # although stamps differ
    (published / "model.pt2").write_bytes(bytes(5 * MIB + 1))
    assert files_digest(str(published)) != before


def test_contents_differ_between_manifests_of_equal_sizes_in_the_middle_of_a_file(tmp_path: Path) -> None:
    digests = set()
    for number, middle in enumerate((b"a", b"b"), 1):
        source = tmp_path / f"source{number}"
        source.mkdir()
        (source / "model.pt2").write_bytes(bytes(2 * MIB) + middle + bytes(2 * MIB))
        digests.add(files_digest(publish(str(source), str(tmp_path / "m"), number).path))
    assert len(digests) == 2


def test_manifest_that_cannot_be_read_is_a_file_like_others(version: Path) -> None:
    (version / MANIFEST_NAME).write_bytes(b"{")
    before = files_digest(str(version))
    (version / MANIFEST_NAME).write_bytes(b"[")
    assert files_digest(str(version)) != before


def test_config_inside_the_version_is_no_file_of_it(version: Path) -> None:
    before = files_digest(str(version))
    (version / "config.pbtxt").write_text("max_batch_size: 8")
    assert files_digest(str(version)) == before
    (version / "data" / "config.pbtxt").write_text("a file of the model")
    assert files_digest(str(version)) != before
    assert "config.pbtxt" not in version_files(str(version))


def test_version_that_is_gone_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ServingError) as caught:
        files_digest(str(tmp_path / "1"))
    assert caught.value.code is StatusCode.NOT_FOUND


def test_dangling_link_is_not_found(version: Path) -> None:
    os.symlink("nowhere", version / "data" / "link")
    with pytest.raises(ServingError) as caught:
        files_digest(str(version))
    assert caught.value.code is StatusCode.NOT_FOUND


def _settings(text: str) -> ModelSettings:
    return parse_model_settings(text, "config.pbtxt")


RAY = 'instance_group { worker: "ray" count: 2 ray_actor_options { num_cpus: 1 } }'


def test_generation_has_eight_digits_and_is_the_same_each_time(version: Path) -> None:
    found = {generation_of(str(version), _settings(RAY), "pytorch_export") for _ in range(3)}
    assert len(found) == 1
    (text,) = found
    assert len(text) == 8
    assert int(text, 16) >= 0


@pytest.mark.parametrize(
    "text",
    [
        'instance_group { worker: "ray" count: 3 ray_actor_options { num_cpus: 1 } }',
        'instance_group { worker: "ray" count: 2 ready_replicas: 1 ray_actor_options { num_cpus: 1 } }',
        'instance_group { worker: "ray" count: 2 max_ongoing_batches: 4 ray_actor_options { num_cpus: 1 } }',
        f'name: "m" {RAY}',
        f"retry_lost_batches: false {RAY}",
        f"version_policy {{ latest {{ num_versions: 2 }} }} {RAY}",
    ],
    ids=["count", "ready_replicas", "max_ongoing_batches", "name", "retry_lost_batches", "version_policy"],
)
def test_what_a_replica_does_not_know_of_leaves_the_generation_alone(version: Path, text: str) -> None:
    of_both = {generation_of(str(version), _settings(each), "pytorch_export") for each in (RAY, text)}
    assert len(of_both) == 1


def test_replicas_that_are_added_one_by_one_have_the_same_generation(version: Path) -> None:
    settings = _settings(RAY)
    groups = settings.instance_group
    for changed in ((*groups, *groups), (groups[0].model_copy(update={"count": 1}),) * 3):
        more = settings.model_copy(update={"instance_group": changed})
        assert generation_of(str(version), more, "python") == generation_of(str(version), settings, "python")
    nothing, default = _settings(""), _settings("instance_group { count: 4 }")
    assert generation_of(str(version), nothing, "python") == generation_of(str(version), default, "python")


@pytest.mark.parametrize(
    "text",
    [
        'instance_group { worker: "ray" count: 2 ray_actor_options { num_cpus: 2 } }',
        'instance_group { worker: "ray" count: 2 kind: KIND_GPU ray_actor_options { num_cpus: 1 } }',
        'instance_group { worker: "ray" count: 2 placement_strategy: PACK ray_actor_options { num_cpus: 1 } }',
        f"max_batch_size: 8 {RAY}",
        f'{RAY} parameters {{ key: "a" value {{ string_value: "b" }} }}',
        f'{RAY} input {{ name: "x" data_type: TYPE_FP32 dims: 4 }} output {{ name: "y" data_type: TYPE_FP32 dims: 4 }}',
    ],
    ids=["needs", "kind", "strategy", "max_batch_size", "parameters", "tensors"],
)
def test_other_settings_are_another_generation(version: Path, text: str) -> None:
    of_both = {generation_of(str(version), _settings(each), "pytorch_export") for each in (RAY, text)}
    assert len(of_both) == 2


def test_files_platform_and_our_version_are_in_the_generation(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _settings(RAY)
    found = {generation_of(str(version), settings, platform) for platform in ("pytorch_export", "pytorch_libtorch")}
    (version / "model.pt2").write_bytes(b"mended!")
    found.add(generation_of(str(version), settings, "pytorch_export"))
    monkeypatch.setattr(generation, "version_of", lambda name: "99.0")
    found.add(generation_of(str(version), settings, "pytorch_export"))
    assert len(found) == 4
