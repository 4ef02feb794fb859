"""The verdict whether a version directory is complete or its files are still arriving: pure, over what is known.

With a manifest: when every listed file has the listed size and digest. Without one: when names, sizes and times have
been quiet for a while and every archive is structurally whole. A version without files is all there when the config
beside it says that it needs none. Costly evidence (opening archives, hashing) is asked
for only when everything cheap already speaks for the version.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tfs_lite.core.manifest import FileStat, Manifest, Tree

MIN_RETRY = 0.01
RESTLESS_SECONDS = 30.0
"""The seconds without a quiet moment after which the reason names a file that goes on changing."""


@dataclass(frozen=True, slots=True)
class Complete:
    """All there. Two states of one version directory have different revisions, or different ``configs``, which is the
    revision of the config in it, empty without one."""

    revision: str
    configs: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The verdict "not yet" with its reason, in words for people. ``retry_in``: seconds after which the verdict may
    change by itself. ``settling``: it will change by itself, if nothing else happens to the files. ``being_written``:
    something does. ``fetching``: the files are being read, which takes as long as it takes, and come on."""

    reason: str
    retry_in: float | None = None
    settling: bool = False
    being_written: bool = False
    fetching: bool = False


class Need(enum.Enum):
    """The verdict depends on evidence that has not been gathered yet."""

    STRUCTURE = "structure"
    """Open the archives."""
    DIGESTS = "digests"
    """Hash the files that :func:`unverified` names, or fetch all of them."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about a version other than its file list. All of it belongs to one state of the files.

    ``structure`` and ``digests``: None while not looked at, empty when fine, else what is wrong.
    """

    manifest: Manifest | None = None
    manifest_problem: str = ""
    wall_time: float = 0.0
    """Now, in the time of the files' time stamps."""
    unchanged_for: float = 0.0
    """Seconds for which polls have seen the files exactly like this."""
    seen_changing: bool = False
    """Polls have seen the files in another state before: they are being written right now."""
    structure: str | None = None
    digests: str | None = None
    needs_files: bool = True
    """Whether a version without files is one that waits for them. Asked for only when there are none."""
    restless_for: float = 0.0
    """Seconds for which polls have found them changed again and again, without a quiet moment."""
    restless: str = ""
    """A file that was changed last."""
    fetches: bool = False
    """Whether the files come to this machine only when their digests are checked."""
    clock_lag: float = 0.0
    """Seconds by which the clock of the time stamps may be behind ours, as far as stamps of this disk show."""


def judge(tree: Tree, evidence: Evidence, quiet_period: float) -> Complete | Waiting | Need:
    """The verdict, or the evidence that is missing for one."""
    if tree.overflow:
        return Waiting(f"too many files: more than {len(tree.files)} entries")
    if evidence.manifest_problem:
        return Waiting(evidence.manifest_problem)
    if evidence.manifest is not None:
        return _judge_by_manifest(tree, evidence, evidence.manifest)
    if not has_files(tree):
        return Waiting("no files yet") if evidence.needs_files else _judge_contents(tree, evidence)
    left = quiet_left(tree, evidence, quiet_period)
    if left > 0:
        reason = f"files changed less than {quiet_period:g} s ago"
        if evidence.restless_for > RESTLESS_SECONDS:
            reason += f", and have gone on changing for {RESTLESS_SECONDS:g} s and more: {evidence.restless}"
        return Waiting(reason, max(left, MIN_RETRY), settling=True, being_written=evidence.seen_changing)
    if evidence.structure is None:
        return Need.STRUCTURE
    return Waiting(evidence.structure) if evidence.structure else _judge_contents(tree, evidence)


def has_files(tree: Tree) -> bool:
    """A copying tool's temporary files alone make no version."""
    return any(not file.is_partial for file in tree.files)


def quiet_left(tree: Tree, evidence: Evidence, quiet_period: float) -> float:
    """Seconds until the files count as quiet; 0 or less when they do.

    Quiet is what polls have watched, by our own clock. A version that was there long before the first poll need not be
    watched, if its time stamps tell: until the files have been seen changing, not when they lie in the future, and only
    as far as another stamp of that disk shows that its clock is not behind. The clock of a file server may be hours
    behind, and then a copy that has just begun looks old.
    """
    by_watching = quiet_period - evidence.unchanged_for
    age = evidence.wall_time - tree.newest_ns / 1e9
    if evidence.seen_changing or age < 0:
        return by_watching
    return min(by_watching, quiet_period - (age - evidence.clock_lag))


def unverified(tree: Tree, manifest: Manifest) -> Sequence[FileStat]:
    """The listed files that have to be hashed: those that are not the very files the publisher wrote and synced."""
    listed = manifest.files
    return [file for file in tree.files if file.name in listed and file.stamp != listed[file.name].stamp]


def _judge_by_manifest(tree: Tree, evidence: Evidence, manifest: Manifest) -> Complete | Waiting | Need:
    problem = manifest.size_problem({file.name: file.size for file in tree.files})
    if problem:
        return Waiting(problem)
    return _judge_contents(tree, evidence, unverified(tree, manifest))


def _judge_contents(tree: Tree, evidence: Evidence, unverified: Sequence[FileStat] = ()) -> Complete | Waiting | Need:
    """The last step: the contents of the files, which are read only now."""
    if evidence.digests is None and (evidence.fetches or unverified):
        return Need.DIGESTS
    return Waiting(evidence.digests) if evidence.digests else _complete(tree)


def _complete(tree: Tree) -> Complete:
    configs = tree.configs
    return Complete(tree.version.fingerprint, configs.fingerprint if configs.files else "")
