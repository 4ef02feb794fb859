"""Who is loaded, who is served, who goes next.

    aspired list -> AspiredVersionsManager --policy: one action a tick--> BasicManager -> Loader
                                                                              |
    request ------------------------- ServableHandle <------------------- ServingMap

Decisions are pure functions over snapshots (``policies``, ``admission``, ``retrier``, ``labels``, the transition table
of ``harness``). Effects run on executors and are never waited for by a thread: a retry comes back through the clock, a
load that lacks memory comes back when some is freed, an unload comes back when the last handle is released.
Synchronous and thread-safe; no asyncio, no torch.
"""
