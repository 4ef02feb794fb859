"""Version labels: names such as ``stable`` or ``canary`` for versions of a model.

A label points to one version of its model; several labels may point to the same one. The whole table is replaced
by each accepted config. :func:`check_labels` decides, without effects, whether a new table may be accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument

Labels = Mapping[str, Mapping[str, int]]
"""Model -> label -> version."""


def check_labels(
    wanted: Labels,
    current: Labels,
    is_available: Callable[[ServableId], bool],
    *,
    allow_unavailable: bool = False,
    first_config: bool = False,
) -> None:
    """Raises FAILED_PRECONDITION if a label of ``wanted`` is new or moves, to a version that is not available.

    A label that stays where it is, is no reason to refuse: what its version does has nothing to do with the config. Two
    more kinds are accepted: with ``allow_unavailable`` a new label, and any label of the server's first config, which
    applies as soon as its version is available.
    """
    for model, labels in wanted.items():
        known = current.get(model, {})
        for label, version in labels.items():
            accepted = first_config or known.get(label) == version or (allow_unavailable and label not in known)
            if not accepted and not is_available(ServableId(model, version)):
                raise failed_precondition(
                    f'Request to assign label "{label}" to version {version} of model "{model}", '
                    "which is not currently available for inference"
                )


class VersionLabels:
    """The labels that count now. The table is replaced as a whole, so readers need no lock."""

    def __init__(self) -> None:
        self._table: dict[str, dict[str, int]] | None = None

    @property
    def table(self) -> Labels:
        return self._table or {}

    def replace(self, table: Labels) -> None:
        """Puts a checked table in force; labels that it does not mention are gone."""
        self._table = {model: dict(labels) for model, labels in table.items()}

    def version(self, ref: ModelRef) -> int | None:
        """The version that a reference asks for, by number or by label; None: any. Errors as of :meth:`resolve`."""
        return ref.version if ref.label is None else self.resolve(ref.name, ref.label)

    def resolve(self, model: str, label: str) -> int:
        """The version that the label names. INVALID_ARGUMENT for an unknown label, UNAVAILABLE before the first
        table."""
        if self._table is None:
            raise ServingError(StatusCode.UNAVAILABLE, f'Model labels does not init yet (model "{model}")')
        labels = self._table.get(model, {})
        if label not in labels:
            known = ", ".join(sorted(labels)) or "none"
            raise invalid_argument(
                f'Unrecognized servable version label: {label}. Model "{model}" has the labels: {known}'
            )
        return labels[label]
