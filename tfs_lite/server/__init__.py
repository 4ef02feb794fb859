"""The assembly, and the doors to it.

    options                      every setting of a server, frozen
    plan, topology, core         which models are to be served; the chain that serves them; changing it while running
    view, waiting, reload        what is known about every version; how long a reload waits for an answer
    predictor                    the one path of a request, for every protocol
    grpc_*, *_service, http_*    transports and the tables of routes put on them
    health, metrics              what probes and dashboards see
    server                       all of it in one object, with its own event loop

asyncio lives here and in no room below.
"""
