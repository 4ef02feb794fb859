"""Exported programs whose answers must be the same whoever loads them.

``zoo`` is the table of programs (each a ``zoo_program``): real architectures (``networks``), what operators take and
give (``operators``), and state, branches and regions (``effects``). ``comparison`` loads a file with torch's own loader
and with ours, and compares every bit. ``random_programs`` draws programs from a seed. ``saved`` keeps a whole zoo in
one small file. ``served`` compares what is served, the checks of requests included, with what torch runs and refuses:
``sized_programs`` with conditions on their sizes, and ``torch_collections``.
"""
