"""The views that commands show. ``status`` and ``reload``: ``models`` and their versions, the numbers of their
``batches``, and their ``replicas``. ``explain``: ``failures``, the requests that have failed, and ``what_if``, what a
config or a version would change; ``check --against`` shows that too."""
