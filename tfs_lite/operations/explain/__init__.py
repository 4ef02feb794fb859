"""The explanation why a model or a version is in its state, and what to do about it.

feature      what a server has of it
snapshot     gathers what is known, under short locks
verdicts     decides which verdict a version or a model has; pure
causes       why: one function a cause, in files by subject; pure
chain        the list of the causes, in order, and the chain of those that apply; pure
answers      from a snapshot to an explanation, or a line of a list; pure
explanation  the values that come out, and their JSON

A new cause is a function in ``causes``, an entry in the list of ``chain``, and a row in ``docs/explain.md``.
"""
