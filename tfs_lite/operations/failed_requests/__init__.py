"""The last requests that have failed: the ``feature``, and the ``ring`` that has them."""
