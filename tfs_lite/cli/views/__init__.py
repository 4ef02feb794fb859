"""What ``status`` and ``reload`` show: ``models`` and their versions, the numbers of their ``batches``, and their
``replicas``; and what ``explain`` shows: ``failures``, the requests that have failed."""
