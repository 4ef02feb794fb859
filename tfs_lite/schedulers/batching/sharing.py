"""Which calls of one signature share a run: what is declared, the sizes that the model takes, and what runs have shown.

The batcher and the schedulers of sequences ask the same object, so that a call that may share no run in the one
shares none in the other either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tfs_lite.core.signature import ShapeContract, Signature, Tensor, shapes_fault
from tfs_lite.schedulers.batching.assembly import rows_fault
from tfs_lite.schedulers.batching.rules import BatchRule, Trim


class RowEvidence:
    """Whether outputs that are served as they come have a row for each row of the inputs.

    A call that runs alone, and is not filled up, gets its own answer in any case. So the first call of a signature runs
    alone. An output that has as many rows then may have them by chance, and shares runs of another number of rows; if
    it has that number as well, it follows the rows. One that has another number never shares a run again.

    Threads: any. Two that look at once see the same or less, and only more calls run alone.
    """

    __slots__ = ("_first", "_follows", "_names", "may_share")

    def __init__(self, names: Collection[str], shown: bool = False) -> None:
        """Of the outputs with these names. ``shown``: runs at the load have shown that all follow the rows."""
        self._names = frozenset(names)
        self._first: dict[str, int] = {}
        self._follows = set(names if shown else ())
        self.may_share: bool | None = True if shown else None
        """None: no run has shown anything yet."""

    def shows(self, outputs: tuple[str, ...]) -> bool:
        """Whether these outputs (empty: all) follow the rows."""
        return self.may_share is True and self._follows.issuperset(outputs or self._names)

    def allows(self, outputs: tuple[str, ...], rows: int) -> bool:
        """Whether calls may share a run of so many rows for these outputs (empty: all)."""
        return self.may_share is True and all(
            name in self._follows or self._first.get(name, rows) != rows
            for name in outputs or self._names or self._first
        )

    def note(self, results: Mapping[str, Tensor], rows: int) -> None:
        """Looks at the results of a run."""
        if self.may_share is False or rows_fault(results, rows) is not None:
            self.may_share = False
            return
        for name in results:
            if self._first.setdefault(name, rows) != rows:
                self._follows.add(name)
        self.may_share = True


class LengthEvidence:
    """Whether outputs that are served as they come are as long as the inputs that their declaration names, so that they
    can be cut where inputs were filled up. One that was as long for two lengths is; one that was not ends the filling.

    Threads: any, as :class:`RowEvidence`.
    """

    __slots__ = ("_first", "_refuted", "_shown", "_trims", "may_fill")

    def __init__(self, trims: Collection[Trim]) -> None:
        self._trims = trims
        self._first: dict[Trim, int] = {}
        self._shown = set[Trim]()
        self._refuted = False
        self.may_fill = False

    def note(self, inputs: Mapping[str, Tensor], results: Mapping[str, Tensor]) -> None:
        """Looks at a run."""
        for trim in self._trims:
            name, axis, (source, source_axis) = trim
            if name in results:
                length = inputs[source].shape[source_axis]
                self._refuted |= results[name].shape[axis : axis + 1] != (length,)
                if self._first.setdefault(trim, length) != length:
                    self._shown.add(trim)
        self.may_fill = not self._refuted and self._shown.issuperset(self._trims)


class Sharing:
    """Which calls of one signature share a run. Threads: any, as :class:`RowEvidence`."""

    __slots__ = ("as_they_come", "evidence", "lengths", "may_run_apart", "rule", "unchecked")

    def __init__(self, signature: Signature, rule: BatchRule | None) -> None:
        """``rule`` is made of the signature; None: no calls share a run."""
        self.rule = rule
        self.as_they_come = signature.contract is not ShapeContract.ALL
        """Outputs may have other shapes than the signature declares."""
        self.evidence: RowEvidence | None = None
        """None where calls may share runs without any, or never."""
        if rule is not None and self.as_they_come:
            self.evidence = RowEvidence(signature.output_names, signature.contract is ShapeContract.ROWS)
        self.lengths: LengthEvidence | None = None
        """None where inputs may be filled up without any, or never are."""
        if rule is not None and rule.trims and self.as_they_come:
            self.lengths = LengthEvidence(rule.trims)
        self.may_run_apart = self.evidence is not None or (rule is not None and rule.conditions is not None)
        """Whether there may be calls that the model takes alone and not together."""
        self.unchecked = signature if signature.contract is ShapeContract.NONE else None
        """The signature, where the inputs of a call may have other shapes than it declares."""

    def is_alone(self, inputs: Mapping[str, Tensor]) -> bool:
        """Whether a call with these inputs shares no run, whatever the others are."""
        if self.rule is None:
            return True
        return self.unchecked is not None and bool(shapes_fault(self.unchecked, inputs))

    def shows_rows(self, outputs: tuple[str, ...], rows: int) -> bool:
        """Whether these outputs (empty: all) of a run of so many rows can be told apart by rows, as far as is known."""
        return self.evidence is None or self.evidence.allows(outputs, rows)

    def takes(self, calls: Sequence[Mapping[str, Tensor]], rows: int) -> bool:
        """Whether the model takes calls with these inputs, which are alike, in one run of so many rows."""
        return self.rule is None or self.rule.takes(calls, rows)
