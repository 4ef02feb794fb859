"""Which versions are loaded and served, and which is loaded or unloaded next.

    aspired list -> AspiredVersionsManager --policy: one action a tick--> BasicManager -> Loader
                                                                              |
    request ------------------------- ServableHandle <------------------- ServingMap

Decisions are pure functions over snapshots (``policies``, ``admission``, ``retrier``, ``labels``, the transition table
of ``harness``). Effects run on executors, and no thread waits for them: a retry comes back through the clock, a load
that lacks memory when some is freed, an unload when the last handle is released. Synchronous and thread-safe; no
asyncio, no torch.
"""
