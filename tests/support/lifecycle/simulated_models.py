"""Model directories of a simulation: a disk in memory, and a second record of what was put there.

A version is two files. ``recipe.json`` says how the version behaves when it is loaded; ``weights.safetensors`` is there
so that a half-written version can be told from a whole one. The record (:class:`StoredVersion`) is kept beside the disk
and never read from it, so that what a source makes of the disk can be checked against it.
"""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import asdict, dataclass

from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk

BASES = ("/models/a", "/models/b", "/models/c", "/models/spare")
_RECIPE, _WEIGHTS = "recipe.json", "weights.safetensors"
_MOMENT = 1 / 128
_WHOLE = (2).to_bytes(8, "little") + b"{}"


class Flaw(enum.Enum):
    """What is wrong with a version for good, until its files are replaced."""

    NONE = "none"
    UNREADABLE = "unreadable"
    """No loader can be made: the item arrives at the manager with an error."""
    CORRUPT = "corrupt"
    """Every load fails, and is worth a retry."""
    DAMAGED = "damaged"
    """Every load fails, and is not worth a retry."""
    UNESTIMABLE = "unestimable"
    """Its loader cannot say what it needs."""
    ALIEN = "alien"
    """It wants a device that the machine does not have."""
    FORGETFUL = "forgetful"
    """It loads, and cannot say afterwards what it takes."""
    MESSY = "messy"
    """It loads, and its unload raises."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a version behaves. ``ram`` is bound to main memory; ``gpu`` goes to some GPU, chosen by the load."""

    ram: int = 1
    gpu: int = 0
    shrinks: bool = False
    """Takes half of ``ram`` once it is loaded."""
    load_failures: int = 0
    """So many loads fail before one succeeds, for every loader made."""
    estimate_failures: int = 0
    flaw: Flaw = Flaw.NONE
    remote: bool = False
    """Its instances are replicas in a cluster: without room there, its load waits."""

    def to_bytes(self) -> bytes:
        return json.dumps({**asdict(self), "flaw": self.flaw.value}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Recipe:
        fields = json.loads(data)
        return cls(**{**fields, "flaw": Flaw(fields["flaw"])})


class Arrival(enum.Enum):
    """How a version comes to the disk."""

    RENAMED = "renamed"
    """All of it at once."""
    PUBLISHED = "published"
    """All of it at once, with a manifest whose digests a reader has to check."""
    COPIED = "copied"
    """File by file; ``finish`` brings the rest."""


@dataclass(slots=True)
class StoredVersion:
    """What the test knows of one version directory."""

    recipe: Recipe
    all_there: bool
    promised: Recipe | None
    """What its manifest speaks of; None without one."""
    changed: float

    @property
    def whole(self) -> bool:
        return self.all_there and self.promised in (None, self.recipe)


class ModelStore:
    """``bases``: every base path that exists, with its versions. ``denied``: base paths that cannot be listed.

    Every change takes a moment: as on a real disk, time stamps tell two states of a file apart.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.disk = MemoryDisk(clock)
        self.disk.mkdir("/models")
        self.bases: dict[str, dict[int, StoredVersion]] = {}
        self.denied: set[str] = set()

    def push(self, base: str, version: int, recipe: Recipe, arrival: Arrival) -> None:
        """A new version. What was under that number is replaced."""
        self._clock.advance(_MOMENT)
        path = f"{base}/{version}"
        if arrival is Arrival.COPIED:
            if version in self.bases.get(base, {}):
                self.disk.remove(path)
            self.disk.write(f"{path}/{_RECIPE}", recipe.to_bytes())
            self.disk.write(f"{path}/{_WEIGHTS}", _WHOLE[:9])
        else:
            files = {_RECIPE: recipe.to_bytes(), _WEIGHTS: _WHOLE}
            if arrival is Arrival.PUBLISHED:
                files[MANIFEST_NAME] = _manifest(files)
            for name, data in files.items():
                self.disk.write(f"{base}/.staging/{name}", data)
            self.disk.rename(f"{base}/.staging", path)
        self.bases.setdefault(base, {})[version] = StoredVersion(
            recipe,
            all_there=arrival is not Arrival.COPIED,
            promised=recipe if arrival is Arrival.PUBLISHED else None,
            changed=self._clock.monotonic(),
        )

    def finish(self, base: str, version: int) -> None:
        """The rest of a version that is being copied; the same file again for any other."""
        self._clock.advance(_MOMENT)
        self.disk.write(f"{base}/{version}/{_WEIGHTS}", _WHOLE)
        known = self.bases[base][version]
        known.all_there, known.changed = True, self._clock.monotonic()

    def overwrite(self, base: str, version: int, recipe: Recipe) -> None:
        """Another recipe in place. A manifest stays, and does not fit any more."""
        self._clock.advance(_MOMENT)
        self.disk.write(f"{base}/{version}/{_RECIPE}", recipe.to_bytes())
        known = self.bases[base][version]
        known.recipe, known.changed = recipe, self._clock.monotonic()

    def delete(self, base: str, version: int) -> None:
        self._clock.advance(_MOMENT)
        self.disk.remove(f"{base}/{version}")
        del self.bases[base][version]

    def make_base(self, base: str) -> None:
        self.disk.mkdir(base)
        self.bases.setdefault(base, {})

    def remove_base(self, base: str) -> None:
        self.allow(base)
        self.disk.remove(base)
        del self.bases[base]

    def deny(self, base: str) -> None:
        self.disk.deny(base)
        self.denied.add(base)

    def allow(self, base: str) -> None:
        self.disk.allow(base)
        self.denied.discard(base)

    def is_listable(self, base: str) -> bool:
        return base in self.bases and base not in self.denied

    def recipe_at(self, path: str) -> Recipe:
        """What an adapter finds at ``path``; ServingError if it is not there."""
        try:
            with self.disk.open(f"{path}/{_RECIPE}") as file:
                return Recipe.from_bytes(file.read())
        except OSError as error:
            raise ServingError(StatusCode.NOT_FOUND, f"the files are gone: {error.strerror}") from None

    def read(self, path: str) -> Recipe:
        """What a loader finds at ``path``; ServingError if it is not there, or not all of it."""
        recipe = self.recipe_at(path)
        with self.disk.open(f"{path}/{_WEIGHTS}") as weights:
            if weights.read() != _WHOLE:
                raise ServingError(StatusCode.DATA_LOSS, "the weights are truncated")
        return recipe


def _manifest(files: dict[str, bytes]) -> bytes:
    return Manifest(
        {name: ManifestFile(len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    ).to_bytes()
