"""The generation of a version, which tells replicas that may answer for one another from those that may not.

    files -> files_digest                                     equal on every node that has the same files
    files_digest, settings, platform, our version -> generation_of    part of a replica's name

A version whose files were mended, or whose config says something else, has another generation, and so other replicas.
Hashing all of a large model takes longer than loading it; so a file counts with what its manifest says, or, without
one, with its first and its last MiB.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from enum import Enum
from typing import Any

from tfs_lite.cluster.replicas.facts import version_of
from tfs_lite.config.guard import GuardSettings
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.core.manifest import (
    FILES_ABOUT_LOADS,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    Manifest,
    is_litter,
    is_looked_at,
    parse_manifest,
)
from tfs_lite.core.status import ServingError, not_found

DIGEST_DIGITS = 32
GENERATION_DIGITS = 8
_ENDS = 1 << 20
_HEX = frozenset("0123456789abcdef")
_OF_THE_SERVER = {
    "name": "",
    "version_policy": None,
    "retry_lost_batches": True,
    "autoscaling_config": None,
    "guard": GuardSettings(),
}
"""Fields of the settings that change nothing in a replica."""
_OF_THE_SERVER_IN_GROUPS = {"name": "", "count": 1, "ready_replicas": None, "max_ongoing_batches": None}


def version_files(directory: str) -> dict[str, int]:
    """The bytes of each file of a version, by its path inside with ``/`` between the parts, in order. Configs and
    recorded answers are about loads, and not among them, nor is what is not looked at. NOT_FOUND if the directory or a
    file is gone."""
    found: dict[str, int] = {}
    try:
        if not os.path.isdir(directory):
            raise FileNotFoundError
        for folder, folders, names in os.walk(directory):
            folders[:] = [name for name in folders if not is_litter(name)]
            below = os.path.relpath(folder, directory).replace(os.sep, "/")
            for name in filter(is_looked_at, names):
                path = name if below == "." else f"{below}/{name}"
                if path not in FILES_ABOUT_LOADS:
                    found[path] = os.stat(os.path.join(folder, name)).st_size
    except FileNotFoundError:
        raise not_found(f"version {os.path.basename(directory)}: its files are gone") from None
    return dict(sorted(found.items()))


def files_digest(directory: str) -> str:
    """Digests a directory: :data:`DIGEST_DIGITS` hexadecimal digits of names, sizes and contents. Reads at most 2 MiB
    of each file. NOT_FOUND as :func:`version_files`; other errors of the disk are raised as they are."""
    manifest = read_manifest(directory)
    digest = hashlib.sha256()
    for name, size in version_files(directory).items():
        if manifest is not None and name == MANIFEST_NAME:
            continue  # it has stamps, which a copy does not share
        listed = manifest.files.get(name) if manifest else None
        of_content = listed.sha256 if listed and listed.size == size else _hash_of_ends(directory, name, size)
        digest.update(f"{name}\0{size}\0{of_content}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:DIGEST_DIGITS]


def has_digest(directory: str, digest: str) -> bool:
    """Whether the files of a version are those of this digest; False too if some are gone."""
    try:
        return files_digest(directory) == digest
    except ServingError:
        return False


def is_digest(text: str) -> bool:
    """Whether it looks like a result of :func:`files_digest`."""
    return len(text) == DIGEST_DIGITS and _HEX.issuperset(text)


def generation_of(directory: str, settings: ModelSettings, platform: str) -> str:
    """The generation: :data:`GENERATION_DIGITS` hexadecimal digits of the version's files, of its settings as far as
    replicas depend on them, of the platform that opens it and of our version. Raises as :func:`files_digest`."""
    groups = settings.instance_group or (InstanceGroup(),)
    alike = dict.fromkeys(group.model_copy(update=_OF_THE_SERVER_IN_GROUPS) for group in groups)
    of_replicas = settings.model_copy(update={**_OF_THE_SERVER, "instance_group": tuple(alike)})
    parts = [files_digest(directory), _plain(of_replicas.model_dump()), platform, version_of("tfs-lite")]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:GENERATION_DIGITS]


def read_manifest(directory: str) -> Manifest | None:
    """Reads the manifest; None if there is none, or it says nothing that can be read: then it is a file like others."""
    try:
        with open(os.path.join(directory, MANIFEST_NAME), "rb") as file:
            return parse_manifest(file.read(MAX_MANIFEST_BYTES))
    except (FileNotFoundError, ServingError):
        return None


def _hash_of_ends(directory: str, name: str, size: int) -> str:
    digest = hashlib.sha256()
    with open(os.path.join(directory, name), "rb") as file:
        digest.update(file.read(_ENDS))
        if size > _ENDS:
            file.seek(max(size - _ENDS, _ENDS))
            digest.update(file.read(_ENDS))
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
