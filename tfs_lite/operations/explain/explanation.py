"""The values of an explanation: a verdict, the chain of causes from the nearest to the root, what happens next, and who
answers meanwhile. ``as_json`` is the schema that every way of asking shares.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfs_lite.core.history import time_text

MAX_TEXT = 500
"""Characters of one text; longer ones are cut."""
MAX_CHAIN = 8
"""Causes of one explanation."""


MOSTLY = 0.5
"""The share of failed requests beyond which a model counts as one that has failed."""


class Verdict(enum.Enum):
    """The verdicts on a model or one of its versions, worst first. There is exactly one at every moment."""

    FAILED = "its last attempt to load has failed, or what runs it is gone for good"
    REFUSED = "its files cannot be served as they are"
    NOT_CONFIGURED = "no model of this name is served"
    NOT_ON_DISK = "there is no such version directory"
    REJECTED = "it was taken back, or an operator went back to an older version"
    HELD_BACK = "recorded answers or its signature keep it from answering"
    WAITING = "something has to come first"
    LOADING = "an attempt to load it is under way"
    SERVING_OTHER = "what was asked for does not answer, and another version of the model does"
    LEAVING = "it is being withdrawn"
    NOT_WANTED = "the version policy passes over it"
    ENDED = "it was withdrawn"
    SERVING = "a request is answered by it"


_PLACES = {verdict: place for place, verdict in enumerate(Verdict)}


@dataclass(frozen=True, slots=True)
class Link:
    """One cause, by its name in ``docs/explain.md``. ``text`` names what it is about, ``fix`` what to do. ``since``:
    seconds since 1970, None if it is not known. ``doc`` is a page below ``docs/``."""

    cause: str
    text: str
    fix: str = ""
    since: float | None = None
    doc: str = "explain.md"

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "text": shortened(self.text),
            "since": time_text(self.since),
            "fix": shortened(self.fix),
            "doc": self.doc,
        }


@dataclass(frozen=True, slots=True)
class Next:
    """The next step that happens by itself, and its time: seconds since 1970; None: not before something else
    happens."""

    what: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class AnswersNow:
    """The version that answers a reference: ``unversioned``, or a label."""

    reference: str
    version: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class VersionLine:
    """One version of the model, and its verdict."""

    version: int
    verdict: Verdict
    sentence: str
    since: float | None = None

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "verdict": self.verdict.name,
            "sentence": shortened(self.sentence),
            "since": time_text(self.since),
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer. ``version`` is None where none was asked for; then the verdict is that of the model. ``rollout`` says
    how the model stands with the guard, None where there is none. ``processes`` has those that run its versions and
    what the sandbox of each holds, ``events`` the latest events, ``more`` what the features of the server add, by the
    name of the member; all are JSON values."""

    model: str
    version: int | None
    label: str | None
    verdict: Verdict
    sentence: str
    because: tuple[Link, ...] = ()
    waits_for: tuple[str, ...] = ()
    next: Next = Next("")
    answers_now: tuple[AnswersNow, ...] = ()
    versions: tuple[VersionLine, ...] = ()
    rollout: Mapping[str, Any] | None = None
    processes: Sequence[Mapping[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    more: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "version": self.version,
            "label": self.label,
            "verdict": self.verdict.name,
            "sentence": shortened(self.sentence),
            "because": [link.as_json for link in self.because[:MAX_CHAIN]],
            "waits_for": [shortened(name) for name in self.waits_for],
            "next": {"at": time_text(self.next.at), "what": shortened(self.next.what)},
            "answers_now": [
                {"reference": each.reference, "version": each.version, "weight": each.weight}
                for each in self.answers_now
            ],
            "versions": [line.as_json for line in self.versions],
            "rollout": self.rollout,
            "memory": [],
            "processes": list(self.processes),
            "events": list(self.events),
            "requests": [],
            **self.more,
        }


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """One line of a list of models."""

    model: str
    verdict: Verdict
    sentence: str
    version: int | None = None
    """The version that answers requests without a version; None: there is no such version."""
    cause: str | None = None
    """The nearest."""
    fix: str = ""
    failed_share: float = 0.0
    """The share of the requests to its versions that failed, in the last five minutes; 0 where that is not worth a
    word."""

    @property
    def rank(self) -> int:
        """The place of its verdict in a list, worst first. A model most of whose requests fail ranks with those that
        have failed."""
        return _PLACES[Verdict.FAILED if self.failed_share > MOSTLY else self.verdict]

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "verdict": self.verdict.name,
            "sentence": shortened(self.sentence),
            "version": self.version,
            "cause": self.cause,
            "fix": shortened(self.fix),
        }


def worst_first(lines: Iterable[ModelVerdict]) -> list[ModelVerdict]:
    """The lines of a list, by rank; then those that fail most requests, those with a cause, and the others, by name."""

    def place(line: ModelVerdict) -> tuple[int, float, bool, str]:
        share = line.failed_share if line.failed_share > MOSTLY else 0.0
        return line.rank, -share, line.cause is None, line.model

    return sorted(lines, key=place)


def shortened(text: str) -> str:
    """The text shortened to ``MAX_TEXT`` characters, none of them a control character or half of a pair."""
    clean = "".join(char if char.isprintable() else " " for char in text[: MAX_TEXT + 1])
    return clean if len(clean) <= MAX_TEXT else f"{clean[: MAX_TEXT - 3]}..."
