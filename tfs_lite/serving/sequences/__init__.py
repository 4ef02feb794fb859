"""Which version the requests of a live sequence go to, across swaps: ``tables``, ``routes`` with lock and clock,
``metrics``."""
