"""Values and contracts that every room shares.

    servable, state, status      which version; its state and its replicas; codes and the one error type
    source, loader, handle       the contracts of the lifecycle
    model, generation, signature   the contracts of the data plane: models, servables, calls, texts, what a model takes
    trial                        a version on trial, and what the end of a request says about it
    resources                    quantities of memory, and their arithmetic
    manifest, publish            a version on disk: which files count, their state; putting one there in one step
    request_context             who asks, under which id, as a part of which trace
    event_bus, clock, executor, threads, callbacks    what is passed in: events, time, threads
    yielding                     how work in the background lets other threads run
    history                      what happened, who wanted it: events, and a bounded number of them
    trial                        a version on trial, as the way of a request sees it

Only the standard library is imported here: no torch, no grpc, no asyncio. This package says what a
servable, a loader, a source and a handle promise; the packages above implement it.
"""
