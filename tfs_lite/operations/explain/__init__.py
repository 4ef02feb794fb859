"""The explanation why a model or a version is in its state, and what to do about it.

feature      what a server has of it
snapshot     gathers what is known, under short locks
verdicts     decides which verdict a version or a model has; pure
causes       decides why: from a snapshot to a chain of causes and an explanation; pure
words        the sentences and remedies of each cause
explanation  the values that come out, and their JSON
"""
