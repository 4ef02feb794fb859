"""Loading a version's directory as a model in memory; each platform is one file.

    platforms           the platforms of this installation, and the adapters that make loaders of versions
    opening             the contract: what a platform promises, what it opens, whether that has changed; no torch
    loaded_model        the base class of opened models: what is done around the call of an artefact
    detect, trust       which platform a directory is for; whether its code may run
    loader              the loader of every platform: inspect, open, warm up, unload
    instances           which instances a config asks for, on which devices
    pytorch/, aoti/, python/, onnx/, language/, encoders/   the platforms
    exported/           exported programs, built without torch's own loader
    inspect/            what may be inside an archive, found out before torch opens it
    remote              the same load in a process of its own
    device, memory, measured, cuda/   devices, what versions take, GPUs
    collection          what Python's garbage collector need not look at
    spare               memory of dropped weights, kept a moment for the next ones
    gpu_placement       which GPU a version goes to
    results, failures   what a model returned; what went wrong in it
    signatures, labels, reshape   what a config adds to a model: more signatures, class labels, other dimensions
    warmup              the requests of a version's config and warm-up file, run before clients can send any
    model_warmup        Triton's ``model_warmup``: runs of every instance
    replay/             recorded requests: run as the server would, and held against their recorded answers
    saving/             ``tfs_lite.save``

Only this package imports torch for models. No file is trusted before it was inspected: archives are read without torch
(``inspect``), code needs the operator's trust, and a load that fails leaves no memory behind.
"""
