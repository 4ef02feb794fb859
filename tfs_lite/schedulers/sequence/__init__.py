"""Sequences: models that keep state between the requests of a sequence, and the slots that the sequences have.

In reading order: ``settings``; ``request`` (what waits, and whether it is let in), ``slots`` with ``backlog`` and
``deadlines`` (which sequence has which slot, pure bookkeeping), ``sequence_manager`` (the same with lock, clock and
answers); ``controls``, ``states`` and ``rows`` (what the model gets); ``direct`` and ``oldest`` (who runs when), with
``worker_generation`` (has the model lost its sequences?); ``servable`` puts it together.
"""
