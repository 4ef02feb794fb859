"""Schedulers: which requests of a model run next, and which of them together.

``batching``, ``sequence``, ``ensemble`` and ``generation`` are servables of one kind each; ``items`` (steps for single
items), ``decoupled`` (several answers to a request) and ``cached`` (with ``response_cache``) stand in front of them or
beside them.
"""
