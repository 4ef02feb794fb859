"""Dynamic batching: which requests of a model run together, and when.

How a request becomes part of a batch, in reading order: ``settings`` (what configs ask for), ``rules`` and ``sharing``
(which calls of a signature may share a run); ``batcher`` takes a call in, ``splitting`` splits one that is too large,
``queue`` holds the jobs that wait, one ``signature_queue`` for each signature. **``forming`` decides that a batch is
due**; ``batch_delay``, with ``cpu_saturation``, says whether to wait for more although a worker is free. Then a worker
(``worker_threads``) takes the batch, ``execution`` runs it, ``assembly`` stacks the inputs and splits the outputs, and
``ordering`` keeps answers in order where that is asked for. ``retries`` says which calls run once more when a worker's
process was lost.
"""
