"""Counts what is asked of storages, what is fetched from them, and what the cache of files holds: the ``feature``."""
