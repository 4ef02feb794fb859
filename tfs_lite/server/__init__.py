"""The assembly, and the doors to it.

    options                     every setting of a server, frozen
    core, topology, machine     the chain that serves, and what the machine has for it; no event loop
    plan, reload, waiting       a new config: checked whole, applied to what changed, and how long its caller waits
    view, loads, changes        what is known about every version, put together from those who know a part
    first_config, followers     where configs come from: flags, a file, a model repository
    predictor, inference        the one path of a request, for every protocol; classify and regress on top of it
    grpc_*, *_service           tables of methods, and the transport they are put on
    door, tls, unix_socket      who is let in, and how
    http_*, rest_*, cors        the HTTP routes: bodies, answers, TensorFlow Serving's REST API
    request_log*                sampled requests to files
    health, *_metrics           what probes and dashboards see
    doors, running, server      all of it in one object, with its own event loop

asyncio lives here and in no room below.
"""
