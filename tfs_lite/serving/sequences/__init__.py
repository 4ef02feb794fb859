"""Which version the requests of a live sequence go to, across swaps: the ``feature``, ``tables``, ``routes`` with lock
and clock, ``metrics``."""
