"""What a server would do with the versions on disk, found out without loading anything or running any of their code.

Completeness and choice of versions are the source's own (one look, as at the start of a server); platforms, trust and
the inspection of archives are those of the loaders. Only what needs the model in memory stays unchecked.
"""

from __future__ import annotations

import ast
import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfs_lite.adapters import pytorch_export, pytorch_libtorch
from tfs_lite.adapters.contract import VersionFiles
from tfs_lite.adapters.detect import choose_platform, read_version
from tfs_lite.adapters.inspect_archive import unsafe
from tfs_lite.adapters.inspect_artifact import inspect_exported, inspect_script
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.python_model import NAME as PYTHON
from tfs_lite.adapters.python_source import ARTEFACT as PYTHON_SOURCE
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.config.text import load_model_settings
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.status import ServingError, failed_precondition, status_of
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.sources.look import Look, Stream, look_at
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.sources.version_scan import versions_in


class Verdict(enum.Enum):
    """What a server that starts now would do with a version."""

    SERVED = "served"
    WAITING = "waiting"
    """Not complete: it is taken up once it is."""
    REFUSED = "refused"
    """Complete and wanted, but loading it would fail."""
    NOT_WANTED = "not wanted"
    """The version policy passes it over."""


@dataclass(frozen=True, slots=True)
class VersionCheck:
    """One version; ``reason`` says why it is not served."""

    version: int
    verdict: Verdict
    platform: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """One model, highest version first. ``problem``: why its base path has nothing to offer."""

    name: str
    base_path: str
    versions: tuple[VersionCheck, ...]
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Something is served, and nothing that is wanted is held up."""
        verdicts = {check.verdict for check in self.versions}
        return Verdict.SERVED in verdicts and not verdicts & {Verdict.WAITING, Verdict.REFUSED}


def check_model(servable: ServableToMonitor, platform: str, trusted: TrustedPaths, quiet_period: float) -> ModelCheck:
    """``platform`` empty: what the model's config says, else what the files mean."""
    look = _look(servable, quiet_period)
    wanted = {item.id.version: item.payload for item in look.aspired or ()}
    checks = [_check_version(servable.name, version, path, platform, trusted) for version, path in wanted.items()]
    checks += [VersionCheck(version, Verdict.WAITING, "", reason) for version, reason in look.report.waiting.items()]
    known = {check.version for check in checks}
    checks += [
        VersionCheck(version, Verdict.NOT_WANTED, "", "the version policy takes others")
        for version in _versions(servable.base_path)
        if version not in known
    ]
    ordered = tuple(sorted(checks, key=lambda check: check.version, reverse=True))
    return ModelCheck(servable.name, servable.base_path, ordered, look.report.problem.message)


def _look(servable: ServableToMonitor, quiet_period: float) -> Look:
    """As the first look of a server, but with digests hashed before it returns."""
    executor = PoolExecutor("tfs-check", 0)
    inspector = VersionInspector(RealDisk(), SystemClock(), executor, on_progress=lambda: None)
    config = SourceConfig((servable,), quiet_period=quiet_period)
    stream = Stream()
    look_at(servable, config, stream, RealDisk(), inspector)
    executor.run_pending()
    return look_at(servable, config, stream, RealDisk(), inspector)


def _versions(base_path: str) -> list[int]:
    try:
        return list(versions_in(entry.name for entry in RealDisk().list_directory(base_path) if entry.is_directory))
    except OSError:
        return []


def _check_version(name: str, version: int, path: str, platform: str, trusted: TrustedPaths) -> VersionCheck:
    found = platform
    try:
        settings = load_model_settings(Path(path), name)
        files = read_version(path)
        chosen = choose_platform(files, platform or settings.platform, PLATFORMS)
        found = chosen.name
        if chosen.open is None:
            return VersionCheck(version, Verdict.REFUSED, found, chosen.missing)
        trusts = all(trusted.allows(os.path.join(path, file)) for file in ("", *files.names))
        if chosen.needs_trust and not trusts:
            raise unsafe(f"platform {found} runs code of the version ({chosen.artefact})")
        _INSPECTIONS.get(found, _nothing_to_inspect)(files, trusts)
    except (ServingError, OSError) as error:
        return VersionCheck(version, Verdict.REFUSED, found, str(status_of(error)))
    return VersionCheck(version, Verdict.SERVED, found)


def _inspect_exported(files: VersionFiles, trusted: bool) -> None:
    artefact = pytorch_export.ARTEFACT
    inspect_exported(os.path.join(files.directory, artefact), artefact, trusted)


def _inspect_script(files: VersionFiles, trusted: bool) -> None:
    artefact = pytorch_libtorch.ARTEFACT
    inspect_script(os.path.join(files.directory, artefact), artefact, trusted)


def _inspect_source(files: VersionFiles, trusted: bool) -> None:
    """That it is Python, by reading it."""
    source = Path(files.directory, PYTHON_SOURCE).read_bytes()
    try:
        ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise failed_precondition(f"{PYTHON_SOURCE} is not Python: {error}") from None


def _nothing_to_inspect(files: VersionFiles, trusted: bool) -> None:
    """Platforms of other distributions say what is wrong when they load."""


_INSPECTIONS: Mapping[str, Callable[[VersionFiles, bool], None]] = {
    pytorch_export.NAME: _inspect_exported,
    pytorch_libtorch.NAME: _inspect_script,
    PYTHON: _inspect_source,
}
