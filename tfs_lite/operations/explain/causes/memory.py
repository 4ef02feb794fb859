"""The cause of versions that wait for memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfs_lite.core.resources import GPU, MAIN, Resource
from tfs_lite.core.status import StatusCode, listed
from tfs_lite.managers.survey import LoadStage
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.causes.phrases import name_of, size
from tfs_lite.operations.explain.explanation import Link, Verdict
from tfs_lite.operations.explain.snapshot import ServerSnapshot, VersionSnapshot

SET_ASIDE = "max_batch_tokens of an encoder, max_num_seqs and max_model_len of a language model"
"""The parameters of configs that reserve memory besides the weights."""


def waits_for_memory(case: Case) -> Link | None:
    found, server, load = case.found, case.server, case.load_in(LoadStage.NEEDS_MEMORY)
    refused = case.failure.code is StatusCode.RESOURCE_EXHAUSTED and case.verdict is not Verdict.SERVING
    if load is None and not refused:
        return None
    figures = _figures(server, found)
    if not figures:
        fix = "make room: unload another version, or serve it where there is more memory"
        return Link("WAITS_FOR_MEMORY", case.failure.message, fix)
    main_only = all(each.resource.device != GPU for each in figures)
    text = "; ".join(map(str, figures))
    if server.beside_models and main_only:
        text += f"; {server.beside_models}"
    leaving = list(map(name_of, server.overview.leaving))
    if leaving:
        text += f"; memory comes free when these have gone: {listed(leaving)}"
    elif load is None and all(each.free >= each.wanted for each in figures):
        text += ": there is room now"
    own = any(view.answers for view in server.overview.by_model.get(case.model.name, {}).values())
    limit = "the container's limit" if server.beside_models else "--total_model_memory_limit_bytes"
    flag = f"raise {limit} if the machine has more" if main_only else "use a larger GPU"
    beside = ", or use --aspired_version_policy=resource, which unloads the old version first" if own else ""
    again = "it is tried again by itself then" if _can_be_renewed(found) else "publish it anew then"
    fix = f"take another model or version out of the config ({again}), or {flag}{beside}"
    if _never_fits(figures):
        fix = (
            f"{flag}, publish a smaller model, or lower what its config sets aside ({SET_ASIDE}): nothing that is "
            "unloaded makes enough room"
        )
    return Link("WAITS_FOR_MEMORY", text, fix, server.wall(load.since) if load is not None else found.since)


def waits_for_room(case: Case) -> bool:
    """Whether it has failed for want of memory, and is tried again when some comes free."""
    found, server = case.found, case.server
    if case.failure.code is not StatusCode.RESOURCE_EXHAUSTED or not _can_be_renewed(found):
        return False
    return bool(server.beside_models) or not _never_fits(_figures(server, found))


def _can_be_renewed(found: VersionSnapshot) -> bool:
    """Whether the manager tries a version that had no memory once more when some comes free, and that may help."""
    return found.view is not None and (found.load is not None or found.view.state.has_loader)


def _never_fits(figures: Sequence[_Memory]) -> bool:
    """Whether it needs more memory than there is."""
    return any(each.wanted > each.total for each in figures)


def _figures(server: ServerSnapshot, found: VersionSnapshot) -> list[_Memory]:
    needs = found.view.estimate.entries if found.view is not None else {}
    return [_Memory.of(server, resource, wanted) for resource, wanted in needs.items()]


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of one kind: how much is wanted, free and there, and the versions that hold it, the largest first."""

    resource: Resource
    wanted: int
    free: int
    total: int
    holders: tuple[str, ...]

    @classmethod
    def of(cls, server: ServerSnapshot, resource: Resource, wanted: int) -> _Memory:
        kind = resource.device, resource.kind
        total = sum(count for each, count in server.memory.entries.items() if (each.device, each.kind) == kind)
        held = server.overview.holders.get(kind, ())
        holders = tuple(f"{name_of(servable_id)} {size(count)}" for count, servable_id in held)
        return cls(resource, wanted, max(total - sum(count for count, _ in held), 0), total, holders)

    def __str__(self) -> str:
        where = "main memory" if self.resource.device == MAIN else f"memory of {self.resource.device}"
        text = f"it needs {size(self.wanted)} of {where}; {size(self.free)} of {size(self.total)} is free"
        return text + (f"; held by {listed(self.holders)}" if self.holders else "")
