"""Version labels: names such as ``stable`` or ``canary`` for versions of a model.

A label points to one version of its model; several labels may point to the same one. The whole table is replaced
by each accepted config. :func:`check_labels` decides, without effects, whether a new table may be accepted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set

from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode, failed_precondition, invalid_argument

Labels = Mapping[str, Mapping[str, int]]
"""Model -> label -> version."""


def check_labels(
    wanted: Labels,
    current: Labels,
    is_available: Callable[[ServableId], bool],
    *,
    rejected: Callable[[str], Mapping[int, Status]] = lambda model: {},
    brought: Callable[[str], Set[int]] = lambda model: frozenset(),
    allow_unavailable: bool = False,
    first_config: bool = False,
) -> None:
    """Raises FAILED_PRECONDITION if a label of ``wanted`` is new or moves, to a version that is not available, or that
    is ``rejected``: kept from answering, with the reason.

    A label that stays where it is, is no reason to refuse: what its version does has nothing to do with the config.
    Three more kinds are accepted, which apply as soon as their version is available: a label to a version that the same
    config brings, because it names it (``brought``), a new label with ``allow_unavailable``, and any label of the
    server's first config.
    """
    for model, labels in wanted.items():
        known = current.get(model, {})
        for label, version in labels.items():
            if first_config or known.get(label) == version:
                continue
            if (why := rejected(model).get(version)) is not None:
                raise failed_precondition(
                    f'Request to assign label "{label}" to version {version} of model "{model}", '
                    f"which must not answer: {why.message}; to load it again: tfs-lite guard retry {model}@{version}"
                )
            is_accepted = is_available(ServableId(model, version)) or (allow_unavailable and label not in known)
            if is_accepted or version in brought(model):
                continue
            raise failed_precondition(
                f'Request to assign label "{label}" to version {version} of model "{model}", '
                "which is not currently available for inference; if its files are complete, the same config can load "
                f"it and then move the label: model_version_policy {{ specific {{ versions: {version} }} }}, with "
                "every other version that is to stay"
            )


def instead_of(version: int, available: Iterable[int], rejected: Collection[int]) -> int | None:
    """The version that a label means whose own ``version`` must not answer: the highest ``available`` one below it that
    is not ``rejected``; None: there is none, and it means the version that answers requests which name none."""
    return max((each for each in available if each < version and each not in rejected), default=None)


class VersionLabels:
    """The labels that count now. What readers see is replaced as a whole, so they need no lock.

    A label that moves to a version which is not available yet means the version of before until then, if there was one.
    One whose version must be loaded again means the version that answers until then.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()  # guards the writes of the fields below
        self._table: dict[str, dict[str, int]] | None = None
        # Of labels that wait for their version, the one that they mean until then; None: the one that answers.
        self._before: Mapping[str, Mapping[str, int | None]] = {}

    @property
    def table(self) -> Labels:
        return self._table or {}

    @property
    def waiting(self) -> Mapping[str, Mapping[str, int | None]]:
        """The labels that wait for their version, each with the one that it means until then; None: the one that
        answers."""
        return self._before

    def replace(self, table: Labels, is_available: Callable[[ServableId], bool] = lambda servable_id: True) -> None:
        """Puts a checked table in force; labels that it does not mention are gone."""
        with self._changing:
            before = {
                model: {
                    label: meant[label]
                    for meant in [{**self.table.get(model, {}), **self._before.get(model, {})}]
                    for label, version in labels.items()
                    if label in meant and meant[label] != version
                }
                for model, labels in table.items()
            }
            self._before = {model: labels for model, labels in before.items() if labels}
            self._table = {model: dict(labels) for model, labels in table.items()}
        for model, labels in self._before.items():
            for version in {table[model][label] for label in labels}:
                if is_available(ServableId(model, version)):
                    self.arrived(ServableId(model, version))

    def arrived(self, servable_id: ServableId) -> None:
        """The version is available: labels that wait for it mean it now. Any thread; short."""
        name = servable_id.name
        if name not in self._before:
            return
        with self._changing:
            table = self.table.get(name, {})
            left = {
                label: before
                for label, before in self._before.get(name, {}).items()
                if table.get(label) != servable_id.version
            }
            others = {model: labels for model, labels in self._before.items() if model != name}
            self._before = {**others, name: left} if left else others

    def wait(self, servable_id: ServableId, is_available: Callable[[ServableId], bool]) -> None:
        """The version may answer again, and may have to be loaded for that. Any thread; short."""
        name = servable_id.name
        with self._changing:
            names = [label for label, version in self.table.get(name, {}).items() if version == servable_id.version]
            if names:
                known = self._before.get(name, {})
                self._before = {**self._before, name: {**dict.fromkeys(names), **known}}
        if is_available(servable_id):
            self.arrived(servable_id)

    def version(self, ref: ModelRef) -> int | None:
        """The version that a reference means now, by number or by label; None: any. Errors as of :meth:`resolve`."""
        if ref.label is None:
            return ref.version
        version = self.resolve(ref.name, ref.label)
        return self._before.get(ref.name, {}).get(ref.label, version) if self._before else version

    def resolve(self, model: str, label: str) -> int:
        """The version that the label names in the table. INVALID_ARGUMENT for an unknown label, UNAVAILABLE before the
        first table."""
        if self._table is None:
            raise ServingError(StatusCode.UNAVAILABLE, f'Model labels does not init yet (model "{model}")')
        labels = self._table.get(model, {})
        if label not in labels:
            known = ", ".join(sorted(labels)) or "none"
            raise invalid_argument(
                f'Unrecognized servable version label: {label}. Model "{model}" has the labels: {known}'
            )
        return labels[label]
