"""The names in the paths of the KServe V2 protocol: a model and its version, or a region of shared memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from tfs_lite.core.servable import MAX_VERSION, parse_version
from tfs_lite.core.status import invalid_argument


@dataclass(frozen=True, slots=True)
class V2Target:
    """``model`` and ``region`` None mean all of them. ``version`` None means the newest."""

    model: str | None = None
    version: int | None = None
    region: str | None = None

    @property
    def name(self) -> str:
        """The name of the model, where the path has one."""
        assert self.model is not None
        return self.model


def read_target(names: Mapping[str, str]) -> V2Target:
    """Reads the target from the names in a path, still percent-encoded. INVALID_ARGUMENT for a version that is no whole
    number from 0."""
    model, region = names.get("model"), names.get("region")
    return V2Target(
        None if model is None else unquote(model),
        read_version(names.get("version")),
        None if region is None else unquote(region),
    )


def read_version(text: str | None) -> int | None:
    """None and the empty text name no version. INVALID_ARGUMENT."""
    if not text:
        return None
    version = parse_version(text)
    if version is None:
        raise invalid_argument(
            f"failed to get model version from specified version string '{text:.40}', "
            f"expected a whole number from 0 to {MAX_VERSION}"
        )
    return version
