"""The list of causes, and the chain of those that apply to a case. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tfs_lite.operations.explain.causes import files, guard, loading, memory, serving, storage, wanted
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.explanation import MAX_CHAIN, Link, Verdict
from tfs_lite.operations.explain.verdicts import verdict_of_model

Row: TypeAlias = Callable[[Case], Link | None]

CAUSES: tuple[tuple[Row, ...], ...] = (
    (wanted.label_unknown, guard.label_stays, wanted.label_to_missing),
    (loading.waits_for_models,),
    (serving.replicas_down, serving.worker_down, serving.worker_restarting),
    (guard.goes_back, guard.on_trial),
    (guard.rolled_back, guard.taken_back, guard.held_back),
    (serving.mostly_failing,),
    (serving.queue_full, serving.slow),
    (serving.failing,),
    (serving.new_process_lost, serving.files_not_loaded, serving.config_not_applied),
    (serving.stands_in, serving.stays),
    (loading.load_hangs, loading.loading),
    (loading.process_not_started,),
    (loading.waits_for_load_thread,),
    (memory.waits_for_memory,),
    (loading.waits_for_place,),
    (loading.retrying,),
    (loading.waits_for_turn,),
    (loading.unload_hangs, loading.draining),
    (storage.fetching, storage.fetch_failed, storage.being_published, files.incomplete),
    (files.platform_unknown, files.extra_missing, files.trust_missing, files.artefact_refused, files.load_failed),
    (wanted.unloaded,),
    (wanted.passed_over,),
    (files.no_directory, files.not_on_disk),
    (loading.seen_soon,),
    (
        *(storage.from_cache, storage.refuses, storage.odd_key, storage.unreachable),
        *(files.disk_hangs, files.base_path_replaced, files.no_versions, files.base_path_problem),
    ),
    (wanted.unloaded_by_call, wanted.not_configured),
    (wanted.config_refused,),
    (wanted.left_to_calls, wanted.not_looked_at),
    (wanted.server_stops,),
)
"""Every cause, from the nearest to the root; the chain has them in this order. Of each line the first that applies is
said. After ``waits_for_models`` come the causes of those models."""


def chain(case: Case) -> list[Link]:
    """The chain of at most ``MAX_CHAIN`` links, from the nearest to the root."""
    links: list[Link] = []
    for line in CAUSES:
        if (link := next(filter(None, (row(case) for row in line)), None)) is not None:
            links.append(link)
            if link.cause == "WAITS_FOR_MODELS":
                links += _of_models(case)
    return links[:MAX_CHAIN]


def _of_models(case: Case) -> Iterator[Link]:
    """The causes of the models that it waits for and that do not answer."""
    for name in loading.models_waited_for(case):
        other = case.model.others.get(name)
        if other is not None and case.depth < MAX_CHAIN and verdict_of_model(other) is not Verdict.SERVING:
            yield from chain(Case.of_model(other, case.paths, case.depth + 1))
