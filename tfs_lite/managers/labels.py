"""Version labels: names such as ``stable`` or ``canary`` for versions of a model.

A label points to one version of its model; several labels may point to the same one. The whole table is replaced
by each accepted config. :func:`check_labels` decides, without effects, whether a new table may be accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument

Labels = Mapping[str, Mapping[str, int]]
"""Model -> label -> version."""


@dataclass(frozen=True, slots=True)
class LabelRules:
    """What an operator allows. By default a label can only be given to a version that is available."""

    allow_version_labels: bool = True
    allow_for_unavailable: bool = False
    """A label that is new, or stays where it is, may name a version that is not available."""
    force_allow_for_unavailable: bool = False
    """Any label may name any version."""


def check_labels(
    wanted: Labels,
    current: Labels,
    is_available: Callable[[ServableId], bool],
    rules: LabelRules = LabelRules(),
    *,
    first_config: bool = False,
) -> None:
    """Raises FAILED_PRECONDITION if a label of ``wanted`` names a version that is not available, unless the rules allow
    it or this is the server's first config: then a label applies as soon as its version is available."""
    for model, labels in wanted.items():
        for label, version in labels.items():
            accepted = first_config or _accepts_unavailable(rules, current.get(model, {}).get(label), version)
            if not accepted and not is_available(ServableId(model, version)):
                raise failed_precondition(
                    f'Request to assign label "{label}" to version {version} of model "{model}", '
                    "which is not currently available for inference"
                )
    if not rules.allow_version_labels and any(wanted.values()):
        raise failed_precondition("Model version labels are not currently allowed by the server")


def _accepts_unavailable(rules: LabelRules, mapped: int | None, version: int) -> bool:
    return rules.force_allow_for_unavailable or (rules.allow_for_unavailable and mapped in (None, version))


class VersionLabels:
    """The table in force. Replaced whole, so readers need no lock."""

    def __init__(self, allowed: bool = True) -> None:
        self._allowed = allowed
        self._table: dict[str, dict[str, int]] | None = None

    @property
    def table(self) -> Labels:
        return self._table or {}

    def replace(self, table: Labels) -> None:
        """Puts a checked table in force; labels that it does not mention are gone."""
        self._table = {model: dict(labels) for model, labels in table.items()}

    def resolve(self, model: str, label: str) -> int:
        """The version that the label names. INVALID_ARGUMENT for an unknown label or if labels are not allowed;
        UNAVAILABLE before the first table."""
        if not self._allowed:
            raise invalid_argument(f'Version labels are not allowed; model "{model}" was asked for label "{label}"')
        if self._table is None:
            raise ServingError(StatusCode.UNAVAILABLE, f'Model labels does not init yet (model "{model}")')
        labels = self._table.get(model, {})
        if label not in labels:
            known = ", ".join(sorted(labels)) or "none"
            raise invalid_argument(
                f'Unrecognized servable version label: {label}. Model "{model}" has the labels: {known}'
            )
        return labels[label]
