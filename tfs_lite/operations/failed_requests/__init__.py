"""The last requests that have failed: the ``feature``, the ``ring`` that has them, and the ``watch``, which warns of
models that fail nearly all of theirs."""
