"""Models as ``status`` and ``reload`` show them: the same table and the same JSON for both protocols."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tfs_lite.cli.output import console, print_json, state_text, table
from tfs_lite.core.loader import LoadPhase, LoadProgress
from tfs_lite.core.servable import DOES_NOT_ANSWER, GOES_ON_WITH, STAYS_UNTIL

if TYPE_CHECKING:
    from rich.table import Table

    from tfs_lite.client import Client


@dataclass(frozen=True, slots=True)
class Version:
    """One version; ``error`` is its status code and message, or empty. ``progress``: how far its load is, if it is
    being loaded and the server says so."""

    version: int
    state: str
    error: str = ""
    progress: LoadProgress | None = None

    @property
    def answers(self) -> bool:
        """Whether it is available and does not refuse every request."""
        return self.state == "AVAILABLE" and DOES_NOT_ANSWER not in self.error

    @property
    def is_to_be_replaced(self) -> bool:
        """Whether it answers only until another version, or its own new files or config, are loaded."""
        return any(words in self.error for words in (STAYS_UNTIL, GOES_ON_WITH))

    @property
    def failed(self) -> bool:
        """Whether something is wrong that keeps it from answering."""
        return bool(self.error) and not self.answers

    @property
    def reason(self) -> str:
        """The progress of the load, and what is wrong; of a version that answers without the code, which would read as
        an outage."""
        said = self.error.partition(": ")[2] if self.answers else self.error
        return "; ".join(filter(None, (str(self.progress or ""), said)))


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model; ``reason`` says why it has no versions to serve."""

    name: str
    versions: tuple[Version, ...] = ()
    reason: str = ""

    @property
    def answers(self) -> bool:
        """Whether a version is available that does not refuse every request."""
        return any(version.answers for version in self.versions)

    @property
    def without_history(self) -> ModelRow:
        """The same without versions that have ended and are older than one that answers."""
        answering = max((version.version for version in self.versions if version.answers), default=0)
        kept = tuple(each for each in self.versions if each.state != "END" or each.version > answering)
        return replace(self, versions=kept)

    @property
    def of_before(self) -> Version | None:
        """The highest version that answers, if all that do are to be replaced by what is wanted now; else None."""
        found = [version for version in self.versions if version.answers]
        replaced = [version for version in found if version.is_to_be_replaced]
        return max(replaced, key=lambda version: version.version) if replaced == found and found else None

    @property
    def coming(self) -> list[int]:
        """The versions on their way, ascending; one that answers counts while other files or settings of it are to
        come."""
        return sorted(
            version.version
            for version in self.versions
            if version.state in ("START", "LOADING") or (version.answers and GOES_ON_WITH in version.error)
        )


def answering(count: int, total: int) -> str:
    """``1 of 2 models answers``."""
    return f"{count} of {total} model{'s' if total != 1 else ''} answer{'s' if 1 in (count, total) else ''}"


def read_grpc(client: Client, name: str) -> ModelRow:
    """Reads what the server says about one model. Raises ServingError."""
    versions = client.status(name)
    return ModelRow(
        name,
        tuple(Version(item.version, item.state.name, "" if item.status.ok else str(item.status)) for item in versions),
    )


def read_rest(item: dict[str, Any]) -> ModelRow:
    """An entry of the list at ``/v1/models``."""
    loads = {entry["version"]: _progress(entry) for entry in item.get("load_progress", ())}
    versions = tuple(
        Version(int(entry["version"]), entry["state"], _error(entry["status"]), loads.get(entry["version"]))
        for entry in item["model_version_status"]
    )
    return ModelRow(item["name"], versions, item.get("reason", ""))


def models_table(models: Iterable[ModelRow]) -> Table:
    rows: list[tuple[Any, ...]] = []
    for model in models:
        if model.reason or not model.versions:
            rows.append((model.name, "-", "-", model.reason or "no versions yet"))
        rows += [
            (model.name, item.version, state_text(item.state, item.failed), item.reason) for item in model.versions
        ]
    return table(("model", "version", "state", "reason"), rows)


def print_models(models: list[ModelRow], as_json: bool) -> None:
    if as_json:
        print_json(models_json(models))
    elif models:
        console().print(models_table(models))
    else:
        print("the server has no models", flush=True)


def models_json(models: Iterable[ModelRow]) -> dict[str, Any]:
    return {"models": [model_json(model) for model in models]}


def model_json(model: ModelRow) -> dict[str, Any]:
    """``progress`` only of versions that have any."""
    shown = asdict(model)
    for version, entry in zip(model.versions, shown["versions"], strict=True):
        del entry["progress"]
        if version.progress is not None:
            entry["progress"] = version.progress.as_json()
    return shown


def _progress(entry: dict[str, Any]) -> LoadProgress | None:
    """None for a phase that this release does not know."""
    try:
        phase = LoadPhase(entry["phase"])
    except ValueError:
        return None
    seconds = entry["seconds"], entry["phase_seconds"]
    return LoadProgress(phase, *seconds, entry.get("read_bytes"), entry.get("expected_bytes"))


def _error(status: dict[str, str]) -> str:
    return "" if status["error_code"] == "OK" else f"{status['error_code']}: {status['error_message']}"
