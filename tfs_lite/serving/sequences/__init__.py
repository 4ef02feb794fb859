"""The routes of live sequences to their versions, across swaps: the ``feature``, ``tables``, ``routes`` with lock and
clock, ``metrics``."""
