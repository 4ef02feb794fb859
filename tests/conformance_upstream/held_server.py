"""``tfs-lite`` whose schedulers run nothing until so many requests wait as Triton's own variables for tests say.

    TRITONSERVER_DELAY_SCHEDULER=N [TRITONSERVER_BACKLOG_DELAY_SCHEDULER=M] python held_server.py serve ...

Triton's scheduler reads these variables; its tests count batches, and so need all requests to wait before the first one
leaves. With them, a batcher of a model begins when N requests wait, a sequence model when N wait in slots and M in
the backlog, once. The product has no such variable, so its decisions are put off here, from outside.
"""

from __future__ import annotations

import os
import sys

from tfs_lite.cli.main import main
from tfs_lite.schedulers.batching.forming import NOTHING, BatchDecision
from tfs_lite.schedulers.batching.signature_queue import SignatureQueue
from tfs_lite.schedulers.sequence.request import SequenceItem, SequenceSlot
from tfs_lite.schedulers.sequence.sequence_manager import SequenceEntry, SequenceManager
from tfs_lite.schedulers.sequence.slots import SequenceTable


def hold_batches(count: int) -> None:
    begun = set[int]()
    decide = SignatureQueue.decide

    def held(queue: SignatureQueue, now: float) -> BatchDecision:
        if queue.settings.max_batch_size > 0 and id(queue) not in begun:
            if queue.count < count:
                return NOTHING
            begun.add(id(queue))
        return decide(queue, now)

    SignatureQueue.decide = held  # type: ignore[method-assign]


def hold_sequences(count: int, backlog: int) -> None:
    begun = set[int]()
    own_heads, own_admit = SequenceTable.heads, SequenceManager.admit

    def heads(sequences: SequenceTable[SequenceEntry], instance: int) -> tuple[SequenceItem[SequenceEntry] | None, ...]:
        found = own_heads(sequences, instance)
        if id(sequences) not in begun:
            behind = sequences._backlog.requests
            if sequences.pending - behind < count or behind < backlog:
                return tuple([None for _ in found])
            begun.add(id(sequences))
        return found

    def admit(manager: SequenceManager, entry: SequenceEntry, rows: int) -> None:
        held = id(manager.sequences) not in begun
        own_admit(manager, entry, rows)
        if held:
            manager._wake([SequenceSlot(0, instance) for instance in range(manager._instances)])

    SequenceTable.heads = heads  # type: ignore[method-assign,assignment]
    SequenceManager.admit = admit  # type: ignore[method-assign]


if __name__ == "__main__":
    requests = int(os.environ["TRITONSERVER_DELAY_SCHEDULER"])
    hold_batches(requests)
    hold_sequences(requests, int(os.environ.get("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "0")))
    sys.exit(main())
