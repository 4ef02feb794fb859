"""Names of things that can be served: ids, data-or-error items, and requests for a version.

A *servable stream* is all versions that share one name (a "model"). A :class:`ServableId` is one version of it.
Sources speak in lists of :class:`ServableData`; lookups speak in :class:`ModelRef`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfs_lite.core.status import OK, Status

T = TypeVar("T")
U = TypeVar("U")

MAX_VERSION = 2**63 - 1


def parse_version(text: str) -> int | None:
    """The version that a text names, be it a directory's name or in a request; None unless it is a whole number from 0
    to ``MAX_VERSION``. Zeros in front do not change the number."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(MAX_VERSION)) and int(digits) <= MAX_VERSION else None


@dataclass(frozen=True, slots=True, order=True)
class ServableId:
    """One version of one stream. Ordered by name, then by version. Versions are int64 and not negative."""

    name: str
    version: int

    def __post_init__(self) -> None:
        if not 0 <= self.version <= MAX_VERSION:
            raise ValueError(f"version {self.version} of {self.name!r} is not in 0..2^63-1")

    def __str__(self) -> str:
        return f"{{name: {self.name} version: {self.version}}}"


@dataclass(frozen=True, slots=True)
class ServableData(Generic[T]):
    """A version with either a payload or the reason why there is none, never both.

    ``revision`` tells two states of the same version apart, for instance before and after its files were
    repaired. It rides along unchanged through adapters. Managers reload a version that ended in an error only
    when it is emitted again with another revision; for healthy versions it is ignored.

    ``given_up``: its source knows that the version has failed, and wants others in its place as far as its version
    policy has any. Managers keep nothing back for it. It rides along too.
    """

    id: ServableId
    status: Status
    revision: str
    _payload: T | None
    given_up: bool = False

    @classmethod
    def ok(cls, servable_id: ServableId, payload: T, revision: str = "", given_up: bool = False) -> ServableData[T]:
        return cls(servable_id, OK, revision, payload, given_up)

    @classmethod
    def error(
        cls, servable_id: ServableId, status: Status, revision: str = "", given_up: bool = False
    ) -> ServableData[T]:
        if status.ok:
            raise ValueError(f"errored data for {servable_id} needs a status other than OK")
        return cls(servable_id, status, revision, None, given_up)

    @property
    def payload(self) -> T:
        """The payload. Asking an errored item is a programming error."""
        if not self.status.ok:
            raise ValueError(f"{self.id} has no payload: {self.status}")
        return self._payload  # type: ignore[return-value]

    def with_payload(self, payload: U) -> ServableData[U]:
        return ServableData.ok(self.id, payload, self.revision, self.given_up)

    def with_error(self, status: Status) -> ServableData[U]:
        return ServableData.error(self.id, status, self.revision, self.given_up)


StoragePath = str
"""A path or URI of one version directory."""


class VersionState(enum.IntEnum):
    """The state of a version, with its number on the wire (``ModelVersionStatus.State``)."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50

    @classmethod
    def _missing_(cls, value: object) -> VersionState:
        """Numbers of a later protocol are states that we do not know."""
        return cls.UNKNOWN


STAYS_UNTIL = "stays until version"
GOES_ON_WITH = "it goes on with the"
"""The words in the status of a version that answers until what is wanted instead of it does: another version, or
itself with other files or another config."""
DOES_NOT_ANSWER = "it does not answer"
"""The beginning of the message of a version that is available and refuses every request."""


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """One version of a model."""

    version: int
    state: VersionState
    status: Status
    """OK, or why the version failed, waits or is kept."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """The version of a model that a request means: an exact one, the one that a label names, or the newest that is
    ready.

    At most one of ``version`` and ``label`` is set; 0 is a version. ``signature`` is what the request calls, empty for
    the default. Managers look up names and versions; ``ServerCore`` resolves labels before it asks them.
    """

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""

    def __str__(self) -> str:
        """The reference in the words of TensorFlow Serving's errors."""
        return f"Latest({self.name})" if self.version is None else f"Specific({self.name}, {self.version})"
