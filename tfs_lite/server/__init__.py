"""The assembly, and the doors to it.

    options                     every setting of a server, frozen
    core, topology, machine     the chain that serves, and what the machine has for it; no event loop
    plan, reload, waiting       a new config: checked whole, applied to what changed, and how long its caller waits
    view, loads, changes        what is known about every version, put together from those who know a part
    first_config, followers     where configs come from: flags, a file, a model repository
    predictor                   the one path of a request, for every protocol
    grpc_*, *_service           tables of methods, and the transport they are put on
    http_*, rest_path           the HTTP routes
    health, *_metrics           what probes and dashboards see
    doors, running, server      all of it in one object, with its own event loop

asyncio lives here and in no room below.
"""
