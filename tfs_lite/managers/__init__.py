"""The managers: they load, serve and unload versions, and decide which one is next.

    aspired list -> AspiredVersionsManager --policy: one action a tick--> BasicManager -> Loader
                                                                              |
    request ------------------------- ServableHandle <------------------- ServingMap

    aspired_versions_manager    takes aspired lists; its tick asks the policy for one action
    policies                    pure: which version of a model is loaded or unloaded next
    basic_manager               the versions that it was told to manage; load and unload on demand
    load_flow, retrier          a load from requested to AVAILABLE, or to its last failed attempt
    unload_flow                 a version is withdrawn, its handles are waited for, it is unloaded
    replace_flow                a ready version is loaded anew and takes its own place
    admission, reservations, resource_tracker   whether a load has room, and what it holds
    harness                     the state of one version, and the table of its transitions
    registry                    the managed versions, their lock, and the order in which events are published
    serving_map                 the versions that requests can get, and their handles
    labels                      names such as ``stable`` for versions
    survey                      what each version waits for, for those who explain
    state_monitor               the last state of every version, for queries

Decisions are pure functions over snapshots (``policies``, ``admission``, ``retrier``, ``labels``, the transition table
of ``harness``). Effects run on executors, and no thread waits for them: a retry comes back through the clock, a load
that lacks memory when some is freed, an unload when the last handle is released. Synchronous and thread-safe; no
asyncio, no torch.
"""
