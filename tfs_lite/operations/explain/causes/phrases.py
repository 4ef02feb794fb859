"""Words that several causes say: figures, fields of configs, and how a model comes to be served."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tfs_lite.config.text import YAML_ENDINGS
from tfs_lite.core.loader import size_text
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import listed
from tfs_lite.operations.explain.explanation import Verdict
from tfs_lite.operations.explain.snapshot import ModelSnapshot

size = size_text
FROM_REPOSITORY = "--model_repository"
SHORT = {
    Verdict.FAILED: "has failed",
    Verdict.REFUSED: "is refused",
    Verdict.NOT_CONFIGURED: "is not served under this name",
    Verdict.NOT_ON_DISK: "is not on disk",
    Verdict.REJECTED: "must not answer",
    Verdict.HELD_BACK: "is held back",
    Verdict.WAITING: "waits",
    Verdict.LOADING: "is being loaded",
    Verdict.SERVING_OTHER: "does not answer",
    Verdict.LEAVING: "is being withdrawn",
    Verdict.NOT_WANTED: "is not wanted",
    Verdict.ENDED: "was withdrawn",
    Verdict.SERVING: "answers",
}
"""Short words for the state of a version."""


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def numbers(versions: Sequence[int]) -> str:
    return listed([str(version) for version in versions])


def name_of(servable_id: ServableId) -> str:
    return f"{servable_id.name}@{servable_id.version}"


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def clock(seconds: float | None) -> str:
    """The time of day in UTC."""
    return "once" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def latest(model: ModelSnapshot, count: int) -> str:
    """The field of the config that the model has, in its syntax."""
    if _is_yaml(model):
        return f"{_policy_field(model)}: {{latest: {{num_versions: {count}}}}}"
    return f"{_policy_field(model)} {{ latest {{num_versions: {count}}} }}"


def specific(model: ModelSnapshot, versions: Sequence[int]) -> str:
    if _is_yaml(model):
        return f"{_policy_field(model)}: {{specific: {{versions: [{', '.join(map(str, versions))}]}}}}"
    return f"{_policy_field(model)} {{ specific {{ {' '.join(f'versions: {v}' for v in versions)} }} }}"


def _policy_field(model: ModelSnapshot) -> str:
    return "version_policy" if model.server.source == FROM_REPOSITORY else "model_version_policy"


def _is_yaml(model: ModelSnapshot) -> bool:
    if model.server.source == FROM_REPOSITORY:
        return config_name(model).endswith(YAML_ENDINGS)
    return model.server.has_yaml


def config_name(model: ModelSnapshot) -> str:
    """The name of the config beside the versions, or of the one that there could be."""
    return model.config_name or MODEL_SETTINGS_FILES[0]


def dynamic_batching(model: ModelSnapshot) -> str:
    """The field that turns batching on, in the syntax of the config beside the model's versions."""
    return "dynamic_batching: {}" if config_name(model).endswith(YAML_ENDINGS) else "dynamic_batching {}"


def not_as_published(number: int) -> str:
    """The remedy for a published version whose files were changed; ``number`` is the next one."""
    new = f"publish the changed ones as version {number}: tfs-lite publish SRC --base BASE --version {number}"
    return f"a published version is not changed in place: {new}; or put the files back as they were published"


def load_it(model: ModelSnapshot) -> str:
    """The way in which a model comes to be served."""
    if model.server.by_calls:
        if model.server.offered and model.name not in model.server.offered:
            there = listed(sorted(model.server.offered))
            return f"put it into the repository or the config file (there are: {there}), and load it by a call"
        return f"load it: POST /v2/repository/models/{model.name}/load"
    if model.server.source == FROM_REPOSITORY:
        return f"make a directory {model.name} with a version in it below the repository"
    entry = f'config {{ name: "{model.name}" base_path: "..." }}'
    if model.server.has_yaml:
        entry = f'- {{name: "{model.name}", base_path: "..."}} below config:'
    return f"add {entry} to the model config and reload: tfs-lite reload FILE"
