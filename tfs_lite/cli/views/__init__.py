"""The views that ``status`` and ``reload`` show: ``models`` and their versions, the numbers of their ``batches``, and
their ``replicas``; and those that ``explain`` shows: ``failures``, the requests that have failed."""
