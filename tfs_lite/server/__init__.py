"""The assembly, and the doors to it.

    options                     every setting of a server, frozen
    core, topology, machine     the chain that serves, and what the machine has for it; no event loop
    plan, reload, waiting       a new config: checked whole, applied to what changed, and how long its caller waits
    view, loads, changes        what is known about every version, put together from those who know a part
    first_config, followers     where configs come from: flags, a file, a model repository
    model_opening, _running     where the instances of a model live, and how they are batched
    predictor, inference        the one path of a request, for every protocol; classify and regress on top of it
    predict_reader              Predict requests, parsed once and recognised by their bytes from then on
    outbox                      answers back on the event loop, once per batch
    *_service, v2_grpc_*        tables of gRPC methods
    native_*, grpc_*            what such a table is put on: our own transport, or gRPC's library
    door, tls, unix_socket      who is let in, and how
    http_*, rest_*, cors        the HTTP routes: bodies, answers, TensorFlow Serving's REST API
    request_log*                sampled requests to files
    health, *_metrics, series   what probes and dashboards see
    doors, running, server      all of it in one object, with its own event loop

asyncio lives here, in the transport and in the schedulers, and in no room between.
"""
