"""Schedulers: which requests of a model run next, and which of them together.

``batching``, ``sequence``, ``ensemble``, ``generation`` and ``decoupled`` (several answers to a request) are servables
of one kind each; ``items`` (steps for single items) and ``cached`` (with ``response_cache``) stand in front of another
servable. ``calls`` has what all of them do with a call.
"""
